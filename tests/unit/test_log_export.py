"""Export, compaction, retention, verification: Parquet holds each row once, whatever crashes when."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ordered import BEGIN, NODE, a_history

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.compaction import compact
from whimbrel.log.errors import CorruptLogError, LogWriteError
from whimbrel.log.export import export
from whimbrel.log.files import locked
from whimbrel.log.parts import PartWriter, part_rows
from whimbrel.log.reader import read
from whimbrel.log.retention import retain
from whimbrel.log.stats import stats
from whimbrel.log.verification import verify
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact
from whimbrel.model.notification import Notification
from whimbrel.model.rows import COLUMNS, fact_of
from whimbrel.model.tables import TABLES

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def write(directory: Path, facts: list[Fact], *, segment_bytes: int = 1_000) -> None:
    """Write *facts* as groups of five, in small segments."""
    with LogWriter(directory, NODE, segment_bytes=segment_bytes) as log:
        for fact in facts:
            log.append(fact)
            if log.pending == 5:
                log.sync()


def exported(directory: Path) -> list[Fact]:
    """Return what a reader of Parquet sees now, in order."""
    tables = (set(layout.tables_present(directory)) - {layout.DEAD_LETTERS}) & set(COLUMNS)
    found = [
        fact_of(table, row)
        for table in tables
        for part in layout.parts(directory, table)
        for row in part_rows(part, table)
    ]
    return sorted(found, key=lambda fact: fact.seq)


def test_closed_segments_are_exported_and_the_rest_on_demand(tmp_path: Path) -> None:
    """A day's partition holds the day, and all columns; several tables share a range."""
    facts = a_history(60, step_us=HOUR_US)
    write(tmp_path, facts)
    done = export(tmp_path, NODE)
    last = layout.segments(tmp_path, NODE)[-1][0] - 1
    assert (done.rows, done.last_seq, layout.exported_seq(tmp_path, NODE)) == (last, last, last)
    assert exported(tmp_path) == facts[:last]
    assert export(tmp_path, NODE).rows == 0
    assert export(tmp_path, NODE, closed_only=False).last_seq == 60
    assert exported(tmp_path) == facts
    for table in layout.tables_present(tmp_path):
        for part in layout.parts(tmp_path, table):
            found = pq.read_table(part.path, partitioning=None)
            assert found.schema.equals(TABLES[table].schema)
            assert set(found["node"].to_pylist()) == {NODE}
            assert {time.date() for time in found[2].to_pylist()} == {part.date}
            seqs = found["seq"].to_pylist()
            assert seqs == sorted(seqs)
            assert part.first <= seqs[0] <= seqs[-1] <= part.last
    assert verify(tmp_path).problems == []


def test_a_log_without_a_writer_that_closed_it_gives_what_is_proven(tmp_path: Path) -> None:
    """What a crash may take back must not have been shown to anybody."""
    facts, log = a_history(6), LogWriter(tmp_path, NODE)
    log.open()
    for fact in facts:
        log.append(fact)
        log.sync()
    assert export(tmp_path, NODE, closed_only=False).last_seq == 5
    log.close()
    assert export(tmp_path, NODE, closed_only=False).last_seq == 6
    assert exported(tmp_path) == facts


def test_parts_from_before_a_column_came_are_read_and_merged(tmp_path: Path) -> None:
    """A log outlives the version that began it."""
    facts = a_history(40)
    write(tmp_path, facts[:20])
    export(tmp_path, NODE, closed_only=False)
    for part in layout.parts(tmp_path, "publications"):
        pq.write_table(pq.read_table(part.path, partitioning=None).drop(["properties", "packet_id"]), part.path)
    write(tmp_path, facts[20:])
    export(tmp_path, NODE, closed_only=False)
    assert exported(tmp_path) == facts
    assert verify(tmp_path).problems == []
    assert compact(tmp_path).merged > 1
    assert exported(tmp_path) == facts
    assert verify(tmp_path).problems == []


def test_an_empty_log_exports_nothing(tmp_path: Path) -> None:
    """And says so, rather than fail."""
    layout.create(tmp_path)
    assert (export(tmp_path, NODE).rows, exported(tmp_path)) == (0, [])
    assert (compact(tmp_path).made, stats(tmp_path), verify(tmp_path).problems) == (0, [], [])
    LogWriter(tmp_path, NODE).open()
    assert export(tmp_path, NODE, closed_only=False).rows == 0


# -- crashes -----------------------------------------------------------------------------------------------------------


class CrashError(BaseException):
    """The process is gone; nobody catches this."""


@contextmanager
def crashing(at: int, error: Callable[[], BaseException] = CrashError) -> Iterator[list[int]]:
    """End at the *at*-th write, fsync or rename; yield the calls that were made."""
    calls = [0]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            calls[0] += 1
            if calls[0] == at:
                raise error()
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "fsync", "replace", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(PartWriter, "add_arrow", counted(PartWriter.add_arrow))
        if error is CrashError:
            patch.setattr(PartWriter, "abandon", PartWriter._let_go)  # the dead clean nothing up
        yield calls


def check_once(directory: Path, facts: list[Fact]) -> None:
    """Whatever there is, each row is there once and is right."""
    found = exported(directory)
    assert max(Counter(fact.seq for fact in found).values(), default=1) == 1
    assert all(fact == facts[fact.seq - 1] for fact in found)


@pytest.mark.parametrize("is_all_first", [False, True])
def test_an_export_that_crashes_anywhere_is_made_good(tmp_path: Path, *, is_all_first: bool) -> None:
    """Before, between and after, readers see each row at most once; after the next export, exactly once."""
    facts = a_history(10, step_us=10 * HOUR_US)
    for at in range(1, 1_000):
        directory = tmp_path / str(at)
        write(directory, facts[:7], segment_bytes=300)
        with crashing(at) as calls:
            try:
                export(directory, NODE, closed_only=not is_all_first)
            except CrashError:
                pass
            else:
                break
        check_once(directory, facts)
        if at % 2:  # the log may have grown before the next export
            write(directory, facts[7:], segment_bytes=300)
        export(directory, NODE)
        check_once(directory, facts)
        done = export(directory, NODE, closed_only=False)
        assert exported(directory) == facts[: done.last_seq] == list(read(directory, NODE))
        assert not list(directory.glob("*/date=*/node=*/_*"))
        assert verify(directory).problems == []
    assert calls[0] > 20


def test_a_compaction_that_crashes_anywhere_is_made_good(tmp_path: Path) -> None:
    """The old parts go only once the new one has its name."""
    facts = a_history(20)
    for at in range(1, 1_000):
        directory = tmp_path / str(at)
        write(directory, facts, segment_bytes=500)
        export(directory, NODE, closed_only=False)
        with crashing(at) as calls:
            try:
                compact(directory)
            except CrashError:
                pass
            else:
                break
        assert exported(directory) == facts
        compact(directory)
        assert exported(directory) == facts
        assert all(len(layout.all_parts(directory, table)) == 1 for table in layout.tables_present(directory))
        assert verify(directory).problems == []
    assert calls[0] > 5


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The message is the system's, and what is visible is whole."""
    facts = a_history(12)

    def full() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for at in range(1, 1_000):
        directory = tmp_path / str(at)
        write(directory, facts)
        with crashing(at, full) as calls:
            try:
                export(directory, NODE, closed_only=False)
            except LogWriteError as error:
                problem = str(error)
            else:
                break
        assert "No space left" in problem
        check_once(directory, facts)
        assert export(directory, NODE, closed_only=False).last_seq == 12
        assert exported(directory) == facts
    assert calls[0] > 10


# -- compaction and retention ------------------------------------------------------------------------------------------


def test_only_neighbours_that_are_small_are_merged(tmp_path: Path) -> None:
    """A large part between them must not be superseded by what does not hold it."""
    facts = a_history(200, body_bytes=200)
    write(tmp_path, facts, segment_bytes=2_000)
    export(tmp_path, NODE, closed_only=False)
    sizes = [part.path.stat().st_size for part in layout.parts(tmp_path, "publications")]
    done = compact(tmp_path, small_bytes=sorted(sizes)[len(sizes) // 2] * 2)
    assert done.made > 2
    assert exported(tmp_path) == facts
    assert verify(tmp_path).problems == []


def test_retention_removes_whole_days_and_never_what_is_not_exported(tmp_path: Path) -> None:
    """A segment goes once all of it is in Parquet and older; the last one stays."""
    facts = a_history(60, step_us=6 * HOUR_US)  # fifteen days
    write(tmp_path, facts, segment_bytes=500)
    now = BEGIN + 20 * DAY_US
    before = layout.date_of(BEGIN + 7 * DAY_US)
    assert retain(tmp_path, before=before, now=now).segments == 0
    export(tmp_path, NODE, closed_only=False)
    removed = retain(tmp_path, before=before, now=now)
    assert removed.parts > 0
    assert removed.segments > 0
    kept = exported(tmp_path)
    assert kept == facts[-len(kept) :]
    assert all(part.date >= before for part in layout.parts(tmp_path, "publications"))
    assert verify(tmp_path).problems == []
    assert retain(tmp_path, before=before, now=now).bytes == 0
    assert retain(tmp_path, before=layout.date_of(now), now=now).segments > 0
    assert len(layout.segments(tmp_path, NODE)) == 1
    assert verify(tmp_path).problems == []
    with LogWriter(tmp_path, NODE) as log:
        assert (log.next_seq, log.last_at) == (61, BEGIN + 59 * 6 * HOUR_US)
    with pytest.raises(InvalidValueError, match="a day up to today"):
        retain(tmp_path, before=date(2030, 1, 1), now=now)


def test_exporters_exclude_each_other_and_not_the_writer(tmp_path: Path) -> None:
    """The broker never waits for the exporter."""
    facts = a_history(10)
    write(tmp_path, facts[:5])
    with LogWriter(tmp_path, NODE) as log:
        export(tmp_path, NODE, closed_only=False)
        log.append(facts[5])
        folder = layout.segments_folder(tmp_path, NODE) / ".export"
        with locked(folder, "exporting this log"), pytest.raises(Exception, match="another process is exporting"):
            export(tmp_path, NODE)


# -- verification and stats --------------------------------------------------------------------------------------------


def test_verification_tells_what_does_not_agree(tmp_path: Path) -> None:
    """A row that differs, a row too few, a part that is gone, a part that is none."""
    facts = a_history(40)
    write(tmp_path, facts, segment_bytes=100_000)
    export(tmp_path, NODE, closed_only=False)
    part = layout.parts(tmp_path, "publications")[0]
    data = part.path.read_bytes()
    table = pq.read_table(part.path, partitioning=None)
    pq.write_table(table.slice(1), part.path)
    assert "the segments" in verify(tmp_path).problems[0]
    subjects = table.schema.get_field_index("subject")
    other = table.set_column(subjects, table.schema.field(subjects), [["other"] * table.num_rows])
    pq.write_table(other, part.path)
    assert "does not agree with the segments: it differs" in verify(tmp_path).problems[0]
    part.path.write_bytes(b"PAR1 nonsense")
    assert "no readable Parquet" in verify(tmp_path).problems[0]
    part.path.unlink()
    assert "no part holds them" in verify(tmp_path).problems[0]
    part.path.write_bytes(data)
    assert verify(tmp_path).problems == []


def test_verification_finds_numbers_that_are_nowhere(tmp_path: Path) -> None:
    """What was given and is lost is found before a broker refuses to start, or a reader leaves it out."""
    with LogWriter(tmp_path, NODE, segment_bytes=1) as log:
        for seq in range(1, 7):
            log.append(Notification(node=NODE, seq=seq, published_at=seq, subject="a"))
            log.sync()
    layout.segment_path(tmp_path, NODE, 1).unlink()
    found = verify(tmp_path)
    assert (found.problems, [note.split(": ", 1)[1] for note in found.notes]) == (
        [],
        ["seq 1 to 1 are neither exported nor there"],
    )
    layout.set_exported_seq(tmp_path, NODE, 9)
    (problem,) = [each for each in verify(tmp_path).problems if "segments after it" in each]
    assert "ends with seq 6, and 9 is said to be exported" in problem


def test_verification_finds_damage_in_every_segment(tmp_path: Path) -> None:
    """Not only the first: whoever repairs wants the list."""
    write(tmp_path, a_history(60), segment_bytes=900)
    found = layout.segments(tmp_path, NODE)
    for _, path in (found[0], found[2]):
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    problems = verify(tmp_path).problems
    assert [str(path) for _, path in (found[0], found[2])] == [
        problem.split(": damaged")[0] for problem in problems if "damaged" in problem
    ]
    with pytest.raises(CorruptLogError):
        export(tmp_path, NODE)
    assert exported(tmp_path) == []


def test_a_torn_tail_is_a_note(tmp_path: Path) -> None:
    """It is what a crash leaves, and nothing is wrong with it."""
    write(tmp_path, a_history(10))
    (_, path) = layout.segments(tmp_path, NODE)[-1]
    with path.open("ab") as stream:
        stream.write(b"\0\0\1\0torn")
    found = verify(tmp_path)
    assert found.problems == []
    assert "torn tail" in found.notes[0]


def test_stats_count_each_row_once_exported_or_not(tmp_path: Path) -> None:
    """Rows in Parquet and in segments are the same rows."""
    facts = a_history(60)
    write(tmp_path, facts)
    before = stats(tmp_path)
    export(tmp_path, NODE)
    after = stats(tmp_path)
    for found in (before, after):
        assert sum(each.rows for each in found) == 60
        assert min(each.first_seq or 0 for each in found) == 1
        assert max(each.last_seq or 0 for each in found) == 60
        assert min(each.first_at or 0 for each in found) == BEGIN
        assert max(each.last_at or 0 for each in found) == BEGIN + 59_000_000
    assert [each.parquet_bytes for each in before] == [0, 0, 0, 0]
    assert all(each.parquet_bytes for each in after)
