"""How fast a log's past is asked (micro): who heard what was published where, and which devices met; in core time.

The city is that of ``whimbrel pipeline generate``; what is measured is what a worker does with its batches.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy.spatial import cKDTree

from measure import Check, Figure, Report
from whimbrel.match.proximity.ground import earth_points
from whimbrel.match.proximity.past.past_versions import PastBounds
from whimbrel.model.place import Place, Plane
from whimbrel.model.tables import PLACE_TYPE, TIME_TYPE
from whimbrel.pipeline.fold.contact_fold import ContactFold, ContactPlan
from whimbrel.pipeline.subscriptions import version_places
from whimbrel.pipeline.subscriptions.matcher_files import MatcherFiles
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED, PackedVersions
from whimbrel.pipeline.tables.matches import pack
from whimbrel.sim.logs.generate import Recipe, _Chunk, _days, _make_tables

__all__ = ["run"]

_CHUNK = 100_000
_BATCH = 10_000
_RANGE_M = 50.0


class _Sizes(NamedTuple):
    devices: int
    facts: int
    published: int
    """Publications that are matched."""
    walkers: int
    ticks: int
    """How often each of them reports."""


_FULL, _QUICK = _Sizes(100_000, 2_500_000, 100_000, 10_000, 100), _Sizes(300, 20_000, 2_000, 50, 10)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("tracks", packages=("whimbrel", "numba", "numpy", "pyarrow", "scipy"))
    _city(report, sizes)
    _contacts(report, sizes)
    report.notes += [
        "The figures are core time: of three runs the least; two cores do twice of what one does.",
        f"The city has {sizes.devices:,} devices and {sizes.facts:,} facts in an hour.",
        f"Contacts: {sizes.walkers:,} devices within a square of 5 km walk 1 m a second and report each second.",
    ]
    return report


def _city(report: Report, sizes: _Sizes) -> None:
    """Who heard what was published, of all subscribers of a city, who move."""
    (day,) = _days(Recipe(world="city", events=sizes.facts, devices=sizes.devices, hours=1, seed=27))
    chunks = [_Chunk(0, first, min(first + _CHUNK, sizes.facts + 1) - 1) for first in range(1, sizes.facts + 1, _CHUNK)]
    made = [_make_tables(day, chunk) for chunk in chunks]
    reports = pa.concat_tables([each["reports"].select(list(SEEN)) for each in made])
    published = pa.concat_tables([each["publications"] for each in made[len(made) // 2 :]]).slice(0, sizes.published)
    changed = day.history.tables["interests"].select(list(CHANGED))
    deleted = day.history.tables["sessions"].select(list(DELETED))
    members = day.history.tables["presence"].select(list(MEMBERS))
    members = members.filter(members.column("session").is_valid())
    batches = published.combine_chunks().to_batches(max_chunksize=_BATCH)
    answers = []
    for bounds in (PastBounds(), PastBounds(few=2**40)):
        version_places.BOUNDS = bounds
        with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as folder:
            begin = time.process_time()
            span = (day.node, 1, sizes.facts)
            shipped = pack([span], changed, deleted, Path(folder), MatcherFiles(Path(folder)), moved=(reports, members))
            packed_s = time.process_time() - begin
            found = PackedVersions.map(shipped[day.node], day.node)
            few = batches[:1] if bounds.few > sizes.facts else batches
            if bounds.few <= sizes.facts:
                took = _core_us(lambda: [found.match(batch) for batch in few], published.num_rows)  # noqa: B023 # now
                hits = sum(found.match(batch)[0].size for batch in batches)
                file_bytes = Path(shipped[day.node]).stat().st_size
                report.figures += [
                    Figure("matches of the city: core time", took, "µs/event"),
                    Figure("matches of the city: rate on two cores", 2e6 / took, "events/s"),
                    Figure("matches of the city: hits", hits / published.num_rows, "/event"),
                    Figure("matches of the city: versions of subscriptions", found.table.num_rows, ""),
                    Figure("matches of the city: reports in the tracks", reports.num_rows, ""),
                    Figure("matches of the city: packed in the driver", packed_s, "s"),
                    Figure("matches of the city: matcher and tracks", file_bytes / 1e6, "MB"),
                ]
            answers.append(_pairs(found, few[0]))
    version_places.BOUNDS = PastBounds()
    report.checks.append(Check("city: whatever finds a subscription, who hears is the same", answers[0] == answers[1]))


def _pairs(found: PackedVersions, batch: Any) -> set[tuple[int, int]]:
    rows, handles = found.match(batch)
    return set(zip(rows.tolist(), handles.tolist(), strict=True))


def _contacts(report: Report, sizes: _Sizes) -> None:
    """Which devices meet, of many that report each second."""
    random = np.random.default_rng(27)
    plane, count = Plane(Place(52.5, 13.4)), sizes.walkers
    metres = random.uniform(0, 5_000, (count, 2))
    heading = random.uniform(0, 2 * np.pi, count)
    step = np.stack([np.sin(heading), np.cos(heading)], axis=1)
    names = pa.array([f"d{number}" for number in range(count)])
    tables = []
    for tick in range(sizes.ticks):
        degrees = np.array([52.5, 13.4]) + (metres + tick * step) / [plane.metres_north, plane.metres_east]
        place = pa.StructArray.from_arrays([pa.array(degrees[:, axis]) for axis in (0, 1)], fields=list(PLACE_TYPE))
        at = pa.array(np.full(count, tick * 1_000_000)).cast(TIME_TYPE)
        tables.append(
            pa.table({"seq": np.arange(count) + tick * count, "reported_at": at, "device": names, "place": place})
        )
    reports = pa.concat_tables(tables)
    last = (sizes.ticks - 1) * 1_000_000 + 1
    kept: list[ContactFold] = []

    def folded() -> None:
        kept[:] = [ContactFold(ContactPlan(range_m=_RANGE_M))]
        kept[0].take(reports)
        kept[0].advance(last)

    took = _core_us(folded, reports.num_rows)
    report.figures += [
        Figure(f"contacts of {reports.num_rows:,} reports: core time", took * reports.num_rows / 1e6, "s"),
        Figure("contacts: core time", took, "µs/report"),
        Figure("contacts: together at the end", len(kept[0].open), "pairs"),
    ]
    together = cKDTree(earth_points(degrees[:, 0], degrees[:, 1])).query_pairs(_RANGE_M)
    is_same = abs(len(together) - len(kept[0].open)) <= 2  # chords are shorter by some nanometres
    report.checks.append(Check("contacts: as many are together at the end as cKDTree finds, but on the rim", is_same))


def _core_us(call: Callable[[], object], items: int) -> float:
    """Return the least core time of three runs, an item."""
    took = []
    for _ in range(3):
        begin = time.process_time()
        call()
        took.append(time.process_time() - begin)
    return min(took) / items * 1e6
