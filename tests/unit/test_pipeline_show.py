"""How tables look in a terminal: no Spark, no surprises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import DeltaOutput
from whimbrel.pipeline.show import draw_table, head


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
        console.print(draw_table(table, rows))
    return capture.get()


def test_the_slowest_comes_first(tmp_path: Path) -> None:
    """Whoever asks for latencies looks for trouble; what was never delivered has none to show, and comes last."""
    rows = latencies(("a", 5, 1_500), ("b", 0, None), ("c", 5, 90_000_000))
    DeltaOutput(tmp_path, "latency").replace(0, {0: rows})
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


def test_only_files_that_a_commit_names_are_shown(tmp_path: Path) -> None:
    """What a stream is writing, and what it has replaced, are no part of the table."""
    output = DeltaOutput(tmp_path, "latency")
    for batch in (1, 2):
        output.replace(batch, {0: latencies((f"version {batch}", 1, 1))})
    pq.write_table(latencies(("of no commit", 1, 1)), tmp_path / "latency" / "x.parquet")
    assert head(tmp_path, "latency", limit=9).column("subject").to_pylist() == ["version 2"]


def test_a_folder_of_an_older_whimbrel_is_refused(tmp_path: Path) -> None:
    """Its Parquet files alone are no table of ours."""
    (tmp_path / "latency").mkdir()
    pq.write_table(latencies(("a", 1, 1)), tmp_path / "latency" / "x.parquet")
    with pytest.raises(InvalidValueError, match="older Whimbrel made these tables"):
        head(tmp_path, "latency", limit=9)


def test_an_empty_table_says_what_that_means(tmp_path: Path) -> None:
    """It is there, with its columns; and the line to paste reads it, whatever its folder is called."""
    out = tmp_path / 'o\'brien "5 %"'
    DeltaOutput(out, "dead_letters").create()
    done = CliRunner().invoke(app, ["pipeline", "show", "dead_letters", "--out", str(out)])
    assert done.stdout == "dead_letters is empty: nothing failed so far\n"
    said = dict(line.split(maxsplit=1) for line in done.stderr.splitlines()[1:])
    assert list(said) == ["pandas", "DuckDB", "Polars", "Spark"]
    pasted = eval(said["pandas"], {"deltalake": deltalake})  # noqa: S307 # as a user would paste it
    assert list(pasted.columns) == TABLES["dead_letters"].schema.names


def test_the_blocks_for_a_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB and pandas read the tables of a folder ``live`` as the how-to says, with no network."""
    pytest.importorskip("duckdb_extension_delta", reason="an extra of the benchmarks")
    DeltaOutput(tmp_path / "live", "latency").replace(0, {0: latencies(("a", 5, 1_500), ("b", 5, 90_000))})
    row = WIDE | {"subject": "a", "outcome": "delivered", "decided_at": 1, "subscriptions": []}
    rows = pa.Table.from_pylist([row, row, row | {"outcome": "expired"}], schema=TABLES["deliveries"].schema)
    DeltaOutput(tmp_path / "live", "deliveries").add(0, rows)
    page = Path(__file__).parents[2] / "docs" / "how-to" / "from-a-notebook.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks[:2]:
        exec(block, names)  # noqa: S102 # our own page
    assert names["outcomes"].loc["a"].to_dict() == {"delivered": 2, "expired": 1}
    assert names["found"]["subject"].to_list() == ["b", "a"]


WIDE = {"notification_node": "node-1", "notification_seq": 123_456, "published_at": 1, "session": "student-19"}
PAGES: dict[str, dict[str, Any]] = {
    "deliveries": WIDE
    | {"subject": "campus/library", "device": "tablet-19", "outcome": "taken elsewhere", "decided_at": 1}
    | {"subscriptions": [{"subject_filter": "campus/#", "name": ""}], "body_hash": bytes(32)},
    "matches": WIDE | {"subject_filter": "campus/+/#", "name": "", "interest_seq": 7},
    "dead_letters": {"found_at": 1, "source": "log table publications", "position": 7, "reason": "qos: found 7"}
    | {"content": b'{"qos": 7}'},
    "link_quality": {"node": "n", "seq": 7, "device": "tablet-19", "since_at": 1, "reported_at": 2}
    | {"received": 10, "sent": 12, "network_connection": 0.83},
    "contacts": {"device_low": "phone-7", "device_high": "tablet-19", "began_at": 1, "ended_at": None}
    | {"closest_m": 12.5},
    "meetings": {"device_low": "phone-7", "device_high": "tablet-19", "contacts": 3, "mean_contact_us": 31e6}
    | {"mean_apart_us": 608e6, "meeting_time_us": 497e6},
    "publications": {"node": "node-1", "seq": 123_456, "published_at": 1, "subject": "campus/library/room/0"}
    | {"publisher": "tablet-19", "attributes": [("free", {"type": 1, "int": 15})], "body": b"", "qos": 1},
    "popularity": {"window_start": 1, "window_end": 2, "subject": "campus/library/room/0", "publications": 12_345}
    | {"subscribers": 120, "rate_per_s": 0.34},
}


@pytest.mark.parametrize("table", PAGES)
def test_a_page_is_readable_at_100_columns(table: str) -> None:
    """Names of columns are whole, and so are the values that say who, what and when."""
    console = Console(width=100, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(draw_table(table, pa.Table.from_pylist([PAGES[table]], schema=TABLES[table].schema)))
    said = capture.get()
    shown = ("tablet-19", "student-19", "campus/library", "123456", '{"qos": 7}', "0.83", "decided_at", "reported_at")
    mentioned = {str(value) for value in PAGES[table].values()} | {'{"qos": 7}'} | set(TABLES[table].schema.names)
    assert [each for each in shown if each in mentioned and each not in said and each != '{"qos": 7}'] == []
    assert table != "dead_letters" or '{"qos": 7}' in said
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("table", PAGES)
def test_a_narrow_page_leaves_out_columns_rather_than_break_words(table: str) -> None:
    """A terminal has 80 columns, and a name that is folded into ten lines says nothing."""
    rows = pa.Table.from_pylist([PAGES[table]], schema=TABLES[table].schema)
    console = Console(width=80, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(draw_table(table, rows))
    said = capture.get()
    assert max(map(len, said.splitlines())) <= 80
    _, _, body = said.partition("──\n")
    assert len(body.strip().partition("\n\n")[0].splitlines()) <= 2 + (table == "publications"), said
    left_out = re.findall(r"Too narrow for (.*); --json prints all columns\.", said)
    assert all(name.strip() not in said.partition("──")[0].split() for name in ",".join(left_out).split(",") if name)


@pytest.mark.parametrize(
    ("table", "changes", "kept"),
    [
        ("popularity", [{"window_start": hour * 3_600_000_000} for hour in range(3)], "window_start"),
        ("deliveries", [{"notification_node": node} for node in ("north", "south")], "notification_node"),
        ("publications", [{"node": node} for node in ("north", "south")], "node"),
        ("matches", [{"name": name} for name in ("day", "night")], "name"),
    ],
)
def test_rows_of_a_narrow_page_are_not_alike(table: str, changes: list[dict[str, Any]], kept: str) -> None:
    """Two rows that look the same cannot be told apart; a column that has one value for all rows goes first."""
    rows = [PAGES[table] | change for change in changes]
    console = Console(width=80, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(draw_table(table, pa.Table.from_pylist(rows, schema=TABLES[table].schema)))
    said = capture.get()
    title = {"notification_node": "node"}.get(kept, kept)
    assert title in said.partition("──")[0].split(), said
    assert max(map(len, said.splitlines())) <= 80


def test_contacts_are_drawn_on_one_line_of_time() -> None:
    """Who met when is seen at a glance; what goes on reaches the end."""
    times = [(0, 50), (50, 100), (90, None)]
    rows = [
        {"device_low": "a", "device_high": "b", "began_at": began, "ended_at": ended, "closest_m": 1.0}
        for began, ended in times
    ]
    console = Console(width=120, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(draw_table("contacts", pa.Table.from_pylist(rows, schema=TABLES["contacts"].schema)))
    lines = [line.split()[-1] for line in capture.get().splitlines() if "█" in line]
    assert [line.count("█") for line in lines] == [9, 9, 5]
    assert [line.index("█") for line in lines] == [0, 8, 15]
