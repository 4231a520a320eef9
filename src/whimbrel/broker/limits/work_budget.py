"""The work budget: how much work subscribing may ask for, counted before it is done; and how much policies may take.

Work is counted in units, each about as dear as one plain topic filter: a topic filter costs one and its length, a
content filter its leaves, its patterns and its length, for every topic filter that it is beside.
Rule: nobody is refused for the steps of a policy: a device that took more than its share waits until that is made up.
Rule: nothing here asks a clock; the same packets at the same times are refused on every machine.
Rule: memory is bounded: a session whose allowance is whole again is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from whimbrel.hold.commands import Identity
from whimbrel.language.ast import Equals, Pattern, Predicate, children
from whimbrel.language.filters import Filter
from whimbrel.model.clock import US_PER_S
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = [
    "FREE_STEPS",
    "PacketBudget",
    "SessionSum",
    "StepBudget",
    "WorkBudget",
    "filter_bytes",
    "filter_cost",
    "refuse_all",
    "topic_cost",
]

_BYTES_A_UNIT = 64
_PATTERN = 16
_REMEMBERED = 10_000
FREE_STEPS = 200
"""A decision of so many steps is as cheap as what is done for it beside, and counts nothing."""


def topic_cost(topic_filter: str) -> int:
    """Return what a topic filter costs."""
    return 1 + len(topic_filter) // _BYTES_A_UNIT


def filter_cost(content: Filter | None) -> int:
    """Return what a content filter costs beside one topic filter."""
    return 0 if content is None else len(content.text) // _BYTES_A_UNIT + _tree_cost(content.tree)


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
        self._most = max(most_a_packet, per_second) * US_PER_S
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
        owed = self._owed_by(session, now) + cost * US_PER_S
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


class SessionSum:
    """A sum over all subscriptions of each session, which is made when the session first asks for one more.

    *subscribed* is what sessions subscribe to, or will once it is durable; *durable* returns what one does. *measure*
    says how much each subscription adds; *what* and *setting* name the sum where more than *most* is refused.
    """

    def __init__(
        self,
        subscribed: Mapping[str, Collection[Identity]],
        durable: Callable[[str], Iterable[Subscription]],
        measure: Callable[[Subscription], int],
        *,
        most: int,
        what: str,
        setting: str,
    ) -> None:
        self._subscribed, self._durable, self._measure, self._most = subscribed, durable, measure, most
        self._what, self._setting = what, setting
        self._sizes: dict[str, dict[Identity, int]] = {}
        self._totals: dict[str, int] = {}

    def check(self, subscription: Subscription) -> int:
        """Raise ``ProtocolError`` if its session may not have *subscription*; return by how much the sum grows."""
        sizes, size = self._counted(subscription.session), self._measure(subscription)
        growth = size - sizes.get(_identity(subscription), 0)
        if growth > 0 and self._totals[subscription.session] + growth > self._most:
            raise _refusal(f"{self._what} of one session may have {self._most} together", self._setting)
        return growth

    def put(self, subscription: Subscription) -> None:
        """Count a subscription that was checked, and that its session has from now on."""
        sizes, identity = self._sizes[subscription.session], _identity(subscription)
        size = self._measure(subscription)
        self._totals[subscription.session] += size - sizes.get(identity, 0)
        sizes[identity] = size

    def remove(self, session: str, identity: Identity) -> None:
        """Count a subscription no more."""
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
            sizes = self._sizes[session] = {_identity(each): self._measure(each) for each in self._durable(session)}
            self._totals[session] = sum(sizes.values())
        return self._sizes[session]


def filter_bytes(subscription: Subscription) -> int:
    """Return how many characters the filters of a subscription have."""
    return len(subscription.subject_filter or "") + len(subscription.name) + len(subscription.filter_text or "")


def _identity(subscription: Subscription) -> Identity:
    return subscription.subject_filter, subscription.name


def refuse_all(most: int) -> ProtocolError:
    """Return why a subscription is refused that all sessions together have too many patterns for."""
    return _refusal(
        f"the patterns of all sessions may have {most} instructions together", "limits.pattern_instructions"
    )


def _refusal(what: str, setting: str) -> ProtocolError:
    return ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{what} ({setting}), and this is more")


class StepBudget:
    """The steps of policies: all devices together have so many a second, each an equal share; 0 is no bound."""

    def __init__(self, steps_per_second: int) -> None:
        self._total = steps_per_second
        self._left: dict[str, tuple[float, int]] = {}
        """By device, what was left of its share when it last decided, and when that was."""
        self._second = 0
        self._active: set[str] = set()
        """The devices that took steps in this second,"""
        self._before: set[str] = set()
        """and in the one before."""

    def spend(self, device: str, steps: int, now: int) -> int | None:
        """Count a decision; return until when the device waits, in microseconds, or None if it does not."""
        if steps <= FREE_STEPS or not self._total:
            return None
        self._go_to(now // US_PER_S)
        self._active.add(device)
        share = self._total / len(self._active | self._before)
        left, at = self._left.get(device, (share, now))
        left = min(share, left + (now - at) * share / US_PER_S) - steps
        self._left[device] = left, now
        return None if left >= 0 else now + int(-left * US_PER_S / share)

    def forget(self, device: str) -> None:
        """Forget a device that is gone."""
        self._left.pop(device, None)

    def _go_to(self, second: int) -> None:
        if second == self._second:
            return
        self._before = self._active if second == self._second + 1 else set()
        self._second, self._active = second, set()
        if len(self._left) > len(self._before):  # who took none for a second, and waits for nothing, is forgotten
            each_us = self._total / max(len(self._before), 1) / US_PER_S
            begin = second * US_PER_S
            self._left = {
                device: (left, at)
                for device, (left, at) in self._left.items()
                if device in self._before or left + (begin - at) * each_us < 0
            }
