"""Draw docstrings for a blind reading: a reader who did not write them labels each without seeing the code.

    python tools/blind_reading.py --seed 41             # numbered texts, 40 of each large package, for the reader
    python tools/blind_reading.py --seed 41 --places    # where each of them stands, to check labels against the code

The reader gives each text one label: *plain* (understood at first reading), *again* (needs a second reading) or *code*
(cannot be understood without the code). The same seed draws the same docstrings of the same commit.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("broker", "pipeline", "match", "hold", "log", "language", "cli")
NUMBER = 40


class Docstring(NamedTuple):
    """A docstring with its place."""

    path: str
    name: str
    text: str


def docstrings(package: str) -> Iterator[Docstring]:
    """Yield the docstrings of modules, classes and functions of a package, by file and line."""
    for path in sorted((ROOT / "src" / "whimbrel" / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = "" if isinstance(node, ast.Module) else node.name
                    yield Docstring(str(path.relative_to(ROOT)), name, text)


def draw(package: str, seed: int) -> list[Docstring]:
    """Return the docstrings of *package* that are read with *seed*."""
    return random.Random(f"{seed} {package}").sample(list(docstrings(package)), NUMBER)  # noqa: S311 # a sample, no secret


def main() -> None:
    """Print the drawn docstrings, or their places."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--package", choices=PACKAGES, help="only this package")
    parser.add_argument("--places", action="store_true", help="print where each docstring stands, and no texts")
    told = parser.parse_args()
    for package in (told.package,) if told.package else PACKAGES:
        print(f"# {package}\n")
        for number, each in enumerate(draw(package, told.seed), 1):
            if told.places:
                print(f"{number}. {each.path} {each.name}")
            else:
                print(f"{number}.\n{each.text}\n")


if __name__ == "__main__":
    main()
