"""How fast filters are parsed and asked, beside rule-engine and cel-python (micro; workloads U and B)."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from measure import Check, Comparison, Figure, Job, Report, Timing, in_fresh_process, measure
from peers import Cel, Peer, RuleEngine
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse, parse_without_shapes
from whimbrel.model.attributes import Attributes
from workloads import WORKLOAD_B, WORKLOAD_U, Workload

__all__ = ["run"]

_SEED = 20_240
_SAMPLE_STEP = 997  # one tree in so many of the million is compared with the drawn tree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    repetitions: int
    warm_up: int
    """Filters parsed before the clock starts, to fill the shapes; not those that are timed."""
    filters: int
    peer_filters: int
    pairs: tuple[int, int]
    """Filters and events that are asked about each other."""
    million: int


_FULL = _Sizes(repetitions=5, warm_up=50_000, filters=20_000, peer_filters=500, pairs=(200, 100), million=1_000_000)
_QUICK = _Sizes(repetitions=1, warm_up=300, filters=200, peer_filters=15, pairs=(25, 10), million=2_000)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("language", packages=("whimbrel", "rule-engine", "cel-python"))
    unshared = replace(WORKLOAD_U, digits=12)
    for title, workload in (
        ("parse U", WORKLOAD_U),
        ("parse U, real constants that never repeat", unshared),
        ("parse B", WORKLOAD_B),
    ):
        _add_parse(report, title, workload, sizes)
    for workload in (WORKLOAD_U, WORKLOAD_B):
        _add_evaluate(report, workload, sizes)
    _add_million(report, sizes)
    report.notes += [
        "parse is text to checked tree; cel-python only parses then and checks nothing.",
        "ready is text to something that can be asked: our closures, a Rule, a compiled CEL program.",
        "The shapes are warmed with other filters than those timed, and every repetition takes new ones.",
        "parse_without_shapes parses and checks; it neither asks the cache of shapes nor adds to it.",
        "evaluate is one filter asked about one event; peers' events are converted before the clock starts.",
    ]
    return report


def _peers(workload: Workload) -> tuple[Peer, ...]:
    return RuleEngine(may_miss=workload.missing > 0), Cel()


# -- parse -------------------------------------------------------------------------------------------------------------


def _add_parse(report: Report, title: str, workload: Workload, sizes: _Sizes) -> None:
    parsed, ready, is_same = in_fresh_process(_parse_timings, workload, sizes)
    texts = [len(text) for text in workload.texts(2 * sizes.repetitions * sizes.filters, _SEED)]
    report.comparisons += [
        Comparison(title=title, item="filter", timings=parsed),
        Comparison(title=title.replace("parse", "ready"), item="filter", timings=ready),
    ]
    # The slower engines get the first filters only; whether those are as long as the rest must be seen.
    report.figures += [
        Figure(f"{title}: characters of a filter, our {len(texts):,}", mean(texts), ""),
        Figure(
            f"{title}: characters of a filter, the peers' {sizes.peer_filters:,}", mean(texts[: sizes.peer_filters]), ""
        ),
    ]
    report.checks.append(Check(f"{title}: both our ways give the tree that was drawn, for every filter", is_same))


def _parse_timings(workload: Workload, sizes: _Sizes) -> tuple[tuple[Timing, ...], tuple[Timing, ...], bool]:
    for text in workload.texts(sizes.warm_up, _SEED + 1):
        parse(text)
    count, repetitions = sizes.filters, sizes.repetitions
    texts = list(workload.texts(2 * repetitions * count, _SEED))
    fresh = iter([texts[at : at + count] for at in range(0, len(texts), count)])
    few = texts[: max(1, count // 10)]
    trees = list(workload.trees(count, _SEED))
    parse_jobs = [_fresh_job(parse, fresh, count), _job("whimbrel without shapes", parse_without_shapes, few)]
    ready_jobs = [_fresh_job(lambda text: compile_filter(parse(text)), fresh, count)]
    for peer in _peers(workload):
        translated = [peer.translate(tree) for tree in trees[: sizes.peer_filters]]
        parse_jobs.append(_job(peer.name, peer.parse, translated))
        ready_jobs.append(_job(peer.name, peer.compile, translated))
    parsed, ready = measure(parse_jobs, repetitions=repetitions), measure(ready_jobs, repetitions=repetitions)
    # Compared last: parsing them sooner would have shown the timed filters to the shapes.
    is_same = list(map(parse, texts[:count])) == trees and list(map(parse_without_shapes, few)) == trees[: len(few)]
    return parsed, ready, is_same


def _fresh_job(parse_one: Callable[[str], object], batches: Iterator[Sequence[str]], count: int) -> Job:
    """Return our job: every repetition takes filters that no cache has seen."""

    def call() -> None:
        for text in next(batches):
            parse_one(text)

    return Job("whimbrel", count, call)


def _job(engine: str, parse_one: Callable[[str], object], texts: Sequence[str]) -> Job:
    def call() -> None:
        for text in texts:
            parse_one(text)

    return Job(engine, len(texts), call)


# -- evaluate ----------------------------------------------------------------------------------------------------------


def _add_evaluate(report: Report, workload: Workload, sizes: _Sizes) -> None:
    repetitions = sizes.repetitions
    filters, events = sizes.pairs
    trees = list(workload.trees(filters, _SEED))
    timed, agreed, share = _asked(workload, trees, list(workload.events(events, _SEED)), repetitions)
    report.comparisons.append(Comparison(title=f"evaluate {workload.name}", item="question", timings=timed))
    report.figures.append(Figure(f"evaluate {workload.name}: share of questions answered true", 100 * share, "%"))
    claim = "rule-engine and cel-python match what we match"
    report.checks.append(Check(f"evaluate {workload.name}: {claim}, on all {filters * events:,} questions", agreed))

    dense = workload.dense()
    trees = list(dense.trees(filters, _SEED))
    _, agreed, share = _asked(dense, trees, list(dense.events(events, _SEED)), 1)
    claim = f"{claim} where matches are frequent ({share:.1%} of the questions)"
    report.checks.append(Check(f"evaluate {workload.name}: {claim}", agreed and share > 0.01))


def _asked(
    workload: Workload, trees: Sequence[Predicate], events: Sequence[Attributes], repetitions: int
) -> tuple[tuple[Timing, ...], bool, float]:
    """Return the timings, whether all engines agreed on every question, and the share answered true."""
    answers: dict[str, list[bool]] = {}
    verdicts = [compile_filter(tree) for tree in trees]

    def ours() -> None:
        answers["whimbrel"] = [verdict(event) is True for event in events for verdict in verdicts]

    jobs = [Job("whimbrel", len(trees) * len(events), ours)]
    jobs += [_asking(peer, trees, events, answers) for peer in _peers(workload)]
    timings = measure(jobs, repetitions=repetitions)
    matched = answers["whimbrel"]
    return timings, all(other == matched for other in answers.values()), sum(matched) / len(matched)


def _asking(
    peer: Peer, trees: Sequence[Predicate], events: Sequence[Attributes], answers: dict[str, list[bool]]
) -> Job:
    matchers = [peer.compile(peer.translate(tree)) for tree in trees]
    converted = [peer.event(event) for event in events]

    def call() -> None:
        answers[peer.name] = [matches(event) for event in converted for matches in matchers]

    return Job(peer.name, len(trees) * len(events), call)


# -- a million filters -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Million:
    """What it took to parse many filters and keep their trees."""

    draw_s: float
    parse_s: float
    collect_s: float
    longest_collect_s: float
    full_collections: int
    tree_bytes: float
    is_right: bool


def _add_million(report: Report, sizes: _Sizes) -> None:
    count = sizes.million
    usual = in_fresh_process(_parse_many, count, is_collecting=True)
    without = in_fresh_process(_parse_many, count, is_collecting=False)
    name = f"{count:,} filters of U"
    report.figures += [
        Figure(f"{name}: drawing their texts", usual.draw_s, "s"),
        Figure(f"{name}: parsing from cold shapes, all trees kept", usual.parse_s, "s"),
        Figure(f"{name}: of that inside the garbage collector", usual.collect_s, "s"),
        Figure(f"{name}: its longest pause", usual.longest_collect_s, "s"),
        Figure(f"{name}: its full collections", usual.full_collections, ""),
        Figure(f"{name}: parsing with the collector off", without.parse_s, "s"),
        Figure(f"{name}: memory of the trees", count * usual.tree_bytes / 2**20, "MiB"),
        Figure(f"{name}: memory of one tree", usual.tree_bytes, "bytes"),
    ]
    claim = f"{name}: every tree is there, and one in {_SAMPLE_STEP} compared is the tree that was drawn"
    report.checks.append(Check(claim, usual.is_right and without.is_right))


def _parse_many(count: int, *, is_collecting: bool) -> _Million:
    start = time.perf_counter()
    texts = list(WORKLOAD_U.texts(count, _SEED))
    draw_s = time.perf_counter() - start
    pauses: list[float] = []
    full = 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        now = time.perf_counter()
        if phase == "start":
            pauses.append(-now)
        else:
            pauses[-1] += now
            full += info["generation"] == 2

    gc.collect()
    before = _resident_bytes()
    if is_collecting:
        gc.callbacks.append(watch)
    else:
        gc.disable()
    start = time.perf_counter()
    trees = [parse(text) for text in texts]
    parse_s = time.perf_counter() - start
    gc.callbacks.clear()
    tree_bytes = (_resident_bytes() - before) / count
    drawn = zip(trees, WORKLOAD_U.trees(count, _SEED), strict=True)
    return _Million(
        draw_s=draw_s,
        parse_s=parse_s,
        collect_s=sum(pauses),
        longest_collect_s=max(pauses, default=0.0),
        full_collections=full,
        tree_bytes=tree_bytes,
        is_right=all(tree == wanted for at, (tree, wanted) in enumerate(drawn) if at % _SAMPLE_STEP == 0),
    )


def _resident_bytes() -> int:
    """Return the memory this process has now; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
