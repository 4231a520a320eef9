"""Logs that are not as a stream expects them: seen late or in part, of other nodes' clocks, or another log altogether.

No Spark: the same folds, commits and files, driven by ``stream_rig``.
"""

from __future__ import annotations

from pathlib import Path

from stream_rig import StreamRig, forget

from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import StreamPlan

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
