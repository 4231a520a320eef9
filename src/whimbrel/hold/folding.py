"""Folding a log: the hold without a wire, for readers that only ask for the outcomes.

A log of a broker has receipts, and they decide. Where there are none (imported or generated logs), what is handed over
counts as received at once. What MQTT sends with quality 0 has no receipt in any log: the hold settles it by itself.
"""

from __future__ import annotations

from whimbrel.hold.commands import Command, Forget, HandOver, Settle
from whimbrel.hold.counting import Matches
from whimbrel.hold.quality import CONFIRMED
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import Fact, Outcome

__all__ = ["Folding", "Settled"]

Settled = tuple[list[Settle], list[int]]
"""Outcomes, and the notifications that were forgotten."""


class Folding:
    """A hold whose commands are answered on the spot."""

    def __init__(
        self,
        node: str,
        *,
        retention: Retention = DEFAULT_RETENTION,
        assume_receipts: bool = True,
        hold: Hold | None = None,
    ) -> None:
        self.hold = Hold(node, retention=retention) if hold is None else hold
        self._assume_receipts = assume_receipts

    def apply(self, fact: Fact, matches: Matches = ()) -> Settled:
        """Take the next fact in."""
        return self._answered(self.hold.apply(fact, matches))

    def published(
        self,
        seq: int,
        at: int,
        expires_at: int | None,
        matches: Matches,
        *,
        qos: int = CONFIRMED,
        publisher: str | None = None,
    ) -> Settled:
        """Take a publication in."""
        return self._answered(self.hold.published(seq, at, expires_at, matches, qos=qos, publisher=publisher))

    def confirmed(
        self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, via: str | None = None
    ) -> Settled:
        """Take a receipt in."""
        return self._answered(self.hold.confirmed(at, session, device, seq, outcome, via=via))

    def tick(self, now: int) -> Settled:
        """Let time pass."""
        return self._answered(self.hold.tick(now))

    def _answered(self, commands: list[Command]) -> Settled:
        settled: list[Settle] = []
        forgotten: list[int] = []
        for command in commands:
            if type(command) is HandOver:
                if self._assume_receipts and not command.is_own_receipt:
                    via = "held" if command.is_held else "live"
                    for session, _ in command.sessions:
                        # Receipts settle and forget, and hand nothing over: they need no answer.
                        for answer in self.hold.confirmed(
                            self.hold.now, session, command.device, command.seq, Outcome.DELIVERED, via=via
                        ):
                            _note(answer, settled, forgotten)
            else:
                _note(command, settled, forgotten)
        return settled, forgotten


def _note(command: Command, settled: list[Settle], forgotten: list[int]) -> None:
    if type(command) is Settle:
        settled.append(command)
    elif type(command) is Forget:
        forgotten.append(command.seq)
