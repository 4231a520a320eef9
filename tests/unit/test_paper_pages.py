"""The pages of ``docs/papers``: every file, folder and test that they name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|[\w-]+\.py")
BELOW = ("", "src/whimbrel", "docs")
"""What a path on a page is relative to."""


@cache
def _tests() -> dict[str, set[str]]:
    """Return in which files each test is."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def _claims(page: Path) -> Iterator[tuple[int, str]]:
    """Yield what a page says is there, with its line: parts of cells and sentences without a word of plans."""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        for cell in line.split(" | "):
            for part in cell.split(";"):
                if "planned" not in part and "no room yet" not in part and "proposed" not in part:
                    yield number, part


def _wrong(page: Path) -> Iterator[str]:
    for number, part in _claims(page):
        file, folder = "", ""
        for match in QUOTED.finditer(part):
            token, follows = match[1], part[match.end() : match.end() + 1]
            where = f"{page.name}:{number}"
            if re.fullmatch(r"test_\w+", token):
                files = _tests().get(token, set())
                if not files or (file and file not in files):
                    yield f"{where}: no test {token}" + (f" in {file}" if file and files else "")
            elif PATH.fullmatch(token):
                if not any((ROOT / base / below / token).exists() for base in BELOW for below in ("", folder)):
                    yield f"{where}: no file {token}"
                elif token.endswith("/"):
                    folder = token
                file = token if follows == ":" else ""  # what stands behind the colon is in that file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    """A row that names a test is a promise that somebody tries it."""
    assert not list(_wrong(page))


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    """A test of the test: each kind of name that may be stale."""
    page = tmp_path / "page.md"
    page.write_text(
        "| T | built in `nearby/node.py`, `nearby/nodes.py` | `tests/unit/test_paper_pages.py`: `test_figures_3` |\n"
        "| U | planned in `nearby/later.py`; **built** in `nearby/group/` (`relay.py`, `delay.py`) | "
        "`tests/unit/test_paper_pages.py`: `test_a_frame_is_at_most_nine_datagrams_at_every_radius` |\n",
        encoding="utf-8",
    )
    assert list(_wrong(page)) == [
        "page.md:1: no file nearby/nodes.py",
        "page.md:1: no test test_figures_3",
        "page.md:2: no file delay.py",
        "page.md:2: no test test_a_frame_is_at_most_nine_datagrams_at_every_radius in tests/unit/test_paper_pages.py",
    ]
