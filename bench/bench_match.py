"""How fast an event finds its filters among a thousand to a million, beside asking every one of them.

Workloads U (here U10), B (here B3), A and a hot-key one (ZIPF); see ``workloads`` for why U and B of the language
benchmark are not taken. One thread throughout, but for the churn.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import pyarrow as pa

from measure import Check, Comparison, Figure, Grid, Job, Report, in_fresh_process, measure
from peers import PlainPython, RuleEngine
from plain_scan import PlainScan, count_listed, count_tried
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.packed import PackedIndex, Workspace
from whimbrel.match.index.packer import PackingProcess
from whimbrel.match.kernels.arrays import Events
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.model.attributes import Attributes
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value
from workloads import WORKLOAD_A, WORKLOAD_B3, WORKLOAD_U10, WORKLOAD_ZIPF, Workload

__all__ = ["run"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Answer: TypeAlias = "list[list[int]]"
"""Handles that match, ascending, by event."""

_SEED = 20_242
_WORKLOADS = (WORKLOAD_U10, WORKLOAD_B3, WORKLOAD_A, WORKLOAD_ZIPF)
_BATCH, _ARROW, _SINGLE = "whimbrel, batch", "whimbrel, batch from Arrow", "whimbrel, one at a time"
_SCAN, _CLOSURES, _RULES = "plain numba scan", "closures", "rule-engine"
_MATCH_RATE, _CHANGE_RATE = 5_000, 2_000  # events, and adds and as many removes, a second
_HELD = 0.99  # of a rate, for it to be held
_MILLION = 1_000_000
_COUNTED = 20_000_000  # entries listed, at most, to count them: each is written down


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    filters: tuple[int, ...]
    events: int
    repetitions: int
    closures: int
    """The most filters that closures are asked about,"""
    closures_u: int
    """the same for U alone, whose aim names them,"""
    rules: int
    """and rule-engine;"""
    reference: int
    """the same for the closures of the language, which are the reference and not timed."""
    questions: int
    """How many pairs of filter and event a slow engine is asked in one repetition, roughly."""
    dense: int
    """Filters of the dense check."""
    churn: tuple[int, float]
    """Filters, and seconds."""
    resident: int


_FULL = _Sizes(
    filters=(1_000, 10_000, 100_000, 1_000_000),
    events=2_000,
    repetitions=7,
    closures=100_000,
    closures_u=1_000_000,
    rules=10_000,
    reference=10_000,
    questions=2_000_000,
    dense=1_000,
    churn=(100_000, 20.0),
    resident=1_000_000,
)
_QUICK = _Sizes(
    filters=(50, 300),
    events=100,
    repetitions=1,
    closures=300,
    closures_u=300,
    rules=50,
    reference=300,
    questions=10_000,
    dense=60,
    churn=(2_000, 0.6),
    resident=1_000,
)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("match", packages=("whimbrel", "numba", "numpy", "pyarrow", "rule-engine"))
    found: list[_Found] = []
    for workload in _WORKLOADS:
        for count in sizes.filters:
            found.append(_alone(_one_size, workload, count, sizes, quick=quick))
            report.comparisons.append(found[-1].comparison)
            report.checks += found[-1].checks
        report.checks.append(_dense_check(workload, sizes.dense))
    churn = _alone(_churn, *sizes.churn, quick=quick)
    resident = in_fresh_process(_resident, sizes.resident)
    report.grids += [_cost_grid(found), _ratio_grid(found), _aims(found, churn, resident, sizes)]
    report.figures += [*_churn_figures(churn, sizes), *_resident_figures(resident, sizes)]
    report.checks += churn.checks
    report.checks.append(Check(f"{sizes.resident:,} subscriptions loaded: each can be found", resident.is_right))
    report.notes += [
        "U is U10, B is B3 of bench/workloads.py; U and B of the language benchmark are left as they were.",
        "batch: rows encoded beforehand, matching alone; from Arrow: an attributes column, end to end.",
        "one at a time: ContentIndex.match of one Python dict after another.",
        "tried: entries (alternatives of filters) whose code is run for an event.",
        "listed: entries of the lists that are looked at; bitmaps rule out those that are not tried.",
        "plain numba scan: every entry's jump code, nothing left out, events laid out before the clock starts.",
        "closures: a Python lambda for each filter, on a plain dict; the closures of our language are not timed here.",
        "closures, rule-engine: every filter asked one by one; fewer events, the time is per event.",
        "bytes/filter: arrays, handles and texts; resident: growth of the process, ids of 16 characters included.",
    ]
    return report


def _alone(function: Callable[_P, _T], *args: _P.args, quick: bool, **kwargs: _P.kwargs) -> _T:  # type: ignore[valid-type]
    """Call *function* in a process of its own, unless it is to be quick."""
    return function(*args, **kwargs) if quick else in_fresh_process(function, *args, **kwargs)


# -- one workload, one size --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one workload of one size told."""

    workload: Workload
    filters: int
    comparison: Comparison
    build_s: float
    filter_bytes: float
    matches: float
    tried: float
    listed: float
    checks: tuple[Check, ...]

    def us(self, engine: str) -> float | None:
        """Return the time of *engine*, if it was measured."""
        return next((t.us_per_item for t in self.comparison.timings if t.engine == engine), None)

    def ratio(self, engine: str) -> float | None:
        """Return how much faster the batch is than *engine*."""
        return self.comparison.ratios.get(engine)


def _one_size(workload: Workload, count: int, sizes: _Sizes) -> _Found:
    texts = list(workload.texts(count, _SEED))
    rows = list(workload.events(sizes.events, _SEED))
    _warm_up()
    start = time.perf_counter()
    index = ContentIndex.load(enumerate(texts))
    build_s = time.perf_counter() - start
    packed, workspace = _inside(index)
    events = packed.encoder.rows(rows)
    ours = _Ours(index, workspace, events, rows)
    expected = ours.batch()
    tried = count_tried(packed, events)
    some = rows[: max(10, _COUNTED // count)]
    listed = count_listed(packed, packed.encoder.rows(some)) / len(some)
    jobs, claims = [*ours.jobs()], [*ours.claims(expected)]
    if count <= sizes.reference:
        few = rows[: max(3, sizes.questions // 10 // count)]
        agrees = _reference(texts, few).agrees(expected)
        claims.append((f"the language's own closures find the same for {len(few):,} events", agrees))
    for peer in _peers(workload, count, texts, rows, sizes):
        jobs.append(peer.job)
        claims.append((f"{peer.job.engine} finds the same for {peer.job.items:,} events", peer.agrees(expected)))
    gc.collect()
    gc.freeze()  # a million closures are looked through before every repetition otherwise
    timings = measure(jobs, repetitions=sizes.repetitions)
    gc.unfreeze()
    title = f"{workload.name}, {count:,} filters"
    matches = sum(map(len, expected))
    claims.append((f"{matches:,} matches are among {tried:,} entries tried", matches <= tried))
    return _Found(
        workload=workload,
        filters=count,
        comparison=Comparison(title=title, item="event", timings=timings),
        build_s=build_s,
        filter_bytes=index.size_bytes / count,
        matches=matches / len(rows),
        tried=tried / len(rows),
        listed=listed,
        checks=tuple(Check(f"{title}: {claim}", passed) for claim, passed in claims),
    )


@cache
def _warm_up() -> None:
    """Have numba load what it compiled, before any clock starts."""
    index = ContentIndex.load(enumerate(WORKLOAD_B3.texts(200, _SEED + 1)))
    index.match_rows(list(WORKLOAD_B3.events(10, _SEED + 1)))
    for event in WORKLOAD_B3.events(10, _SEED + 1):
        index.match(event)


def _inside(index: ContentIndex) -> tuple[PackedIndex, Workspace]:
    """Return the packed index of one that was just loaded: matching alone is measured on it."""
    (segment,) = index._state.segments  # noqa: SLF001
    return segment.index, segment.workspace


def _by_row(rows: Iterable[int], handles: Iterable[int], count: int) -> _Answer:
    found: _Answer = [[] for _ in range(count)]
    for row, handle in zip(rows, handles, strict=True):
        found[row].append(handle)
    for each in found:
        each.sort()
    return found


class _Ours:
    """The three ways to ask us."""

    def __init__(self, index: ContentIndex, workspace: Workspace, events: Events, rows: Sequence[Attributes]) -> None:
        self._index, self._workspace, self._events, self._rows = index, workspace, events, rows
        self._column = pa.array([attributes_to_column_value(row) for row in rows], ATTRIBUTES_TYPE)

    def jobs(self) -> Iterator[Job]:
        count = len(self._rows)
        yield Job(_BATCH, count, lambda: self._workspace.match(self._events))
        yield Job(_ARROW, count, lambda: self._index.match_arrow(self._column))
        yield Job(_SINGLE, count, self._one_by_one)

    def _one_by_one(self) -> None:
        for row in self._rows:
            self._index.match(row)

    def batch(self) -> _Answer:
        rows, handles, doubts = self._workspace.match(self._events)
        assert not doubts.any()  # no filter of these workloads needs the closures
        return _by_row(rows.tolist(), handles.tolist(), len(self._rows))  # handles are positions: both count up

    def claims(self, expected: _Answer) -> Iterator[tuple[str, bool]]:
        rows, handles = self._index.match_arrow(self._column)
        yield "from Arrow the same is found", _by_row(rows.tolist(), handles.tolist(), len(self._rows)) == expected
        yield "one at a time the same is found", [sorted(self._index.match(row)) for row in self._rows] == expected


@dataclass(frozen=True, slots=True)
class _PeerJob:
    """A peer's job, and whether it finds what we find, by event."""

    job: Job
    agrees: Callable[[_Answer], bool]


def _peers(
    workload: Workload, count: int, texts: Sequence[str], rows: Sequence[Attributes], sizes: _Sizes
) -> Iterator[_PeerJob]:
    some = rows[: max(3, 10 * sizes.questions // count)]
    yield _scan_job(texts, some)
    few = rows[: max(3, sizes.questions // 10 // count)]
    if count <= (sizes.closures_u if workload == WORKLOAD_U10 else sizes.closures):
        closures = PlainPython(may_miss=workload.missing > 0).compile_all(workload.trees(count, _SEED))
        yield _asking(_CLOSURES, closures, [dict(row) for row in few])
    if count <= sizes.rules:
        peer = RuleEngine(may_miss=workload.missing > 0)
        rules = [peer.compile(peer.translate(tree)) for tree in workload.trees(count, _SEED)]
        fewest = few[: max(2, len(few) // 20)]
        yield _asking(_RULES, rules, [peer.event(row) for row in fewest])


def _reference(texts: Sequence[str], rows: Sequence[Attributes]) -> _PeerJob:
    return _asking("reference", [compile_filter(parse(text)) for text in texts], rows)


def _scan_job(texts: Sequence[str], rows: Sequence[Attributes]) -> _PeerJob:
    scan = PlainScan(enumerate(texts))
    events = scan.events(rows)

    def agrees(expected: _Answer) -> bool:
        counts, sums = scan.match(events)
        wanted = expected[: len(rows)]
        return list(zip(counts, sums, strict=True)) == [(len(each), sum(each)) for each in wanted]

    return _PeerJob(Job(_SCAN, len(rows), lambda: scan.match(events)), agrees)


def _asking(engine: str, verdicts: Sequence[Callable[[Any], object]], events: Sequence[Any]) -> _PeerJob:
    def answer() -> _Answer:
        return [[handle for handle, verdict in enumerate(verdicts) if verdict(event) is True] for event in events]

    return _PeerJob(Job(engine, len(events), answer), lambda expected: answer() == expected[: len(events)])


def _dense_check(workload: Workload, count: int) -> Check:
    """Compare all engines where matches and met bounds are frequent."""
    dense = workload.dense()
    texts, rows = list(dense.texts(count, _SEED)), list(dense.events(50, _SEED))
    index = ContentIndex.load(enumerate(texts))
    packed, workspace = _inside(index)
    ours = _Ours(index, workspace, packed.encoder.rows(rows), rows)
    expected = ours.batch()
    share = sum(map(len, expected)) / (count * len(rows))
    plain = PlainPython(may_miss=dense.missing > 0).compile_all(dense.trees(count, _SEED))
    others = _reference(texts, rows), _asking(_CLOSURES, plain, rows), _scan_job(texts, rows)
    agreed = [agrees for _, agrees in ours.claims(expected)]
    agreed += [other.agrees(expected) for other in others]
    claim = f"{workload.name}: our three ways, the reference, closures and scan agree where matches are frequent"
    return Check(f"{claim} ({share:.1%} of the questions)", all(agreed) and share > 0.01)


# -- churn -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Churn:
    """What happened while filters came and went."""

    matches_per_s: float
    adds_per_s: float
    removes_per_s: float
    median_us: float
    p99_us: float
    longest_ms: float
    late_ms: float
    """By how much the matching was behind its schedule at most."""
    repackings: int
    whole: int
    """Repackings that replaced the segment that was loaded."""
    longest_repacking_s: float
    checks: tuple[Check, ...]


def _churn(count: int, seconds: float) -> _Churn:
    """Match at a rate in one thread while another adds and removes at a rate; another process packs."""
    with PackingProcess() as pack:
        return _churn_with(pack, count, seconds)


def _churn_with(pack: PackingProcess, count: int, seconds: float) -> _Churn:
    _warm_up()
    pack([])  # it takes a second to start
    changes = int(seconds * _CHANGE_RATE)
    texts = list(WORKLOAD_U10.texts(count + changes, _SEED))
    rows = list(WORKLOAD_U10.events(2_000, _SEED))
    repacking = _Repacking()
    index = ContentIndex.load(enumerate(texts[:count]), run=repacking.start, pack=pack)
    first = index._state.segments  # noqa: SLF001
    gc.collect()
    gc.freeze()  # as a server does once it is loaded: the collector needs 0.1 s for all that was imported
    took, answers, ends = array("d"), array("q"), array("q", [0])  # flat: our notes are no work for the collector
    changed: list[float] = []
    ready = threading.Barrier(2)

    def change() -> None:
        ready.wait()
        changed.append(time.perf_counter())
        for number in _paced(changes, _CHANGE_RATE):
            index.add(count + number, texts[count + number])
            index.remove(number)
        changed.append(time.perf_counter())

    changer = threading.Thread(target=change)
    changer.start()
    ready.wait()
    total = int(seconds * _MATCH_RATE)
    begun, late = time.perf_counter(), 0.0
    for number in _paced(total, _MATCH_RATE):
        start = time.perf_counter()
        found = index.match(rows[number % len(rows)])
        took.append(time.perf_counter() - start)
        answers.extend(found)
        ends.append(len(answers))
        late = max(late, start - begun - number / _MATCH_RATE)
    matched_s = time.perf_counter() - begun
    changer.join()
    repacking.wait()
    gc.unfreeze()
    sorted_took = sorted(took)
    changed_s = changed[1] - changed[0]
    return _Churn(
        matches_per_s=total / matched_s,
        adds_per_s=changes / changed_s,
        removes_per_s=changes / changed_s,
        median_us=statistics.median(sorted_took) * 1e6,
        p99_us=sorted_took[int(len(took) * 0.99)] * 1e6,
        longest_ms=sorted_took[-1] * 1e3,
        late_ms=late * 1e3,
        repackings=len(repacking.seconds),
        whole=int(index._state.segments[:1] != first),  # noqa: SLF001
        longest_repacking_s=max(repacking.seconds, default=0.0),
        checks=tuple(_churn_checks(index, texts, rows, [answers[a:b] for a, b in pairwise(ends)], changes)),
    )


class _Repacking:
    """Starts repackings in threads, and remembers how long they took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._threads: list[threading.Thread] = []

    def start(self, repack: Callable[[], None]) -> None:
        """Run *repack* beside everything else."""
        self._threads.append(threading.Thread(target=self._timed, args=(repack,)))
        self._threads[-1].start()

    def _timed(self, repack: Callable[[], None]) -> None:
        start = time.perf_counter()
        repack()
        self.seconds.append(time.perf_counter() - start)

    def wait(self) -> None:
        """Wait until none is under way."""
        for thread in self._threads:
            thread.join()


def _paced(count: int, rate: float) -> Iterator[int]:
    """Yield numbers at *rate* a second; what is late is made up for."""
    begun = time.perf_counter()
    for number in range(count):
        ahead = begun + number / rate - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        yield number


def _churn_checks(
    index: ContentIndex, texts: Sequence[str], rows: Sequence[Attributes], answers: Sequence[array[int]], changes: int
) -> Iterator[Check]:
    """Compare with an index made of what is left, and every answer with the filters that were there all the time."""
    fresh = ContentIndex.load(list(enumerate(texts))[changes:])
    yield Check(f"churn: {len(fresh):,} filters are left", len(index) == len(fresh) == len(texts) - changes)
    wanted = [sorted(fresh.match(row)) for row in rows]
    same = [sorted(index.match(row)) for row in rows] == wanted
    yield Check(f"churn: in the end {len(rows):,} events find what they find in a fresh index", same)
    index.repack(whole=True)
    same = [sorted(index.match(row)) for row in rows] == wanted
    yield Check("churn: and the same once all is packed into one segment", same)
    stayed = range(changes, len(texts) - changes)
    steady = [[handle for handle in each if handle in stayed] for each in wanted]
    kept = all(
        sorted(handle for handle in answer if handle in stayed) == steady[number % len(rows)]
        and len(set(answer)) == len(answer)
        for number, answer in enumerate(answers)
    )
    claim = f"each of {len(answers):,} answers has every filter that stayed, once"
    yield Check(f"churn: {claim}", kept)


def _churn_figures(churn: _Churn, sizes: _Sizes) -> Iterator[Figure]:
    name = f"churn on {sizes.churn[0]:,} filters"
    yield Figure(f"{name}: events matched (aim {_MATCH_RATE:,})", churn.matches_per_s, "/s")
    yield Figure(f"{name}: filters added (aim {_CHANGE_RATE:,})", churn.adds_per_s, "/s")
    yield Figure(f"{name}: filters removed (aim {_CHANGE_RATE:,})", churn.removes_per_s, "/s")
    yield Figure(f"{name}: one match, median", churn.median_us, "µs")
    yield Figure(f"{name}: one match, 99 of 100 within", churn.p99_us, "µs")
    yield Figure(f"{name}: one match, the longest", churn.longest_ms, "ms")
    yield Figure(f"{name}: most the matching was behind its schedule", churn.late_ms, "ms")
    yield Figure(f"{name}: repackings", churn.repackings, "")
    yield Figure(f"{name}: of them, that replaced what was loaded", churn.whole, "")
    yield Figure(f"{name}: the longest repacking", churn.longest_repacking_s, "s")


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resident:
    """What a matcher of many subscriptions takes."""

    load_s: float
    filter_bytes: float
    index_bytes: float
    text_bytes: float
    peak_bytes: float
    is_right: bool


def _resident(count: int) -> _Resident:
    """Load *count* subscriptions of U and see by how much this process grew."""
    _warm_up()
    start = time.perf_counter()
    characters = sum(map(len, WORKLOAD_U10.texts(count, _SEED)))
    draw_s = time.perf_counter() - start
    gc.collect()
    before = _resident_bytes()
    start = time.perf_counter()
    interests = ((f"{n:016x}", Interest(filter_text=text)) for n, text in enumerate(WORKLOAD_U10.texts(count, _SEED)))
    matcher = Matcher.load(interests)
    load_s = time.perf_counter() - start - draw_s
    gc.collect()
    after = _resident_bytes()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {
        matcher.id_of(handle) for row in WORKLOAD_U10.events(50, _SEED) for handle in matcher.match_parts(None, row)
    }
    return _Resident(
        load_s=load_s,
        filter_bytes=(after - before) / count,
        index_bytes=matcher.content.size_bytes / count,
        text_bytes=characters / count,
        peak_bytes=(peak - before) / count,
        is_right=len(matcher) == count and bool(found) and all(int(each, 16) < count for each in found),
    )


def _resident_bytes() -> int:
    """Return the memory this process has now; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def _resident_figures(found: _Resident, sizes: _Sizes) -> Iterator[Figure]:
    name = f"{sizes.resident:,} subscriptions of U"
    yield Figure(f"{name}: loading from text, drawing aside", found.load_s, "s")
    yield Figure(f"{name}: resident, ids included", found.filter_bytes, "bytes/filter")
    yield Figure(f"{name}: of that the index, handles and texts", found.index_bytes, "bytes/filter")
    yield Figure(f"{name}: of that the characters of the filters", found.text_bytes, "bytes/filter")
    yield Figure(f"{name}: at most while loading", found.peak_bytes, "bytes/filter")


# -- tables ------------------------------------------------------------------------------------------------------------


def _cost_grid(found: Sequence[_Found]) -> Grid:
    headings = (
        "workload",
        "filters",
        "matches",
        "tried",
        "listed",
        "batch µs",
        "Arrow µs",
        "one µs",
        "load s",
        "bytes/filter",
    )
    rows = tuple(
        (
            each.workload.name,
            f"{each.filters:,}",
            each.matches,
            each.tried,
            each.listed,
            each.us(_BATCH),
            each.us(_ARROW),
            each.us(_SINGLE),
            each.build_s,
            each.filter_bytes,
        )
        for each in found
    )
    return Grid("Cost by size: candidates and microseconds per event", headings, rows)


def _ratio_grid(found: Sequence[_Found]) -> Grid:
    engines = _SCAN, _CLOSURES, _RULES
    headings = ("workload", "filters", *(f"{engine} µs" for engine in engines), *(f"× {engine}" for engine in engines))
    rows = tuple(
        (
            each.workload.name,
            f"{each.filters:,}",
            *(each.us(engine) for engine in engines),
            *(each.ratio(engine) for engine in engines),
        )
        for each in found
    )
    return Grid("Peers: µs/event, and how many times as fast our batch is", headings, rows)


def _aims(found: Sequence[_Found], churn: _Churn, resident: _Resident, sizes: _Sizes) -> Grid:
    """Set what was measured beside what the issue asks for; nothing where another size was measured."""
    at = {(each.workload.name, each.filters): each for each in found}

    def us(workload: str, filters: int, engine: str) -> float | None:
        return at[workload, filters].us(engine) if (workload, filters) in at else None

    def ratio(engine: str) -> float | None:
        return at["U10", _MILLION].ratio(engine) if ("U10", _MILLION) in at else None

    def if_loaded(value: float) -> float | None:
        return value if sizes.resident == _MILLION else None

    def if_churned(value: float) -> float | None:
        return value if sizes.churn[0] == _MILLION // 10 else None

    measured: list[tuple[str, float, float | None, str, bool]] = [
        ("U, 1M, batch", 12, us("U10", _MILLION, _BATCH), "µs/event", True),
        ("B, 1M, batch", 50, us("B3", _MILLION, _BATCH), "µs/event", True),
        ("A, 100k, batch", 70, us("A", _MILLION // 10, _BATCH), "µs/event", True),
        ("ZIPF, 100k, batch", 25, us("ZIPF", _MILLION // 10, _BATCH), "µs/event", True),
        ("U, 1M, one event from a dict", 25, us("U10", _MILLION, _SINGLE), "µs", True),
        ("U, 1M, × plain numba scan", 300, ratio(_SCAN), "times", False),
        ("U, 1M, × closures", 10_000, ratio(_CLOSURES), "times", False),
        ("U, 1M, loading from text", 60, if_loaded(resident.load_s), "s", True),
        ("U, 1M, resident", 400, if_loaded(resident.filter_bytes), "bytes/filter", True),
        ("churn on 100k: the longest match", 20, if_churned(churn.longest_ms), "ms", True),
        ("churn on 100k: events matched", _MATCH_RATE * _HELD, if_churned(churn.matches_per_s), "/s", False),
        ("churn on 100k: filters added", _CHANGE_RATE * _HELD, if_churned(churn.adds_per_s), "/s", False),
        ("churn on 100k: filters removed", _CHANGE_RATE * _HELD, if_churned(churn.removes_per_s), "/s", False),
    ]
    rows = tuple(
        (
            what,
            f"{'≤' if at_most else '≥'} {aim:,g} {unit}",
            value,
            None if value is None else "yes" if (value <= aim) is at_most else "**no**",
        )
        for what, aim, value, unit, at_most in measured
    )
    return Grid("Aims", ("what", "aim", "measured", "met"), rows)
