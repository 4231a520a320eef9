"""Names in docstrings: what stands in double backquotes exists, so that a rename does not leave a stale name behind."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = re.compile(r"``([A-Za-z_][\w.]*)(?:\(\))?``")
DEFINED = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
OF_OTHERS = set(
    "DESCRIBE NUMBA_CACHE_DIR S17 _ssl acdirmax ansi defaultFS enabled fs getPulse m spark sql sun_path try_ "
    "websockets wsproto yield".split()
)
"""Names of the papers, the system, the language and libraries."""
MADE = {"attributes_typed", "body_base64", "lamp"}
"""Names that are put together when the program runs, and an example."""


def _read(source: str) -> tuple[set[str], list[str]]:
    """Return the names in a module, with each word of its strings (columns, settings), and its docstrings."""
    names, texts, seen = set[str](), list[str](), set[int]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                texts.append(text)
                seen.add(id(constant))
            case ast.Constant(value=str(text)) if id(node) not in seen:
                names.update(re.findall(r"\w+", text))
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.keyword(arg=str(name)):
                names.add(name)
            case ast.alias(name=name):
                names.update(name.split("."))
    return names, texts


def test_names_in_docstrings_exist() -> None:
    """Modules, classes, functions, fields and parameters, of the source; files and functions of tests and tools."""
    known, texts = OF_OTHERS | MADE, list[tuple[str, str]]()
    for folder in ("src", "tests", "bench", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            known.update(path.relative_to(ROOT).with_suffix("").parts)
            if folder == "src":
                names, found = _read(source)
                known |= names
                texts += [(str(path.relative_to(ROOT)), text) for text in found]
            else:
                known.update(DEFINED.findall(source))
    stale = {
        (path, name)
        for path, text in texts
        for name in REFERENCE.findall(text)
        if not known.issuperset(filter(None, name.split(".")))
    }
    assert len(texts) > 9_000
    assert not stale
