# mypy: disable-error-code="call-arg, no-any-return"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Integrity check: do the arrays of a packed index fit each other? Run once, when a file is mapped or read.

The kernel follows the numbers in an index without a bounds check: positions in other arrays, ends of chains, jumps. A
checksum proves that a file is as it was written, not that its writer was right.
Rule: an index that passes can be matched safely: no read or write is outside an array, and every loop ends. This does
not prove that the index means the same as the filters it was made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.arrays import DTYPES, PackedArrays
from whimbrel.match.kernels.compiled import njit, read_only
from whimbrel.match.kernels.hash_table import EMPTY
from whimbrel.match.kernels.layout import REJECT, Op
from whimbrel.model.bounds import INT32_MAX

__all__ = ["fault"]

_LAST_OP, _PATTERN, _NOT_PATTERN = max(map(int, Op)), int(Op.PATTERN), int(Op.NOT_PATTERN)
_LONGEST_LIST = (1 << 24) - 1
_MAX_SHIFT = 62


def fault(arrays: PackedArrays, *, columns: int, patterns: int, handles: int) -> str | None:
    """Return a description of the first misfit in *arrays*, or None if all fit.

    *columns*, *patterns* and *handles* are the counts that the index should have.
    """
    for name, array in arrays._asdict().items():
        if array.dtype != DTYPES[name]:
            return f"{name} is of {array.dtype}, not {np.dtype(DTYPES[name])}"
    if not (0 <= handles <= INT32_MAX and columns < 1 << 24):
        return f"{handles} handles and {columns} columns"
    a = PackedArrays(*map(read_only, arrays))
    for look in (_sizes, _tables, _tries, _entries):
        found = look(a, columns, patterns, handles)
        if found is not None:
            return found
    return None


def _sizes(a: PackedArrays, columns: int, patterns: int, _handles: int) -> str | None:
    blocks = a.block_entries.size
    wanted = {
        "seed": 1,
        "column_anchor": columns,
        "column_prefixes": columns,
        "column_suffixes": columns,
        "column_substrings": columns,
        "trie_next": a.trie_key.size,
        "trie_fail": a.trie_pattern.size,
        "trie_link": a.trie_pattern.size,
        "pattern_anchor": patterns,
        "block_columns": blocks + 1,
        "block_shift": blocks,
        "blocked_bitmaps": a.blocked_column.size,
        "column_bounds": columns + 1,
    }
    for name, size in wanted.items():
        if getattr(a, name).size != size:
            return f"{name} has {getattr(a, name).size} numbers, not {size}"
    if a.lists.size % 4 or a.lists.size // 4 > INT32_MAX:
        return f"lists has {a.lists.size} numbers, not four each"
    for name, words in (("string_table", 1), ("symbol_table", 4), ("pair_table", 2), ("trie_key", 1)):
        rows, rest = divmod(getattr(a, name).size, words)
        if rest or rows < 1 or rows & (rows - 1) or not (getattr(a, name)[::words] == EMPTY).any():
            return f"{name} of {rows} rows is no hash table: a power of two, at least one of them empty"
    return None


def _tables(a: PackedArrays, columns: int, patterns: int, _handles: int) -> str | None:
    lists, states, strings = a.lists.size // 4, a.trie_pattern.size, a.string_start.size - 1
    ranges = {
        "column_anchor": (-1, lists),
        "column_prefixes": (-1, states),
        "column_suffixes": (-1, states),
        "column_substrings": (-1, states),
        "string_table": (-1, strings),
        "trie_next": (0, max(1, states)),
        "trie_fail": (0, states),
        "trie_link": (-1, states),
        "trie_pattern": (-1, patterns),
        "pattern_anchor": (-1, lists),
        "block_shift": (0, _MAX_SHIFT + 1),
        "blocked_column": (0, columns),
        "blocked_bitmaps": (0, a.bitmaps.size + 1),
    }
    for name, (low, high) in ranges.items():
        if not _are_within(getattr(a, name), low, high):
            return f"{name} has numbers that are not from {low} to {high - 1}"
    ascending = {
        "string_start": a.string_bytes.size,
        "block_columns": a.blocked_column.size,
        "column_bounds": a.bounds.size,
    }
    for name, most in ascending.items():
        if not _are_ascending(getattr(a, name), most):
            return f"{name} has numbers that do not ascend to at most {most}"
    # The kernel's buffer has room for each list once, so only one anchor may lead to each list.
    reached = np.zeros(lists, np.uint8)
    for name, words, at in (
        ("column_anchor", 1, 0),
        ("pattern_anchor", 1, 0),
        ("symbol_table", 4, 2),
        ("pair_table", 2, 1),
    ):
        if not _are_reached_once(getattr(a, name), words, at, reached):
            return f"{name} leads to a list that is not there, or that something else leads to"
    symbols = np.sort(a.symbol_table[3::4])
    symbols = symbols[symbols != EMPTY]
    if symbols.size and (symbols[0] < 0 or symbols[-1] > INT32_MAX or (symbols[1:] == symbols[:-1]).any()):
        return "symbol_table has symbols that are not each its own"
    return None


def _tries(a: PackedArrays, _columns: int, _patterns: int, _handles: int) -> str | None:
    states = a.trie_pattern.size
    root = a.trie_fail.astype(np.int64)
    after = np.append(np.where(a.trie_link < 0, states, a.trie_link), states).astype(np.int64)
    for _ in range(states.bit_length()):  # each round doubles the distance followed along every chain
        root, after = root[root], after[after]
    if (a.trie_fail[root] != root).any():
        return "trie_fail has chains that never end"
    if (after != states).any():
        return "trie_link has chains that never end"
    if not _are_of_one_trie(a.trie_key, a.trie_next, root, states):
        return "trie_key leads from one trie into another"
    roots = a.column_substrings[a.column_substrings >= 0]
    return "column_substrings has states that are no roots" if (root[roots] != roots).any() else None


def _entries(a: PackedArrays, columns: int, patterns: int, handles: int) -> str | None:
    if not _are_entries(a.lists, a.code, a.block_entries, a.entry_place, columns, patterns, handles):
        return "lists and code do not fit each other"
    places = (a.block_columns, a.block_shift, a.blocked_column, a.blocked_bitmaps, a.column_bounds)
    if not _are_bitmaps(a.lists, a.bitmaps, *places):
        return "blocks and bitmaps do not fit their lists"
    return None


def _are_within(numbers: Any, low: int, high: int) -> bool:
    return not numbers.size or bool(numbers.min() >= low and numbers.max() < high)


@njit(cache=True, nogil=True)
def _are_ascending(numbers: Any, most: int) -> bool:
    last = np.int64(0)
    for number in numbers:
        if number < last or number > most:
            return False
        last = np.int64(number)
    return numbers.size > 0


@njit(cache=True, nogil=True)
def _are_reached_once(table: Any, words: int, at: int, reached: Any) -> bool:
    for place in range(at, table.size, words):
        which = np.int64(table[place])
        if which == EMPTY:
            continue
        if which < 0 or which >= reached.size or reached[which]:
            return False
        reached[which] = 1
    return True


@njit(cache=True, nogil=True)
def _are_of_one_trie(keys: Any, after: Any, root: Any, states: int) -> bool:
    for at in range(keys.size):
        if keys[at] != EMPTY:
            state = keys[at] >> 8
            if state < 0 or state >= states or root[state] != root[after[at]]:
                return False
    return True


@njit(cache=True, nogil=True)
def _are_entries(
    lists: Any, code: Any, block_entries: Any, entry_place: Any, columns: int, patterns: int, handles: int
) -> bool:
    """Return whether ``code`` has exactly the entries (clauses in binary form) of all lists, in order and valid."""
    at = 0
    for which in range(0, lists.size, 4):
        length, block = lists[which + 1], lists[which + 2]
        if lists[which] != at or length < 1 or length > _LONGEST_LIST or block < -1 or block >= block_entries.size:
            return False
        base = np.int64(-1)
        if block >= 0:
            base = block_entries[block]
            if base < 0 or base > entry_place.size - length:
                return False
        for entry in range(length):
            if at >= code.size or (base >= 0 and entry_place[base + entry] != at):
                return False
            header = code[at]
            leaves = (header >> 32) & 0xFFFF
            if (header & 0xFFFFFFFF) >= handles or at + 1 + 2 * leaves > code.size:
                return False
            for leaf in range(leaves):
                word, constant = code[at + 1 + 2 * leaf], code[at + 2 + 2 * leaf]
                op = word & 0xFF
                if op > _LAST_OP or ((word >> 8) & 0xFFFFFF) >= columns:
                    return False
                if (op == _PATTERN or op == _NOT_PATTERN) and (constant < 0 or constant >= patterns):  # noqa: SIM109, PLR1714
                    return False
                for shift in range(32, 64, 16):
                    step = (word >> shift) & 0xFFFF
                    if step < REJECT and (step <= leaf or step >= leaves):
                        return False
            at += 1 + 2 * leaves
    return at == code.size


@njit(cache=True, nogil=True)
def _are_bitmaps(
    lists: Any,
    bitmaps: Any,
    block_columns: Any,
    block_shift: Any,
    blocked_column: Any,
    blocked_bitmaps: Any,
    column_bounds: Any,
) -> bool:
    """Return whether each list of entries with bitmaps has all of them, and no bit is set beyond its last entry."""
    for which in range(0, lists.size, 4):
        length, block = lists[which + 1], lists[which + 2]
        if block < 0:
            continue
        width, last_bits = (length + 63) >> 6, length & 63
        if block_columns[block] == block_columns[block + 1]:
            return False
        for blocked in range(block_columns[block], block_columns[block + 1]):
            column = blocked_column[blocked]
            buckets = 2 + ((column_bounds[column + 1] - column_bounds[column]) >> np.int64(block_shift[block]))
            start = blocked_bitmaps[blocked]
            if start > bitmaps.size - buckets * width:
                return False
            for bucket in range(buckets if last_bits else 0):
                if bitmaps[start + (bucket + 1) * width - 1] >> last_bits:
                    return False
    return True
