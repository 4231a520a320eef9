"""The page on sizing: every figure of its table stands in the result that the row links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "sizing.md"
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_RESULT = re.compile(r"\]\((\.\./\.\./bench/results/[^)]+)\)")
_ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if _RESULT.search(line) and line[0] == "|"]


def _numbers(text: str) -> set[str]:
    return {each.replace(",", "") for each in _NUMBER.findall(text)}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_each_figure_of_a_row_is_in_its_result(row: str) -> None:
    """A figure that nobody measured would be taken for a promise."""
    found = _RESULT.findall(row)
    measured = _numbers("".join((PAGE.parent / each).read_text(encoding="utf-8") for each in found))
    bare = re.sub(r"\]\([^)]*\)|`[^`]*`", "", row)
    assert _numbers(bare) <= measured, _numbers(bare) - measured


def test_the_table_has_rows() -> None:
    """A test over an empty list would pass."""
    assert len(_ROWS) >= 10
