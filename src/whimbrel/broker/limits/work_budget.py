"""Work budgets: bounds on the CPU work of SUBSCRIBE packets, counted before the work is done, and of policies.

The work of subscribing is counted in units; one unit is about the work of a plain topic filter. A topic filter costs
one unit, and more if it is long. A content filter costs units for its comparisons, its patterns and its length, once
for every topic filter that it is combined with.
Rule: a device is never refused because of the steps of a policy: if it has used more than its share, it waits.
Rule: the time is an argument, so that the same packets at the same times are refused on every machine.
Rule: memory is bounded: a session that has its full allowance again is forgotten.
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
"""Number of policy steps that a decision may take without being counted: other work for a message takes longer."""


def topic_cost(topic_filter: str) -> int:
    """Return the cost of a topic filter in units: 1, and 1 more for every 64 characters."""
    return 1 + len(topic_filter) // _BYTES_A_UNIT


def filter_cost(content: Filter | None) -> int:
    """Return the cost in units of a content filter combined with one topic filter; 0 if there is none."""
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
    """Units of work that one packet may still use."""

    def __init__(self, budget: WorkBudget, session: str) -> None:
        self._budget, self._session = budget, session
        self._left = budget.most_a_packet

    def spend(self, cost: int, now: int) -> None:
        """Subtract *cost* units from the budgets of packet and session; raise ``ProtocolError`` if one is exceeded."""
        if cost > self._left:
            raise _refusal(f"one packet may ask for {self._budget.most_a_packet} units of work", "limits.packet_work")
        self._budget.spend(self._session, cost, now)
        self._left -= cost


class WorkBudget:
    """Work budget of each session: at most *most_a_packet* units for a packet, *per_second* in the long run.

    0 for *per_second* means no limit per second.
    """

    def __init__(self, most_a_packet: int, per_second: int) -> None:
        self.most_a_packet, self._per_second = most_a_packet, per_second
        self._most = max(most_a_packet, per_second) * US_PER_S
        self._owed: dict[str, tuple[int, int]] = {}
        """Debt of each session in millionths of a unit, and the time (microseconds) for which it was computed."""

    def __len__(self) -> int:
        """Return the number of sessions that have not yet regained their full allowance of work."""
        return len(self._owed)

    def packet(self, session: str) -> PacketBudget:
        """Return a budget for one packet of *session*."""
        return PacketBudget(self, session)

    def spend(self, session: str, cost: int, now: int) -> None:
        """Subtract *cost* units from the budget per second of *session*; raise ``ProtocolError`` if it is exceeded."""
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
        """Forget the sessions without debt and, if too many are left, those whose last request is the oldest."""
        owing = [(session, found) for session, found in self._owed.items() if self._owed_by(session, now)]
        self._owed = dict(owing[-(_REMEMBERED // 2) :])


class SessionSum:
    """Limit on a sum over all subscriptions of a session, such as the length of their filters.

    The sum of a session is computed when the session first adds a subscription. *subscribed* has the subscriptions per
    session, also those that are not durable yet; *durable* returns the durable ones of a session. *measure* returns the
    size of a subscription. *most* is the limit of the sum; *what* and *setting* name it in the error.
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
        """Return by how much *subscription* increases its session's sum; raise ``ProtocolError`` above the limit."""
        sizes, size = self._load_sizes(subscription.session), self._measure(subscription)
        growth = size - sizes.get(_identity(subscription), 0)
        if growth > 0 and self._totals[subscription.session] + growth > self._most:
            raise _refusal(f"{self._what} of one session may have {self._most} together", self._setting)
        return growth

    def put(self, subscription: Subscription) -> None:
        """Add a subscription that was checked before to its session's sum."""
        sizes, identity = self._sizes[subscription.session], _identity(subscription)
        size = self._measure(subscription)
        self._totals[subscription.session] += size - sizes.get(identity, 0)
        sizes[identity] = size

    def remove(self, session: str, identity: Identity) -> None:
        """Subtract a subscription from its session's sum."""
        size = self._sizes.get(session, {}).pop(identity, 0)
        if size:
            self._totals[session] -= size

    def _load_sizes(self, session: str) -> dict[Identity, int]:
        if session not in self._subscribed:  # a stored sum belonged to an earlier session of this name
            self._sizes.pop(session, None)
        if session not in self._sizes:
            if len(self._sizes) > len(self._subscribed) + _REMEMBERED:
                self._sizes = {each: sizes for each, sizes in self._sizes.items() if each in self._subscribed}
                self._totals = {each: self._totals[each] for each in self._sizes}
            sizes = self._sizes[session] = {_identity(each): self._measure(each) for each in self._durable(session)}
            self._totals[session] = sum(sizes.values())
        return self._sizes[session]


def filter_bytes(subscription: Subscription) -> int:
    """Return the number of characters of a subscription's topic filter, name and content filter together."""
    return len(subscription.subject_filter or "") + len(subscription.name) + len(subscription.filter_text or "")


def _identity(subscription: Subscription) -> Identity:
    return subscription.subject_filter, subscription.name


def refuse_all(most: int) -> ProtocolError:
    """Return the error for a subscription that would exceed the limit on the patterns of all sessions together."""
    return _refusal(
        f"the patterns of all sessions may have {most} instructions together", "limits.pattern_instructions"
    )


def _refusal(what: str, setting: str) -> ProtocolError:
    return ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{what} ({setting}), and this is more")


class StepBudget:
    """Budget of policy steps: *steps_per_second* for all devices, in equal shares for the active ones; 0: no limit."""

    def __init__(self, steps_per_second: int) -> None:
        self._total = steps_per_second
        self._left: dict[str, tuple[float, int]] = {}
        """Per device: steps left of its share after its last decision (negative: it has to wait), and that time."""
        self._second = 0
        self._active: set[str] = set()
        """Devices that used steps in the current second."""
        self._before: set[str] = set()
        """Devices that used steps in the second before."""

    def spend(self, device: str, steps: int, now: int) -> int | None:
        """Count the *steps* of a policy's decision; return the time until which *device* must wait, or None."""
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
        """Forget the share of a device, because the device is gone."""
        self._left.pop(device, None)

    def _go_to(self, second: int) -> None:
        if second == self._second:
            return
        self._before = self._active if second == self._second + 1 else set()
        self._second, self._active = second, set()
        if len(self._left) > len(self._before):  # forget devices that were idle for a second and need not wait
            each_us = self._total / max(len(self._before), 1) / US_PER_S
            begin = second * US_PER_S
            self._left = {
                device: (left, at)
                for device, (left, at) in self._left.items()
                if device in self._before or left + (begin - at) * each_us < 0
            }
