"""Checkpoints that travel with an export: one a day, and one where the log was cut before it was exported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ordered import BEGIN, NODE, a_history

from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.copying import APART_US
from whimbrel.log.checkpoints.folder import checked, save
from whimbrel.log.export import export
from whimbrel.log.retention import retain
from whimbrel.log.verification import verify
from whimbrel.log.writer import LogWriter
from whimbrel.model.rows import COLUMNS

ROWS = ((("now",), b"\x00"),)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def checkpoint(log: Path, seq: int, at: int) -> None:
    """Make one."""
    save(log, CheckpointHeader(node=NODE, seq=seq, state_at=at, made_at=at, salt=1), ROWS)


def numbers(log: Path) -> list[int]:
    """Return the numbers of the checkpoints there, each of which is read whole."""
    found = layout.checkpoints(log, NODE)
    return [checked(path, NODE, seq).header.seq for seq, path in found]


def parts(log: Path) -> list[layout.Part]:
    """Return the parts of all tables."""
    return [part for table in COLUMNS for part in layout.all_parts(log, table)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of sixty facts, an hour apart, in small segments."""
    with LogWriter(tmp_path / "log", NODE, segment_bytes=1_000) as writer:
        for fact in a_history(60, step_us=3_600_000_000):
            writer.append(fact)
            if writer.pending == 5:
                writer.sync()
    return tmp_path / "log"


def test_one_a_day_is_copied(log: Path, tmp_path: Path) -> None:
    """However often there is an export; the log's own stay two."""
    copied, hour = tmp_path / "copied", 3_600_000_000
    for seq in range(5, 60, 5):
        checkpoint(log, seq, BEGIN + seq * hour)
        export(log, NODE, into=copied)
        export(log, NODE, into=copied)
    assert numbers(log) == [50, 55]
    assert numbers(copied) == [5, 30, 55]
    assert all(later - earlier >= APART_US // hour for earlier, later in ((5, 30), (30, 55)))
    assert not verify(copied).problems


def test_where_numbers_are_missing_the_next_one_is_copied(log: Path, tmp_path: Path) -> None:
    """Also on the same day; a damaged one is passed over."""
    copied = tmp_path / "copied"
    checkpoint(log, 2, BEGIN)
    export(log, NODE, into=copied)
    before = layout.exported_seq(copied, NODE)
    first, middle = layout.segments(log, NODE)[-1][0], 58
    checkpoint(log, first, BEGIN + 1)
    checkpoint(log, middle, BEGIN + 2)
    damaged = layout.checkpoint_path(log, NODE, first)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    layout.set_exported_seq(copied, NODE, before - 20)  # as if the export had been away
    for _, path in layout.segments(log, NODE)[:-1]:
        path.unlink()
    unfinished = layout.segments_folder(copied, NODE) / ".checkpoint-7.new"
    unfinished.touch()
    export(log, NODE, closed_only=False, into=copied)
    assert numbers(copied) == [2, middle]
    assert not unfinished.exists()


def test_an_export_that_is_cut_keeps_those_that_reach(log: Path, tmp_path: Path) -> None:
    """Those that end before the oldest part are of no use any more."""
    copied, hour = tmp_path / "copied", 3_600_000_000
    for seq in (5, 30, 55):
        checkpoint(log, seq, BEGIN + seq * hour)
        export(log, NODE, closed_only=False, into=copied)
    days = sorted({part.date for part in parts(copied)})
    retain(copied, before=days[-1], now=BEGIN + 100 * hour)
    left = min(part.first for part in parts(copied))
    assert 5 < left - 1 <= 55
    assert numbers(copied) == [seq for seq in (5, 30, 55) if seq >= left - 1]
    retain(copied, before=layout.date_of(BEGIN + 100 * hour), now=BEGIN + 100 * hour)
    assert not parts(copied)
    assert numbers(copied) == [55]
    assert numbers(log) == [30, 55]
