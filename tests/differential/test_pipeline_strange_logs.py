"""Logs that are not as a stream expects them: seen late or in part, of other nodes' clocks, or another log altogether.

No Spark: the same folds, commits and files, driven by ``stream_rig``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from random_logs import placed_log
from stream_rig import StreamRig, forget

from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.export import export
from whimbrel.log.incarnation import incarnation
from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification
from whimbrel.pipeline.doctor.streams import examine_stream
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import NO_PATIENCE
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.state.batch_record import BatchRecord, OtherLogError

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
NOW = 1_800_000_000_000_000
"""The driver's time."""


def publish(log: Path, node: str, count: int, at: int) -> int:
    """Append publications to a node's log, all at one time; return its last number."""
    with LogWriter(log, node) as writer:
        for _ in range(count):
            seq = writer.next_seq
            writer.append(Notification(node=node, seq=seq, published_at=at, subject="t", body=b"%d" % seq))
        return writer.sync()


def without_incarnation(log: Path, node: str) -> None:
    """Let a log be one that an older Whimbrel wrote."""
    (layout.segments_folder(log, node) / "incarnation.json").unlink()


def counted(out: Path) -> int:
    """Return how many publications the windows have."""
    return sum(read(out, "popularity").column("publications").to_pylist())


def test_a_node_whose_clock_is_ahead_silences_no_window(tmp_path: Path) -> None:
    """One device with a wrong date must not make everybody else's publications late."""
    log, tables = tmp_path / "log", ("popularity", "replicas")
    stream = StreamRig(log=log, out=tmp_path / "out", plan=StreamPlan(tables=tables), now=NOW)
    ends = {name: publish(log, name, 50, NOW) for name in ("a", "b")} | {"c": publish(log, "c", 50, NOW + 9 * DAY_US)}
    stream.take(ends)
    for _ in range(2):
        forget()
        ends |= {name: publish(log, name, 25, NOW + HOUR_US) for name in ("a", "b")}
        stream = StreamRig(log=log, out=tmp_path / "out", plan=StreamPlan(tables=tables), now=NOW + HOUR_US)
        stream.take(ends)
        assert stream.last is not None
        assert (stream.last.late, stream.last.notes) == ({}, ())
        assert stream.last.newest_at == NOW + HOUR_US
    assert counted(tmp_path / "out") == sum(ends.values())


def test_what_came_too_late_is_told_whatever_tables_there_are(tmp_path: Path) -> None:
    """Who does not ask for ``dead_letters`` learns of it all the same."""
    log = tmp_path / "log"
    stream = StreamRig(log=log, out=tmp_path / "out", plan=StreamPlan(tables=("popularity",)), now=NOW)
    ends = {"a": publish(log, "a", 50, NOW), "b": publish(log, "b", 50, NOW - 9 * DAY_US)}
    stream.take(ends)
    stream.take(ends | {"b": publish(log, "b", 7, NOW - 9 * DAY_US)})
    assert stream.last is not None
    assert stream.last.late == {"popularity": 7}
    assert stream.last.notes == ("7 publications came too late and are not counted in popularity",)
    assert counted(tmp_path / "out") == 100


# -- another log -------------------------------------------------------------------------------------------------------


def begun(folder: Path, *, is_old: bool = False) -> StreamRig:
    """Return a stream that has read twenty publications of a log."""
    publish(folder / "log", "n", 20, NOW)
    if is_old:
        without_incarnation(folder / "log", "n")
    stream = StreamRig(log=folder / "log", out=folder / "out", plan=StreamPlan(tables=("popularity",)), now=NOW)
    stream.take({"n": 20})
    return stream


def replaced(folder: Path, count: int, *, subject: str = "other") -> None:
    """Set a node up anew, under its old name."""
    shutil.rmtree(folder / "log")
    with LogWriter(folder / "log", "n") as writer:
        for seq in range(1, count + 1):
            writer.append(Notification(node="n", seq=seq, published_at=NOW, subject=subject))


@pytest.mark.parametrize("is_old", [False, True], ids=["incarnations", "of an older Whimbrel"])
@pytest.mark.parametrize("is_new_worker", [False, True])
def test_another_log_under_the_same_name_is_refused(tmp_path: Path, *, is_old: bool, is_new_worker: bool) -> None:
    """Tables would have the first half of one log and the second half of another."""
    stream = begun(tmp_path, is_old=is_old)
    replaced(tmp_path, 40)
    if is_old:
        without_incarnation(tmp_path / "log", "n")
    if is_new_worker:
        forget()
    wanted = "found another (fact|segment)" if is_old else "found incarnation [0-9a-f]{16}, needed is incarnation"
    with pytest.raises(OtherLogError, match=wanted):
        stream.take({"n": 40})
    assert counted(tmp_path / "out") == 20


def test_a_node_that_was_set_up_anew_is_noticed_before_its_numbers_are_reached(tmp_path: Path) -> None:
    """Until then there is nothing to read, and the stream would look as if it had all."""
    stream = begun(tmp_path)
    stream.commits.check_log(tmp_path / "log")
    replaced(tmp_path, 3)
    with pytest.raises(OtherLogError, match="the node was set up anew or restored"):
        stream.commits.check_log(tmp_path / "log")
    told = {check.name: check.found for check in examine_stream(tmp_path / "out", tmp_path / "log", now=0)}
    assert told["log of n"] == f"incarnation {incarnation(tmp_path / 'log', 'n')}"
    shutil.rmtree(layout.segments_folder(tmp_path / "log", "n"))
    stream.commits.check_log(tmp_path / "log")  # an archive of which everything was old


def test_a_stream_of_an_older_whimbrel_goes_on(tmp_path: Path) -> None:
    """Its log has no incarnation, until the broker is a newer one."""
    stream = begun(tmp_path, is_old=True)
    path = tmp_path / "out" / "_stream" / "batch.json"
    record = BatchRecord.read(path)
    assert record is not None
    assert record.nodes["n"].incarnation is None
    forget()
    stream.take({"n": publish(tmp_path / "log", "n", 20, NOW)})
    record = BatchRecord.read(path)
    assert record is not None
    assert record.nodes["n"].incarnation == incarnation(tmp_path / "log", "n")
    assert counted(tmp_path / "out") == 40


def test_what_was_read_may_be_cut(tmp_path: Path) -> None:
    """Retention is not another log."""
    publish(tmp_path / "log", "n", 20, NOW)
    export(tmp_path / "log", "n", closed_only=False)
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(tables=("popularity",)), now=NOW)
    stream.take({"n": 20})
    publish(tmp_path / "log", "n", 20, NOW)
    export(tmp_path / "log", "n", closed_only=False)
    forget()
    for _, path in layout.segments(tmp_path / "log", "n"):
        path.unlink()
    layout.parts(tmp_path / "log", "publications")[0].path.unlink()
    stream.take({"n": 40})
    assert counted(tmp_path / "out") == 40


def test_the_digest_of_a_fact_is_that_of_its_export(tmp_path: Path) -> None:
    """What was read from a segment is read again from Parquet, after a restart."""
    facts = placed_log(Random(3), "n", facts=60, has_receipts=True)
    with LogWriter(tmp_path, "n") as writer:
        for fact in facts:
            writer.append(fact)

    def digests() -> list[str | None]:
        reader = SpanReader(tmp_path, "n", patience=NO_PATIENCE)
        return [reader.digest_at(fact.seq) for fact in facts]

    before = digests()
    export(tmp_path, "n", closed_only=False)
    for _, path in layout.segments(tmp_path, "n"):
        path.unlink()
    assert digests() == before
    assert None not in before
    assert len(set(before)) == len(facts)


def test_damage_is_not_taken_for_the_end(tmp_path: Path) -> None:
    """A stream that sees no more than what stands before it would say that it is up to date."""
    publish(tmp_path, "n", 20, NOW)
    (_, path), *_ = layout.segments(tmp_path, "n")
    assert snapshot(tmp_path).last == {"n": 20}
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match="damaged at byte"):
        snapshot(tmp_path)
