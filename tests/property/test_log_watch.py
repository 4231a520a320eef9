"""A watch over a log: at every moment what a fresh look finds, and files that have not changed are not read again."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered import a_history

from whimbrel.log import layout
from whimbrel.log.export import export
from whimbrel.log.reader import proven_seq
from whimbrel.log.writer import LogWriter
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import settled_seq

FRESH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
NODES = ("a", "b")
FACTS = {node: [replace(fact, node=node) for fact in a_history(60)] for node in NODES}
LONG_AGO_NS = 1_000_000_000_000_000_000
STEPS = st.tuples(
    st.sampled_from(["write", "append", "export", "export all", "cut", "imported"]), st.sampled_from(NODES)
)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def fresh_look(directory: Path) -> list[tuple[str, int, int]]:
    """Return what a watch should find, by reading everything."""
    found = []
    for node in layout.nodes(directory):
        if layout.segments(directory, node):
            found.append((node, settled_seq(directory, node), proven_seq(directory, node)))
        else:
            exported = (part.last for table in TIMES for part in layout.parts(directory, table, node))
            found.append((node, INT64_MAX, max(exported, default=-1)))
    return found


def _date(directory: Path, known: dict[Path, int], step: int) -> None:
    """Let what has changed have done so at a time of its own, long ago: the clock of a file system may be coarse."""
    for path in (directory, *directory.rglob("*")):
        changed_ns = path.stat().st_mtime_ns
        if known.get(path) != changed_ns:
            os.utime(path, ns=(LONG_AGO_NS + step, LONG_AGO_NS + step))
            known[path] = LONG_AGO_NS + step


@FRESH
@given(steps=st.lists(STEPS, max_size=20))
def test_a_watch_finds_what_a_fresh_look_finds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """Segments that grow and roll, exports, nodes that have only Parquet, files that go."""
    directory = tmp_path_factory.mktemp("log") / "log"
    logs = {node: LogWriter(directory, node, segment_bytes=400) for node in NODES}
    for log in logs.values():
        log.open()
    watch, dates = LogWatch(directory), dict[Path, int]()
    for number, (step, node) in enumerate(steps):
        log = logs[node]
        if step in {"write", "append"} and log.next_seq <= len(FACTS[node]):
            log.append(FACTS[node][log.next_seq - 1])
            log.sync(wait=step == "write")
        elif step.startswith("export"):
            export(directory, node, closed_only=step == "export")
        elif step == "cut":
            for _, path in layout.segments(directory, node)[:-1]:
                path.unlink()
        elif step == "imported":
            for part in directory.glob(f"*/date=*/node={node}"):
                shutil.copytree(part, part.with_name("node=c"), dirs_exist_ok=True)
        _date(directory, dates, number)
        assert list(watch.look()) == list(watch.look()) == fresh_look(directory)
    for log in logs.values():
        log.close()


def test_a_silent_log_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look at it costs does not follow how long it is: no folder is listed, no segment opened."""
    for node in NODES:
        with LogWriter(tmp_path / "log", node, segment_bytes=400) as log:
            for fact in FACTS[node]:
                log.append(fact)
    export(tmp_path / "log", "a")
    _date(tmp_path / "log", {}, 0)
    watch = LogWatch(tmp_path / "log")
    before = list(watch.look())

    def refuse(*_: object) -> None:
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(layout, "segments", refuse)
    assert list(watch.look()) == before


def test_a_change_that_left_no_trace_is_found_within_a_minute(tmp_path: Path) -> None:
    """Where the clock of a shared disk is wrong, a folder may have changed and say that it has not."""
    now_ns = LONG_AGO_NS + 100_000_000_000
    with LogWriter(tmp_path, "a", segment_bytes=400) as log:
        for fact in FACTS["a"][:20]:
            log.append(fact)
            log.sync()
        watch = LogWatch(tmp_path, clock_ns=lambda: now_ns)
        _date(tmp_path, {}, 0)
        before = list(watch.look())
        export(tmp_path, "a")
        _date(tmp_path, {}, 0)
        assert list(watch.look()) == before != fresh_look(tmp_path)
        now_ns += 60_000_000_000
        assert list(watch.look()) == fresh_look(tmp_path)
