"""STEAM, Figure 3: content filters at the producer, against subject at the producer and content at the consumer.

Both parts of the figure run on the real cores. Then 1 to 10,000 consumers: filters evaluated, bytes on the air, and
time at the producer. Then the producer's lookup alone with up to a million members (4.3: a simple table lookup,
constant time), beside as many content filters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Row
from whimbrel.lab.steam.figure_3 import FIGURE_3A, FIGURE_3B, deliveries_3a, deliveries_3b
from whimbrel.language.filters import Filter
from whimbrel.model.place import Area, Place
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Join
from whimbrel.nearby.frames.wire import encode
from whimbrel.nearby.group.outputs import Send
from whimbrel.nearby.node import Node
from whimbrel.nearby.vocabulary import Vocabulary

__all__ = ["filters"]

_CONSUMERS = (1, 10, 100, 1_000, 10_000)
_LOOKUPS = (1, 1_000, 100_000, 1_000_000)
_SHARE = 10
"""The filter of every tenth consumer matches."""
_WORDS = Vocabulary.of({"A": {"value": "int32"}})
_HERE = Place(53.3438, -6.2546)


def producer_with(members: int) -> Node:
    """Return a producer whose group has *members* members."""
    node = Node("P", vocabulary=_WORDS, deployment=Deployment(max_members=10_000_000))
    node.move(_HERE, now=0)
    node.announce("A", radius_m=200, deadline_us=500_000, now=0)
    join = Join(
        origin="C",
        seq=1,
        sender="C",
        hops=0,
        max_hops=0,
        subject="A",
        area=Area(_HERE, 200),
        producer="P",
        epoch=0,
        accounted=0,
        expired=0,
        missed=0,
    )
    view = node.members("A")
    for number in range(members):
        object.__setattr__(join, "origin", f"C{number}")  # building a million frames would take a minute
        view.add(join, now=0)
    return node


def _measure_us(work: Callable[[], object], *, least_s: float = 0.02) -> float:
    """Measure the processor time of *work* in microseconds: the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        rounds, begun = 0, time.process_time()
        while (took := time.process_time() - begun) < least_s:
            work()
            rounds += 1
        best = min(best, took / rounds)
    return best * 1e6


def _compare(consumers: int) -> Row:
    begun = time.process_time()
    node = producer_with(consumers)
    numbers = iter(range(1, 1 << 30))

    def publish() -> None:
        node.publish("A", {"value": next(numbers) % _SHARE}, now=0)

    steam_us = _measure_us(publish)
    event, outputs = node.publish("A", {"value": 3}, now=0)
    assert isinstance(outputs[0], Send)
    own = [Filter(f"value == {number % _SHARE}") for number in range(consumers)]

    def match_all() -> list[int]:
        return [number for number, each in enumerate(own) if each.verdict(event.attributes) is True]

    content_us = _measure_us(match_all)
    size = len(encode(event))
    wanted = len(match_all())
    return {
        "kind": "consumers",
        "consumers": consumers,
        "content_evaluated": consumers,
        "steam_evaluated": 0,
        "each_evaluated": 1,
        "wanted": wanted,
        "content_bytes": size * (1 if wanted else 0),
        "content_unicast_bytes": size * wanted,
        "steam_bytes": size,
        "content_us": content_us,
        "steam_us": steam_us,
        "core_s": time.process_time() - begun,
    }


def _look_up(members: int) -> Row:
    begun = time.process_time()
    node = producer_with(members)
    lookup_us = _measure_us(lambda: node.members("A"))
    publish_us = _measure_us(lambda: node.publish("A", {"value": 1}, now=0))
    few = [Filter(f"value == {number}") for number in range(_SHARE)]  # parsing a million would take a minute
    own, attributes = [few[number % _SHARE] for number in range(members)], {"value": 1}
    content_us = _measure_us(lambda: [number for number, each in enumerate(own) if each.verdict(attributes) is True])
    return {
        "kind": "lookup",
        "consumers": members,
        "lookup_us": lookup_us,
        "publish_us": publish_us,
        "content_us": content_us,
        "core_s": time.process_time() - begun,
    }


def filters(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has at most a thousand consumers."""
    consumers = _CONSUMERS[:4] if is_quick else _CONSUMERS
    lookups = _LOOKUPS[:2] if is_quick else _LOOKUPS
    return Experiment(
        name="steam-filters",
        title="STEAM, Figure 3: content filters at the producer, and at the consumers",
        points=[],
        make=lambda: [*map(_compare, consumers), *map(_look_up, lookups)],
        find=_find,
        plot=_plot,
        assumptions={
            "matching": f"every {_SHARE}th consumer",
            "air": "one radio range: an event is one transmission for all members",
            "content": "filters one after the other, as the figure draws them; whimbrel.match is faster",
        },
    )


def _find(rows: Sequence[Row]) -> Findings:
    compared = [row for row in rows if row["kind"] == "consumers"]
    looked = [row for row in rows if row["kind"] == "lookup"]
    tables = [
        Table(
            "One event: content at the producer (3a) against STEAM (3b)",
            (
                "consumers",
                "filters at P, 3a",
                "3b",
                "at each C, 3b",
                "bytes 3a",
                "3b",
                "3a, one by one",
                "µs at P, 3a",
                "3b",
            ),
            [
                (
                    f"{row['consumers']:,}",
                    f"{row['content_evaluated']:,}",
                    "0",
                    "1",
                    str(row["content_bytes"]),
                    str(row["steam_bytes"]),
                    f"{row['content_unicast_bytes']:,}",
                    f"{row['content_us']:,.1f}",
                    f"{row['steam_us']:,.1f}",
                )
                for row in compared
            ],
        ),
        Table(
            "The producer's lookup",
            ("members", "lookup µs", "publish µs", "content filters one by one, µs"),
            [
                (
                    f"{row['consumers']:,}",
                    f"{row['lookup_us']:.2f}",
                    f"{row['publish_us']:.1f}",
                    f"{row['content_us']:,.1f}",
                )
                for row in looked
            ],
        ),
    ]
    figures = (("3a: content at the producer", deliveries_3a()), ("3b: subject at the producer", deliveries_3b()))
    tables.insert(
        0,
        Table(
            "Figure 3, played",
            ("part", "event", "sent to", "delivered to"),
            [
                (part, event, ", ".join(reached), ", ".join(given))
                for part, found in figures
                for event, (reached, given) in found.items()
            ],
        ),
    )
    lookups = [row["lookup_us"] for row in looked]
    claims = {
        "Figure 3a: e1 to C1, e2 to C2, e3 to C2 and C3": figures[0][1] == FIGURE_3A,
        "Figure 3b: A to C1 and C2, B to C2 and C3, delivered where content matches": figures[1][1] == FIGURE_3B,
        f"the lookup is flat up to {looked[-1]['consumers']:,} members (within a factor of two)": max(lookups)
        <= 2 * min(lookups),
        "at 1,000 consumers and more the producer does less than with content filters": all(
            row["steam_us"] < row["content_us"] for row in compared if row["consumers"] >= 1_000
        ),
    }
    return Findings(tables=tables, claims=claims)


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    compared = [row for row in rows if row["kind"] == "consumers"]
    counts = [row["consumers"] for row in compared]
    axes.plot(counts, [row["content_us"] for row in compared], marker="o", label="3a: content filters at the producer")
    axes.plot(counts, [row["steam_us"] for row in compared], marker="o", label="3b: subject at the producer (publish)")
    looked = [row for row in rows if row["kind"] == "lookup"]
    axes.plot(
        [row["consumers"] for row in looked], [row["lookup_us"] for row in looked], marker="s", label="3b: lookup"
    )
    axes.set(xscale="log", yscale="log", xlabel="consumers", ylabel="µs of processor time at the producer, one event")
    axes.legend()
