"""The doctor on made-up machines, logs and streams: what is well, what is not, and what is said about it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake.transaction import AddAction
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.log.files import locked
from whimbrel.log.keeping.cutting import cut, on_disk
from whimbrel.log.keeping.plan import Plan
from whimbrel.log.keeping.readers import read_registered, register
from whimbrel.log.layout import segment_path, set_exported_seq
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.pipeline.doctor.check import Check, Verdict, with_unit
from whimbrel.pipeline.doctor.logs import Extent, examine_log
from whimbrel.pipeline.doctor.machine import (
    check_cores,
    check_disk,
    check_java,
    check_memory,
    check_package,
    check_python,
    examine_folders,
    examine_machine,
)
from whimbrel.pipeline.doctor.session import check_workers
from whimbrel.pipeline.doctor.streams import check_checkpoint, check_reach, check_running, check_table, examine_stream
from whimbrel.pipeline.files.delta import open_table
from whimbrel.pipeline.plans import FORMAT
from whimbrel.pipeline.stream.state.batch_record import BatchRecord, NodeRecord
from whimbrel.pipeline.stream.state.blob_store import Head
from whimbrel.pipeline.stream.state.objects import ObjectBlobs

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
JAVA = 'openjdk version "17.0.9" 2023-10-17\n'
NOW = 1_000_000.0


def _verdicts(checks: list[Check]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in checks}


def _not_ok(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.found for check in checks if check.verdict is not OK}


# -- the machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "requirement", "verdict"),
    [
        ("4.3.0", "<5,>=4.1", OK),
        ("4.1", "<5,>=4.1", OK),
        ("4.0.9", "<5,>=4.1", FAILED),
        ("5.0.0", "<5,>=4.1", FAILED),
        ("5", "<5,>=4.1", FAILED),
        (None, "<5,>=4.1", FAILED),
        ("2.3.3", "", OK),
    ],
)
def test_a_package_is_judged_by_what_ours_needs(found: str | None, requirement: str, verdict: Verdict) -> None:
    """A newer major version breaks as surely as an old one."""
    assert check_package("pyspark", found, requirement).verdict is verdict


@pytest.mark.parametrize(
    ("text", "modules", "verdict", "found"),
    [
        (JAVA, "jdk.incubator.vector@17", OK, "17"),
        (JAVA, "java.base@17", FAILED, "17, without the module jdk.incubator.vector"),
        ('java version "1.8.0_392"', "", FAILED, "8"),
        ("what?", "", FAILED, "what?"),
        (None, "", FAILED, "none: neither JAVA_HOME nor the PATH has one"),
    ],
)
def test_java_is_judged_by_what_it_says(text: str | None, modules: str, verdict: Verdict, found: str) -> None:
    """Trimmed runtimes start, and fail as soon as Spark does."""
    check = check_java(text, modules)
    assert (check.verdict, check.found) == (verdict, found)


def test_small_machines_are_told_of() -> None:
    """They work, slowly: a warning, with a remedy."""
    assert check_python((3, 10, 4)).verdict is FAILED
    assert check_python((3, 11, 0)).verdict is OK
    assert [check_memory(size).verdict for size in (1_000_000_000, 8_000_000_000, None)] == [WARNING, OK, OK]
    assert [check_cores(cores).verdict for cores in (1, 2)] == [WARNING, OK]


@pytest.mark.parametrize(
    ("free", "is_usable", "verdict"),
    [(None, False, FAILED), (10**10, False, FAILED), (10**8, True, FAILED), (10**9, True, WARNING), (10**10, True, OK)],
)
def test_disks_are_judged_before_they_are_full(free: int | None, verdict: Verdict, *, is_usable: bool) -> None:
    """A full disk ends the stream, and the broker beside it."""
    assert check_disk("disk", Path("/x"), free, is_usable=is_usable, to_write=True).verdict is verdict


def test_tables_are_made_and_a_log_is_not(tmp_path: Path) -> None:
    """A folder for tables need not be there yet; a log that is not there is a slip of the pen."""
    log, out = examine_folders(tmp_path / "no" / "log", tmp_path / "no" / "out")
    assert log.verdict is FAILED
    assert "free" in out.found


def test_this_machine_has_what_the_tests_run_on() -> None:
    """What is installed here is found, with the bounds of our own metadata."""
    checks = {check.name: check for check in examine_machine()}
    assert {"Python", "pyspark", "pandas", "pyarrow", "protobuf", "deltalake", "Java", "memory", "cores"} == set(checks)
    assert checks["Python"].verdict is checks["pyspark"].verdict is OK
    assert "<5" in checks["pyspark"].wanted


def test_every_worker_must_be_as_we_are() -> None:
    """One worker of ten with another pyarrow is a crash at three in the morning."""
    here = ("0.1", "3.11", "23.0")
    assert check_workers(here, {here}).verdict is OK
    check = check_workers(here, {here, ("0.1", "3.11", "22.0")})
    assert (check.verdict, check.found) == (
        FAILED,
        "whimbrel 0.1, Python 3.11, pyarrow 22.0; whimbrel 0.1, Python 3.11, pyarrow 23.0",
    )
    assert check_workers(here, set()).verdict is FAILED


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (1_500, "1.5 KB"), (78e9, "78 GB"), (2e15, "2,000.0 TB")])
def test_sizes_read_as_people_write_them(size: float, text: str) -> None:
    """Disks have terabytes."""
    assert with_unit(size) == text


# -- the log ---------------------------------------------------------------------------------------------------------


def _fact(node: str, number: int) -> PresenceChanged:
    return PresenceChanged(node=node, seq=number, changed_at=number, device="d", change=PresenceChange.CONNECTED)


def _log(folder: Path, facts: int = 5, node: str = "a") -> Path:
    with LogWriter(folder, node) as log:
        for number in range(1, facts + 1):
            log.append(_fact(node, number))
        log.sync()
    return folder


def test_a_log_is_described(tmp_path: Path) -> None:
    """Who wrote it, and up to where."""
    checks = examine_log(_log(tmp_path / "log"))
    assert _not_ok(checks) == {}
    assert checks[-1].found == "numbers 1 to 5"


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    """The most frequent mistake is a path."""
    (check,) = examine_log(tmp_path)
    assert (check.verdict, "whimbrel-log.json is missing" in check.found) == (FAILED, True)


def test_a_damaged_segment_is_found(tmp_path: Path) -> None:
    """A mark after the damage proves that it was durable, so it is no torn tail."""
    log = _log(tmp_path / "log")
    segment = next((log / "segments" / "a").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    checks = examine_log(log)
    assert _verdicts(checks) == {"log": OK, "log of a": FAILED}
    assert "log verify" in checks[-1].remedy


def test_a_segment_that_is_gone_leaves_a_hole(tmp_path: Path) -> None:
    """What is neither exported nor in a segment is lost, whoever removed it."""
    log = tmp_path / "log"
    with LogWriter(log, "a", segment_bytes=1) as writer:  # a segment each
        for number in range(1, 6):
            writer.append(_fact("a", number))
            writer.sync()
    part = log / "presence" / "date=1970-01-01" / "node=a" / f"part-{1:020}-{2:020}.parquet"
    part.parent.mkdir(parents=True)
    part.touch()
    set_exported_seq(log, "a", 2)
    for number in (1, 2):
        segment_path(log, "a", number).unlink()
    assert _not_ok(examine_log(log)) == {}
    segment_path(log, "a", 3).unlink()
    assert _not_ok(examine_log(log)) == {
        "log of a": "numbers 3 to 3 are neither in Parquet nor in a segment",
        "reader export of a": "lost its place: it had read to 2, and the log begins with 4",
    }


# -- a stream --------------------------------------------------------------------------------------------------------


def test_the_checkpoint_must_fit_the_record() -> None:
    """A batch that was interrupted is finished, or made anew; a state that was lost is not found again."""
    done = _record(batch=3)
    for record in (None, done, replace(done, is_done=False)):
        assert check_checkpoint(record, None).verdict is OK
        assert check_checkpoint(record, "no object x").verdict is FAILED


@pytest.mark.parametrize(("last_batch", "is_well"), [(2, True), (3, True), (1, False), (4, False), (-1, False)])
def test_a_table_must_fit_the_record(last_batch: int, *, is_well: bool) -> None:
    """An older copy lacks rows, and one that is ahead would get rows twice."""
    assert (check_table("matches", last_batch, _record(batch=3, written={"matches": 2})) is None) is is_well


@pytest.mark.parametrize(
    ("applied", "extent", "verdict", "found"),
    [
        (100, Extent(1, 100, 0), OK, "up to date"),
        (99, Extent(90, 100, 3), OK, "1 log record behind"),
        (-1, Extent(50, 100, 0), OK, "101 log records behind"),
        (40, Extent(41, 100, 0), OK, "60 log records behind"),
        (40, Extent(42, 100, 0), FAILED, "the log begins with number 42, the tables end with 40"),
        (100, Extent(101, 100, 0), OK, "up to date"),
        (100, Extent(1, 99, 0), FAILED, "the log ends with number 99, the tables with 100"),
    ],
)
def test_a_log_that_was_cut_too_early_is_said_before_it_hurts(
    applied: int, extent: Extent, verdict: Verdict, found: str
) -> None:
    """Retention that overtakes the stream loses facts; a stream that begins with a log that was cut does not."""
    check = check_reach("a", applied, extent)
    assert (check.verdict, check.found) == (verdict, found)


def _record(*, batch: int = 1, applied: int = 5, written: dict[str, int] | None = None) -> BatchRecord:
    node = NodeRecord(applied=applied, last_at=1, size=1, size_bytes=1)
    return BatchRecord(batch=batch, spans={"a": (4, applied)}, is_done=True, written=written or {}, nodes={"a": node})


def _stream(out: Path, *, applied: int = 5) -> Path:
    """Make the folder of a stream over one node, of which the last batch had the numbers from 4 on."""
    folder = out / "_stream"
    states = []
    for _ in range(2):
        blobs = ObjectBlobs(folder / "checkpoint" / "objects", None)
        blobs.put([b"state"], Head(applied))
        states.append(blobs.head().version)
    (folder / "plan.json").write_text(json.dumps({"format": FORMAT, "tables": ["matches"]}))
    (folder / "stream.json").write_text(
        json.dumps({"name": "s", "is_own": True, "checkpoint": (folder / "checkpoint").as_uri()})
    )
    record = _record(applied=applied)
    nodes = {"a": replace(record.nodes["a"], state=states[0])}
    replace(record, nodes=nodes, windows_state=states[1]).put(folder / "batch.json")
    return folder


def test_a_stream_that_is_well(tmp_path: Path) -> None:
    """Nothing is said that is not so, and nothing is changed by looking."""
    folder = _stream(tmp_path / "out")
    before = sorted((str(path), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    checks = examine_stream(tmp_path / "out", _log(tmp_path / "log", 8), now=NOW)
    assert _not_ok(checks) == {"stream": "not running, 3 log records behind"}
    assert {check.name: check.found for check in checks}["lag of a"] == "3 log records behind"
    with locked(folder, "keeping these tables"):
        os.utime(folder / "batch.json", (NOW - 10, NOW - 10))
        assert _not_ok(examine_stream(tmp_path / "out", tmp_path / "log", now=NOW)) == {}
        late = _not_ok(examine_stream(tmp_path / "out", tmp_path / "log", now=NOW + 600))
        assert late == {"stream": "running, and stands still: 3 log records behind, and its last batch was 610 s ago"}
    assert sorted((str(path), path.stat().st_size) for path in folder.rglob("*") if path.is_file()) == before


def test_a_stream_whose_state_was_lost(tmp_path: Path) -> None:
    """It could only go on with tables that are wrong."""
    folder = _stream(tmp_path / "out")
    shutil.rmtree(folder / "checkpoint")
    (found,) = _not_ok(examine_stream(tmp_path / "out", None, now=NOW)).items()
    assert found[0] == "checkpoint"
    assert found[1].startswith("batch 1: no object ")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tables": []}', '{"format": 99, "tables": []}', None])
def test_a_plan_that_cannot_be_read_is_said(tmp_path: Path, text: str | None) -> None:
    """A newer Whimbrel's stream is not ours to go on with."""
    folder = _stream(tmp_path / "out")
    if text is None:
        (folder / "plan.json").unlink()
    else:
        (folder / "plan.json").write_text(text)
    assert list(_not_ok(examine_stream(tmp_path / "out", None, now=NOW))) == ["plan"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"query": 5}', '{"query": "q", "batch": "x"}'])
def test_a_record_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    """A stream writes it whole or not at all, so somebody else did."""
    folder = _stream(tmp_path / "out")
    (folder / "batch.json").write_text(text)
    assert list(_not_ok(examine_stream(tmp_path / "out", None, now=NOW))) == ["batch"]


def test_leftovers_and_small_files_are_counted(tmp_path: Path) -> None:
    """What an interrupted stream left is old; what is young may be in use."""
    out = tmp_path / "out"
    _stream(out)
    for name, age_s in (("plan.json.new", 7_200), ("other.json.new", 60)):
        path = out / "_stream" / name
        path.write_bytes(b"{}")
        os.utime(path, (NOW - age_s, NOW - age_s))
    table = open_table(out, "matches")
    for number in range(200):
        (out / "matches" / f"{number}.parquet").write_bytes(b"1234")
    adds = [
        AddAction(f"{number}.parquet", 4, {}, 0, True, '{"numRecords": 1}') for number in range(200)
    ]  # as deltalake has it
    table.create_write_transaction(list(adds), "append", table.schema())
    (out / "matches" / "of-no-commit.parquet").write_bytes(b"1234")
    assert _not_ok(examine_stream(out, None, now=NOW)) == {
        "leftovers": "1 file of a stream that was interrupted",
        "table matches": "200 files, 800 B; 200 of them are small",
    }


def test_a_table_of_an_older_whimbrel_is_said(tmp_path: Path) -> None:
    """A stream would refuse it; whoever asks the doctor hears it before."""
    _stream(tmp_path / "out")
    (tmp_path / "out" / "matches").mkdir()
    (tmp_path / "out" / "matches" / "x.parquet").write_bytes(b"1234")
    (said,) = _not_ok(examine_stream(tmp_path / "out", None, now=NOW)).values()
    assert "an older Whimbrel made these tables" in said


def test_the_command_exits_with_1_if_anything_failed(tmp_path: Path) -> None:
    """Scripts ask the exit code; people read the remedy."""
    shutil.rmtree(_stream(tmp_path / "out") / "checkpoint")
    arguments = ["pipeline", "doctor", "--out", str(tmp_path / "out"), "--no-spark"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "FAILED  checkpoint: batch 1: no object " in done.stdout
    assert "wanted: the state after the last batch, whole" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (1, False)


@pytest.mark.parametrize(
    ("is_running", "behind", "last_batch_s", "age_s", "said"),
    [
        (True, 0, 9_000, 0, "running, up to date"),
        (True, 7, 3, 5, "running, 7 log records behind"),
        (True, 7, 3, 500, "running, and lags: 7 log records behind, and what its last batch had was 500 s old"),
        (True, 1, 300, 0, "running, and stands still: 1 log record behind, and its last batch was 300 s ago"),
        (False, 0, 9_000, 0, "not running, up to date"),
        (False, 7, 3, 0, "not running, 7 log records behind"),
    ],
)
def test_a_stream_that_lags_stands_still_or_does_not_run_is_said(
    behind: int, last_batch_s: float, age_s: float, said: str, *, is_running: bool
) -> None:
    """Each by its name, with what to do; one that has nothing to do is well."""
    found = check_running(is_running=is_running, behind=behind, last_batch_s=last_batch_s, age_s=age_s)
    assert found.found == said
    is_well = behind == 0 or (is_running and last_batch_s < 120 and age_s < 120)
    assert (found.verdict is Verdict.OK) == is_well == (not found.remedy)


# -- options of `run` ------------------------------------------------------------------------------------------------


_STRAYS = [
    (["--continuous", "--available-now"], "--available-now and --continuous exclude each other"),
    (["--every", "2s"], "--every needs --continuous"),
    (["--available-now", "--every", "2s"], "--every needs --continuous"),
    (["--facts-per-batch", "9"], "--facts-per-batch needs --continuous or --available-now"),
    (["--lateness", "1d"], "--lateness needs --continuous or --available-now"),
    (["--metrics-port", "0"], "--metrics-port needs --continuous or --available-now"),
    (["--continuous", "--metrics-host", "::1"], "--metrics-host needs --metrics-port"),
    (["--continuous", "--every", "0s"], "--every: found '0s', allowed is a number and s, m, h or d"),
    (["--continuous", "--master", "sc://host"], "a stream does not work through Spark Connect"),
]


@pytest.mark.parametrize("option", ["--log", "--out"])
@pytest.mark.parametrize("url", ["s3://bucket/tables", "hdfs://host/tables", "gs:/bucket"])
def test_a_url_is_refused_where_a_folder_is_expected(tmp_path: Path, option: str, url: str) -> None:
    """It would be made a folder called ``s3:``, and the tables looked for elsewhere."""
    folders = {"--log": str(_log(tmp_path / "log")), "--out": str(tmp_path / "out")} | {option: url}
    done = CliRunner().invoke(app, ["pipeline", "run", *(each for pair in folders.items() for each in pair)])
    assert done.exit_code == 2
    assert "allowed is a folder" in " ".join(done.stderr.replace("│", " ").split())
    assert not list(tmp_path.glob("*:*"))


@pytest.mark.parametrize(
    ("options", "told"),
    _STRAYS,
)
def test_options_that_do_not_belong_together_are_refused_by_name(tmp_path: Path, options: list[str], told: str) -> None:
    """An option that would do nothing is a misunderstanding, and Spark need not be started to say so."""
    log = _log(tmp_path / "log")
    done = CliRunner().invoke(app, ["pipeline", "run", "--log", str(log), "--out", str(tmp_path / "out"), *options])
    assert str(done.exception).startswith(told)


def test_a_reader_that_lost_its_place_is_named(tmp_path: Path) -> None:
    """A stream that was down for weeks finds out why it cannot go on, and so does its operator."""
    with LogWriter(tmp_path, "n1", segment_bytes=200) as log:
        for seq in range(1, 30):
            log.append(PresenceChanged(node="n1", seq=seq, changed_at=1, device="d", change=PresenceChange.CONNECTED))
            log.sync()
    register(tmp_path, "n1", "ward-stream", seq=2, now=1)
    assert not _not_ok(examine_log(tmp_path))
    cut(
        tmp_path, "n1", Plan(segments=on_disk(tmp_path, "n1").segments[:4], lost=tuple(read_registered(tmp_path, "n1")))
    )
    told = _not_ok(examine_log(tmp_path))["reader ward-stream of n1"]
    assert told.startswith("lost its place: it had read to 2, and the log begins with")
