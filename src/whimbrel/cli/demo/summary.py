"""The demo's last page: the outcome of every notification, per device, and whether the account has gaps.

Rule: the pipeline's tables are the account. Counts by the devices themselves stand beside it in columns of their own,
and differ only where the guarantees allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from whimbrel.cli.demo.following import Ledger
from whimbrel.pipeline.accounts import Account, DeviceAccount, Entries, Gaps, account, memberships
from whimbrel.sim.witnesses import Heard, Received, Sent, Spoken, compare_heard, compare_sent, read_logged

__all__ = ["Summary", "draw", "summed_up"]

_OUTCOMES = ("delivered", "held", "expired", "displaced", "taken_elsewhere", "dropped", "withheld")
_BY_POLICY = "withheld"
"""Outcome that is shown only if it occurs: the ward has no policies."""
_SAID = {"seen": "notifications", "unseen": "unseen", "unconfirmed": "unconfirmed"}
"""Counts by the devices: title of the column, and field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Result of the demo: the pipeline's account of all outcomes, compared with the devices' own counts."""

    account: Account
    spoken: Spoken
    received: tuple[Received, ...]
    gap_count: int
    """Number of differences between the devices' counts and the pipeline's; ``account`` has its own gaps."""
    gaps: tuple[str, ...]

    @property
    def closes(self) -> bool:
        """Whether the tables agree with each other and with the devices' counts, and no part of the demo failed."""
        return self.account.closes and self.gap_count == 0

    def as_json(self) -> dict[str, object]:
        """Return the summary as values that JSON can hold."""
        return {
            "closes": self.closes,
            "published": asdict(self.spoken),
            "account": self.account.as_json(),
            "devices": [asdict(each) for each in self.received],
            "gap_count": self.gap_count,
            "gaps": list(self.gaps),
        }


def summed_up(ledger: Ledger, *, sent: dict[bytes, Sent], heard: dict[str, Heard], failures: Sequence[str]) -> Summary:
    """Compare the pipeline's account with the devices' own counts; *failures* of the demo itself count as gaps."""
    members = memberships(ledger.presence, ledger.sessions)
    found = read_logged(ledger.publications)
    gaps = Gaps()
    for failure in failures:
        gaps.add(failure)
    spoken = compare_sent(sent, found, gaps)
    entries = Entries(ledger.deliveries, ledger.held, members, Gaps())  # the account counts these gaps itself
    received = compare_heard(
        heard, found, deliveries=ledger.deliveries, entries=entries, presence=ledger.presence, gaps=gaps
    )
    return Summary(
        account=account(ledger.matches, ledger.deliveries, ledger.held, members=members),
        spoken=spoken,
        received=received,
        gap_count=gaps.count,
        gaps=tuple(gaps.sentences),
    )


def draw(summary: Summary) -> RenderableType:
    """Return the summary as a page for the terminal."""
    said = summary.spoken
    parts: list[RenderableType] = [
        Text(
            f"published: {said.acknowledged:,} acknowledged at QoS 1, {said.once:,} at QoS 0; in the log: "
            f"{said.in_log:,}"
        ),
        Text(
            f"by sensors that vanished: {said.in_doubt:,} at QoS 1 without an answer ({said.arrived:,} in the log), "
            f"{said.lost:,} lost at QoS 0"
        ),
        Text(f"wanted: {summary.account.notifications:,} notifications, {summary.account.wanted:,} times by a session"),
        _table(summary),
        Text(
            "unseen: delivered at QoS 0, which counts when it is written to the connection, and the device went\n"
            "unconfirmed: seen at QoS 1, and the acknowledgement went down with the connection",
            style="dim",
        ),
    ]
    gaps = (*summary.account.gaps, *summary.gaps)
    count = summary.account.gap_count + summary.gap_count
    if summary.closes:
        parts.append(
            Text(f"Nothing lost: all {_deliveries(summary):,} deliveries are accounted for", style="bold green")
        )
    else:
        parts.append(Text(f"{count:,} deliveries are not accounted for:", style="bold red"))
        parts += [Text(f"  {gap}") for gap in gaps]
        if count > len(gaps):
            parts.append(Text(f"  and {count - len(gaps):,} more"))
    return Group(*parts)


def _deliveries(summary: Summary) -> int:
    """Return the number of deliveries to account for."""
    return sum(getattr(each, name) for each in summary.account.devices for name in _OUTCOMES)


def _table(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    totals = {name: sum(getattr(each, name) for each in summary.account.devices) for name in _OUTCOMES}
    outcomes = [name for name in _OUTCOMES if name != _BY_POLICY or totals[name]]
    table.add_column("device", no_wrap=True)
    for name in (*outcomes, *_SAID):
        table.add_column(name.replace("_", " "), justify="right")
    received = {each.device: each for each in summary.received}
    for each in summary.account.devices:
        table.add_row(each.device or "no device", *_cells(each, outcomes, received.get(each.device or "")))
    numbers = [totals[name] for name in outcomes]
    numbers += [sum(getattr(each, name) for each in summary.received) for name in _SAID.values()]
    table.add_row("all", *(f"{number:,}" for number in numbers), style="bold")
    return table


def _cells(each: DeviceAccount, outcomes: Sequence[str], received: Received | None) -> list[str]:
    numbers: list[int | None] = [getattr(each, name) for name in outcomes]
    numbers += [None if received is None else getattr(received, name) for name in _SAID.values()]
    return ["" if number is None else f"{number:,}" if number else "·" for number in numbers]
