"""Folding a log: a hold that sends nothing, for readers of a log that need only the outcomes of notifications.

In the log of a broker, receipts decide the outcomes. In logs without receipts (imported or generated) every delivery
counts as received at once, unless a policy withholds it. A delivery at QoS 0 that no device confirms (rule 16) has no
receipt in any log: the hold counts it as delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from whimbrel.hold.commands import HandOver, Published, Settle
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rules.assumed import SessionOutcomes
from whimbrel.hold.sessions import Hold
from whimbrel.hold.shared_subscriptions import Matches
from whimbrel.model.facts import Fact, Outcome

__all__ = ["Folding", "Grouped", "Judge", "Settled", "one_by_one"]

Settled: TypeAlias = list[Settle]
"""Final outcomes of notifications for devices, in order."""
Grouped: TypeAlias = Sequence[Settle | SessionOutcomes]
"""The same, but the outcomes for all devices of a session may be together in one item."""
Judge: TypeAlias = Callable[[HandOver], Outcome]
"""Function that returns the outcome of a delivery: delivered, or withheld by a policy."""


def one_by_one(outcomes: Grouped) -> Settled:
    """Return *outcomes* with one ``Settle`` for each device, in place of one item for the devices of a session."""
    found: Settled = []
    for each in outcomes:
        found += each.settles() if isinstance(each, SessionOutcomes) else (each,)
    return found


def _deliver(_: HandOver) -> Outcome:
    return Outcome.DELIVERED


class Folding:
    """A hold for reading a log.

    With *assume_receipts*, each delivery is confirmed at once, with the outcome that ``judge`` returns for it.
    """

    def __init__(
        self,
        node: str,
        *,
        retention: Retention = DEFAULT_RETENTION,
        assume_receipts: bool = True,
        hold: Hold[Any] | None = None,
        judge: Judge = _deliver,
    ) -> None:
        self.hold: Hold[Any] = Hold(node, retention=retention) if hold is None else hold
        self._assume_receipts, self._judge = assume_receipts, judge

    def apply(self, fact: Fact, matches: Matches = ()) -> Settled:
        """Apply the next fact; return the final outcomes of notifications that follow."""
        return self.answered(self.hold.apply(fact, matches))

    def published(self, kept: Published, matches: Matches, *, is_decided: bool = True) -> Grouped:
        """Apply a publication; *matches* are sorted (``sorted_matches``). Return the final outcomes that follow.

        If receipts are assumed, ``judge`` is called for each delivery. Without *is_decided*, no policy may withhold the
        publication, and most deliveries count as received without such a call.
        """
        if self._assume_receipts and not is_decided:
            return self._settle(self.hold.published_and_received(kept, matches))
        return self._settle(self.hold.published(kept, matches))

    def confirmed(
        self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, via: str | None = None
    ) -> Settled:
        """Apply a receipt; return the final outcomes of notifications that follow."""
        return self.answered(self.hold.confirmed(at, session, device, seq, outcome, via=via))

    def tick(self, now: int) -> Settled:
        """Advance the time to *now*; return the outcomes of notifications that are no longer held."""
        return self.answered(self.hold.tick(now))

    def answered(self, commands: Iterable[Any]) -> Settled:
        """Return the final outcomes among *commands*.

        If receipts are assumed, confirm each delivery among *commands*, and return also the outcomes that follow.
        """
        return self._settle(commands)

    def _settle(self, commands: Iterable[Any]) -> list[Any]:
        if not self._assume_receipts:  # the log has the receipts
            return [command for command in commands if type(command) is Settle]
        settled = []
        left = list(commands)
        for command in left:  # the list grows: the outcomes of a confirmation are appended
            kind = type(command)
            if kind is Settle or kind is SessionOutcomes:
                settled.append(command)
            elif kind is HandOver and not command.is_own_receipt:
                outcome = self._judge(command)
                via = "held" if command.is_held else "live"
                for session, _ in command.sessions:
                    # A withheld copy of a share is delivered to the next session that serves the share (rule 21).
                    left += self.hold.confirmed(self.hold.now, session, command.device, command.seq, outcome, via=via)
        return settled
