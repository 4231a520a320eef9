"""Backups: consistent while the broker writes and cuts, whole or refused, restored to the same state."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from broker_data import FACTS, checkpointed, cut, started, written
from ordered import NODE
from typer.testing import CliRunner

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.cli.main import app
from whimbrel.log import layout
from whimbrel.log.backup.making import NoNodeError, back_up, only_node
from whimbrel.log.backup.manifest import MANIFEST, BackedUp, Manifest, digest_of
from whimbrel.log.backup.restoring import check_backup, restore
from whimbrel.log.errors import LogError, NewerLogError, NotALogError
from whimbrel.log.reader import read


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data of a broker whose log was cut."""
    written(tmp_path / "data")
    for seq in (120, 210):
        checkpointed(tmp_path / "data", seq)
    cut(tmp_path / "data", up_to=120)
    return tmp_path / "data"


def copied(data: Path, target: Path) -> None:
    """Make a backup."""
    back_up(data, NODE, target, now=1, bytes_per_second=0)


def test_what_is_restored_is_the_same_broker(data: Path, tmp_path: Path) -> None:
    """Without a view: it is made of the checkpoint."""
    copied(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    rows, restored = started(tmp_path / "again")
    assert (restored.checkpoint, restored.replayed) == (210, FACTS - 210)
    assert rows == started(data)[0]
    assert list(read(tmp_path / "again" / "log", NODE)) == list(read(data / "log", NODE))


def test_a_flipped_byte_in_any_file_is_found_and_refused(data: Path, tmp_path: Path) -> None:
    """In the manifest, too; and a refusal leaves nothing behind."""
    backup = tmp_path / "backup"
    copied(data, backup)
    for path in sorted(each for each in backup.rglob("*") if each.is_file()):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            if path.name == MANIFEST and json.loads(whole) == _json(path.read_bytes()):
                continue  # a byte between the words of JSON
            with pytest.raises(LogError):
                check_backup(backup)
            with pytest.raises(LogError):
                restore(backup, tmp_path / "again")
        path.unlink()
        with pytest.raises(LogError):
            restore(backup, tmp_path / "again")
        path.write_bytes(whole)
    assert not list(tmp_path.glob("*again*"))
    check_backup(backup)


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_a_cut_while_it_copies_leaves_no_gap(data: Path, tmp_path: Path) -> None:
    """Segments that went meanwhile are left out, with all before them; the checkpoints reach the rest."""
    segments = [path for _, path in layout.segments(data / "log", NODE)]
    slept = 0

    def cut_meanwhile(_: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 5:  # the format, two checkpoints and two segments are copied
            segments[2].unlink()

    made = back_up(data, NODE, tmp_path / "backup", now=1, bytes_per_second=1, sleep=cut_meanwhile)
    assert made.oldest > int(segments[2].stem)
    assert made.oldest <= made.checkpoint + 1
    restore(tmp_path / "backup", tmp_path / "again")
    _, restored = started(tmp_path / "again")
    assert restored.recovery.last_seq == FACTS


def test_a_cut_beyond_the_copied_checkpoints_begins_anew(data: Path, tmp_path: Path) -> None:
    """The broker made two newer checkpoints, and cut up to them, while segments were copied."""
    slept = 0

    def overtake(_: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 4:
            for seq in (250, 290):
                checkpointed(tmp_path / "data", seq)
            cut(data, up_to=250)

    made = back_up(data, NODE, tmp_path / "backup", now=1, bytes_per_second=1, sleep=overtake)
    assert made.checkpoint == 290
    assert made.oldest > 240
    restore(tmp_path / "backup", tmp_path / "again")
    assert started(tmp_path / "again")[1].recovery.last_seq == FACTS


def test_nothing_is_written_over(data: Path, tmp_path: Path) -> None:
    """Neither a backup nor a broker's data."""
    copied(data, tmp_path / "backup")
    with pytest.raises(NotALogError, match="not empty"):
        copied(data, tmp_path / "backup")
    with pytest.raises(NotALogError, match="not empty"):
        restore(tmp_path / "backup", data)
    with pytest.raises(NotALogError, match="no backup"):
        restore(data, tmp_path / "again")


def test_a_newer_backup_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sentence, before anything is laid down."""
    with monkeypatch.context() as patch:
        patch.setattr("whimbrel.log.backup.manifest.FORMAT", 2)
        copied(data, tmp_path / "backup")
    with pytest.raises(NewerLogError, match="newer Whimbrel"):
        restore(tmp_path / "backup", tmp_path / "again")


def test_whose_data_it_is_must_be_clear(data: Path, tmp_path: Path) -> None:
    """A folder with two logs needs a name."""
    assert only_node(data) == NODE
    layout.create(tmp_path / "empty" / "log")
    with pytest.raises(NoNodeError, match="has no log"):
        only_node(tmp_path / "empty")


def test_the_commands_say_what_they_did(data: Path, tmp_path: Path) -> None:
    """Backup, check and restore."""
    run = CliRunner().invoke
    done = run(app, ["backup", str(tmp_path / "backup"), "--data", str(data)])
    assert done.exit_code == 0, done.output
    assert f"{NODE} from number" in done.output
    assert "the state after 210" in done.output
    assert run(app, ["backup", str(tmp_path / "backup"), "--check"]).output.startswith("ok: ")
    done = run(app, ["restore", str(tmp_path / "backup"), str(tmp_path / "again"), "--json"])
    assert json.loads(done.output)["checkpoint"] == 210


def test_users_are_in_the_backup_and_only_their_owner_reads_them(data: Path, tmp_path: Path) -> None:
    """As it was: a restored broker had no users, and let any client in."""
    Users.read(data / "users", missing_ok=True).add("ann", "secret", cost=Cost(n=2**10))
    run = CliRunner().invoke
    assert run(app, ["backup", str(tmp_path / "backup"), "--data", str(data)]).exit_code == 0
    assert run(app, ["restore", str(tmp_path / "backup"), str(tmp_path / "again")]).exit_code == 0
    restored = tmp_path / "again" / "users"
    assert restored.read_bytes() == (data / "users").read_bytes()
    assert restored.stat().st_mode & 0o777 == 0o600


def test_a_backup_is_restored_to_the_folder_that_one_is_in(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`restore DIR .` ended in a traceback; the folder stays the same, so that it may be a mounted one."""
    copied(data, tmp_path / "backup")
    (tmp_path / "again").mkdir()
    before = (tmp_path / "again").stat().st_ino
    monkeypatch.chdir(tmp_path / "again")
    done = CliRunner().invoke(app, ["restore", "../backup", "."])
    assert (done.exit_code, done.exception) == (0, None)
    assert (tmp_path / "again").stat().st_ino == before
    assert started(tmp_path / "again")[1].recovery.last_seq == FACTS


def test_a_restore_that_was_cut_off_is_begun_again(data: Path, tmp_path: Path) -> None:
    """What it had laid down until then is no data, and does not count as something in the folder."""
    copied(data, tmp_path / "backup")
    (tmp_path / "again" / ".restoring" / "log").mkdir(parents=True)
    restore(tmp_path / "backup", tmp_path / "again")
    assert sorted(each.name for each in (tmp_path / "again").iterdir()) == ["log"]


@pytest.mark.parametrize(
    "path",
    [".bashrc", f"view-{NODE}.sqlite", "log/segments/other/00000000000000000001.seg", "log/segments/x"],
)
def test_only_what_a_backup_may_have_is_restored(data: Path, tmp_path: Path, path: str) -> None:
    """A manifest is no word of honour: a file that no backup has is refused, whatever its checksum."""
    copied(data, tmp_path / "backup")
    target = tmp_path / "backup" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"x")
    manifest = Manifest.read(tmp_path / "backup")
    size, digest = digest_of(iter([b"x"]))
    named = (*manifest.files, BackedUp(path=path, size_bytes=size, sha256=digest))
    replace(manifest, files=named).write(tmp_path / "backup")
    for act in (check_backup, lambda backup: restore(backup, tmp_path / "again")):
        with pytest.raises(LogError, match="no backup has"):
            act(tmp_path / "backup")
    assert not (tmp_path / "again").exists()


def test_no_link_in_a_backup_is_followed(data: Path, tmp_path: Path) -> None:
    """Neither of a file nor of a folder: what it leads to is no part of the backup."""
    copied(data, tmp_path / "backup")
    for path in (f"log/segments/{NODE}", layout.FORMAT_FILE):
        inside = tmp_path / "backup" / ("log" if path == layout.FORMAT_FILE else "") / path
        inside.rename(tmp_path / "elsewhere")
        inside.symlink_to(tmp_path / "elsewhere")
        for act in (check_backup, lambda backup: restore(backup, tmp_path / "again")):
            with pytest.raises(LogError, match="a link"):
                act(tmp_path / "backup")
        inside.unlink()
        (tmp_path / "elsewhere").rename(inside)
    assert not (tmp_path / "again").exists()
    check_backup(tmp_path / "backup")
