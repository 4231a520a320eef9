"""The plan of the house, asserted: imports point one way, and the door is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import whimbrel

SOURCE = Path(whimbrel.__file__).parent

# A room may import the rooms of earlier rows, and itself. Rooms of one row do not know each other.
ROWS = [
    {"errors"},
    {"model"},
    {"language"},
    {"match", "hold", "shape"},
    {"log", "mqtt"},
    {"client"},
    {"broker", "pipeline", "rendezvous", "carry", "nearby"},
    {"sim"},
    {"lab", "console"},
    {"cli"},
]
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
LEVEL["testing"] = LEVEL["sim"]  # may import anything below sim; nothing but tests may import it


def _room(module: str) -> str:
    return module.split(".")[1]


def _imports(path: Path) -> set[str]:
    """Return the rooms that the file at *path* imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            found.update(
                f"{node.module}.{a.name}" if node.module == "whimbrel" else str(node.module) for a in node.names
            )
    names = {module for module in found if module.startswith("whimbrel.")}
    return {_room(module) for module in names if _room(module) in LEVEL}


def _files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name == "errors.py")


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    """A cycle between rooms is how a house becomes a maze."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    room = parts[0]
    assert room in LEVEL, f"{room} is not a room of the plan"
    for imported in _imports(path) - {room}:
        assert LEVEL[imported] < LEVEL[room], f"{room} may not import {imported}"


def test_importing_whimbrel_loads_nothing_heavy() -> None:
    """A sensor that only wants a filter must not pay for Spark, numba, Arrow or a server."""
    heavy = ["pyspark", "numba", "pyarrow", "numpy", "asyncio", "uvloop", "typer", "rich", "prometheus_client"]
    code = f"import sys, whimbrel; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("word", ["utils", "helpers", "manager", "misc", "common"])
def test_no_file_is_named_for_nothing(word: str) -> None:
    """A reader should guess the file from the concept."""
    assert not [path for path in SOURCE.rglob("*") if path.stem == word]


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    """The docstring is the first thing a newcomer reads."""
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
