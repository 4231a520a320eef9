"""Substrings: what the walk over a string costs, counted in steps, whatever the patterns and the string are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from whimbrel.match.index.content import ContentIndex
from whimbrel.match.kernels.tries import build_tries, walk_through

SEED = 7


class Counted:
    """An array that counts how often it is read."""

    def __init__(self, array: Any) -> None:
        self._array, self.reads = array, 0

    def __getitem__(self, at: int) -> Any:
        self.reads += 1
        return self._array[at]


def walked(patterns: list[bytes], text: bytes) -> tuple[list[bytes], int]:
    """Return the patterns found in *text*, in the order found, and how many links were followed."""
    built = build_tries([(0, pattern, False) for pattern in patterns], 1, SEED)
    link, fail = Counted(built["link"]), Counted(built["fail"])
    active = np.zeros(len(patterns) + 1, np.int32)
    numbers = np.arange(len(patterns), dtype=np.int32)
    data = np.frombuffer(text, np.uint8)
    count = walk_through.py_func(
        built["key"], built["next"], built["pattern"], fail, link, SEED, 0, data, 0, data.size, 1,
        np.zeros(len(patterns), np.int64), numbers, active, 0,
    )  # fmt: skip
    return [patterns[number] for number in active[:count].tolist()], link.reads + fail.reads


ATTACKS = {
    "one letter, growing": ([b"a" * n for n in range(1, 101)], b"a" * 2_000),
    "suffixes of one word": ([b"abcdefghij"[n:] for n in range(10)], b"abcdefghij" * 200),
    "two letters, then another": ([b"a" * n + b"b" for n in range(100)], (b"a" * 99 + b"b") * 20),
    "never the last letter": ([b"a" * n + b"b" for n in range(100)], b"a" * 2_000),
    "with the empty one": ([b"", b"a", b"aa", b"aaa"], b"a" * 2_000),
}


@pytest.mark.parametrize(("patterns", "text"), ATTACKS.values(), ids=ATTACKS)
def test_the_walk_is_linear_in_the_string_and_what_is_found(patterns: list[bytes], text: bytes) -> None:
    """A thousand patterns that are suffixes of each other once cost a thousand steps at every byte of the string."""
    found, steps = walked(patterns, text)
    assert sorted(found) == sorted(pattern for pattern in patterns if pattern in text)
    assert steps <= 3 * len(text) + len(found)


def test_every_row_finds_its_own_substrings() -> None:
    """What one row has found does not hide anything from the next."""
    index = ContentIndex.load((n, f"contains(a, '{'a' * n}')") for n in range(1, 30))
    rows = [{"a": "a" * n} for n in (3, 29, 3, 0, 7)]
    found, handles = index.match_rows(rows)
    by_row = [sorted(handles[found == row].tolist()) for row in range(len(rows))]
    assert by_row == [list(range(1, len(row["a"]) + 1)) for row in rows]


def test_patterns_are_packed_before_they_are_many() -> None:
    """In the delta each pattern reads the whole string; a thousand of them and 1 MB would be a gigabyte to read."""
    started: list[object] = []
    index = ContentIndex(run=started.append)
    for n in range(127):
        index.add(n, f"contains(a, 'a{n}')")
    assert not started
    index.add(127, "contains(a, 'b', 'c')")
    assert len(started) == 1


def test_filters_without_patterns_wait_for_company() -> None:
    """They are found by what they must equal, and cost little."""
    started: list[object] = []
    index = ContentIndex(run=started.append)
    for n in range(300):
        index.add(n, f"a == {n} && (b > 1 || c > 2)")
    assert not started
