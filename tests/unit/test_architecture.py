"""The plan of the house, asserted: imports point one way, and the door is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
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
    {"client", "multicast", "node"},
    {"broker", "pipeline", "rendezvous", "carry", "nearby"},
    {"sim", "spark"},
    {"lab", "console"},
    {"cli"},
]
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
LEVEL["testing"] = LEVEL["sim"]  # may import anything below sim; nothing but tests may import it

MAX_FILES = 13
CROWDED = {
    "language": "one file a step from text to verdict; the backends have a room",
    "log": "one file a step of a record from the writer to the export",
    "model": "one file a value that travels; every other room imports them by name",
}
"""Folders with more modules than MAX_FILES, and why."""

MAX_LINES = 500
LONG = {
    "broker/broker.py": "all that a shell asks the core and tells it, side by side",
    "client/client.py": "one class, the public interface: its methods and their docstrings",
    "language/backends/spark.py": "one translator a backend, and one file a translator",
    "model/columns.py": "the columns of all tables, side by side",
    "mqtt/client.py": "one state machine: all transitions of a client's connection",
}
"""Modules of more than MAX_LINES lines, and why."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """Return the imports of a file, and the attributes that it asks a name for."""
    return [
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    ]


def _room(module: str) -> str:
    return module.split(".")[1]


def _imports(path: Path) -> set[str]:
    """Return the rooms that the file at *path* imports."""
    found: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            found.update(
                f"{node.module}.{a.name}" if node.module == "whimbrel" else str(node.module) for a in node.names
            )
    names = {module for module in found if module.startswith("whimbrel.")}
    return {_room(module) for module in names if _room(module) in LEVEL}


def _name(path: Path) -> str:
    """Return the dotted name of the module, or package, at *path*."""
    parts = ("whimbrel", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(path: Path) -> set[str]:
    """Return the modules of ours that the file imports, at any place of it: for types only and in functions, too."""
    found: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & _modules().keys() or {str(node.module)}
    return (found & _modules().keys()) - {_name(path)}


@cache
def _modules() -> dict[str, Path]:
    """Return the files of all modules, by name."""
    return {_name(path): path for path in SOURCE.rglob("*.py")}


@cache
def _files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name == "errors.py")


def test_imports_point_one_way() -> None:
    """A cycle between rooms is how a house becomes a maze."""
    found: list[str] = []
    for path in _files():
        name = path.relative_to(SOURCE).with_suffix("")
        room = name.parts[0]
        if room not in LEVEL:
            found.append(f"{name}: {room} is not a room of the plan")
            continue
        found += [
            f"{name}: {room} may not import {imported}"
            for imported in _imports(path) - {room}
            if LEVEL[imported] >= LEVEL[room]
        ]
    assert found == []


def test_importing_whimbrel_loads_nothing_heavy() -> None:
    """A sensor that only wants a filter must not pay for Spark, numba, Arrow or a server."""
    heavy = ["pyspark", "numba", "pyarrow", "numpy", "asyncio", "uvloop", "typer", "rich", "prometheus_client"]
    code = f"import sys, whimbrel; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_loads_no_other_command() -> None:
    """A user who lists names must not wait for the filters, the log, asyncio and the parts of every other command."""
    code = """
import atexit, sys
heavy = ["asyncio", "numpy", "structlog", "whimbrel.cli.log", "whimbrel.cli.serve", "whimbrel.cli.session.command"]
atexit.register(lambda: print([name for name in heavy if name in sys.modules]))
sys.argv = ["whimbrel", "user", "--help"]
from whimbrel.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: whimbrel user")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("word", ["utils", "helpers", "manager", "misc", "common"])
def test_no_file_is_named_for_nothing(word: str) -> None:
    """A reader should guess the file from the concept."""
    assert not [path for path in SOURCE.rglob("*") if path.stem == word]


def test_every_module_says_what_it_is() -> None:
    """The docstring is the first thing a newcomer reads."""
    assert [path for path in _files() if not ast.get_docstring(_tree(path))] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Of modules in a circle none can be read, or changed, before the others."""
    imports = {name: _imported_modules(path) for name, path in _modules().items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_the_rooms_inside_a_room_are_no_circle(room: str) -> None:
    """Folders are layers: what lies below knows nothing of what lies above."""
    layers: dict[str, set[str]] = {}
    for path in SOURCE.glob(f"{room}/*/**/*.py"):
        own = path.relative_to(SOURCE / room).parts[0]
        inner = [name.split(".")[2:] for name in _imported_modules(path) if name.startswith(f"whimbrel.{room}.")]
        layers.setdefault(own, set()).update({first for first, *_ in inner} - {own})
    TopologicalSorter({own: below & layers.keys() for own, below in layers.items()}).prepare()


BROKER = [
    *("settings", "limits", "access", "wire", "waiting", "state"),
    *("deliver", "publish", "subscribe", "requests", "connect"),
    *("broker", "shell"),
]
"""The layers of the broker, from below: each imports only what stands before it."""
PIPELINE = [
    *("files", "subscriptions", "fold", "columnar", "spark", "tables", "plans", "unit", "batch", "accounts"),
    *("replay", "show", "stream", "doctor"),
]
SHELL = [
    *("collector", "log_clock", "metrics", "preparation", "running", "blocking_threads"),
    *("disk", "net", "operate", "timers", "service", "server"),
]


@pytest.mark.parametrize(
    ("folder", "layers"),
    [("broker", BROKER), ("broker/shell", SHELL), ("pipeline", PIPELINE)],
)
def test_layers_import_downward(folder: str, layers: list[str]) -> None:
    """The way of a packet goes down, and what was learned on it comes back as values."""
    prefix = f"whimbrel.{folder.replace('/', '.')}."
    found: list[str] = []
    for path in sorted((SOURCE / folder).rglob("*.py")):
        own = path.relative_to(SOURCE / folder).with_suffix("").parts[0]
        if own == "__init__":
            continue
        for name in _imported_modules(path):
            if name.startswith(prefix):
                below = name.removeprefix(prefix).split(".")[0]
                if layers.index(below) > layers.index(own):
                    found.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not found


def test_no_folder_is_crowded_without_a_reason() -> None:
    """More than a dozen files in a folder is a folder that wants rooms."""
    sizes = Counter(str(path.parent.relative_to(SOURCE)) for path in _files() if path.name != "__init__.py")
    assert {folder for folder, size in sizes.items() if size > MAX_FILES} <= CROWDED.keys()


def test_no_module_is_long_without_a_reason() -> None:
    """A reader holds a few hundred lines in mind."""
    lines = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8").count("\n") for path in _files()}
    assert {name for name, count in lines.items() if count > MAX_LINES} <= LONG.keys()


def _reached_into(path: Path) -> set[str]:
    """Return the private names of other modules of ours that the file at *path* uses."""
    found, ours = set[str](), set[str]()
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("whimbrel."):
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")}
            ours |= {a.asname or a.name for a in node.names if f"{node.module}.{a.name}" in _modules()}
    for node in _nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            found |= {f"{node.value.id}.{node.attr}"} if node.attr.startswith("_") else set()
    return found


def test_nothing_reaches_into_private_names() -> None:
    """A leading underscore says that a name may change without notice: no other module may build on it."""
    assert {_name(path): found for path in _files() if (found := _reached_into(path))} == {}


# What a fact of the log changes is changed by the node's own code, live as in a replay.
NODE_FIELDS = {
    *("received", "releasing", "expiry_us", "disconnected_at", "is_unclaimed", "owner"),  # of a client
    *("gone_at", "due_at", "is_excused", "by_device"),  # of a will
    *("by_id", "sources", "kept", "shape"),  # of clients, retained messages, copies and policies
}
_CHANGING = {"add", "append", "clear", "discard", "extend", "pop", "popitem", "remove", "setdefault", "update"}
_COUNTERS = {"counters.received", "self._sender.counters.received", "sender.counters.received"}


def _changed_attributes(node: ast.AST) -> list[ast.expr]:
    """Return the attributes that a statement or a call changes."""
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        targets = [node.func.value]
    else:
        return []
    flat = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [each.value if isinstance(each, ast.Subscript) else each for each in flat]


def test_nothing_outside_the_node_changes_what_a_restart_knows() -> None:
    """A change that is in no fact is lost with the process, and a replay ends with another state."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(changed)}"  # type: ignore[attr-defined]
        for room in ("broker", "pipeline")
        for path in (SOURCE / room).rglob("*.py")
        for node in ast.walk(_tree(path))
        for changed in _changed_attributes(node)
        if isinstance(changed, ast.Attribute)
        and changed.attr in NODE_FIELDS
        and ast.unparse(changed.value) != "self"
        and ast.unparse(changed) not in _COUNTERS
    ]
    assert found == []


def test_the_node_knows_neither_the_wire_nor_arrow() -> None:
    """Workers fold the same node: they have no clients to talk to; and a replay needs no event loop."""
    others = {"whimbrel.mqtt", "asyncio", "pyarrow", "pyspark", "whimbrel.broker", "whimbrel.pipeline"}
    for path in (SOURCE / "node").rglob("*.py"):
        for node in ast.walk(_tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names for other in others if name.startswith(other)], path


def test_passwords_are_hashed_in_one_place() -> None:
    """A log, a fold or a client needs no scrypt: only the broker ever meets a password."""
    asked = {
        _name(path)
        for path in _files()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and "scrypt" in {getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "name", None)}
    }
    assert asked == {"whimbrel.broker.access.passwords"}


NUMBERS = {
    "1_000_000": (re.compile(r"^_?(SECOND(_US)?|US_PER_S)$"), "model/clock.py"),
    "1": (re.compile(r"^_?AT_LEAST_ONCE$"), "model/notification.py"),
    "2": (re.compile(r"^_?EXACTLY_ONCE$"), "model/notification.py"),
}


@pytest.mark.parametrize("value", NUMBERS)
def test_a_number_with_a_meaning_is_defined_once(value: str) -> None:
    """A second was defined 35 times, a QoS 13 times: a reader had to compare them."""
    named, home = NUMBERS[value]
    found = {
        str(path.relative_to(SOURCE))
        for path in _files()
        for node in _tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and named.match(node.targets[0].id)
    }
    assert found == {home}
