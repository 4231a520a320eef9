"""The work budget: how much work subscribing may ask for, counted before it is done.

Work is counted in units, each about as dear as one plain topic filter: a topic filter costs one and its length, a
content filter its leaves, its patterns and its length, for every topic filter that it is beside.
Rule: nothing here asks a clock; the same packets at the same times are refused on every machine.
Rule: memory is bounded: a session whose allowance is whole again is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from whimbrel.hold.commands import Identity
from whimbrel.language.ast import Equals, Pattern, Predicate, children
from whimbrel.language.filters import parse
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["FilterBytes", "PacketBudget", "WorkBudget", "filter_cost", "topic_cost"]

_BYTES_A_UNIT = 64
_PATTERN = 16
_SECOND_US = 1_000_000
_REMEMBERED = 10_000


def topic_cost(topic_filter: str) -> int:
    """Return what a topic filter costs."""
    return 1 + len(topic_filter) // _BYTES_A_UNIT


def filter_cost(text: str | None) -> int:
    """Return what a content filter costs beside one topic filter; it has been parsed before."""
    return 0 if text is None else len(text) // _BYTES_A_UNIT + _tree_cost(parse(text))


def _tree_cost(tree: Predicate) -> int:
    cost, pending = 0, [tree]
    while pending:
        node = pending.pop()
        below = [each for each in children(node) if isinstance(each, Predicate)]
        if isinstance(node, Pattern):
            cost += _PATTERN * len(node.patterns)
        elif isinstance(node, Equals):
            cost += len(node.options)
        elif not below:
            cost += 1
        pending += below
    return cost


class PacketBudget:
    """What one packet may still ask for."""

    def __init__(self, budget: WorkBudget, session: str) -> None:
        self._budget, self._session = budget, session
        self._left = budget.most_a_packet

    def spend(self, cost: int, now: int) -> None:
        """Take *cost* off, or raise ``ProtocolError`` if there is not as much left."""
        if cost > self._left:
            raise _refusal(f"one packet may ask for {self._budget.most_a_packet} units of work", "limits.packet_work")
        self._budget.spend(self._session, cost, now)
        self._left -= cost


class WorkBudget:
    """What sessions may ask for; *most_a_packet* at once, and *per_second* in the long run (0: without limit)."""

    def __init__(self, most_a_packet: int, per_second: int) -> None:
        self.most_a_packet, self._per_second = most_a_packet, per_second
        self._most = max(most_a_packet, per_second) * _SECOND_US
        self._owed: dict[str, tuple[int, int]] = {}
        """What each session owes, in units a million times as small, and when that was."""

    def __len__(self) -> int:
        """Return how many sessions are remembered."""
        return len(self._owed)

    def packet(self, session: str) -> PacketBudget:
        """Return the budget of a packet that comes from *session*."""
        return PacketBudget(self, session)

    def spend(self, session: str, cost: int, now: int) -> None:
        """Take *cost* off what *session* may ask for in this second, or raise ``ProtocolError``."""
        if not self._per_second:
            return
        owed = self._owed_by(session, now) + cost * _SECOND_US
        if owed > self._most:
            what = f"a session may ask for {self._per_second} units of work a second"
            raise _refusal(what, "limits.session_work_per_second")
        self._owed.pop(session, None)
        if len(self._owed) >= _REMEMBERED:
            self._forget(now)
        self._owed[session] = (owed, now)

    def _owed_by(self, session: str, now: int) -> int:
        owed, since = self._owed.get(session, (0, now))
        return max(0, owed - max(0, now - since) * self._per_second)

    def _forget(self, now: int) -> None:
        """Make room for many: those who owe nothing go, and of the others the half that asked longest ago."""
        owing = [(session, found) for session, found in self._owed.items() if self._owed_by(session, now)]
        self._owed = dict(owing[-(_REMEMBERED // 2) :])


class FilterBytes:
    """The bytes of all filters of each session, which are counted when it first asks for one more.

    *subscribed* is what sessions subscribe to, or will once it is durable; *durable* returns what one does.
    """

    def __init__(
        self,
        subscribed: Mapping[str, Collection[Identity]],
        durable: Callable[[str], Iterable[Subscription]],
        *,
        most: int,
    ) -> None:
        self._subscribed, self._durable, self._most = subscribed, durable, most
        self._sizes: dict[str, dict[Identity, int]] = {}
        self._totals: dict[str, int] = {}

    def check(self, subscription: Subscription) -> None:
        """Raise ``ProtocolError`` if the session of *subscription* may not have one more filter of its length."""
        sizes, (identity, size) = self._counted(subscription.session), _sized(subscription)
        if self._totals[subscription.session] - sizes.get(identity, 0) + size > self._most:
            what = f"the filters of one session may have {self._most} bytes together"
            raise _refusal(what, "limits.filter_bytes_per_session")

    def put(self, subscription: Subscription) -> None:
        """Count a filter that was checked, and that its session has from now on."""
        sizes, (identity, size) = self._sizes[subscription.session], _sized(subscription)
        self._totals[subscription.session] += size - sizes.get(identity, 0)
        sizes[identity] = size

    def remove(self, session: str, identity: Identity) -> None:
        """Count a filter no more."""
        size = self._sizes.get(session, {}).pop(identity, 0)
        if size:
            self._totals[session] -= size

    def _counted(self, session: str) -> dict[Identity, int]:
        if session not in self._subscribed:  # whatever is known was of a session that has ended
            self._sizes.pop(session, None)
        if session not in self._sizes:
            if len(self._sizes) > len(self._subscribed) + _REMEMBERED:
                self._sizes = {each: sizes for each, sizes in self._sizes.items() if each in self._subscribed}
                self._totals = {each: self._totals[each] for each in self._sizes}
            sizes = self._sizes[session] = dict(map(_sized, self._durable(session)))
            self._totals[session] = sum(sizes.values())
        return self._sizes[session]


def _sized(subscription: Subscription) -> tuple[Identity, int]:
    """Return what a subscription is known by, and how many characters its filters have."""
    subject_filter, name = subscription.subject_filter, subscription.name
    return (subject_filter, name), len(subject_filter or "") + len(name) + len(subscription.filter_text or "")


def _refusal(what: str, setting: str) -> ProtocolError:
    return ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{what} ({setting}), and this is more")
