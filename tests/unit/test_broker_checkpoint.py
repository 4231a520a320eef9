"""A start without a view: the newest sound checkpoint and the tail of the log make the same state as the whole log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_data import FACTS, checkpointed, cut, started, without_view, written
from ordered import NODE
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.hold.store.interface import NewerStoreError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log import layout
from whimbrel.log.errors import MissingRecordsError
from whimbrel.log.incarnation import incarnation
from whimbrel.log.writer import LogWriter


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the folder of a broker with two checkpoints and a whole log."""
    written(tmp_path / "data")
    for seq in (120, 210):
        checkpointed(tmp_path / "data", seq)
    return tmp_path / "data"


def test_a_start_from_a_checkpoint_equals_one_from_the_whole_log(data: Path, tmp_path: Path) -> None:
    """Whichever of them is sound, and wherever the log was cut."""
    written(tmp_path / "whole")
    whole, _ = started(tmp_path / "whole")
    cut(data, up_to=120)
    rows, restored = started(data)
    assert (rows, restored.checkpoint, restored.replayed) == (whole, 210, FACTS - 210)
    without_view(data)
    newest = layout.checkpoint_path(data / "log", NODE, 210)
    newest.write_bytes(newest.read_bytes()[:-1])
    rows, restored = started(data)
    assert (rows, restored.checkpoint, restored.replayed) == (whole, 120, FACTS - 120)
    assert "checkpoint" in restored.unsound[0]


def test_a_view_is_preferred_as_long_as_the_log_reaches_it(data: Path) -> None:
    """It is newer than any checkpoint, but for a folder that somebody mixed from two."""
    started(data)
    _, restored = started(data)
    assert (restored.checkpoint, restored.replayed) == (0, FACTS - 210)
    view = SqliteStore(data / f"view-{NODE}.sqlite", snapshot=True)
    assert view.applied == 210
    view.close()


def test_a_view_that_a_cut_left_behind_is_made_again(data: Path) -> None:
    """A copy of an old view over a newer log."""
    store = SqliteStore(data / f"view-{NODE}.sqlite")
    store.commit(50, {}, ())
    store.close()
    cut(data, up_to=120)
    _, restored = started(data)
    assert restored.checkpoint == 210


def test_a_damaged_view_is_set_aside_and_made_again_of_a_checkpoint(data: Path) -> None:
    """Also after a cut: the view is only a view."""
    cut(data, up_to=120)
    (data / f"view-{NODE}.sqlite").write_bytes(b"no database" * 1_000)
    _, restored = started(data)
    assert restored.checkpoint == 210
    assert restored.rebuilt is not None
    assert (data / f"view-{NODE}.sqlite.aside-1").exists()


def test_where_neither_is_sound_a_cut_log_is_refused(data: Path) -> None:
    """And the refusal says what is wrong with each of them."""
    cut(data, up_to=120)
    for _, path in layout.checkpoints(data / "log", NODE):
        path.write_bytes(path.read_bytes()[:-1])
    before = incarnation(data / "log", NODE)
    with pytest.raises(MissingRecordsError, match="no checkpoint is sound"):
        started(data)
    assert incarnation(data / "log", NODE) == before
    _, restored = started(data, accepts_loss=True)
    assert restored.lost is not None
    assert incarnation(data / "log", NODE) != before  # to readers it is another log


def test_a_checkpoint_proves_that_numbers_were_given(data: Path) -> None:
    """A log that lost its end gives none of them twice, to a broker or to an import."""
    for first, path in layout.segments(data / "log", NODE):
        if first > 150:
            path.unlink()
    with pytest.raises(MissingRecordsError, match="checkpoint-00000000000000000210"):
        started(data)
    with pytest.raises(MissingRecordsError, match="checkpoint-00000000000000000210"):
        LogWriter(data / "log", NODE).open()
    _, restored = started(data, accepts_loss=True)
    assert restored.recovery.missing_to == 210
    assert [first for first, _ in layout.segments(data / "log", NODE)] == [211]


def test_a_newer_view_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A downgrade would lose what only the newer version writes down."""
    started(data)
    with monkeypatch.context() as patch:
        patch.setattr("whimbrel.hold.store.sqlite.FORMAT", 0)
        with pytest.raises(NewerStoreError, match="use a newer Whimbrel"):
            started(data)


def test_verify_and_stats_know_checkpoints(data: Path) -> None:
    """Each flipped byte is found, and the state's size is told."""
    cut(data, up_to=120)
    done = CliRunner().invoke(app, ["log", "verify", str(data)])
    assert done.exit_code == 0, done.output
    assert "2 checkpoints" in done.output
    assert "what came of them is in a checkpoint" in done.output
    listed = json.loads(CliRunner().invoke(app, ["log", "stats", str(data), "--json"]).output)
    assert [each["last_seq"] for each in listed if each["table"] == "checkpoint"] == [120, 210]
    path = layout.checkpoint_path(data / "log", NODE, 120)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    done = CliRunner().invoke(app, ["log", "verify", str(data)])
    assert done.exit_code == 1
    assert "checkpoint-00000000000000000120: damaged at byte" in done.output


def test_the_log_command_cuts_nothing_beyond_the_older_checkpoint(data: Path) -> None:
    """Though all of it is exported and old."""
    done = CliRunner().invoke(app, ["log", "export", str(data), "--all", "--keep-days", "1"])
    assert done.exit_code == 0, done.output
    first = layout.segments(data / "log", NODE)[0][0]
    assert 100 < first <= 121
