"""How fast a topic finds its filters among a thousand to a million, beside asking filter by filter (micro)."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from dataclasses import dataclass

from measure import Check, Comparison, Figure, Job, Report, Timing, in_fresh_process, measure
from whimbrel.match.topics import TopicIndex, matches

__all__ = ["run"]

_SEED = 20_241
_MEASURES = ("pulse", "temperature", "oxygen", "battery")
_DEVICES = 500  # of a ward
_FILTERS_PER_WARD = 1_000
_WILD_SHARE = 0.1
_HOT_TOPICS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    filters: tuple[int, ...]
    topics: int
    repetitions: int
    questions: int
    """How many pairs of filter and topic the reference is asked, for the check and the comparison."""


_FULL = _Sizes(filters=(1_000, 10_000, 100_000, 1_000_000), topics=20_000, repetitions=5, questions=4_000_000)
_QUICK = _Sizes(filters=(200, 1_000), topics=200, repetitions=1, questions=20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one size told."""

    add_s: float
    remove_s: float
    index_bytes: float
    handles_per_topic: float
    fresh: tuple[Timing, ...]
    hot: tuple[Timing, ...]
    is_right: bool
    is_empty: bool


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("topics", packages=("whimbrel", "numpy"))
    for count in sizes.filters:
        found = in_fresh_process(_one_size, count, sizes)
        title = f"{count:,} filters"
        report.comparisons += [
            Comparison(title=f"{title}, all topics alike", item="topic", timings=found.fresh),
            Comparison(title=f"{title}, {_HOT_TOPICS} hot topics", item="topic", timings=found.hot),
        ]
        report.figures += [
            Figure(f"{title}: adding", count / found.add_s, "filters/s"),
            Figure(f"{title}: removing", count / found.remove_s, "filters/s"),
            Figure(f"{title}: memory of one, its text and handle aside", found.index_bytes, "bytes"),
            Figure(f"{title}: handles found for a topic", found.handles_per_topic, ""),
        ]
        claim = "one by one and in a batch the index finds what the reference finds"
        report.checks += [
            Check(f"{title}: {claim}, for every topic compared", found.is_right),
            Check(f"{title}: all removed, nothing is left", found.is_empty),
        ]
    report.notes += [
        f"A ward has {_DEVICES * len(_MEASURES):,} topics and about {_FILTERS_PER_WARD:,} filters.",
        "One filter in ten has a wildcard: a + at the end, in the middle, both, or a #.",
        "match is one topic at a time; in a batch is match_many over all; filter by filter is the reference.",
        "What the trie said of the last few thousand topics is remembered: all of one ward, few of a thousand wards.",
        "The hot topics are remembered whatever the size.",
    ]
    return report


def _topic(rng: random.Random, wards: int) -> str:
    return f"ward/{rng.randrange(wards)}/device/{rng.randrange(_DEVICES)}/{rng.choice(_MEASURES)}"


def _topic_filter(rng: random.Random, wards: int) -> str:
    if rng.random() >= _WILD_SHARE:
        return _topic(rng, wards)
    ward, device, what = rng.randrange(wards), rng.randrange(_DEVICES), rng.choice(_MEASURES)
    forms = (
        f"ward/{ward}/device/{device}/+",
        f"ward/{ward}/+/{device}/+",
        f"ward/{ward}/device/+/{what}",
        f"ward/{ward}/device/{device}/#",
    )
    return rng.choices(forms, (5, 3, 1, 1))[0]


def _one_size(count: int, sizes: _Sizes) -> _Found:
    rng = random.Random(f"{_SEED} {count}")
    wards = max(1, count // _FILTERS_PER_WARD)
    topic_filters = [_topic_filter(rng, wards) for _ in range(count)]
    topics = [_topic(rng, wards) for _ in range(sizes.topics)]
    hot = rng.choices(topics[:_HOT_TOPICS], k=sizes.topics)
    handles = list(range(count))

    index_bytes = _traced_bytes(topic_filters, handles) / count
    gc.collect()
    start = time.perf_counter()
    index = _filled(topic_filters, handles)
    add_s = time.perf_counter() - start

    few = topics[: max(2, sizes.questions // count)]
    is_right = _is_right(index, topic_filters, few)
    fresh, found = _timings(index, topic_filters, topics, few, sizes.repetitions)
    hot_timings, _ = _timings(index, topic_filters, hot, few, sizes.repetitions)

    start = time.perf_counter()
    removed = [index.remove(topic_filter, handle) for topic_filter, handle in zip(topic_filters, handles, strict=True)]
    return _Found(
        add_s=add_s,
        remove_s=time.perf_counter() - start,
        index_bytes=index_bytes,
        handles_per_topic=found / len(topics),
        fresh=fresh,
        hot=hot_timings,
        is_right=is_right,
        is_empty=all(removed) and len(index) == 0 and not any(map(index.match, few)),
    )


def _filled(topic_filters: list[str], handles: list[int]) -> TopicIndex:
    index = TopicIndex()
    for topic_filter, handle in zip(topic_filters, handles, strict=True):
        index.add(topic_filter, handle)
    return index


def _traced_bytes(topic_filters: list[str], handles: list[int]) -> int:
    """Return the memory an index takes beside the texts and numbers it was given."""
    tracemalloc.start()
    index = _filled(topic_filters, handles)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken if len(index) == len(handles) else 0


def _is_right(index: TopicIndex, topic_filters: list[str], topics: list[str]) -> bool:
    wanted = [_by_reference(topic_filters, topic) for topic in topics]
    rows, handles = index.match_many(topics)
    pairs = [(row, handle) for row, found in enumerate(wanted) for handle in found]
    return (
        any(wanted)
        and [sorted(index.match(topic)) for topic in topics] == wanted
        and list(zip(rows.tolist(), handles.tolist(), strict=True)) == pairs
    )


def _by_reference(topic_filters: list[str], topic: str) -> list[int]:
    return [handle for handle, topic_filter in enumerate(topic_filters) if matches(topic_filter, topic)]


def _timings(
    index: TopicIndex, topic_filters: list[str], topics: list[str], few: list[str], repetitions: int
) -> tuple[tuple[Timing, ...], int]:
    """Return the timings, and how many handles were found for all *topics*."""
    counted = 0

    def one_by_one() -> None:
        nonlocal counted
        counted = sum(len(index.match(topic)) for topic in topics)

    sample = few[: max(1, len(few) // 20)]
    jobs = (
        Job("match", len(topics), one_by_one),
        Job("match in a batch", len(topics), lambda: index.match_many(topics)),
        Job("filter by filter", len(sample), lambda: [_by_reference(topic_filters, topic) for topic in sample]),
    )
    return measure(jobs, repetitions=repetitions), counted
