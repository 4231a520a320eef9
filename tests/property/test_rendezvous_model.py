"""The controller under anything that can happen, in any order: a model watches every command it gives.

The model is a radio and a crowd of devices: some are members of groups, some lie, some are silent, some leave in the
middle. After every step: no stale event, no double match, no leaked restricted publication, no lost or doubled
identifier, no loop of one pair, no missed match, never more than seven active. At the end the same inputs are given to
a second controller, and to one with two queues: the same commands come out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.rendezvous_rig import CONTROLLER, Member, address

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import (
    Command,
    Connected,
    Controller,
    Disconnected,
    Found,
    Input,
    Note,
    NoteKind,
    Parameters,
    Said,
)
from whimbrel.rendezvous.controller.commands import Connect, Disconnect, Park, Send, SetConnectable, Unpark
from whimbrel.rendezvous.controller.openings import Record, Stage, is_pair
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Kind, Publication, Subscription
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.rendezvous.wire import encode

FAMILY, WORK = GroupOwner(b"f" * 32), GroupOwner(b"w" * 32)
CROWD = [address(number) for number in range(16, 24)]
TRUE_GROUPS: dict[Address, tuple[GroupOwner, ...]] = {
    who: ((FAMILY,), (WORK,), (FAMILY, WORK), ())[number % 4] for number, who in enumerate(CROWD)
}
MEMBERS = {who: Member(who, *TRUE_GROUPS[who]) for who in CROWD}
# Few seats, a short time to live and few numbers, so that a few dozen steps reach every corner.
PARAMETERS = Parameters(max_active=5, max_parked=4, event_ttl_us=40_000_000, max_number=40, work=3, idle_us=50_000_000)

who_ = st.sampled_from(CROWD)
names = st.sampled_from(["bob", "bob", "BOB", "carol"])
keys_ = st.sampled_from([(), (FAMILY.public,), (WORK.public, FAMILY.public)])
classes = st.sampled_from([1, 1, 2])
publications = st.builds(
    Publication, address=who_, clock_offset=st.just(7), name=names, device_class=classes, keys=keys_
)
subscriptions = st.builds(
    Subscription,
    address=st.none() | st.none() | st.none() | who_,
    name=st.none() | st.none() | names,
    device_class=st.none() | classes,
    keys=keys_,
)
numbers = st.integers(1, 12)
seconds = st.sampled_from([0.1, 0.1, 1.0, 2.56, 5.2, 10.3, 33.28, 40.0, 121.0])


class ControllerModel(RuleBasedStateMachine):
    """A radio and a crowd around one controller."""

    parameters = PARAMETERS

    def __init__(self) -> None:
        super().__init__()
        self.core = Controller(self.parameters, address=CONTROLLER, nonce_key=b"k" * 32)
        self.now = 0
        self.calls: list[tuple[tuple[Input, ...], int, list[Command]]] = []
        self.active: dict[Address, None] = {}
        self.parked: set[Address] = set()
        self.calling: set[Address] = set()
        self.is_connectable = False
        self.inbox: list[tuple[Address, m.FromController]] = []
        self.contents: dict[EventId, tuple[Address, Publication | Subscription]] = {}
        """What every accepted identifier stands for, until it is given to another."""
        self.answered: set[EventId] = set()
        self.matched_at: dict[object, list[int]] = {}
        self.submitted: dict[Address, list[Publication | Subscription]] = {who: [] for who in CROWD}
        self.do()

    # -- the radio -------------------------------------------------------------------------------------------------

    def do(self, *happened: Input) -> None:
        """Give the controller what happened, and do what it commands until it has nothing more to do."""
        self.perform(happened)
        while self.core.is_busy:
            self.perform(())

    def perform(self, happened: tuple[Input, ...]) -> None:
        """Do one round."""
        commands = self.core.take(happened, now=self.now)
        self.calls.append((happened, self.now, commands))
        for command in commands:
            self.obey(command)
            assert len(self.active) <= self.parameters.max_active
            limit = self.parameters.max_parked if self.parameters.has_park else self.parameters.max_released
            assert len(self.parked) <= limit

    def obey(self, command: Command) -> None:
        """Do what a radio does, and be strict about what it cannot."""
        match command:
            case Send(who, message):
                assert who in self.active, f"{message} to a device that is not active"
                self.receive(who, message)
            case Park(who):
                del self.active[who]
                self.parked.add(who)
            case Unpark(who):
                assert who in self.parked or who in self.active
                self.parked.discard(who)
                self.active[who] = None
            case Disconnect(who):
                self.active.pop(who, None)
                self.parked.discard(who)
            case Connect(who):
                self.calling.add(who)
            case SetConnectable(is_on):
                self.is_connectable = is_on
            case Note():
                self.watch(command)
            case _:
                pass

    def receive(self, who: Address, message: m.FromController) -> None:
        """Keep what a device hears, and look whether it may hear it."""
        self.inbox.append((who, message))
        if isinstance(message, m.Accepted):
            self.accept(who, message)
        elif isinstance(message, m.Matched):
            (publication,) = [event for owner, event in self.published() if owner == message.address]
            self.check_may_know(who, publication)
        elif isinstance(message, m.Matches):
            published = dict(self.published())
            for listed in message.publications:
                self.check_may_know(who, published[listed.address])

    def published(self) -> list[tuple[Address, Publication]]:
        """Return the publications that the controller holds."""
        records = self.core._state.records.values()
        return [(each.owner, each.event) for each in records if isinstance(each.event, Publication)]

    def check_may_know(self, who: Address, publication: Publication) -> None:
        """Require a group that both truly belong to, where a publication is restricted."""
        assert publication.address != who
        groups = {owner.public for owner in TRUE_GROUPS[who]} & {o.public for o in TRUE_GROUPS[publication.address]}
        assert not publication.keys or groups & set(publication.keys), "a restricted publication leaked"

    def accept(self, who: Address, message: m.Accepted) -> None:
        """No identifier is given twice while the first event is alive or can be renewed."""
        self.answered.discard(message.id)
        record = self.core._state.records.get(message.id)
        if record is None:  # accepted, processed and erased in one round
            return
        assert record.owner == who
        known = self.contents.get(message.id)
        if known is not None and known != (who, record.event):
            assert message.id not in {each.id for each in self.records() if each is not record}
        self.contents[message.id] = who, record.event

    def watch(self, note: Note) -> None:
        """No event is answered twice, and no pair again while it is remembered."""
        assert note.id is not None  # only a use of another device's address has none
        if note.kind is NoteKind.RENEWED:
            self.answered.discard(note.id)
        if note.kind is NoteKind.MATCHED:
            assert note.other_id is not None
            found = {each.id: each for each in self.records()}
            publication, subscription = found[note.id], found[note.other_id]
            key = (publication.owner, subscription.owner, publication.event.contents, subscription.event.contents)
            self.matched_at.setdefault(key, []).append(self.now)
            for identifier in (note.id, note.other_id):
                assert identifier not in self.answered, "an event was matched twice"
                self.answered.add(identifier)
        if note.kind in {NoteKind.LISTED, NoteKind.EXPIRED}:
            assert note.id not in self.answered
        if note.kind in {NoteKind.NOTIFIED, NoteKind.FLUSHED}:
            self.answered -= {note.id, note.other_id}

    def records(self) -> list[Record]:
        """Return every event that the controller has."""
        return list(self.core._state.records.values())

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(who=who_, has_layer=st.sampled_from([True, True, True, False]))
    def connect(self, who: Address, *, has_layer: bool) -> None:
        """Connect a device, on its own page or on ours."""
        self.connect_now(who, has_layer=has_layer)

    def connect_now(self, who: Address, *, has_layer: bool) -> None:
        """Do what a page does."""
        is_called = who in self.calling
        is_slave = who in self.active or (who in self.parked and self.parameters.has_park)
        if is_slave or not (self.is_connectable or is_called):
            return
        if len(self.active) < self.parameters.max_active:
            self.calling.discard(who)
            self.parked.discard(who)
            self.active[who] = None
            self.do(Connected(address=who, is_caller=not is_called, has_layer=has_layer))

    @rule(who=who_)
    def leave(self, who: Address) -> None:
        """Lose a device."""
        self.calling.discard(who)
        self.active.pop(who, None)
        self.parked.discard(who)
        self.do(Disconnected(who))

    @rule(lost=st.lists(who_, max_size=6), data=st.data())
    def storm(self, lost: list[Address], data: st.DataObject) -> None:
        """Several leave at once while another speaks."""
        for who in lost:
            self.active.pop(who, None)
            self.parked.discard(who)
        words: list[Input] = []
        if self.active:
            speaker = data.draw(st.sampled_from(list(self.active)))
            words.append(Said(speaker, encode(m.Subscribe(data.draw(subscriptions)))))
        self.do(*words, *(Disconnected(who) for who in lost))

    def say(self, who: Address, message: m.Message) -> None:
        """Let a device speak, once it is connected; a parked one was polled and given a seat if there is one."""
        if who not in self.active and (who not in self.parked or not self.parameters.has_park):
            self.connect_now(who, has_layer=True)
        if self.parameters.has_park and who in self.parked and len(self.active) < self.parameters.max_active:
            self.parked.remove(who)
            self.active[who] = None
        if who in self.active:
            self.do(Said(who, encode(message)))

    @rule(publication=publications)
    def publish(self, publication: Publication) -> None:
        """Let a device publish."""
        self.say(publication.address, m.Publish(publication))

    @rule(who=who_, subscription=subscriptions)
    def subscribe(self, who: Address, subscription: Subscription) -> None:
        """Let a device subscribe."""
        self.say(who, m.Subscribe(subscription))

    @rule(publication=publications, who=who_)
    def meet(self, publication: Publication, who: Address) -> None:
        """Let a device publish and another seek it."""
        self.say(publication.address, m.Publish(publication))
        self.say(who, m.Subscribe(Subscription(name=publication.name, keys=publication.keys)))

    @rule(wishes=st.lists(publications | st.tuples(who_, subscriptions), min_size=4, max_size=12))
    def speak_at_once(self, wishes: list[Publication | tuple[Address, Subscription]]) -> None:
        """Let many devices speak in one moment, more than one round processes: the queues fill."""
        words: list[Input] = []
        for wish in wishes:
            who = wish.address if isinstance(wish, Publication) else wish[0]
            if who not in self.active and who not in self.parked:
                self.connect_now(who, has_layer=True)
            if who in self.active:
                message = m.Publish(wish) if isinstance(wish, Publication) else m.Subscribe(wish[1])
                words.append(Said(who, encode(message)))
        self.do(*words)

    @rule(publication=publications)
    def lie_about_its_address(self, publication: Publication) -> None:
        """Let a device publish another."""
        other = CROWD[(CROWD.index(publication.address) + 1) % len(CROWD)]
        self.say(publication.address, m.Publish(replace(publication, address=other)))

    @rule(who=who_, number=numbers, made=st.sampled_from([m.Renew, m.Renew, m.Unpublish, m.Unsubscribe, m.Noted]))
    def speak_of(self, who: Address, number: int, made: type[m.Renew | m.Unpublish | m.Unsubscribe | m.Noted]) -> None:
        """Let a device speak of an event, its own or not."""
        kind = "P" if made is m.Unpublish else "S" if made is m.Unsubscribe else "PS"[number % 2]
        self.say(who, made(EventId(f"{kind}{number}")))

    @precondition(lambda self: self.contents)
    @rule(data=st.data(), made=st.sampled_from([m.Renew, m.Renew, m.Unpublish, m.Unsubscribe]))
    def speak_of_its_own(self, data: st.DataObject, made: type[m.Renew]) -> None:
        """Let a device renew or remove an event that it once had."""
        identifier = data.draw(st.sampled_from(sorted(self.contents)))
        self.say(self.contents[identifier][0], made(identifier))

    @rule(who=who_, name=names)
    def find(self, who: Address, name: str) -> None:
        """Let the controller's inquiry hear a device."""
        if who not in self.active and who not in self.parked:
            self.do(Found(address=who, clock_offset=7, name=name, device_class=1))

    @rule(duration=seconds)
    def wait(self, duration: float) -> None:
        """Time passes, timer by timer."""
        end = self.now + round(duration * 1_000_000)
        while (due := self.core.next_due) is not None and due <= end:
            self.now = max(self.now, due)
            self.do()
        self.now = end
        self.do()

    @precondition(lambda self: self.inbox)
    @rule(is_honest=st.sampled_from([True, True, True, False]), count=st.integers(1, 8))
    def answer(self, *, is_honest: bool, count: int) -> None:
        """Devices answer what they heard, or do not, or lie; messages may be lost."""
        for _ in range(min(count, len(self.inbox))):
            who, message = self.inbox.pop(0)
            if isinstance(message, m.Matched | m.WakeUp) and is_honest:
                self.say(who, m.Noted(message.id))
            elif isinstance(message, m.Ask):
                proof = MEMBERS[who if is_honest else CROWD[0]].answer(message)
                assert proof is not None
                self.say(who, proof)

    @rule(who=who_, data=st.binary(max_size=30))
    def babble(self, who: Address, data: bytes) -> None:
        """Let a device say anything."""
        if who in self.active:
            self.do(Said(who, data))

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def no_event_is_stale(self) -> None:
        """Every event belongs to a device that is here, or is being paged, or is being answered."""
        for record in self.records():
            is_here = record.owner in self.active or record.owner in self.parked
            assert is_here or record.is_indirect or record.stage is Stage.ANSWERING
            assert record.stage is not Stage.GONE
            if record.stage is Stage.OPEN and record.id not in self.core._state.connecting:
                assert is_here
                assert self.now < self.core._state.expiring[record.id]

    @invariant()
    def limits_hold(self) -> None:
        """One publication, seven different subscriptions, bounded tables."""
        for who in CROWD:
            mine = [each for each in self.records() if each.owner == who]
            assert sum(each.kind is Kind.PUBLICATION for each in mine) <= 1
            wanted = [each.event.contents for each in mine if each.kind is Kind.SUBSCRIPTION]
            assert len(set(wanted)) == len(wanted) <= 7
        sizes = self.core.sizes()
        assert sizes["devices"] == len(self.active) + len(self.parked) <= self.parameters.max_members
        assert sizes["active"] == len(self.active)

    @invariant()
    def no_pair_goes_round(self) -> None:
        """Match a pair again only when it has been forgotten."""
        for times in self.matched_at.values():
            assert all(later - earlier >= self.parameters.pair_ttl_us for earlier, later in pairwise(times))

    @invariant()
    def no_match_is_missed(self) -> None:
        """Two open events that could meet and never did would be a broken promise; proofs may have failed."""
        opened = [each for each in self.records() if each.stage is Stage.OPEN]
        for publication in (each for each in opened if each.kind is Kind.PUBLICATION and not each.event.is_restricted):
            for subscription in (each for each in opened if each.kind is Kind.SUBSCRIPTION):
                key = (
                    publication.owner,
                    subscription.owner,
                    publication.event.contents,
                    subscription.event.contents,
                )
                assert not is_pair(publication, subscription) or key in self.matched_at

    @invariant()
    def the_index_is_the_open_events(self) -> None:
        """Found by the index is what a look at every event would find."""
        for trigger in self.records():
            brute = [
                each
                for each in self.records()
                if each.stage is Stage.OPEN and each.kind is not trigger.kind and is_pair(each, trigger)
            ]
            assert self.core._state.candidates(trigger) == sorted(brute, key=lambda each: each.seq)

    def teardown(self) -> None:
        """Replay the same inputs, with one queue and with two: the same commands."""
        for parameters in (self.parameters, replace(self.parameters, has_two_queues=True)):
            again = Controller(parameters, address=CONTROLLER, nonce_key=b"k" * 32)
            for happened, now, commands in self.calls:
                assert again.take(happened, now=now) == commands


ControllerModel.TestCase.settings = settings(settings.default, stateful_step_count=40)
TestController = ControllerModel.TestCase


def test_groups_of_the_crowd_are_what_the_model_says() -> None:
    """The model's truth must be the tokens' truth."""
    for who, owners in TRUE_GROUPS.items():
        assert set(MEMBERS[who].tokens) == {GroupKey(owner.public) for owner in owners}
