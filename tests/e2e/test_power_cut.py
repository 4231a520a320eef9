"""A disk that loses what was not fsynced: that it does, and that a broker on it loses nothing it acknowledged."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.e2e.crash_crowd import Retained

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from power_cut import CannotCutError, PowerDisk, compiled, main

SEED = "20260101"


@pytest.fixture(scope="module")
def library() -> Path:
    """Return the library, where a C compiler can make it."""
    try:
        return compiled()
    except CannotCutError as error:
        pytest.skip(str(error))


# -- the disk ----------------------------------------------------------------------------------------------------------

BEGIN = """
import os, sqlite3, time

def write(name, data, *, mode="wb", is_fsynced=True):
    with open(name, mode) as file:
        file.write(data)
        file.flush()
        if is_fsynced:
            os.fsync(file.fileno())

def fsync(folder="."):
    file = os.open(folder, os.O_RDONLY)
    os.fsync(file)
    os.close(file)

COARSE = 5  # CLOCK_REALTIME_COARSE, by which files are born

def wait_for_tick():
    begin = time.clock_gettime(COARSE)
    while time.clock_gettime(COARSE) == begin:
        pass
"""

KEPT: dict[str, tuple[str, dict[str, bytes]]] = {
    "what was fsynced, in a folder that was": ('write("a", b"1"); fsync()', {"a": b"1"}),
    "not the name, if its folder was not fsynced": ('write("a", b"1")', {}),
    "no bytes, if the file was not fsynced": ('write("a", b"1", is_fsynced=False); fsync()', {"a": b""}),
    "not what was appended since": (
        'write("a", b"1"); fsync(); write("a", b"2", mode="ab", is_fsynced=False)',
        {"a": b"1"},
    ),
    "what was fsynced after its folder": (
        'write("a", b"", is_fsynced=False); fsync(); write("a", b"12", mode="ab")',
        {"a": b"12"},
    ),
    "what a truncation took since": ('write("a", b"1"); fsync(); open("a", "wb").close()', {"a": b"1"}),
    "the old name, if the folder was not fsynced since": (
        'write("a", b"1"); write("b", b"2"); fsync(); os.rename("b", "a")',
        {"a": b"1", "b": b"2"},
    ),
    "the new name, if it was": ('write("a", b"1"); write("b", b"2"); os.rename("b", "a"); fsync()', {"a": b"2"}),
    "what was removed since": ('write("a", b"1"); fsync(); os.unlink("a")', {"a": b"1"}),
    "not another file that has its inode now": (
        'write("a", b"1"); fsync(); wait_for_tick(); os.unlink("a"); write("b", b"2")',
        {"a": b"1"},
    ),
    "a folder, and not what is in it": ('os.mkdir("f"); write("f/a", b"1"); fsync()', {"f/": b""}),
    "a folder with what is in it": ('os.mkdir("f"); write("f/a", b"1"); fsync("f"); fsync()', {"f/": b"", "f/a": b"1"}),
    "not a folder whose own folder was not fsynced": ('os.mkdir("f"); write("f/a", b"1"); fsync("f")', {}),
    "fdatasync, of a file that is open for writing": (
        'file = os.open("a", os.O_WRONLY | os.O_CREAT); os.pwrite(file, b"1", 0); os.fdatasync(file); fsync()',
        {"a": b"1"},
    ),
}


def run(disk: PowerDisk, program: str) -> None:
    """Run *program* in a process of its own, with the disk's root as its folder."""
    environment = {**os.environ, **disk.environment}
    subprocess.run([sys.executable, "-S", "-c", BEGIN + program], cwd=disk.root, env=environment, check=True)


def found(root: Path) -> dict[str, bytes]:
    """Return every file with its bytes, and every folder."""
    paths = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {name + "/" * path.is_dir(): b"" if path.is_dir() else path.read_bytes() for name, path in paths.items()}


@pytest.fixture(scope="module")
def kept(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, bytes]]:
    """Return what is there of each case after one cut; each has a folder of its own, which was there before."""
    disk = PowerDisk(tmp_path_factory.mktemp("disk"), library, Random(1))
    folders = {name: f"case {number}" for number, name in enumerate(KEPT)}
    for folder in folders.values():
        (disk.root / folder).mkdir()
    disk.start()
    run(disk, "".join(f"os.chdir({folders[name]!r})\n{case}\nos.chdir('..')\n" for name, (case, _) in KEPT.items()))
    disk.cut()
    return {name: found(disk.root / folder) for name, folder in folders.items()}


@pytest.mark.parametrize("name", KEPT)
def test_a_cut_keeps(kept: Mapping[str, dict[str, bytes]], name: str) -> None:
    """A disk that keeps more would hide a loss, and one that keeps less would make one up."""
    assert kept[name] == KEPT[name][1]


def test_sqlite_goes_through_the_disk(library: Path, tmp_path: Path) -> None:
    """The view is SQLite's: what it commits with ``synchronous=FULL`` is kept, and with ``NORMAL`` not yet."""
    disk = PowerDisk(tmp_path, library, Random(1))
    disk.start()
    program = """
link = sqlite3.connect("x.sqlite", isolation_level=None)
link.execute("PRAGMA journal_mode=WAL")
link.execute("CREATE TABLE t (n)")
for n, level in enumerate(("FULL", "NORMAL")):
    link.execute(f"PRAGMA synchronous={level}")
    link.execute("INSERT INTO t VALUES (?)", (n,))
fsync()
os._exit(0)
"""
    run(disk, program)
    disk.cut()
    with closing(sqlite3.connect(disk.root / "x.sqlite")) as link:
        assert link.execute("SELECT n FROM t").fetchall() == [(0,)]
        assert link.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_cut_keeps_modes_and_the_next_cut_begins_with_what_this_one_kept(library: Path, tmp_path: Path) -> None:
    """A power cut comes rarely alone."""
    disk = PowerDisk(tmp_path, library, Random(1))
    disk.start()
    run(disk, 'write("a", b"1"); os.chmod("a", 0o640); fsync(); write("b", b"2")')
    for _ in range(2):
        disk.cut()
        disk.start()
        assert found(disk.root) == {"a": b"1"}
        assert (disk.root / "a").stat().st_mode & 0o777 == 0o640
    assert (disk.lost_names, disk.lost_bytes) == (1, 1)


def test_a_cut_comes_as_the_next_folder_is_about_to_be_fsynced(library: Path, tmp_path: Path) -> None:
    """A file is made, and its name is not durable yet: a moment too short to be met by chance."""
    disk = PowerDisk(tmp_path, library, Random(1))
    disk.start()
    while not disk.moments["before a folder"]:
        disk.aim()
    with pytest.raises(subprocess.CalledProcessError) as ended:
        run(disk, 'write("a", b"1"); fsync()')
    assert ended.value.returncode == -signal.SIGKILL
    disk.cut()
    assert disk.lost_names == 1


def test_a_disk_that_keeps_some_has_pages_of_old_and_new(library: Path, tmp_path: Path) -> None:
    """Of what was not fsynced, a real disk has any part; of what was fsynced, all."""
    seen: set[bytes] = set()
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = PowerDisk(folder, library, Random(number), keeps_some=True)
        (disk.root / "a").write_bytes(b"o" * 4_096)
        disk.start()
        (disk.root / "a").write_bytes(b"o" * 4_096 + b"n" * 4_096)
        disk.cut()
        seen.add((disk.root / "a").read_bytes())
    assert {b"o" * 4_096, b"o" * 4_096 + b"n" * 4_096} < seen
    assert all(each.startswith(b"o" * 4_096) and not each[4_096:].strip(b"\0n") for each in seen)


# -- a broker on it ----------------------------------------------------------------------------------------------------


def test_a_broker_loses_nothing_it_acknowledged(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """QoS 1 and 2, stored and named sessions, retained messages and wills, over two cuts."""
    assert library
    status = main(["--cuts", "2", "--seed", SEED, "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert (status, summary["violations"]) == (0, []), f"seed {SEED}"
    assert summary["cuts"] == 2
    assert summary["lost_bytes"]


_KINDS = (
    "was acknowledged and is lost",
    "its session was lost",
    "cannot join the named session",
    "is retained, and",
    "leaver",
)
"""Words of what is lost of each kind."""
_TRIES = 4
"""How often the power is cut for all kinds: one cut may come before a kind has anything to lose."""


def test_a_broker_whose_fsync_is_switched_off_is_found_out(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tool that cannot fail proves nothing."""
    assert library
    missing = set(_KINDS)
    for _ in range(_TRIES):
        assert main(["--cuts", "1", "--seed", SEED, "--json", "--no-fsync"]) == 1
        told = json.loads(capsys.readouterr().out)["violations"]
        missing -= {kind for kind in missing if any(kind in each for each in told)}
        if not missing:
            break
    assert not missing


def test_without_a_compiler_the_tool_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody should take a tool that cannot run for one that found nothing."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("power_cut.compiled", compiled.__wrapped__)
    assert main(["--cuts", "1", "--seed", SEED]) == 2
    assert capsys.readouterr().err == "cutting the power needs Linux and a C compiler (cc, gcc, clang)\n"


# -- the judge of retained messages ------------------------------------------------------------------------------------


def retained() -> Retained:
    """Return the notes of a client that has one message acknowledged on ``a``."""
    notes = Retained()
    notes.send("a", b"1")
    notes.acknowledge()
    return notes


@pytest.mark.parametrize(
    ("body", "is_acknowledged", "allowed"),
    [(b"2", True, {b"2"}), (b"2", False, {b"1", b"2"}), (b"", True, {b""}), (b"", False, {b"1", b""})],
)
def test_what_may_be_retained_is_what_was_acknowledged_or_is_pending(
    body: bytes, allowed: set[bytes], *, is_acknowledged: bool
) -> None:
    """After a cut, a publication that was not answered may be there or not; one that was, must."""
    notes = retained()
    notes.send("a", body)
    if is_acknowledged:
        notes.acknowledge()
    seen = {each for each in (b"", b"1", b"2", b"3") if not notes.violations({"a": each} if each else {})}
    assert seen == allowed


def test_what_nobody_sent_is_not_retained() -> None:
    """A retained message that came from nowhere is as wrong as one that is missing."""
    assert len(retained().violations({"a": b"1", "b": b"1"})) == 1
