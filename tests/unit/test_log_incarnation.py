"""The incarnation of a log: the same as long as the log goes on, another one wherever numbers may be given again."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.log import incarnation as incarnation_module
from whimbrel.log.backup.making import back_up
from whimbrel.log.backup.restoring import restore
from whimbrel.log.errors import CorruptLogError, LogWriteError
from whimbrel.log.export import export
from whimbrel.log.incarnation import OtherIncarnationError, incarnation
from whimbrel.log.layout import segments, segments_folder
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import PresenceChange, PresenceChanged

NODE = "n"


def write(log: Path, count: int = 3) -> str:
    """Append some facts; return the log's incarnation."""
    with LogWriter(log, NODE) as writer:
        for _ in range(count):
            seq = writer.next_seq
            change = PresenceChange.CONNECTED
            writer.append(PresenceChanged(node=NODE, seq=seq, changed_at=seq, device="d", change=change))
    found = incarnation(log, NODE)
    assert found is not None
    return found


def test_a_log_has_one_and_keeps_it(tmp_path: Path) -> None:
    """A restart of a broker is no other log."""
    first = write(tmp_path / "one")
    assert len(bytes.fromhex(first)) == 8
    assert write(tmp_path / "one") == first
    assert write(tmp_path / "two") != first


def test_a_log_of_an_older_whimbrel_gets_one_as_it_is_opened(tmp_path: Path) -> None:
    """Until then it has none, and is read as ever."""
    write(tmp_path)
    (segments_folder(tmp_path, NODE) / "incarnation.json").unlink()
    assert incarnation(tmp_path, NODE) is None
    assert write(tmp_path) == incarnation(tmp_path, NODE)


def test_a_full_disk_does_not_keep_a_log_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older Whimbrel wrote is served all the same; it gets one with the next start."""
    write(tmp_path)
    (segments_folder(tmp_path, NODE) / "incarnation.json").unlink()

    def full(path: Path, _data: bytes) -> None:
        raise LogWriteError(path, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(incarnation_module, "put", full)
        LogWriter(tmp_path, NODE).open()
    assert incarnation(tmp_path, NODE) is None


def test_who_accepts_a_loss_begins_another(tmp_path: Path) -> None:
    """Facts that readers have seen are gone from it."""
    before = write(tmp_path)
    writer = LogWriter(tmp_path, NODE)
    recovery = writer.open(given_by=lambda: (5, "a view"), accepts_loss=True)
    writer.begin_at(recovery.missing_to + 1)
    writer.close()
    assert incarnation(tmp_path, NODE) != before


def test_what_is_restored_is_another(tmp_path: Path) -> None:
    """The node goes on from an older moment, and gives numbers again that it had given."""
    before = write(tmp_path / "data" / "log")
    back_up(tmp_path / "data", NODE, tmp_path / "backup", now=0, bytes_per_second=0)
    restore(tmp_path / "backup", tmp_path / "restored")
    assert incarnation(tmp_path / "restored" / "log", NODE) != before
    assert write(tmp_path / "restored" / "log") != before


def test_an_export_has_that_of_its_log_and_takes_no_other(tmp_path: Path) -> None:
    """Numbers of two logs in one folder would be one log with a hole, or with two beginnings."""
    told = write(tmp_path / "log")
    export(tmp_path / "log", NODE, closed_only=False, into=tmp_path / "archive")
    assert incarnation(tmp_path / "archive", NODE) == told
    write(tmp_path / "log")
    assert export(tmp_path / "log", NODE, closed_only=False, into=tmp_path / "archive").last_seq == 6
    write(tmp_path / "other", 9)
    with pytest.raises(OtherIncarnationError, match=r"has rows of another log of n .* export to another folder"):
        export(tmp_path / "other", NODE, closed_only=False, into=tmp_path / "archive")


def test_damage_is_said(tmp_path: Path) -> None:
    """What is no incarnation is not taken for none."""
    write(tmp_path)
    (segments_folder(tmp_path, NODE) / "incarnation.json").write_text("{}")
    with pytest.raises(CorruptLogError, match="found no incarnation, allowed is"):
        incarnation(tmp_path, NODE)
    assert segments(tmp_path, NODE)
