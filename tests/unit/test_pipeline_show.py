"""How tables look in a terminal: no Spark, no surprises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.show import drawn, head


def latencies(*rows: tuple[str, int, int | None]) -> Any:
    """Return rows of ``latency``: subject, delivered and p99."""
    given = {"window_start": 0, "window_end": 1, "expired_unseen": 2, "deadlines_missed": 3}
    full = [
        given | {"subject": subject, "delivered": delivered} | dict.fromkeys(("p50_us", "p90_us", "p99_us"), p99)
        for subject, delivered, p99 in rows
    ]
    return pa.Table.from_pylist(full, schema=TABLES["latency"].schema)


def page(table: str, rows: Any) -> str:
    """Return what a terminal shows."""
    console = Console(width=160, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(drawn(table, rows))
    return capture.get()


def test_the_slowest_comes_first(tmp_path: Path) -> None:
    """Whoever asks for latencies looks for trouble; what was never delivered has none to show, and comes last."""
    (tmp_path / "latency").mkdir()
    pq.write_table(latencies(("a", 5, 1_500), ("b", 0, None), ("c", 5, 90_000_000)), tmp_path / "latency" / "x.parquet")
    assert head(tmp_path, "latency", limit=3).column("subject").to_pylist() == ["c", "a", "b"]


def test_times_are_said_in_the_unit_that_suits_them() -> None:
    """A page of microseconds is a page of zeros."""
    text = page("latency", latencies(("a", 5, 1_500), ("b", 0, None), ("c", 5, 90_000_000)))
    (header,) = [line for line in text.splitlines() if "p50" in line]
    assert "_us" not in header
    for subject, said in (("a", "1.5 ms"), ("c", "1.5 min")):
        (line,) = [line for line in text.splitlines() if f" {subject} " in line]
        assert said in line


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_000, "1 ms"),
        (999_999, "1,000 ms"),
        (7_200_000_000, "2 h"),
        (10**15, "11,574 d"),
    ],
)
def test_every_time_has_a_unit(us: int, said: str) -> None:
    """From no time at all to years."""
    assert said in page("latency", latencies(("a", 1, us)))


def test_a_link_is_followed_to_one_version(tmp_path: Path) -> None:
    """What a stream keeps up to date is a link; files beside it are no part of the table."""
    for number in (1, 2):
        version = tmp_path / "_versions" / "latency" / str(number)
        version.mkdir(parents=True)
        pq.write_table(latencies((f"version {number}", 1, 1)), version / "x.parquet")
    (tmp_path / "latency").symlink_to(Path("_versions/latency/2"))
    assert head(tmp_path, "latency", limit=9).column("subject").to_pylist() == ["version 2"]
