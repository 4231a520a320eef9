"""The glossary: every word has the term that a reader would search for, and every local word has a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "glossary.md"
LOCAL = {
    *("anchor", "closure", "delta", "fast lane", "flight", "fold", "frame", "head", "lane", "lapse", "mark", "owed"),
    *("piece", "place", "put out", "quench", "seat", "span", "tap", "terms", "torn tail", "turn", "twin", "unit"),
}
"""Words of our own that stay in code and prose."""


def _rows() -> list[dict[str, str]]:
    """Return the rows of all tables, by column."""
    rows, columns = [], [""]
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("| ") else []
        if cells and cells[0] == "word":
            columns = cells
        elif cells:
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows


ROWS = _rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["word"])
def test_a_word_has_the_term_to_search_for(row: dict[str, str]) -> None:
    """A reader who does not know our word finds it by theirs."""
    assert re.search(r"\w{2}", row["search for"])


def test_every_local_word_has_a_row() -> None:
    """A word that nothing explains is why a sentence must be decoded."""
    found = {word for row in ROWS for word in re.findall(r"\*\*`?([^*`]+)`?\*\*", row["word"])}
    assert LOCAL - found == set()


def test_no_word_is_explained_twice_in_one_room() -> None:
    """One word stands for one thing; a second row says of which room it is, or stands with the words of the trade."""
    twice = [word for word in (row["word"] for row in ROWS if "here" not in row) if word != "**view**"]
    assert len(twice) == len(set(twice))
