"""Delta tables: one version after the other, each whole, whatever ends the writer and whoever reads meanwhile."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files import delta
from whimbrel.pipeline.files.delta import (
    STREAM,
    WHOLE,
    DeltaOutput,
    by_window,
    check_folder,
    data_files,
    delta_schema,
    open_table,
    read,
    replace_table,
)

FRESH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)  # a folder for each
WINDOW_US = 10


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def matched(batch: int, number: int = 3) -> Any:
    """Return *number* rows of ``matches`` that say of which batch they are."""
    given = {"notification_node": "n", "published_at": batch, "session": "s", "subject_filter": "a", "name": ""}
    rows = [given | {"notification_seq": batch, "interest_seq": each} for each in range(number)]
    return pa.Table.from_pylist(rows, schema=TABLES["matches"].schema)


def window(begin: int, publications: int, subjects: str = "ab") -> Any:
    """Return the rows of ``popularity`` of one window."""
    given = {"window_start": begin, "window_end": begin + WINDOW_US, "subscribers": 1, "rate_per_s": 0.0}
    rows = [given | {"subject": subject, "publications": publications} for subject in subjects]
    return pa.Table.from_pylist(rows, schema=TABLES["popularity"].schema)


def rows_of(table: Any) -> Counter[Any]:
    """Return the rows of *table*, each as often as it is there."""
    return Counter(tuple(row.values()) for row in table.to_pylist())


def together(tables: Any) -> Counter[Any]:
    """Return the rows of all *tables*."""
    return sum(map(rows_of, tables), Counter())


# -- a batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES_MADE)
def test_an_empty_table_exists_with_its_columns(tmp_path: Path, table: str) -> None:
    """Who asks for the dead letters of a day on which there were none gets none, and no error."""
    DeltaOutput(tmp_path, table).create()
    found = DeltaTable(str(tmp_path / table))
    assert found.to_pyarrow_table().schema.names == TABLES[table].schema.names
    assert read(tmp_path, table).schema.equals(delta_schema(table))
    assert found.metadata().description == TABLES[table].description


def test_a_batch_appears_whole_and_once(tmp_path: Path) -> None:
    """A batch that is done again finds what it made, and leaves it."""
    output = DeltaOutput(tmp_path, "matches")
    assert (output.last_batch(), output.has(0), output.rows().num_rows) == (-1, False, 0)
    output.add(4, matched(4))
    output.add(4, matched(9))
    output.add(3, matched(9))
    assert (output.last_batch(), output.has(4), output.has(5)) == (4, True, False)
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(4))
    assert DeltaTable(str(tmp_path / "matches")).transaction_version(STREAM) == 4


def test_a_batch_without_rows_changes_nothing(tmp_path: Path) -> None:
    """A stream that has nothing to say makes neither files nor commits."""
    output = DeltaOutput(tmp_path, "matches")
    output.create()
    output.add(0, matched(0, 0))
    assert (output.last_batch(), DeltaTable(str(tmp_path / "matches")).version()) == (-1, 0)


def test_windows_are_replaced_one_by_one(tmp_path: Path) -> None:
    """What is not named stays, also a window before the year 1970; and its file is not written anew."""
    output = DeltaOutput(tmp_path, "popularity")
    output.replace(0, {-10: window(-10, 1), 0: window(0, 1), 10: window(10, 1)})
    before = set(data_files(tmp_path, "popularity"))
    output.replace(1, {10: window(10, 2), 20: window(20, 2)})
    assert rows_of(output.rows()) == together([window(-10, 1), window(0, 1), window(10, 2), window(20, 2)])
    assert len(before & set(data_files(tmp_path, "popularity"))) == 2
    assert (output.window(30), rows_of(output.window(10))) == (None, rows_of(window(10, 2)))


def test_a_whole_table_replaces_all_there_was(tmp_path: Path) -> None:
    """Of a plan there is only the last."""
    output = DeltaOutput(tmp_path, "replicas")
    given = {"subscribers": 1, "share": 0.5, "replicas": 1, "memory_bytes": 1}
    for batch, subjects in enumerate(("abc", "d", "")):
        rows = [given | {"subject": subject} for subject in subjects]
        output.replace(batch, {WHOLE: pa.Table.from_pylist(rows, schema=TABLES["replicas"].schema)})
        assert "".join(output.rows().column("subject").to_pylist()) == subjects


@pytest.mark.parametrize("kind", ["Parquet of a batch run", "a link of a stream", "versions beside it"])
def test_tables_of_an_older_whimbrel_are_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    """They would be read as a part of the table, or not at all."""
    if kind == "Parquet of a batch run":
        (tmp_path / "matches").mkdir()
        pq.write_table(matched(1), tmp_path / "matches" / "part-0.parquet")
    elif kind == "a link of a stream":
        (tmp_path / "versions").mkdir()
        (tmp_path / "matches").symlink_to(tmp_path / "versions")
    else:
        (tmp_path / "_versions").mkdir()
    for work in (lambda: DeltaOutput(tmp_path, "matches"), lambda: check_folder(tmp_path, "matches")):
        with pytest.raises(InvalidValueError, match=r"older Whimbrel made these tables.*make them anew elsewhere"):
            work()


def test_columns_that_came_later_are_added(tmp_path: Path) -> None:
    """A table of months goes on under a newer Whimbrel; older rows have nulls there."""
    folder = str(tmp_path / "deliveries")
    older = pa.schema([field for field in delta_schema("deliveries") if field.name not in {"via", "subject"}])
    DeltaTable.create(folder, older)
    row = {"notification_node": "n", "published_at": 1, "session": "s", "subscriptions": [], "outcome": "delivered"}
    row |= {"decided_at": 2, "subject": "a", "via": "live"}
    output = DeltaOutput(tmp_path, "deliveries")
    for seq in range(2):
        rows = pa.Table.from_pylist([row | {"notification_seq": seq}], schema=delta_schema("deliveries"))
        if not seq:
            path = tmp_path / "deliveries" / "old.parquet"
            pq.write_table(rows.select(older.names), path)
            replace_table(tmp_path, "deliveries", [path])
        else:
            output.add(seq, rows)
    found = read(tmp_path, "deliveries").sort_by("notification_seq")
    assert found.schema.equals(delta_schema("deliveries"))
    assert found.column("via").to_pylist() == [None, "live"]
    output.compact()
    assert read(tmp_path, "deliveries").sort_by("notification_seq").equals(found)


def test_a_batch_run_replaces_in_one_commit(tmp_path: Path) -> None:
    """A reader sees the table of before, or that of after, and what a reader holds stays readable."""
    for number, batch in enumerate((1, 2)):
        open_table(tmp_path, "matches")
        path = tmp_path / "matches" / f"run-{batch}" / "part.parquet"
        path.parent.mkdir()
        pq.write_table(matched(batch).cast(delta_schema("matches")), path)
        before = DeltaTable(str(tmp_path / "matches"))
        replace_table(tmp_path, "matches", [path])
        assert DeltaTable(str(tmp_path / "matches")).version() == before.version() + 1 == number + 1
        assert before.to_pyarrow_table().num_rows == (3 if number else 0)
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(2))


def test_a_stream_does_not_add_to_a_table_of_a_batch_run(tmp_path: Path) -> None:
    """Its rows would be there twice."""
    output = DeltaOutput(tmp_path, "matches")
    assert output.is_of_a_stream()
    open_table(tmp_path, "matches")
    pq.write_table(matched(1).cast(delta_schema("matches")), tmp_path / "matches" / "x.parquet")
    replace_table(tmp_path, "matches", [tmp_path / "matches" / "x.parquet"])
    assert not output.is_of_a_stream()


# -- interruptions ---------------------------------------------------------------------------------------------------


class _KilledError(Exception):
    """Stands for the end of the process, at this place."""


def _dies(step: Callable[..., Any], random: Random) -> Callable[..., Any]:
    def work(*arguments: Any, **options: Any) -> Any:
        chance = random.random()
        if chance < 0.15:
            raise _KilledError
        result = step(*arguments, **options)
        if chance > 0.85:
            raise _KilledError
        return result

    return work


@pytest.mark.parametrize("table", ["matches", "popularity"])
def test_an_interruption_anywhere_changes_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Between any two steps; a batch is made again until it comes through, and the rows are there once."""
    random = Random(table)
    steps = ((DeltaOutput, "_add_file"), (DeltaOutput, "_commit"), (delta, "_sync_commit"), (delta, "open_table"))
    for owner, name in steps:
        monkeypatch.setattr(owner, name, _dies(getattr(owner, name), random))
    model, kills = dict[int, Any](), 0
    for batch in range(12):
        begin = batch // 2 * 10
        model[batch if table == "matches" else begin] = matched(batch) if table == "matches" else window(begin, batch)
        while True:
            try:
                output = DeltaOutput(tmp_path, table)
                if table == "matches":
                    output.add(batch, matched(batch))
                else:
                    output.replace(batch, {begin: window(begin, batch)})
                if batch % 3 == 2:
                    output.compact(before=begin)
                break
            except _KilledError:
                kills += 1
    assert kills > 5
    assert rows_of(read(tmp_path, table)) == together(model.values())
    assert DeltaOutput(tmp_path, table).last_batch() == 11


# -- upkeep ----------------------------------------------------------------------------------------------------------


def test_old_rows_go_and_no_others(tmp_path: Path) -> None:
    """To the row, also in files that were put together; the batch stays known."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(9):
        output.add(batch, matched(batch, 1))
    output.compact()
    assert output.expire(4) == 4
    assert output.expire(4) == 0
    assert sorted(read(tmp_path, "matches").column("notification_seq").to_pylist()) == [4, 5, 6, 7, 8]
    assert output.last_batch() == 8


def test_windows_that_still_change_are_neither_removed_nor_put_together(tmp_path: Path) -> None:
    """What is still to come is added to them."""
    output = DeltaOutput(tmp_path, "popularity")
    for number in range(12):
        output.replace(number, {number * 10: window(number * 10, 1)})
    assert output.compact(before=90) == 9
    assert len(data_files(tmp_path, "popularity")) == 4
    assert output.expire(1_000, before=50) == 10
    assert sorted(by_window(output.rows())) == [50, 60, 70, 80, 90, 100, 110]
    output.replace(12, {60: window(60, 7)})  # a straggler: the others of its file go apart again
    assert rows_of(output.window(60)) == rows_of(window(60, 7))
    assert sorted(by_window(output.rows())) == [50, 60, 70, 80, 90, 100, 110]


def test_large_files_are_left_alone(tmp_path: Path) -> None:
    """Else a table of gigabytes would be written anew with every turn."""
    output = DeltaOutput(tmp_path, "matches")
    output.add(0, matched(0, 20_000))
    (large,) = data_files(tmp_path, "matches")
    for batch in range(1, 6):
        output.add(batch, matched(batch))
    assert output.compact(target_bytes=large.stat().st_size - 1) == 5
    assert large in data_files(tmp_path, "matches")
    assert len(data_files(tmp_path, "matches")) == 2


def test_what_an_interrupted_batch_left_is_removed_after_a_day(tmp_path: Path) -> None:
    """It is no part of the table, and costs only disk; what is young may be in the making."""
    output = DeltaOutput(tmp_path, "matches")
    output.add(0, matched(0))
    for name, age_s in (("part-old.parquet", 2 * 86_400), ("part-young.parquet", 60)):
        path = tmp_path / "matches" / name
        pq.write_table(matched(7), path)
        written = path.stat().st_mtime - age_s
        os.utime(path, (written, written))
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(0))
    output.sweep()
    there = {path.name for path in (tmp_path / "matches").glob("part-*")}
    assert "part-old.parquet" not in there
    assert "part-young.parquet" in there
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(0))


STEPS = st.one_of(
    st.tuples(st.just("replace"), st.dictionaries(st.integers(-3, 9), st.integers(1, 3), min_size=1, max_size=3)),
    st.tuples(st.just("compact"), st.none() | st.integers(-3, 9)),
    st.tuples(st.just("again"), st.dictionaries(st.integers(-3, 9), st.integers(1, 3), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["sweep", "reopen"]), st.none()),
)


@FRESH
@given(steps=st.lists(STEPS, max_size=15))
def test_windows_are_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    """Whatever is replaced, put together, swept and opened again, in any order."""
    out = tmp_path_factory.mktemp("out")
    output, model, batch = DeltaOutput(out, "popularity"), dict[int, Any](), -1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delta, "_TOGETHER", 2)
        for name, what in steps:
            if name == "replace":
                batch += 1
                tables = {each * 10: window(each * 10, batch, "abc"[:number]) for each, number in what.items()}
                output.replace(batch, tables)
                model |= tables
            elif name == "again":
                output.replace(batch, {each * 10: window(each * 10, -1) for each in what} if batch >= 0 else {})
            elif name == "compact":
                output.compact(before=None if what is None else what * 10)
            elif name == "reopen":
                output = DeltaOutput(out, "popularity")
            else:
                output.sweep()
            assert rows_of(read(out, "popularity")) == together(model.values())
            assert output.last_batch() == batch
        for each, rows in model.items():
            assert rows_of(output.window(each)) == rows_of(rows)


# -- readers ---------------------------------------------------------------------------------------------------------


class Reader(threading.Thread):
    """Reads a table again and again, and notes which versions it saw, or what went wrong."""

    def __init__(self, out: Path, table: str, versions: dict[frozenset[Any], int]) -> None:
        super().__init__()
        self._out, self._table, self._versions = out, table, versions
        self.seen: list[int] = []
        self.trouble: list[object] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Read until it is over."""
        while not self.is_over.is_set():
            try:
                found = rows_of(read(self._out, self._table))
            except Exception as error:  # noqa: BLE001 # whatever it is, the test tells it
                self.trouble.append(error)
                return
            version = self._versions.get(frozenset(found.items()))
            if version is None or (self.seen and version < self.seen[-1]):
                self.trouble.append(found)
                return
            self.seen.append(version)


def _growing() -> Iterator[tuple[Any, Counter[Any]]]:
    """Yield batches to add, and all rows after each."""
    model = Counter[Any]()
    for batch in count():
        model += rows_of(matched(batch, batch % 4 + 1))
        yield matched(batch, batch % 4 + 1), model


def _changing() -> Iterator[tuple[Any, Counter[Any]]]:
    """Yield windows to replace, two that belong together, and all rows after each; only the last ones change."""
    model: dict[int, Any] = {}
    for batch in count():
        begin = batch // 3 * 10
        windows = {begin: window(begin, batch), begin + 10: window(begin + 10, batch)}
        model |= windows
        yield windows, together(model.values())


@pytest.mark.parametrize("table", ["matches", "popularity"])
def test_readers_see_one_version_after_the_other(tmp_path: Path, table: str) -> None:
    """While batches come and files are put together and go: never half a batch, none twice, and no error."""
    batches = _growing() if table == "matches" else _changing()
    plan = [(what, frozenset(rows.items())) for what, rows in (next(batches) for _ in range(40))]
    versions = {frozenset[Any](): -1} | {rows: batch for batch, (_, rows) in enumerate(plan)}
    output = DeltaOutput(tmp_path, table)
    output.create()
    readers = [Reader(tmp_path, table, versions) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for batch, (what, _) in enumerate(plan):
            if table == "matches":
                output.add(batch, what)
            else:
                output.replace(batch, what)
            if batch % 4 == 0:
                output.compact(before=None if table == "matches" else batch // 3 * 10)
                output.sweep()
    finally:
        for reader in readers:
            reader.is_over.set()
            reader.join()
    assert [reader.trouble for reader in readers] == [[], []]
    assert len({version for reader in readers for version in reader.seen}) > 1
