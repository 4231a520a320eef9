"""Kernels are compiled once by each user and version, wherever the package lies, and nobody else's code is loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import whimbrel
from whimbrel.match import first_use
from whimbrel.match.kernels.folder import DONE, safe_folder

SCRIPT = """
from whimbrel.match.kernels import compiled, hash_table as kernels
kernels.mix(1, 2)
print(kernels.__file__)
print(compiled.kernels_folder())
print(sum(kernels.mix.stats.cache_misses.values()))
"""


def _tried(package: Path, home: Path) -> list[str]:
    """Return what a process says that has the package at a path of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}}
    environment |= {"PYTHONPATH": str(package), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, cwd=home
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_copy_of_the_package_finds_what_another_one_compiled(tmp_path: Path) -> None:
    """As a folder or as a zip, which is how a cluster gets it, under another path with every job."""
    root = Path(whimbrel.__file__).parent
    shutil.copytree(root, tmp_path / "one" / "whimbrel", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "two").mkdir()
    shutil.make_archive(str(tmp_path / "two" / "whimbrel"), "zip", tmp_path / "one")
    first = _tried(tmp_path / "one", tmp_path)
    second = _tried(tmp_path / "two" / "whimbrel.zip", tmp_path)
    assert first[0].startswith(str(tmp_path / "one"))
    assert second[0].startswith(str(tmp_path / "two" / "whimbrel.zip"))
    assert first[1] == second[1]
    assert first[1].startswith(str(tmp_path / ".cache" / "whimbrel" / "kernels"))
    assert (first[2], second[2]) == ("1", "0")
    package = tmp_path / "one" / "whimbrel" / "match"
    changed = package / "kernels" / "layout.py"  # no kernel is in it, but what they are made of
    changed.write_text(changed.read_text() + "# changed\n")
    third = _tried(tmp_path / "one", tmp_path)
    assert (third[1] != first[1], third[2]) == (True, "1")


def test_a_broker_loads_numba_alone() -> None:
    """Where scipy is installed, numba loads it before its first kernel, and every start would wait for it."""
    code = """
import sys
from whimbrel.match.kernels.compiled import load_numba_alone
from whimbrel.match.matcher import Interest, Matcher
load_numba_alone()
matcher = Matcher.load([("one", Interest(filter_text="a == 'x'"))])
print(matcher.match_parts(None, {"a": "x"}), [name for name in ("scipy.linalg", "cffi") if name in sys.modules])
import cffi, scipy.linalg
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[0] []\n"), done.stderr


@pytest.mark.parametrize("wrong", ["open to others", "a link", "a file"])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, wrong: str) -> None:
    """Whoever could put code there would run it as this user."""
    place = tmp_path / "kernels"
    if wrong == "open to others":
        place.mkdir()
        place.chmod(0o777)
    elif wrong == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    else:
        place.touch()
    assert safe_folder([place], "1") is None
    other = tmp_path / "other"
    assert safe_folder([place, other], "1") == other / "1"
    assert other.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_no_place_unless_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba would fail in the middle of a match; what need not be written may be read."""
    folder = safe_folder([tmp_path / "full"], "1")
    assert folder is not None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert safe_folder([tmp_path / "full"], "1") is None
    (folder / DONE).touch()
    assert safe_folder([tmp_path / "full"], "1") == folder


def test_the_first_use_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is started again says nothing of it, and one whose kernels numba keeps cannot know."""
    monkeypatch.setattr(first_use, "kernels_folder", lambda: tmp_path)
    said: list[str] = []
    assert not first_use.is_compiled()
    first_use.make_ready(said.append)
    assert first_use.is_compiled()
    first_use.make_ready(said.append)
    assert said == ["compiling the matcher, once on this machine: about a minute"]
    monkeypatch.setattr(first_use, "kernels_folder", lambda: None)
    assert first_use.is_compiled()
