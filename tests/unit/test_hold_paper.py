"""What the paper promises its users (Elvin proxy, sections 4 and 5), one test a promise.

A ``Story`` is a hold with a clock and words for what happens; times are minutes. It answers what the last thing that
happened made the hold do.
"""

from __future__ import annotations

from typing import TypeVar

from kept import KeptNotes

from whimbrel.broker.access.passwords import Cost, Passwords
from whimbrel.hold.access import Right
from whimbrel.hold.commands import Command, HandOver, Identity, NotifyChange, NotifySubscriptions, Settle
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    Receipt,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.keys import KeyHashes, Scheme
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.subscription import InterestChange, Subscription

MINUTE = 60_000_000
TAKE, KEEP = Mode.TAKE, Mode.KEEP

_Kind = TypeVar("_Kind", bound=Command)


class Story:
    """A hold that is told what happens."""

    def __init__(self) -> None:
        self.hold: Hold[Notification] = Hold[Notification]("proxy")
        self.kept = KeptNotes()
        self.hold.follow(self.kept)
        self.seq = -1
        self.minute = 0
        self.last: list[Command] = []

    @property
    def now(self) -> int:
        """The time of what happens next."""
        return self.minute * MINUTE

    def tell(self, fact: Fact, matches: tuple[tuple[str, tuple[Identity, ...]], ...] = ()) -> None:
        """Let something happen."""
        self.kept.clear()
        self.last = self.hold.apply(fact, matches)

    def sweep(self) -> None:
        """Let time pass and nothing else."""
        self.kept.clear()
        self.last = self.hold.tick(self.now)

    def number(self) -> int:
        """Take the next number of the log."""
        self.seq += 1
        return self.seq

    def subscribe(
        self,
        session: str,
        name: str,
        *,
        ttl_minutes: int | None = None,
        max_held: int | None = None,
        keys: KeyHashes | None = None,
        by: str | None = None,
        change: InterestChange = InterestChange.ADDED,
    ) -> Subscription:
        """Add a subscription, or change it; return it."""
        subscription = Subscription(
            session=session,
            name=name,
            ttl_us=None if ttl_minutes is None else ttl_minutes * MINUTE,
            max_held=max_held,
            keys=KeyHashes() if keys is None else keys,
        )
        self.tell(
            InterestChanged(
                node="proxy",
                seq=self.number(),
                changed_at=self.now,
                change=change,
                subscription=subscription,
                device=by,
            )
        )
        return subscription

    def publish(self, *matches: tuple[str, str], lives_minutes: int | None = None) -> int:
        """Publish what matches each (session, name) of *matches*; return its number."""
        seq = self.number()
        sessions = dict.fromkeys(session for session, _ in matches)
        grouped = tuple((session, tuple((None, name) for s, name in matches if s == session)) for session in sessions)
        expires_at = None if lives_minutes is None else self.now + lives_minutes * MINUTE
        self.tell(Notification(node="proxy", seq=seq, published_at=self.now, expires_at=expires_at), grouped)
        return seq

    def join(self, device: str, session: str, mode: Mode) -> None:
        """Let a device come."""
        self._presence(device, PresenceChange.JOINED, session, mode)

    def leave(self, device: str, session: str) -> None:
        """Let a device leave for good."""
        self._presence(device, PresenceChange.LEFT, session)

    def disconnect(self, device: str) -> None:
        """Let a device go away, in all its sessions."""
        self._presence(device, PresenceChange.DISCONNECTED)

    def _presence(
        self, device: str, change: PresenceChange, session: str | None = None, mode: Mode | None = None
    ) -> None:
        self.tell(
            PresenceChanged(
                node="proxy",
                seq=self.number(),
                changed_at=self.now,
                device=device,
                change=change,
                session=session,
                receipt=mode,
            )
        )

    def confirm(self, device: str, session: str, seq: int, outcome: Outcome = Outcome.DELIVERED) -> None:
        """Let a device say that it has it."""
        self.tell(
            Receipt(
                node="proxy",
                seq=self.number(),
                handed_at=self.now,
                session=session,
                device=device,
                notification=NotificationId("proxy", seq),
                outcome=outcome,
            )
        )

    def delete(self, session: str) -> None:
        """Delete a session."""
        self.tell(
            SessionChanged(
                node="proxy",
                seq=self.number(),
                changed_at=self.now,
                session=session,
                change=SessionChange.DELETED,
            )
        )

    def did(self, kind: type[_Kind]) -> list[_Kind]:
        """Return what the hold did last, of one kind."""
        return [command for command in self.last if type(command) is kind]

    @property
    def handed(self) -> list[tuple[str, int]]:
        """Who was given what."""
        return [(command.device, command.seq) for command in self.did(HandOver) if command.is_copy]

    @property
    def settled(self) -> list[tuple[str | None, int, Outcome]]:
        """What became of what for whom."""
        return [(command.device, command.seq, command.outcome) for command in self.did(Settle)]


# 4.1 and 4.4: persistence, and receipt that leaves a copy


def test_what_arrives_while_a_device_is_away_is_kept_for_it() -> None:
    """Clients that disconnect from Elvin itself miss what arrives until they subscribe again."""
    story = Story()
    story.subscribe("mail", "all")
    story.join("pda", "mail", TAKE)
    story.disconnect("pda")
    first, second = story.publish(("mail", "all")), story.publish(("mail", "all"))
    assert story.handed == []
    story.join("pda", "mail", TAKE)
    assert story.handed == [("pda", first), ("pda", second)]


def test_the_pda_reads_on_the_road_and_the_laptop_archives_later() -> None:
    """The PDA keeps, so a copy stays; the laptop takes, and then it is gone."""
    story = Story()
    story.subscribe("mail", "all")
    story.join("pda", "mail", KEEP)
    seq = story.publish(("mail", "all"))
    assert story.handed == [("pda", seq)]
    story.confirm("pda", "mail", seq)
    assert story.settled == [("pda", seq, Outcome.DELIVERED)]
    assert story.kept.was_forgotten == []
    story.minute = 60
    story.join("laptop", "mail", TAKE)
    assert story.handed == [("laptop", seq)]
    story.confirm("laptop", "mail", seq)
    assert story.settled == [("laptop", seq, Outcome.DELIVERED)]
    assert story.kept.was_forgotten == [seq]


def test_a_device_that_keeps_is_not_given_the_same_again_when_it_rejoins() -> None:
    """Notifications are never delivered more than once to the same client."""
    story = Story()
    story.subscribe("mail", "all")
    story.join("pda", "mail", KEEP)
    seq = story.publish(("mail", "all"))
    story.confirm("pda", "mail", seq)
    story.leave("pda", "mail")
    story.join("pda", "mail", KEEP)
    assert story.handed == []


def test_what_one_device_takes_is_taken_from_the_absent() -> None:
    """As with mail that a POP client removes from the server."""
    story = Story()
    story.subscribe("mail", "all")
    for device in ("desktop", "laptop"):
        story.join(device, "mail", TAKE)
    story.disconnect("desktop")
    seq = story.publish(("mail", "all"))
    story.confirm("laptop", "mail", seq)
    assert story.settled == [("laptop", seq, Outcome.DELIVERED), ("desktop", seq, Outcome.TAKEN_ELSEWHERE)]
    story.join("desktop", "mail", TAKE)
    assert story.handed == []


def test_a_copy_that_was_never_confirmed_comes_again_and_says_so() -> None:
    """The connection broke before the receipt: the device may have it or not, so the copy carries DUP."""
    story = Story()
    story.subscribe("mail", "all")
    story.join("pda", "mail", TAKE)
    seq = story.publish(("mail", "all"))
    assert [(command.is_held, command.is_again) for command in story.did(HandOver)] == [(False, False)]
    story.disconnect("pda")
    story.join("pda", "mail", TAKE)
    assert [(command.is_held, command.is_again) for command in story.did(HandOver)] == [(True, True)]
    story.confirm("pda", "mail", seq)
    story.confirm("pda", "mail", seq)
    assert story.settled == []  # the second receipt finds nothing in flight


# 4.5: session modification


def test_a_present_device_hears_of_a_subscription_that_another_makes() -> None:
    """The one that made it knows already; one that is away hears when it joins."""
    story = Story()
    for device in ("laptop", "pda", "phone"):
        story.join(device, "work", KEEP)
    story.disconnect("phone")
    made = story.subscribe("work", "builds", by="laptop")
    assert story.did(NotifyChange) == [NotifyChange("pda", "work", InterestChange.ADDED, made)]


def test_a_device_that_joins_gets_the_list_with_the_fingerprints_of_the_keys() -> None:
    """So that device and proxy agree, and it can change keys it knows (5.2.3); the private key is in neither."""
    story = Story()
    keys = KeyHashes.of_private(Scheme.PRODUCER, b"the ward's private key")
    alarms = story.subscribe("work", "alarms", keys=keys)
    builds = story.subscribe("work", "builds")
    story.join("phone", "work", KEEP)
    (told,) = story.did(NotifySubscriptions)
    assert (told.device, told.session) == ("phone", "work")
    assert set(told.subscriptions) == {alarms, builds}
    assert {found.keys.texts() for found in told.subscriptions if found.name == "alarms"} == {keys.texts()}


def test_what_is_held_stays_held_when_its_subscription_is_modified() -> None:
    """With the time to live that it had; what is published afterwards has the new one."""
    story = Story()
    story.subscribe("work", "builds", ttl_minutes=10)
    old = story.publish(("work", "builds"))
    story.subscribe("work", "builds", ttl_minutes=1, change=InterestChange.MODIFIED)
    new = story.publish(("work", "builds"))
    story.minute = 5
    story.sweep()
    assert story.settled == [(None, new, Outcome.EXPIRED)]
    story.join("pda", "work", KEEP)
    assert story.handed == [("pda", old)]


def test_nothing_is_held_for_a_subscription_that_is_removed() -> None:
    """But what another subscription of the session wants too stays, for that one."""
    story = Story()
    story.subscribe("work", "builds")
    story.subscribe("work", "all")
    only, both = story.publish(("work", "builds")), story.publish(("work", "builds"), ("work", "all"))
    story.subscribe("work", "builds", change=InterestChange.REMOVED)
    assert story.settled == [(None, only, Outcome.DROPPED)]
    story.join("pda", "work", KEEP)
    assert [(c.seq, c.sessions) for c in story.did(HandOver)] == [(both, (("work", ((None, "all"),)),))]


# 4.6: multiple concurrent sessions


def test_a_device_in_two_sessions_gets_one_copy_for_the_subscriptions_of_both() -> None:
    """And confirms it in each."""
    story = Story()
    for session in ("home", "work"):
        story.subscribe(session, "news")
        story.join("pda", session, TAKE)
    seq = story.publish(("home", "news"), ("work", "news"))
    (copy,) = story.did(HandOver)
    assert dict(copy.sessions) == {"home": ((None, "news"),), "work": ((None, "news"),)}
    story.confirm("pda", "home", seq)
    assert story.kept.was_forgotten == []
    story.confirm("pda", "work", seq)
    assert story.kept.was_forgotten == [seq]


def test_what_a_device_received_in_one_session_is_not_sent_again_for_another() -> None:
    """It joins the second session later, where the notification is held as well."""
    story = Story()
    for session in ("home", "work"):
        story.subscribe(session, "news")
    story.join("pda", "home", TAKE)
    seq = story.publish(("home", "news"), ("work", "news"))
    story.confirm("pda", "home", seq)
    story.join("pda", "work", TAKE)
    assert story.handed == []
    assert story.settled == [("pda", seq, Outcome.DELIVERED)]


def test_a_copy_on_its_way_counts_for_a_session_that_is_joined_meanwhile() -> None:
    """The shell is told to send nothing, and to confirm it there too."""
    story = Story()
    for session in ("home", "work"):
        story.subscribe(session, "news")
    story.join("pda", "home", TAKE)
    seq = story.publish(("home", "news"), ("work", "news"))
    story.join("pda", "work", TAKE)
    assert [(c.seq, c.is_copy) for c in story.did(HandOver)] == [(seq, False)]
    story.confirm("pda", "work", seq)
    assert story.settled == [("pda", seq, Outcome.DELIVERED)]


# 4.7 and 5.1.3: how long, and how many


def test_a_chat_is_kept_for_five_minutes() -> None:
    """The last few minutes' worth, even if the device was away for hours: alive means before, not at, the fifth."""
    story = Story()
    story.subscribe("chat", "room", ttl_minutes=5)
    story.join("pda", "chat", TAKE)
    story.disconnect("pda")
    messages = []
    for minute in range(10):
        story.minute = minute
        messages.append(story.publish(("chat", "room")))
    story.join("pda", "chat", TAKE)
    assert [seq for _, seq in story.handed] == messages[5:]


def test_a_chat_is_kept_for_twenty_messages() -> None:
    """The oldest makes room, and its outcome says why."""
    story = Story()
    story.subscribe("chat", "room", max_held=20)
    story.join("pda", "chat", TAKE)
    story.disconnect("pda")
    messages = []
    for _ in range(25):
        messages.append(story.publish(("chat", "room")))
        if len(messages) > 20:
            assert story.settled == [("pda", messages[-21], Outcome.DISPLACED)]
    story.join("pda", "chat", TAKE)
    assert [seq for _, seq in story.handed] == messages[5:]


def test_time_to_live_and_maximum_hold_together() -> None:
    """Store notifications for up to five minutes, and no more than two of them."""
    story = Story()
    story.subscribe("chat", "room", ttl_minutes=5, max_held=2)
    story.join("pda", "chat", TAKE)
    story.disconnect("pda")
    first, second = story.publish(("chat", "room")), story.publish(("chat", "room"))
    story.minute = 3
    third = story.publish(("chat", "room"))
    assert story.settled == [("pda", first, Outcome.DISPLACED)]
    story.minute = 5
    fourth = story.publish(("chat", "room"))  # the second has lapsed: there is room again
    assert story.settled == [("pda", second, Outcome.EXPIRED)]
    story.join("pda", "chat", TAKE)
    assert story.handed == [("pda", third), ("pda", fourth)]


def test_what_expired_while_a_device_was_away_is_never_delivered() -> None:
    """Nobody swept: the join itself looks. The outcome bears the instant at which it lapsed."""
    story = Story()
    story.subscribe("stocks", "acme")
    story.join("pda", "stocks", TAKE)
    story.disconnect("pda")
    seq = story.publish(("stocks", "acme"), lives_minutes=2)
    story.minute = 90
    story.join("pda", "stocks", TAKE)
    assert story.handed == []
    (settled,) = story.did(Settle)
    assert (settled.device, settled.seq, settled.outcome) == ("pda", seq, Outcome.EXPIRED)
    assert (settled.decided_at, settled.lapses_at) == (2 * MINUTE, 2 * MINUTE)


def test_the_sweep_frees_the_disk_without_a_device_coming_by() -> None:
    """Expired notifications for clients that connect infrequently would fill it."""
    story = Story()
    story.subscribe("stocks", "acme", ttl_minutes=5)
    seq = story.publish(("stocks", "acme"))
    story.minute = 5
    story.sweep()
    assert story.settled == [(None, seq, Outcome.EXPIRED)]
    assert story.kept.was_forgotten == [seq]


def test_live_only_is_for_those_who_are_there() -> None:
    """A maximum of none: the present get their copy, the absent get an outcome."""
    story = Story()
    story.subscribe("radio", "now", max_held=0)
    for device in ("pda", "laptop"):
        story.join(device, "radio", TAKE)
    story.disconnect("laptop")
    seq = story.publish(("radio", "now"))
    assert story.handed == [("pda", seq)]
    assert story.settled == [("laptop", seq, Outcome.DROPPED)]
    story.confirm("pda", "radio", seq)
    assert story.settled == [("pda", seq, Outcome.DELIVERED)]
    story.join("laptop", "radio", TAKE)
    assert story.handed == []


def test_one_copy_is_stored_for_all_subscriptions_and_sessions() -> None:
    """Regardless of how many match, and until the last of them has had it."""
    story = Story()
    sessions = ("home", "work", "club")
    for session in sessions:
        story.subscribe(session, "news")
        story.subscribe(session, "all")
    seq = story.publish(*((session, name) for session in sessions for name in ("news", "all")))
    assert story.kept.was_stored == [seq]
    forgotten = []
    for session in sessions:
        device = f"{session} pc"
        story.join(device, session, TAKE)
        assert story.kept.was_stored == []
        story.confirm(device, session, seq)
        forgotten.append(story.kept.was_forgotten)
    assert forgotten == [[], [], [seq]]


def test_each_copy_names_only_the_subscriptions_of_its_receiver() -> None:
    """The packets that are delivered include only the subscriptions of that client (5.1.2)."""
    story = Story()
    for session in ("home", "work"):
        story.subscribe(session, "news")
        story.join(f"{session} pc", session, TAKE)
    story.publish(("home", "news"), ("work", "news"))
    copies = {command.device: command.sessions for command in story.did(HandOver)}
    assert copies == {
        "home pc": (("home", ((None, "news"),)),),
        "work pc": (("work", ((None, "news"),)),),
    }


# 5.2: security


def test_a_stranger_with_the_user_password_cannot_delete_the_session() -> None:
    """They may join and listen; the owner deletes, and everybody learns what became of what was kept for them."""
    access = Passwords.create(salt=bytes(16), user="read", admin="change", owner="own", cost=Cost(n=2, r=1))
    allowed = {word: {right for right in Right if access.allows(right, password=word)} for word in ("read", "own")}
    assert allowed == {"read": {Right.JOIN}, "own": set(Right)}
    assert not any(access.allows(Right.DELETE, password=word) for word in ("read", "change", "guess"))
    story = Story()
    story.subscribe("ward", "alarms")
    story.join("pda", "ward", KEEP)
    story.disconnect("pda")
    seq = story.publish(("ward", "alarms"))
    story.delete("ward")
    assert story.settled == [("pda", seq, Outcome.DROPPED)]
    assert story.kept.was_forgotten == [seq]
