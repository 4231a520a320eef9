"""Commits of Delta tables: cheap however long the history is, and never two of one number."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.errors import InvalidValueError
from whimbrel.log.errors import LogLockedError
from whimbrel.log.files import locked
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files import delta
from whimbrel.pipeline.files.delta import ConcurrentChangeError, DeltaOutput, data_files, read, replace_table
from whimbrel.pipeline.files.delta_files import commit_log
from whimbrel.pipeline.files.delta_files.clustering import CLUSTERED_BY, as_clustered
from whimbrel.pipeline.files.delta_files.commit_log import CommitLog, retention_s
from whimbrel.pipeline.files.delta_files.data_file import written_file
from whimbrel.pipeline.files.delta_files.file_statistics import statistics_columns
from whimbrel.pipeline.files.upkeep import compact_tables, vacuum_tables
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.commits import TableCommits
from whimbrel.pipeline.stream.state.batch_record import BatchRecord
from whimbrel.pipeline.stream.window_fold import WindowsReport


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def matched(*sessions: str, seq: int = 1) -> Any:
    """Return a row of ``matches`` per session."""
    given = {"notification_node": "n", "published_at": 7_000_000, "subject_filter": "a", "name": "", "interest_seq": 0}
    rows = [given | {"notification_seq": seq, "session": session} for session in sessions]
    return pa.Table.from_pylist(rows, schema=TABLES["matches"].schema)


def popular(begin: int) -> Any:
    """Return a row of ``popularity`` for the window that begins at *begin*."""
    row = {"window_start": begin, "window_end": begin + 1, "subject": "a", "publications": 1}
    return pa.Table.from_pylist([row | {"subscribers": 1, "rate_per_s": 0.0}], schema=TABLES["popularity"].schema)


def log_of(out: Path) -> list[str]:
    """Return the names in the log of ``matches``."""
    return sorted(path.name for path in (out / "matches" / "_delta_log").iterdir() if path.name[0] != "_")


# -- commits ---------------------------------------------------------------------------------------------------------


def test_a_commit_is_one_that_every_reader_reads(tmp_path: Path) -> None:
    """The library, and with it pandas and Polars, read what we write ourselves; DuckDB reads it in another test."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(3):
        output.add(batch, matched("s", seq=batch))
    found = DeltaTable(str(tmp_path / "matches"))
    assert (found.version(), found.transaction_version(delta.STREAM)) == (3, 2)
    assert sorted(found.to_pyarrow_table().column("notification_seq").to_pylist()) == [0, 1, 2]
    assert [each["operation"] for each in found.history()] == ["WRITE", "WRITE", "WRITE", "CREATE TABLE"]


def test_a_batch_asks_for_two_names_however_long_the_history_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was listed about forty times a batch: after a day of commits that took four core seconds."""
    output = DeltaOutput(tmp_path, "matches")
    output.add(0, matched("s"))
    listed: list[object] = []

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*path: Any) -> Any:
            listed.append(path)
            return real(*path)

        return work

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    monkeypatch.setattr(DeltaOutput, "_update", listed.append)
    for batch in range(1, 20):
        assert output.last_batch() == batch - 1
        output.add(batch, matched("s"))
    assert listed == []


def test_a_commit_of_another_process_is_seen_and_kept(tmp_path: Path) -> None:
    """A user's program may compact the table while the stream adds to it."""
    output, other = DeltaOutput(tmp_path, "matches"), DeltaOutput(tmp_path, "matches")
    for batch in range(4):
        output.add(batch, matched("s", seq=batch))
    assert other.compact() == 4
    output.add(4, matched("s", seq=4))
    assert sorted(read(tmp_path, "matches").column("notification_seq").to_pylist()) == [0, 1, 2, 3, 4]
    assert other.last_batch() == 4
    other.add(4, matched("s", seq=9))
    assert read(tmp_path, "matches").num_rows == 5


def test_files_that_another_process_replaced_are_not_replaced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be there twice."""
    output, other = DeltaOutput(tmp_path, "matches"), DeltaOutput(tmp_path, "matches")
    for batch in range(4):
        output.add(batch, matched("s", seq=batch))
    real = CommitLog.write

    def late(log: CommitLog, *arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(CommitLog, "write", real)
        assert other.compact() == 4
        return real(log, *arguments, **options)

    monkeypatch.setattr(CommitLog, "write", late)
    with pytest.raises(ConcurrentChangeError, match="table matches: another process replaced files meanwhile"):
        output.compact()
    assert sorted(read(tmp_path, "matches").column("notification_seq").to_pylist()) == [0, 1, 2, 3]


def optimize(out: Path, table: str) -> None:
    """Merge the files of a table as a user's program does."""
    DeltaTable(str(out / table)).optimize.compact()


@pytest.mark.parametrize("change", ["compact", "replace", "replace_between", "replace_all"])
def test_files_replaced_while_a_commit_is_made_do_not_double_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Another process merges the files after they were read, and before the commit that removes them."""
    table = "popularity" if change == "replace" else "matches"
    output = DeltaOutput(tmp_path, table)
    for batch in range(4):
        if change == "replace":
            output.replace(batch, {batch * 1_000: popular(batch * 1_000)})
        else:
            output.add(batch, matched("s", seq=batch))
    has_new = change in {"replace_between", "replace_all"}
    new = [tmp_path / table / written_file(tmp_path, table, matched("s", seq=9)).path] if has_new else []
    real, turns = DeltaOutput._files, list[str]()

    def late(self: DeltaOutput) -> Any:
        found = real(self)
        turns.append(change)
        if len(turns) == 1:
            optimize(tmp_path, table)
        return found

    monkeypatch.setattr(DeltaOutput, "_files", late)
    if change == "compact":
        with pytest.raises(ConcurrentChangeError):
            output.compact()
        assert len(turns) == 1
    elif change == "replace":
        output.replace(4, {2_000: popular(2_000)})
    elif change == "replace_between":
        output.replace_between(new, None, None)
    else:
        output.replace_all(new)
    key = "window_start" if change == "replace" else "notification_seq"
    found = read(tmp_path, table).column(key).cast(pa.int64()).to_pylist()
    step = 1_000 if change == "replace" else 1  # statistics of the library have milliseconds
    assert sorted(found) == ([9] if has_new else [step * each for each in range(4)])


@pytest.mark.parametrize("is_whole", [True, False])
def test_of_two_runs_at_once_a_table_has_the_rows_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    """Two backfills of one interval, or two runs of a whole table: each row is there once."""
    DeltaOutput(tmp_path, "matches").create()
    mine, other = (tmp_path / "matches" / written_file(tmp_path, "matches", matched(name)).path for name in "ab")
    real = CommitLog.write

    def replaced(path: Path) -> None:
        if is_whole:
            replace_table(tmp_path, "matches", [path])
        else:
            DeltaOutput(tmp_path, "matches").replace_between([path], 0, 8_000_000)

    def late(log: CommitLog, *arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(CommitLog, "write", real)
        replaced(other)
        return real(log, *arguments, **options)

    monkeypatch.setattr(CommitLog, "write", late)
    replaced(mine)
    assert read(tmp_path, "matches").column("session").to_pylist() == ["a"]


def test_a_stream_goes_on_if_another_process_changes_a_table_that_it_tidies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are merged on a later turn."""
    tables = TableCommits(tmp_path, StreamPlan(tables=("matches", "deliveries")))
    tables.create()
    tried = list[str]()

    def disturbed(output: DeltaOutput, **_: Any) -> int:
        tried.append(output.table)
        raise ConcurrentChangeError(output.table)

    monkeypatch.setattr(DeltaOutput, "compact", disturbed)
    tables.tidy(7, WindowsReport(0, 0, 0, 0, (), {}, "", ()), now=0)
    assert tried == ["matches", "deliveries"]


def test_a_commit_never_replaces_one(tmp_path: Path) -> None:
    """Two processes that write one number: the second learns of it, and leaves no file behind."""
    output = DeltaOutput(tmp_path, "matches")
    output.add(0, matched("s"))
    log = CommitLog(tmp_path / "matches")
    before = log.path(1).read_bytes()
    assert not log.write(1, [], mode="append", transaction=None)
    assert log.path(1).read_bytes() == before
    assert {path.name[-4:] for path in log.path(1).parent.iterdir()} == {"json"}


# -- history ---------------------------------------------------------------------------------------------------------


@given(
    ages_h=st.lists(st.integers(0, 20), min_size=1, max_size=30).map(lambda ages: sorted(ages, reverse=True)),
    checkpoints=st.sets(st.integers(0, 29), max_size=4),
    kept_h=st.integers(1, 20),
)
def test_the_newest_state_and_the_young_commits_stay(
    tmp_path_factory: pytest.TempPathFactory, ages_h: list[int], checkpoints: set[int], kept_h: int
) -> None:
    """Whatever is removed, a checkpoint and all commits after it are there, and all commits that are young."""
    folder = tmp_path_factory.mktemp("table")
    log, now_s = CommitLog(folder), time.time()
    (folder / "_delta_log").mkdir()
    for version, age_h in enumerate(ages_h):
        paths = [log.path(version)]
        if version in checkpoints:
            paths.append(folder / "_delta_log" / f"{version:020}.checkpoint.parquet")
        for path in paths:
            path.touch()
            os.utime(path, (now_s - age_h * 3_600, now_s - age_h * 3_600))
    before = {path.name for path in (folder / "_delta_log").iterdir()}
    removed = log.remove_old(older_than_s=kept_h * 3_600 - 60, now_s=now_s)
    after = {path.name for path in (folder / "_delta_log").iterdir()}
    assert removed == len(before - after)
    young = {f"{version:020}.json" for version, age_h in enumerate(ages_h) if age_h < kept_h}
    assert young <= after
    kept = sorted(int(name[:20]) for name in after if "checkpoint" in name)
    assert bool(kept) == bool(checkpoints & {*range(len(ages_h))})
    base = kept[-1] + 1 if kept else 0
    assert {f"{version:020}.json" for version in range(base, len(ages_h))} <= after
    if not kept:
        assert after == before


def test_a_table_of_many_commits_is_cut_to_those_of_some_hours(tmp_path: Path) -> None:
    """Each reader lists all commits that are there; the rows stay, and so does the batch."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(60):
        output.add(batch, matched("s", seq=batch))
        path = CommitLog(tmp_path / "matches").path(batch + 1)
        old_s = time.time() - (60 - batch) * 3_600
        os.utime(path, (old_s, old_s))
    output.tidy_log()
    commits = [name for name in log_of(tmp_path) if name.endswith(".json")]
    assert commits == [f"{version:020}.json" for version in range(50, 61)]  # from a checkpoint on
    found = DeltaTable(str(tmp_path / "matches"))
    assert (found.version(), found.to_pyarrow_table().num_rows) == (60, 60)
    assert DeltaOutput(tmp_path, "matches").last_batch() == 59
    assert (retention_s("interval 2 days", 1), retention_s(None, 7), retention_s("soon", 7)) == (172_800, 7, 7)


def test_no_commit_is_removed_before_its_checkpoint_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the table would have neither."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(3):
        output.add(batch, matched("s", seq=batch))
    log = CommitLog(tmp_path / "matches")
    for version in range(3):
        os.utime(log.path(version), (0, 0))
    steps: list[str] = []
    unlink = Path.unlink

    def noted(path: Path, **options: bool) -> None:
        steps.append(f"remove {path.name}")
        unlink(path, **options)

    monkeypatch.setattr(commit_log, "sync_file", lambda path: steps.append(f"sync {path.name}"))
    monkeypatch.setattr(Path, "unlink", noted)
    assert output.tidy_log() == 3
    assert steps == [
        *(f"sync {name}" for name in (f"{3:020}.checkpoint.parquet", "_last_checkpoint", "_delta_log")),
        *(f"remove {version:020}.json" for version in range(3)),
    ]
    assert DeltaTable(str(tmp_path / "matches")).to_pyarrow_table().num_rows == 3


def test_what_an_interrupted_commit_left_in_the_log_is_removed_with_old_commits(tmp_path: Path) -> None:
    """A writer that is killed leaves a file that is no commit; a young one may be of a commit that is being written."""
    DeltaOutput(tmp_path, "matches").add(0, matched("s"))
    old, young = (tmp_path / "matches" / "_delta_log" / f"_{name}.tmp" for name in ("old", "young"))
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    assert DeltaOutput(tmp_path, "matches").tidy_log() == 1
    assert (old.exists(), young.exists()) == (False, True)


# -- data files ------------------------------------------------------------------------------------------------------


def test_a_commit_says_whom_a_file_is_about(tmp_path: Path) -> None:
    """So that an engine skips it: ranges and nulls of identities, numbers and times, and no file is too narrow."""
    DeltaOutput(tmp_path, "matches").add(0, matched("beta", "alpha", "gamma", seq=7))
    (line,) = [
        found["add"]
        for each in (tmp_path / "matches/_delta_log/00000000000000000001.json").read_text().splitlines()
        if "add" in (found := json.loads(each))
    ]
    told = json.loads(line["stats"])
    assert told["numRecords"] == 3
    assert told["minValues"] == {
        "notification_node": "n",
        "notification_seq": 7,
        "session": "alpha",
        "published_at": "1970-01-01T00:00:07.000000Z",
    }
    assert told["maxValues"]["session"] == "gamma"
    assert set(told["nullCount"].values()) == {0}
    long = "x" * 300
    DeltaOutput(tmp_path, "matches").add(1, matched("alpha", long))
    told = json.loads(json.loads((CommitLog(tmp_path / "matches").path(2)).read_text().splitlines()[1])["add"]["stats"])
    assert "session" not in told["minValues"]
    assert told["nullCount"]["session"] == 0


@pytest.mark.parametrize("table", ["deliveries", "link_quality", "contacts", "popularity", "meetings", "dead_letters"])
def test_the_columns_with_a_range_are_columns_of_the_table(table: str) -> None:
    """A wrong name would be a range that no engine uses."""
    assert {*statistics_columns(table)} <= {*TABLES[table].schema.names}
    assert {*CLUSTERED_BY.get(table, ())} <= {*TABLES[table].schema.names}


@given(sessions=st.lists(st.sampled_from(["b", "a", "ä", "", "A"]), max_size=9), data=st.data())
def test_rows_of_a_file_are_ordered_by_session_and_none_is_lost(sessions: list[str], data: st.DataObject) -> None:
    """The order is for skipping; the rows are the same."""
    seqs = [data.draw(st.integers(0, 3)) for _ in sessions]
    rows = pa.concat_tables([matched(), *(matched(s, seq=q) for s, q in zip(sessions, seqs, strict=True))])
    found = as_clustered(rows, "matches").select(["session", "notification_seq"]).to_pylist()
    expected = sorted(zip(sessions, seqs, strict=True), key=lambda row: (row[0].encode(), row[1]))
    assert [tuple(row.values()) for row in found] == expected


def test_a_page_has_few_sessions(tmp_path: Path) -> None:
    """The index of pages is what Spark skips by; DuckDB skips row groups."""
    rows = matched(*(f"session-{number % 100:03}" for number in range(150_000)))
    DeltaOutput(tmp_path, "matches").add(0, rows)
    with pq.ParquetFile(data_files(tmp_path, "matches")[0]) as file:
        foot = file.metadata
        place = foot.schema.names.index("session")
        groups = [foot.row_group(group).column(place) for group in range(foot.num_row_groups)]
    assert len(groups) == 2
    assert groups[0].statistics.max <= groups[1].statistics.min
    assert all(each.has_offset_index and each.has_column_index for each in groups)


# -- upkeep ----------------------------------------------------------------------------------------------------------


def test_upkeep_by_command_merges_files_and_leaves_the_rows(tmp_path: Path) -> None:
    """Where no stream does it: tables of many small runs are read file by file."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(12):
        output.add(batch, matched("s", seq=batch))
    before = read(tmp_path, "matches").sort_by("notification_seq")
    done = CliRunner().invoke(app, ["pipeline", "compact", "--out", str(tmp_path), "--json"])
    assert json.loads(done.stdout) == [{"table": "matches", "files_before": 12, "files": 1, "removed": 0}]
    assert read(tmp_path, "matches").sort_by("notification_seq").equals(before)
    done = CliRunner().invoke(app, ["pipeline", "vacuum", "--out", str(tmp_path)])
    assert done.stdout.split() == ["matches", "1", "files"]
    assert output.last_batch() == 11


def test_upkeep_is_refused_where_it_cannot_be_done(tmp_path: Path) -> None:
    """Beside a stream it would replace files under it; and a name that is no table is named."""
    DeltaOutput(tmp_path, "matches").create()
    with pytest.raises(InvalidValueError, match=r"found 'latency', allowed is matches"):
        compact_tables(tmp_path, ["latency"])
    with pytest.raises(InvalidValueError, match="directory of the tables"):
        vacuum_tables(tmp_path / "elsewhere")
    with locked(tmp_path / "_stream", "keeping these tables"), pytest.raises(LogLockedError):
        compact_tables(tmp_path)


def test_vacuum_is_refused_while_a_batch_of_a_stopped_stream_is_not_committed(tmp_path: Path) -> None:
    """No commit names the files of the batch yet: they were removed when they were a day old, and then committed."""
    output = DeltaOutput(tmp_path, "matches")
    output.create()
    made = written_file(tmp_path, "matches", matched("s"))
    path, old_s = tmp_path / "matches" / made.path, time.time() - 25 * 3_600
    os.utime(path, (old_s, old_s))
    (tmp_path / "_stream").mkdir()
    record = BatchRecord(batch=0, spans={"n": (1, 1)}, output="output-0")
    record.put(tmp_path / "_stream" / "batch.json")
    with pytest.raises(InvalidValueError, match="start the stream once to finish that batch"):
        vacuum_tables(tmp_path)
    output.add_files(0, [made])
    assert read(tmp_path, "matches").num_rows == 1
    replace(record, is_done=True, output=None).put(tmp_path / "_stream" / "batch.json")
    assert [each.files for each in vacuum_tables(tmp_path)] == [1]
    (tmp_path / "_stream" / "batch.json").write_text("torn")
    with pytest.raises(InvalidValueError, match="start the stream once"):
        vacuum_tables(tmp_path)
