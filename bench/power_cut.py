"""Cut the power of a broker many times among its clients; report what was acknowledged and is lost.

    python bench/power_cut.py [--cuts 30] [--some] [--no-fsync [WHICH]] [--fsync-ms N] [--seed N] [--json]

A library (``power_cut.c``, compiled with the system's C compiler) is loaded before the broker and records what it
fsyncs. A cut is kill -9: at any moment, or as a file or a folder is about to be fsynced. Then the broker's folder is
thrown away and made anew from the records: only names whose folder was fsynced after they were made or renamed, with
only the bytes that were fsynced. The clients and the judge are those of the kills (``tests/e2e/crash_checker.py``), and
members of a named session, retained messages and wills beside them (``tests/e2e/crash_crowd.py``).
With ``--some``, a disk keeps some of what was not fsynced, drawn from the seed: of a folder its listing, of a file all,
nothing, or some pages.
With ``--no-fsync`` the disk lies: all fsyncs do nothing, or those of ``files`` or ``folders``; with ``late``, a file
keeps what the fsync before its last one should have kept. Then something must be lost, or the tool shows nothing.
Rule: the exit status is 1 if anything was lost, 2 where the tool cannot work; the seed is always printed.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clients are those of the tests

from tests.e2e.crash_checker import crash
from tests.e2e.crash_crowd import EveryKind

__all__ = ["FAULTS", "CannotCutError", "PowerDisk", "compiled", "main"]

FAULTS = ("all", "files", "folders", "late")
"""How a disk may lie."""
_SOURCE = Path(__file__).with_suffix(".c")
_COMPILERS = ("cc", "gcc", "clang")
_KEY_BYTES = 64
_PAGE_BYTES = 4_096
_MOMENTS = {"at any moment": "", "before a file": "f", "before a folder": "d"}
"""When the power is cut, and how the library calls the fsync that must come next."""
_AIM_S = 3.0
"""How long the broker is waited for that is to end at an fsync: segments of 64 KiB are made every second or so."""
_GIVE_UP_S = 15.0
_GIVE_UP_LOST_S = 0.5
"""How long a client is waited for where it is expected to wait in vain."""


class CannotCutError(Exception):
    """The tool cannot work on this machine; says why in one sentence."""


@cache
def compiled() -> Path:
    """Compile the library and return its path; it is removed when this process ends."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None or not sys.platform.startswith("linux"):
        raise CannotCutError(f"cutting the power needs Linux and a C compiler ({', '.join(_COMPILERS)})")
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "power_cut.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # a compiler and our own source
    if done.returncode:
        reason = (done.stderr.splitlines() or ["it did not say why"])[0]
        raise CannotCutError(f"{compiler} cannot compile {_SOURCE.name}: {reason}")
    return library


# -- the disk ----------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """A name in a folder."""

    kind: str
    """``f`` for a file, ``d`` for a folder, ``o`` for anything else (a socket), which is not made again."""
    mode: int
    key: str
    name: str


class PowerDisk:
    """A folder, ``root``, that loses what was not fsynced when the power is cut.

    The processes that write into it have ``environment``. The moments of cuts are drawn from *rng*. If it *keeps_some*
    of what was not fsynced, that is, too; with a *fault* it lies.
    """

    def __init__(self, folder: Path, library: Path, rng: Random, *, keeps_some: bool = False, fault: str = "") -> None:
        self.root, self._shadow = folder.resolve() / "disk", folder.resolve() / "durable"
        self.root.mkdir()
        self._moments, self._rng = rng, Random(rng.random()) if keeps_some else None
        self.moments: Counter[str] = Counter()
        """How many cuts were to come when."""
        self._calls = ctypes.CDLL(str(library), use_errno=True)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "POWER_CUT_ROOT": str(self.root),
            "POWER_CUT_SHADOW": str(self._shadow),
            **({"POWER_CUT_FAULT": fault} if fault else {}),
        }
        self.lost_bytes = self.lost_names = 0
        """How much the cuts took, of files that any reader sees: names, and bytes at their ends."""

    def start(self) -> None:
        """Take all that is in ``root`` for durable."""
        shutil.rmtree(self._shadow, ignore_errors=True)
        self._shadow.mkdir()
        shadow = os.fsencode(self._shadow)
        for path in (self.root, *sorted(self.root.rglob("*"))):
            if path.is_dir() or path.is_file():
                with _opened(path) as file:
                    if self._calls.power_cut_record(file, shadow):
                        raise CannotCutError(f"{path.name} cannot be recorded: {os.strerror(ctypes.get_errno())}")

    def aim(self) -> float:
        """Choose when the broker ends: at once, or as it is about to fsync the next file, or the next folder."""
        moment = self._moments.choice(list(_MOMENTS))
        self.moments[moment] += 1
        if kind := _MOMENTS[moment]:
            beside = self._shadow / "aim.new"
            beside.write_text(kind, encoding="ascii")
            beside.rename(self._shadow / "aim")
            return _AIM_S
        return 0.0

    def cut(self) -> None:
        """Throw ``root`` away and make it anew of what was fsynced; nobody may have it open."""
        made = self.root.with_name("made")
        live = self._live() if self._rng is not None else {}
        self._make_folder(self._key(self.root), made, live)
        before, after = (_sizes(each) for each in (self.root, made))
        self.lost_names += len(before.keys() - after.keys())
        self.lost_bytes += sum(max(size - after.get(name, 0), 0) for name, size in before.items())
        shutil.rmtree(self.root)
        made.rename(self.root)

    def _make_folder(self, key: str, target: Path, live: Mapping[str, Path]) -> None:
        target.mkdir()
        for each in self._listing(key, live):
            path = target / each.name
            if each.kind == "d":
                self._make_folder(each.key, path, live)
            elif each.kind == "f":
                path.write_bytes(self._bytes(each.key, live))
            else:
                continue
            path.chmod(each.mode)

    def _listing(self, key: str, live: Mapping[str, Path]) -> list[_Entry]:
        """Return what is in a folder: its names when it was last fsynced, or now, if the disk keeps that."""
        if self._rng is not None and key in live and self._rng.random() < 0.5:
            return [self._entry(path) for path in sorted(live[key].iterdir())]
        record = self._shadow / key
        found = [] if not record.exists() else record.read_bytes().split(b"\0")[:-1]
        rows = [os.fsdecode(each).split(" ", 3) for each in found]
        return sorted(_Entry(kind, int(mode, 8), key, name) for kind, mode, key, name in rows)

    def _entry(self, path: Path) -> _Entry:
        kind = "d" if path.is_dir() else "f" if path.is_file() else "o"
        return _Entry(kind, path.lstat().st_mode & 0o7777, self._key(path) if kind != "o" else "", path.name)

    def _bytes(self, key: str, live: Mapping[str, Path]) -> bytes:
        record = self._shadow / key
        durable = record.read_bytes() if record.exists() else b""
        if self._rng is None or key not in live:
            return durable
        return self._mixed(durable, live[key].read_bytes(), self._rng)

    @staticmethod
    def _mixed(durable: bytes, written: bytes, rng: Random) -> bytes:
        """Return what a disk may have of a file of which *durable* was fsynced and *written* was written since."""
        match rng.randrange(3):
            case 0:
                return durable
            case 1:
                return written
        size = rng.randint(*sorted((len(durable), len(written))))
        old, new = (each[:size].ljust(size, b"\0") for each in (durable, written))
        starts = range(0, size, _PAGE_BYTES)
        return b"".join(rng.choice((old, new))[at : at + _PAGE_BYTES] for at in starts)

    def _live(self) -> dict[str, Path]:
        """Return the files and folders that are there, by key."""
        paths = (self.root, *self.root.rglob("*"))
        return {self._key(path): path for path in paths if path.is_dir() or path.is_file()}

    def _key(self, path: Path) -> str:
        name = ctypes.create_string_buffer(_KEY_BYTES)
        with _opened(path) as file:
            if self._calls.power_cut_key(file, name):
                raise CannotCutError(f"the file system of {path} does not tell when a file was made")
        return name.value.decode()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _sizes(root: Path) -> dict[str, int]:
    files = (path for path in root.rglob("[!.]*") if path.is_file())
    return {str(path.relative_to(root)): path.stat().st_size for path in files}


# -- the command -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    options = _options(arguments)
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed

    def progress(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    progress(f"seed {seed}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            summary = _cut(Path(folder), options, seed, progress)
    except CannotCutError as error:
        print(error, file=sys.stderr)
        return 2
    found = summary["violations"]
    assert isinstance(found, list)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        for name, value in summary.items():
            if name != "violations":
                print(f"{name:>20}  {value}")
        print("\n".join(map(str, found)) or "nothing was lost")
    return 1 if found else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", type=int, default=30, help="how often the power is cut (default: 30)")
    parser.add_argument("--some", action="store_true", help="keep some of what was not fsynced, at random")
    parser.add_argument(
        "--no-fsync",
        nargs="?",
        choices=FAULTS,
        const="all",
        default="",
        help="let the disk lie about fsync: always (all), for files or folders, or by one fsync (late)",
    )
    parser.add_argument("--fsync-ms", type=float, default=0.0, help="how much longer the broker's disk takes")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and progress to stderr")
    return parser.parse_args(arguments)


def _cut(folder: Path, options: argparse.Namespace, seed: int, progress: Callable[[str], None]) -> dict[str, object]:
    disk = PowerDisk(folder, compiled(), Random(seed + 2), keeps_some=options.some, fault=options.no_fsync)
    run = crash(
        folder,
        kills=options.cuts,
        seed=seed,
        fsync_s=options.fsync_ms / 1_000,
        disk=disk,
        crowd=EveryKind(),
        give_up_s=_GIVE_UP_LOST_S if options.no_fsync else _GIVE_UP_S,
        progress=progress,
    )
    found = run.summary()
    del found["kills"]
    return {
        "cuts": run.kills,
        "kept": "some of what was not fsynced" if options.some else "what was fsynced",
        "no_fsync": options.no_fsync or "none",
        "moments": dict(disk.moments),
        "lost_names": disk.lost_names,
        "lost_bytes": disk.lost_bytes,
        **found,
    }


if __name__ == "__main__":
    sys.exit(main())
