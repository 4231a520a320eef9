"""A stream of many subscriptions of which a few change in every batch: in layers, and packed anew each time.

Every session has one subscription, live only, by subject and content; a batch has ten thousand publications.
Rule: both ways make the same tables; that is checked here on all rows of ``matches``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from measure import Check, Figure

__all__ = ["Churn", "ChurnSizes", "churn"]

NODE = "n"
START_US = 1_767_225_600_000_000  # 2026-01-01
WARDS = 2_000
_ANEW = 10**12
"""So many times larger no layer is than another: everything is packed anew."""
_RATIO = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSizes:
    """How much."""

    subscriptions: int = 100_000
    publications: int = 10_000
    """Of a batch,"""
    changes: int = 20
    """and how many subscriptions change meanwhile."""
    batches: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """How it went."""

    sizes: ChurnSizes
    layers_s: float
    anew_s: float
    still_s: float
    """A batch in layers, packed anew, and one in which nothing changes: medians."""
    matches: int
    is_same: bool

    def figures(self) -> Iterator[Figure]:
        """Yield what was measured."""
        of = f"churn: a batch of {self.sizes.publications:,}, {self.sizes.subscriptions:,} subscriptions"
        yield Figure(f"{of}, none changes", self.still_s, "s")
        yield Figure(f"{of}, {self.sizes.changes} change", self.layers_s, "s")
        yield Figure(f"{of}, {self.sizes.changes} change, packed anew", self.anew_s, "s")
        yield Figure("churn: layers against packed anew", self.anew_s / self.layers_s, "×")

    def checks(self, *, is_full: bool) -> Iterator[Check]:
        """Claim that both ways are the same; of a *full* run, also that changes cost less than the batch itself."""
        yield Check(f"churn: {self.matches:,} rows of matches are the same, in layers and packed anew", self.is_same)
        if is_full:
            more = self.layers_s / self.still_s
            yield Check(f"churn: changes make a batch {more:.2f} × as long; aim < {_RATIO:g}", more < _RATIO)


def churn(folder: Path, sizes: ChurnSizes, *, seed: int) -> Churn:
    """Follow one log twice."""
    from whimbrel.pipeline.files.delta import read
    from whimbrel.pipeline.unit import matchers

    ends = _write(folder / "log", sizes, Random(seed))
    usual, took = matchers.SMALL, {}
    try:
        for name, small in (("layers", usual), ("anew", _ANEW)):
            matchers.SMALL = small
            took[name] = _followed(folder / "log", folder / name, ends)
    finally:
        matchers.SMALL = usual
    made = [read(folder / name, "matches") for name in took]
    order = [(name, "ascending") for name in ("notification_seq", "interest_seq")]
    half = 1 + sizes.batches
    return Churn(
        sizes=sizes,
        layers_s=statistics.median(took["layers"][1:half]),
        anew_s=statistics.median(took["anew"][1:half]),
        still_s=statistics.median(took["layers"][half:]),
        matches=made[0].num_rows,
        is_same=made[0].sort_by(order).equals(made[1].sort_by(order)),
    )


def _followed(log: Path, out: Path, ends: list[int]) -> list[float]:
    """Return how long each batch took."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rig is that of the tests
    from tests.e2e.stream_kills import StreamRig, forget

    from whimbrel.pipeline.plans import StreamPlan

    forget()
    stream = StreamRig(log=log, out=out, plan=StreamPlan(facts_per_batch=max(ends)))
    took = []
    for last in ends:
        stream.take({NODE: last})
        assert stream.last is not None
        took.append(stream.last.took_s)
    return took


def _write(log: Path, sizes: ChurnSizes, random: Random) -> list[int]:
    """Write a log, and return the last numbers of its batches: subscriptions, then as many with changes as without."""
    from whimbrel.log.writer import LogWriter
    from whimbrel.model.facts import InterestChanged
    from whimbrel.model.notification import Notification
    from whimbrel.model.subscription import InterestChange, Subscription

    writer = LogWriter(log, NODE)
    writer.open()
    seq, ends = 0, []

    def change(number: int, kind: InterestChange, above: int) -> None:
        subscription = Subscription(
            session=f"s{number}", subject_filter=f"ward/{number % WARDS}/+", filter_text=f"pulse > {above}", max_held=0
        )
        fact = InterestChanged(
            node=NODE, seq=seq, changed_at=START_US + seq, change=kind, subscription=subscription, device=None
        )
        writer.append(fact)

    for number in range(sizes.subscriptions):
        seq += 1
        change(number, InterestChange.ADDED, 100 + number % 20)
    ends.append(seq)
    for batch in range(2 * sizes.batches):
        changes = sizes.changes if batch < sizes.batches else 0
        moments = set(random.sample(range(sizes.publications), changes))
        for place in range(sizes.publications):
            if place in moments:
                seq += 1
                change(random.randrange(sizes.subscriptions), InterestChange.MODIFIED, 100 + random.randrange(20))
            seq += 1
            attributes = {"pulse": random.randrange(40, 120)}
            subject = f"ward/{random.randrange(WARDS)}/pulse"
            writer.append(
                Notification(node=NODE, seq=seq, published_at=START_US + seq, subject=subject, attributes=attributes)
            )
        ends.append(seq)
    writer.settle()
    writer.close()
    return ends
