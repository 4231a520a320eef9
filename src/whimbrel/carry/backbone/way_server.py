"""A way-server: a participant at a gate that publishes control data, tells the time and counts whom it meets (3.1).

Rule: a way-server asks each neighbour for its topics once in a while, and tells the time to each neighbour that asks.
Rule: it tells the time once its own clock was set by the administrative server, or if its settings say that the clock
is right.
Rule: control data comes from the administrative server, and the way-server signs and publishes it.
Rule: the number of users and of new users per second is bounded: invented addresses take places in a census, but only
bounded memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from whimbrel.carry.backbone.census import MAX_USER_PLACES, MAX_USER_TOPICS, MAX_USERS, Census, User, user_name
from whimbrel.carry.control.clock import ASK_AGAIN_US, CampusClock, answer_time
from whimbrel.carry.control.segments import ControlData, segments_of
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.hello import Hello, Sample, Subscriptions, TimeQuestion, TopicsQuestion
from whimbrel.carry.neighbours.rates import Allowance
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.outputs import Output, Tell
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.carry.signatures import SampleSigner
from whimbrel.carry.wire import Part
from whimbrel.model.clock import US_PER_S

__all__ = ["WINDOW_US", "WayServer"]

WINDOW_US = 3_600 * US_PER_S
"""Time for which a user counts after it was met."""
_ASK_AGAIN_US = 60 * US_PER_S
"""Time between two requests for a user's topics; a user that has not answered gets the next one sooner."""
_MAX_ASKED = 4_096
_NEW_USERS_PER_S = 20


class WayServer(Participant):
    """A participant with the key of the campus; *statements* prove that key to nodes that only know an older one."""

    def __init__(
        self,
        address: int,
        rules: Rules,
        *,
        topics: TopicNames,
        clock: CampusClock,
        nonce: Callable[[], bytes],
        signer: SampleSigner,
        secret: bytes,
        name: str,
        statements: Iterable[Sample] = (),
        keys: Iterable[bytes] = (),
        window_us: int = WINDOW_US,
    ) -> None:
        super().__init__(address, rules, topics=topics, clock=clock, nonce=nonce, keys=[signer.public, *keys])
        self.name, self._signer, self._secret, self._window_us = name, signer, secret, window_us
        self._asked: OrderedDict[int, int] = OrderedDict()
        self._users: OrderedDict[int, tuple[int, int, frozenset[int]]] = OrderedDict()
        """By address: when the user was met last, its places and its topics."""
        self._new_users = Allowance(_NEW_USERS_PER_S, 10 * _NEW_USERS_PER_S)
        for each in statements:
            self.control.receive(each, now=0)

    def handle(self, sender: int, part: Part, *, own: int, host: str = OWN_HOST) -> list[Output]:
        """Handle a frame as a participant does; also tell the time, and record the subscriptions of neighbours."""
        match part:
            case TimeQuestion() if self.neighbourhood.is_in_reach(sender) and self.clock.is_synchronised:
                if not self.neighbourhood.may_be_answered(sender, host=host, own=own):
                    return []
                return [Tell(sender, answer_time(self._signer, sender, part, now=self.clock.now(own)))]
            case Subscriptions():
                self._meet(sender, part, own)
                return []
            case TopicsQuestion():
                return []  # from another way-server, which is not a user
            case Hello():
                return [*super().handle(sender, part, own=own, host=host), *self._ask_topics(sender, own)]
        return super().handle(sender, part, own=own, host=host)

    def _ask_topics(self, sender: int, own: int) -> list[Output]:
        asked_at, wait_us = self._asked.get(sender), _ASK_AGAIN_US if sender in self._users else ASK_AGAIN_US
        if not self.neighbourhood.is_in_reach(sender) or not self.clock.is_synchronised:
            return []  # the neighbour tells its topics only to a way-server that has told it the time
        if asked_at is not None and own - asked_at < wait_us:
            return []
        if not self.neighbourhood.may_be_asked(sender, own=own):
            return []
        self._asked[sender] = own
        self._asked.move_to_end(sender)
        if len(self._asked) > _MAX_ASKED:
            self._asked.popitem(last=False)
        return [Tell(sender, TopicsQuestion())]

    def _meet(self, sender: int, said: Subscriptions, own: int) -> None:
        if sender not in self._asked:
            self.counts["not asked for"] += 1
            return
        if sender not in self._users and not self._new_users.take(now=own):
            self.counts["users held back"] += 1
            return
        before = frozenset[int]() if said.is_first or sender not in self._users else self._users[sender][2]
        topics = frozenset(sorted(before | frozenset(said.topics))[:MAX_USER_TOPICS])
        self._users[sender] = self.clock.now(own), min(said.places, MAX_USER_PLACES), topics
        self._users.move_to_end(sender)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)

    def census(self, *, own: int) -> Census:
        """Return the census of the users that were met within the window."""
        now = self.clock.now(own)
        for address, (seen_at, _, _) in list(self._users.items()):
            if now - seen_at >= self._window_us:
                del self._users[address]
        users = {
            user_name(address, self._secret): User(
                seen_at=max(seen_at, 0), places=places, topics=tuple(sorted(map(self.topics.name_of, topics)))
            )
            for address, (seen_at, places, topics) in self._users.items()
        }
        return Census(way_server=self.name, at=max(now, 0), users=users)

    def renew_control(self, *, own: int) -> list[Output]:
        """Sign the control data in force with the campus's present key, if the key that signed it has retired."""
        data = self.control.in_force
        if data is None or self.control.is_valid(now=self.clock.now(own)):
            return []
        return self.publish_control(data, own=own)

    def publish_control(self, data: ControlData, *, own: int) -> list[Output]:
        """Sign *data* and publish it, unless it is older than what is in force."""
        in_force = None
        for each in segments_of(data, self._signer):
            in_force = self.control.receive(each, now=self.clock.now(own)) or in_force
        return [] if in_force is None else self.follow(in_force, self.address)
