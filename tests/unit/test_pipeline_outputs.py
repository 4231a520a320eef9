"""Outputs: one version after the other, each whole, whatever ends the writer and whoever reads meanwhile."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.outputs import TIME_COLUMNS, WHOLE, File, Keep, Output, current, read

FRESH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)  # a folder for each
SMALL = Keep(together=3)
LATER = 1e12
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


def leftovers(out: Path, table: str) -> list[str]:
    """Return what stands beside the version that the link leads to."""
    folder = out / "_versions" / table
    return sorted(path.name for path in folder.iterdir() if path != (out / table).resolve())


# -- versions --------------------------------------------------------------------------------------------------------


def test_a_batch_appears_whole_and_once(tmp_path: Path) -> None:
    """A batch that is done again finds what it made, and leaves it."""
    output = Output(tmp_path, "matches")
    assert (output.last_batch(), output.has(0), output.rows().num_rows) == (-1, False, 0)
    output.add(3, matched(3))
    output.add(3, matched(3, 9))
    output.add(2, matched(2))
    assert (output.last_batch(), output.has(3), output.has(4)) == (3, True, False)
    assert rows_of(output.rows()) == rows_of(read(tmp_path, "matches")) == rows_of(matched(3))


def test_a_batch_without_rows_changes_nothing(tmp_path: Path) -> None:
    """A stream that has nothing to say makes no files, but the one that shows readers the columns of an empty table."""
    output = Output(tmp_path, "matches")
    output.replace(1, {})
    assert (output.last_batch(), output.version(), list(tmp_path.iterdir())) == (-1, None, [])
    output.add(2, matched(2, 0))
    output.add(3, matched(3, 0))
    assert (output.last_batch(), len(output.files())) == (2, 1)
    assert pq.read_table(tmp_path / "matches").schema.names == TABLES["matches"].schema.names


def test_who_comes_back_finds_the_table_as_it_was(tmp_path: Path) -> None:
    """The link is all that is remembered; the folder may have been moved."""
    Output(tmp_path / "here", "matches").add(5, matched(5))
    (tmp_path / "here").rename(tmp_path / "there")
    again = Output(tmp_path / "there", "matches")
    again.add(5, matched(5))
    again.add(6, matched(6))
    assert rows_of(again.rows()) == together([matched(5), matched(6)])


def test_windows_are_replaced_one_by_one(tmp_path: Path) -> None:
    """What is not named stays, also a window before the year 1970."""
    output = Output(tmp_path, "popularity")
    output.replace(1, {begin: window(begin, 1) for begin in (-10, 0, 10)})
    output.replace(2, {-10: window(-10, 2, "a"), 20: window(20, 2)})
    found = {begin: output.window(begin) for begin in (-20, -10, 0, 20, 30)}
    assert found[-20] is found[30] is None
    assert rows_of(found[-10]) == rows_of(window(-10, 2, "a"))
    assert rows_of(output.rows()) == together([window(-10, 2, "a"), window(0, 1), window(10, 1), window(20, 2)])


def test_a_whole_table_replaces_all_there_was(tmp_path: Path) -> None:
    """Of a plan there is only the last."""
    schema = TABLES["replicas"].schema
    output = Output(tmp_path, "replicas")
    for batch, subject in enumerate("abc"):
        row = {"subject": subject, "subscribers": 1, "share": 1.0, "replicas": 1, "memory_bytes": 1}
        output.replace(batch, {WHOLE: pa.Table.from_pylist([row], schema=schema)})
        output.compact()
    assert output.rows().column("subject").to_pylist() == ["c"]
    assert len(output.files()) == 1


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_table_of_a_stream_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    """A batch run's table, or anybody's link, is never written over."""
    match kind:
        case "folder":
            (tmp_path / "matches").mkdir()
        case "file":
            (tmp_path / "matches").touch()
        case _:
            (tmp_path / "matches").symlink_to(tmp_path)
    with pytest.raises(InvalidValueError, match="allowed is a folder without tables of a batch run"):
        Output(tmp_path, "matches")


def test_a_table_of_a_batch_run_is_read_as_well(tmp_path: Path) -> None:
    """Whoever shows a table need not know who made it; one that nobody made is empty."""
    (tmp_path / "matches").mkdir()
    pq.write_table(matched(1), tmp_path / "matches" / "part-0.parquet")
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(1))
    assert read(tmp_path, "popularity").equals(TABLES["popularity"].schema.empty_table())


# -- the end of the process ------------------------------------------------------------------------------------------


class _KilledError(BaseException):
    """The end of the process, before something happens to the disk."""


class Mortal:
    """Whatever happens to the disk, and the end of it all before some step; the dead tidy nothing up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = math.inf
        files = [(Path, name) for name in ("mkdir", "rename", "symlink_to", "unlink", "open")]
        for owner, name in [*files, (os, "link"), (os, "fsync"), (shutil, "rmtree"), (pq, "write_table")]:
            monkeypatch.setattr(owner, name, self._mortal(getattr(owner, name)))

    def _mortal(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise _KilledError
            return step(*arguments, **options) if self.left > 0 else None

        return taken

    def dies(self, act: Callable[[], object], *, after: int) -> bool:
        """Tell whether *act* came to its end before it took so many steps."""
        self.left = after
        try:
            act()
        except _KilledError:
            return True
        finally:
            self.left = math.inf
        return False


def _add(output: Output) -> None:
    output.add(9, matched(9))


def _replace(output: Output) -> None:
    output.replace(9, {10: window(10, 9), 50: window(50, 9)})


def _compact(output: Output) -> None:
    output.compact()


def _sweep(output: Output) -> None:
    output.sweep(now=LATER)


def _expire(output: Output) -> None:
    output.expire(3)


ACTS = {"matches": (_add, _compact, _expire, _sweep), "popularity": (_replace, _compact, _expire, _sweep)}


@pytest.mark.parametrize(("table", "act"), [(table, act) for table, acts in ACTS.items() for act in acts])
@pytest.mark.parametrize("is_swept", [False, True])
def test_an_interruption_anywhere_changes_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, act: Callable[[Output], None], *, is_swept: bool
) -> None:
    """At every step: readers see what was, or what comes; the next try makes the same, and nothing is left behind."""
    mortal = Mortal(monkeypatch)

    def begun(out: Path) -> Output:
        output = Output(out, table, keep=Keep(together=3))
        for batch in range(5):
            if table == "matches":
                output.add(batch, matched(batch))
            else:
                output.replace(batch, {batch * 10: window(batch * 10, batch)})
        return output

    undisturbed = begun(tmp_path / "undisturbed")
    before = rows_of(undisturbed.rows())
    act(undisturbed)
    after = rows_of(undisturbed.rows())
    for step in count(1):
        out = tmp_path / str(step)
        output = begun(out)
        if not mortal.dies(lambda: act(output), after=step):  # noqa: B023 # called at once
            break
        assert rows_of(read(out, table)) in (before, after)
        output = Output(out, table, keep=Keep(together=3))
        if is_swept:
            output.sweep()
        act(output)
        assert rows_of(read(out, table)) == after
        assert output.last_batch() == undisturbed.last_batch()
        assert len(output.files()) == len(undisturbed.files())
        output.sweep(now=LATER)
        assert leftovers(out, table) == []
    assert step > 4


# -- old rows --------------------------------------------------------------------------------------------------------


def test_files_go_whose_newest_row_is_too_old(tmp_path: Path) -> None:
    """What the table has of younger rows stays, and so do older ones in one file with them."""
    output = Output(tmp_path, "matches", keep=SMALL)
    for batch in range(3):
        output.add(batch, matched(batch))
    output.compact()
    for batch in range(3, 6):
        output.add(batch, matched(batch))
    assert output.expire(2) == 0  # batches 0 and 1 are in one file with 2
    assert output.expire(4) == 2
    assert rows_of(output.rows()) == together(matched(batch) for batch in (4, 5))
    assert output.last_batch() == 5
    output.add(5, matched(5))
    assert output.expire(4) == 0
    assert rows_of(output.rows()) == together(matched(batch) for batch in (4, 5))


@pytest.mark.parametrize("table", ["matches", "popularity"])
def test_old_rows_go_however_small_the_files_are(tmp_path: Path, table: str) -> None:
    """Small files are put together, but not the oldest with the newest: these would keep them for ever."""
    output, keep, every = Output(tmp_path, table, keep=SMALL), 240, 10
    for batch in range(200):
        at = batch * every
        if table == "matches":
            output.add(batch, matched(at))
        else:
            output.replace(batch, {at: window(at, 1)})
        output.expire(at - keep)
        output.compact(within=keep // 8)
    times = output.rows().column(TIME_COLUMNS[table]).cast(pa.int64()).to_pylist()
    assert max(times) == 199 * every
    assert set(range(max(times) - keep, max(times), every)) <= set(times)
    assert max(times) - min(times) <= keep + keep // 8 + every
    assert len(output.files()) < 20


def test_when_everything_is_old_the_table_is_empty_and_goes_on(tmp_path: Path) -> None:
    """A table without rows is one all the same; what was is not made again."""
    output = Output(tmp_path, "matches", keep=SMALL)
    output.add(0, matched(0))
    assert output.expire(1) == 1
    assert rows_of(read(tmp_path, "matches")) == Counter()
    output.add(0, matched(0))
    output.add(1, matched(1))
    assert rows_of(read(tmp_path, "matches")) == rows_of(matched(1))


def test_windows_that_still_change_are_not_too_old(tmp_path: Path) -> None:
    """Else what comes would begin a window anew that had rows already."""
    output = Output(tmp_path, "popularity", keep=SMALL)
    output.replace(0, {begin: window(begin, 1) for begin in (0, 10, 20, 30)})
    assert output.expire(1_000, before=20) == 2
    assert rows_of(output.rows()) == together(window(begin, 1) for begin in (20, 30))


def test_a_table_that_is_replaced_as_a_whole_has_no_old_rows(tmp_path: Path) -> None:
    """A plan is as old as the last that came of it."""
    output = Output(tmp_path, "replicas", keep=SMALL)
    row = dict.fromkeys(TABLES["replicas"].schema.names, 1) | {"subject": "a"}
    output.replace(0, {WHOLE: pa.Table.from_pylist([row], schema=TABLES["replicas"].schema)})
    assert output.expire(10**18) == 0
    assert output.rows().num_rows == 1


# -- small files -----------------------------------------------------------------------------------------------------


def test_small_neighbours_are_put_together(tmp_path: Path) -> None:
    """The rows are the same, and so are the batches that are in the table."""
    output = Output(tmp_path, "matches", keep=SMALL)
    for batch in range(7):
        output.add(batch, matched(batch))
    before = rows_of(output.rows())
    assert output.compact() == 7
    assert (len(output.files()), rows_of(output.rows()), output.last_batch()) == (1, before, 6)
    assert output.compact() == 0
    output.add(6, matched(6))
    output.add(7, matched(7))
    assert rows_of(output.rows()) == before + rows_of(matched(7))
    assert (output.files()[0].first, output.files()[0].last) == (0, 6)


def test_fewer_than_the_number_stay_apart(tmp_path: Path) -> None:
    """To write rows anew for one file less would be dear."""
    output = Output(tmp_path, "matches", keep=SMALL)
    output.add(0, matched(0))
    output.add(1, matched(1))
    version = output.version()
    assert output.compact() == 0
    assert output.version() == version


def test_windows_that_still_change_stay_apart(tmp_path: Path) -> None:
    """They would be written anew in every batch."""
    output = Output(tmp_path, "popularity", keep=SMALL)
    output.replace(1, {begin: window(begin, 1) for begin in range(0, 60, 10)})
    assert output.compact(before=30) == 3
    assert [(file.first, file.last) for file in output.files()] == [(0, 20), (30, 30), (40, 40), (50, 50)]
    assert output.compact(before=0) == 0


def test_windows_that_were_put_together_are_found_and_replaced_one_by_one(tmp_path: Path) -> None:
    """The stream does not ask for them; if it did, the others must not go with them."""
    output = Output(tmp_path, "popularity", keep=SMALL)
    output.replace(1, {begin: window(begin, 1) for begin in (0, 10, 20, 40)})
    assert output.compact() == 4
    assert rows_of(output.window(10)) == rows_of(window(10, 1))
    assert output.window(30) is None
    output.replace(2, {10: window(10, 2), 30: window(30, 2)})
    wanted = [window(0, 1), window(10, 2), window(20, 1), window(30, 2), window(40, 1)]
    assert rows_of(output.rows()) == together(wanted)
    assert rows_of(output.window(30)) == rows_of(window(30, 2))


def test_no_file_grows_beyond_the_largest(tmp_path: Path) -> None:
    """Files of gigabytes would not be shared by workers."""
    for batch in range(12):
        Output(tmp_path, "matches").add(batch, matched(batch))
    size = max(file.path.stat().st_size for file in Output(tmp_path, "matches").files())
    output = Output(tmp_path, "matches", keep=Keep(together=3, largest_bytes=4 * size))
    assert output.compact() == 12
    assert [(file.first, file.last) for file in output.files()] == [(0, 3), (4, 7), (8, 11)]


def test_small_files_between_large_ones_do_not_stay_for_ever(tmp_path: Path) -> None:
    """Batches are of many sizes: a stream of months must not have a file for every second one."""
    output = Output(tmp_path, "dead_letters")
    random = Random(1)
    for batch in range(20):
        content = random.randbytes(300_000 if batch % 2 else 10)
        row = {"found_at": 0, "source": "s", "position": batch, "reason": "r", "content": content}
        output.add(batch, pa.Table.from_pylist([row], schema=TABLES["dead_letters"].schema))
    output.compact()
    assert len(output.files()) < 8
    assert sorted(output.rows().column("position").to_pylist()) == list(range(20))


@pytest.mark.parametrize("sizes", [(2_000,), (300_000,), (1_000, 300_000), (1_000, 40_000, 900_000, 9_000_000)])
def test_in_the_long_run_files_are_few_and_rows_are_written_a_few_times(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Months of batches of any size, played with files that have a size and nothing else."""
    keep = Keep()
    output, random, files = Output(tmp_path, "matches", keep=keep), Random(2), list[File]()
    made = written = most = 0

    def a_file(first: int, last: int, size: int) -> File:
        path = tmp_path / f"rows-{first}_{last}-{last}.parquet"
        with path.open("wb") as stream:
            stream.truncate(size)
        return File("rows", first, last, last, path)

    for batch in range(2_000):
        size = random.choice(sizes)
        files.append(a_file(batch, batch, size))
        made += size
        if batch % keep.together == 0:
            for run in list(output._runs(files)):
                size = sum(file.path.stat().st_size for file in run)
                place = files.index(run[0])
                files[place : place + len(run)] = [a_file(run[0].first, run[-1].last, size)]
                written += size
        most = max(most, len(files))
    tiers, full = 4, made // (keep.largest_bytes // 2) + 1
    assert most <= 2 * keep.together * (tiers + full)
    assert written < 16 * made


# -- versions that nobody reads --------------------------------------------------------------------------------------


def aged(output: Output, ages: dict[int, float]) -> None:
    """Let versions have appeared some seconds after the beginning of time."""
    for batch, at in ages.items():
        os.utime(output._versions / f"{batch:012}", (at, at))


def test_a_version_is_kept_until_it_was_replaced_long_enough_ago(tmp_path: Path) -> None:
    """What counts is not its age but how long ago a reader may have followed the link to it."""
    output = Output(tmp_path, "matches", keep=Keep(seconds=60))
    for batch in range(4):
        output.add(batch, matched(batch))
    aged(output, {0: 0, 1: 1_000, 2: 1_030, 3: 5_000})
    assert output.sweep(now=1_060) == 0
    assert output.sweep(now=1_061) == 1
    assert leftovers(tmp_path, "matches") == ["000000000001", "000000000002"]
    assert output.sweep(now=5_060) == 1
    assert output.sweep(now=5_061) == 1
    assert output.sweep(now=LATER) == 0
    assert rows_of(output.rows()) == together(map(matched, range(4)))


def test_whoever_followed_the_link_reads_on(tmp_path: Path) -> None:
    """While it is kept, a version stays as it is; after that there is an error, never a part of it."""
    output = Output(tmp_path, "matches", keep=SMALL)
    for batch in range(3):
        output.add(batch, matched(batch))
    resolved = pads.dataset((tmp_path / "matches").resolve(), format="parquet")
    output.add(3, matched(3))
    output.compact()
    output.sweep()
    assert rows_of(resolved.to_table()) == together(map(matched, range(3)))
    output.sweep(now=LATER)
    with pytest.raises(OSError, match="No such file"):
        resolved.to_table()


def test_a_version_goes_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that took too long and lists it just now must not find a part of its files."""
    output = Output(tmp_path, "matches", keep=SMALL)
    for batch in range(3):
        output.add(batch, matched(batch))
    before = (tmp_path / "matches").resolve()
    output.add(3, matched(3))
    monkeypatch.setattr(shutil, "rmtree", lambda *_arguments, **_options: None)  # its files are still to be removed
    assert output.sweep(now=LATER) == 3
    assert not before.exists()


def test_whoever_does_not_follow_the_link_reads_a_version_or_fails(tmp_path: Path) -> None:
    """What was listed is there in the next version too, or is not there at all: no rows are mixed."""
    output = Output(tmp_path, "matches", keep=SMALL)
    for batch in range(3):
        output.add(batch, matched(batch))
    careless = pads.dataset(tmp_path / "matches", format="parquet")
    output.add(3, matched(3))
    assert rows_of(careless.to_table()) == together(map(matched, range(3)))
    output.compact()
    with pytest.raises(OSError, match="No such file"):
        careless.to_table()


def test_what_an_interrupted_stream_left_is_removed(tmp_path: Path) -> None:
    """Folders that were being made, links beside the link, and a version that the link never led to."""
    output = Output(tmp_path, "matches")
    output.add(1, matched(1))
    folder = output._versions
    (folder / "_making-1").mkdir()
    (folder / "_making-1" / "x.parquet").touch()
    (folder / "_link-1").symlink_to("_making-1")
    (folder / "000000000002").mkdir()
    assert output.sweep() == 0
    assert leftovers(tmp_path, "matches") == []
    output.add(2, matched(2))
    assert rows_of(output.rows()) == together([matched(1), matched(2)])


# -- all of it, at random --------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("replace"), st.dictionaries(st.integers(-3, 9), st.integers(0, 3), min_size=1, max_size=3)),
    st.tuples(st.just("compact"), st.none() | st.integers(-3, 9)),
    st.tuples(st.just("again"), st.dictionaries(st.integers(-3, 9), st.integers(0, 3), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["sweep", "sweep all", "reopen"]), st.none()),
)


@FRESH
@given(steps=st.lists(STEPS, max_size=25))
def test_windows_are_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    """Whatever is replaced, put together, swept and opened again, in any order."""
    out = tmp_path_factory.mktemp("out")
    output, model, batch = Output(out, "popularity", keep=Keep(together=2)), dict[int, Any](), -1
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
            output = Output(out, "popularity", keep=Keep(together=2))
        else:
            output.sweep(now=LATER if name == "sweep all" else None)
        assert rows_of(read(out, "popularity")) == together(model.values())
        assert output.last_batch() == batch
    for each, rows in model.items():
        assert rows_of(output.window(each) or rows.slice(0, 0)) == rows_of(rows)


@FRESH
@given(
    steps=st.lists(st.sampled_from(["add", "add", "add", "none", "again", "compact", "sweep", "reopen"]), max_size=30)
)
def test_rows_are_those_of_a_list(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Each batch once, in whatever files."""
    out = tmp_path_factory.mktemp("out")
    output, model, last = Output(out, "matches", keep=SMALL), Counter[Any](), -1
    for batch, name in enumerate(steps):
        if name in {"add", "none"}:
            rows = matched(batch, 2 if name == "add" else 0)
            output.add(batch, rows)
            model += rows_of(rows)
            last = batch if name == "add" or last < 0 else last
        elif name == "again":
            output.add(last, matched(99))
        elif name == "compact":
            output.compact()
        elif name == "sweep":
            output.sweep(now=LATER)
        else:
            output = Output(out, "matches", keep=SMALL)
        assert rows_of(read(out, "matches")) == model
        assert output.last_batch() == last


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


def test_a_table_that_appears_while_it_is_looked_for_is_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link is not there when a reader asks where it leads, and is when it asks whether there is a table."""
    output = Output(tmp_path, "matches")
    looked = os.path.realpath
    to_come = [matched(0, 1)]

    def appearing(path: Path) -> str:
        found = looked(path)
        if to_come:
            output.add(0, to_come.pop())
        return found

    monkeypatch.setattr(os.path, "realpath", appearing)
    assert current(tmp_path, "matches") == output.version()


@pytest.mark.parametrize("table", ["matches", "popularity"])
def test_readers_see_one_version_after_the_other(tmp_path: Path, table: str) -> None:
    """While batches come, files are put together and versions go: never half a batch, none twice, and no error."""
    batches = _growing() if table == "matches" else _changing()
    plan = [(what, frozenset(rows.items())) for what, rows in (next(batches) for _ in range(150))]
    versions = {frozenset[Any](): -1} | {rows: batch for batch, (_, rows) in enumerate(plan)}
    readers = [Reader(tmp_path, table, versions) for _ in range(2)]
    for reader in readers:
        reader.start()
    output = Output(tmp_path, table, keep=Keep(together=3, seconds=60))
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
    assert len({version for reader in readers for version in reader.seen}) > 3
