# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Packing: turns the clauses of many filters (``Harvest``) into the flat arrays that the kernel reads.

Each clause is filed under the cheapest of its *anchors*: an equality that few clauses share, a pattern, or the presence
of a rare attribute. If too many clauses share one equality, a pair of equalities is the anchor. The *entries* (clauses
in binary form) of an anchor are its list; they lie side by side in ``code``, in the order in which the kernel reads
them. A long list gets bitmaps: per column, buckets of values, and for each bucket the entries that a value in it does
not rule out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.language.ast import PatternFunction
from whimbrel.match.index.plans import Dictionary, Harvest, Option
from whimbrel.match.kernels.arrays import PackedArrays
from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.hash_table import EMPTY, free_row, mix, rows_for, table_of_texts
from whimbrel.match.kernels.layout import ACCEPT, REJECT, Op
from whimbrel.match.kernels.tries import build_tries

__all__ = ["pack"]

_PAIR_ABOVE = 8
"""Most clauses that share an equality as their anchor; if more do, a second equality of the clause is added to it."""
_BLOCK_ABOVE = 32
"""Lists of more entries than this get bitmaps."""
_FINE_ABOVE = 512
"""Lists of more entries than this get one bitmap per bucket; shorter lists one per ``2 ** _SHIFT`` buckets."""
_SHIFT = 2
_MAX_BOUNDS = 63
_MAX_BLOCKED = 12
"""Most columns of one list that get bitmaps."""
_WEIGHT = np.array([1, 4, 64])
"""Likelihood that an anchor is active, relative to an equality: somewhat more for a pattern, much more for presence."""
_INT_NE, _INT_LT, _INT_LE, _INT_EQ = int(Op.INT_NE), int(Op.INT_LT), int(Op.INT_LE), int(Op.INT_EQ)
_REAL_EQ, _STRING_EQ = int(Op.REAL_EQ), int(Op.STRING_EQ)


def pack(found: Harvest, *, seed: int) -> PackedArrays:
    """Return the arrays of a packed index with the filters in *found*; *seed* randomises the hash tables."""
    words = np.frombuffer(found.words, np.int64) if len(found.words) else np.zeros(0, np.int64)
    clause_start, leaves, direct = (_array(a) for a in (found.clause_start, found.clause_leaves, found.clause_direct))
    kinds, ids, drops, drops2 = _choose_anchors(found)
    order = np.lexsort((_array(found.clause_handle), ids, kinds)) if kinds.size else np.zeros(0, np.int64)
    first = _lists(kinds[order], ids[order])
    code, places, left = _write_entries(
        words,
        clause_start.astype(np.int64),
        leaves,
        direct,
        _array(found.clause_handle),
        _array(found.clause_flags),
        order,
        drops,
        drops2,
    )
    lengths = np.diff(np.append(first, order.size)).astype(np.int32)
    dictionary = found.dictionary
    anchors = _anchor_tables(dictionary, kinds[order][first], ids[order][first], seed)
    tries = _tries(dictionary, seed)
    list_block, blocks = _blocks(code, places, left, first, lengths, len(found.dictionary.columns))
    strings = _string_table(dictionary, seed)
    return PackedArrays(
        seed=np.array([seed], np.int64),
        **anchors,
        **tries,
        **strings,
        lists=_list_table(places[first], lengths, list_block),
        code=code,
        **blocks,
    )


def _array(values: Any) -> Any:
    return np.array(values, dtype=values.typecode)


# -- anchors ---------------------------------------------------------------------------------------------------------


def _choose_anchors(found: Harvest) -> tuple[Any, Any, Any, Any]:
    """Return kind and number of each clause's anchor, and two leaves (tests) that the anchor proves true (or -1)."""
    n = len(found.clause_start)
    clause, kind, identity, drop = (
        _array(a) for a in (found.option_clause, found.option_kind, found.option_id, found.option_drops)
    )
    if n == 0:
        none = np.zeros(0, np.int64)
        return none, none, none, none
    _, inverse, counts = np.unique((identity << 2) | kind, return_inverse=True, return_counts=True)
    shared = counts[inverse]
    order = np.lexsort((shared * _WEIGHT[kind], clause))
    best = order[np.unique(clause[order], return_index=True)[1]]
    chosen_kind, chosen_id = kind[best].astype(np.int64), identity[best].astype(np.int64)
    first_drop, second_drop = drop[best].astype(np.int64), np.full(n, -1, np.int64)
    # The second-best equality of clauses whose best equality is shared by many.
    equal = order[kind[order] == Option.EQUAL]
    start = np.unique(clause[equal], return_index=True)[1]
    start = start[start + 1 < equal.size]
    second = equal[start + 1]
    owner = clause[equal[start]]
    pairs = (clause[second] == owner) & (shared[best[owner]] > _PAIR_ABOVE) & (chosen_kind[owner] == Option.EQUAL)
    pairs &= identity[second] != chosen_id[owner]
    owner, second = owner[pairs], second[pairs]
    low, high = np.minimum(chosen_id[owner], identity[second]), np.maximum(chosen_id[owner], identity[second])
    chosen_kind[owner] = Option.PAIR
    chosen_id[owner] = (low << 31) | high
    second_drop[owner] = drop[second]
    return chosen_kind, chosen_id, first_drop, second_drop


def _lists(kinds: Any, ids: Any) -> Any:
    """Return where each list begins, that is, the entries with one anchor; the arguments are sorted by anchor."""
    if kinds.size == 0:
        return np.zeros(0, np.int64)
    changes = np.empty(kinds.size, np.bool_)
    changes[0] = True
    changes[1:] = (kinds[1:] != kinds[:-1]) | (ids[1:] != ids[:-1])
    return np.flatnonzero(changes)


def _anchor_tables(dictionary: Dictionary, kinds: Any, ids: Any, seed: int) -> dict[str, Any]:
    """Return the tables in which the kernel looks up an event's attributes and values to find lists of entries."""
    lists = np.arange(kinds.size, dtype=np.int32)
    column_anchor = np.full(len(dictionary.columns), -1, np.int32)
    symbol_anchor = np.full(len(dictionary.symbols), -1, np.int32)
    pattern_anchor = np.full(len(dictionary.patterns), -1, np.int32)
    for kind, table in (
        (Option.PRESENT, column_anchor),
        (Option.EQUAL, symbol_anchor),
        (Option.PATTERN, pattern_anchor),
    ):
        table[ids[kinds == kind]] = lists[kinds == kind]
    pairs = ids[kinds == Option.PAIR]
    has_pairs = np.zeros(len(dictionary.symbols), np.bool_)
    has_pairs[pairs >> 31] = True
    has_pairs[pairs & 0x7FFFFFFF] = True
    keys = np.array(list(dictionary.symbols), np.int64).reshape(-1, 2)
    used = np.flatnonzero((symbol_anchor >= 0) | has_pairs)
    symbols = np.where(has_pairs, np.arange(has_pairs.size), -1)
    return {
        "column_anchor": column_anchor,
        "symbol_table": _symbol_table(keys[used], symbol_anchor[used], symbols[used], seed),
        "pair_table": _pair_table(pairs, lists[kinds == Option.PAIR], seed),
        "pattern_anchor": pattern_anchor,
    }


@njit(cache=True, nogil=True)
def _pair_table(keys: Any, values: Any, seed: int) -> Any:
    table = np.full(2 * rows_for(keys.size), EMPTY, np.int64)
    for i in range(keys.size):
        row = free_row(table, 1, mix(keys[i], seed))
        table[row] = keys[i]
        table[row + 1] = values[i]
    return table


@njit(cache=True, nogil=True)
def _symbol_table(keys: Any, anchors: Any, symbols: Any, seed: int) -> Any:
    table = np.full(4 * rows_for(anchors.size), EMPTY, np.int64)
    for i in range(anchors.size):
        column, bits = keys[i, 0], keys[i, 1]
        row = free_row(table, 2, mix(column ^ seed, bits))
        table[row] = column
        table[row + 1] = bits
        table[row + 2] = anchors[i]
        table[row + 3] = symbols[i]
    return table


def _string_table(dictionary: Dictionary, seed: int) -> dict[str, Any]:
    texts = [text.encode() for text in dictionary.strings]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    return {"string_table": table_of_texts(starts, data, seed), "string_start": starts, "string_bytes": data}


def _tries(dictionary: Dictionary, seed: int) -> dict[str, Any]:
    """Return the tries of prefixes, suffixes and substrings; RE2 decides the other patterns before the kernel runs."""
    functions = (PatternFunction.BEGINS_WITH, PatternFunction.ENDS_WITH, PatternFunction.CONTAINS)
    roots = {function: np.full(len(dictionary.columns), -1, np.int32) for function in functions}
    count = 0
    plain: list[tuple[int, bytes, bool]] = []
    numbers: list[int] = []
    for (column, name, pattern, _), number in dictionary.patterns.items():
        function = PatternFunction(name)
        if function not in roots:
            continue
        if roots[function][column] < 0:
            roots[function][column] = count
            count += 1
        plain.append((int(roots[function][column]), pattern.encode(), function is PatternFunction.ENDS_WITH))
        numbers.append(number)
    built = build_tries(plain, count, seed)
    ends = built["pattern"]
    if numbers:
        ends[ends >= 0] = np.array(numbers, np.int32)[ends[ends >= 0]]
    return {
        "column_prefixes": roots[PatternFunction.BEGINS_WITH],
        "column_suffixes": roots[PatternFunction.ENDS_WITH],
        "column_substrings": roots[PatternFunction.CONTAINS],
        "trie_key": built["key"],
        "trie_next": built["next"],
        "trie_fail": built["fail"],
        "trie_link": built["link"],
        "trie_pattern": ends,
    }


# -- entries ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _write_entries(
    words: Any, start: Any, leaves: Any, direct: Any, handle: Any, flags: Any, order: Any, drops: Any, drops2: Any
) -> Any:
    """Write all clauses as entries (their binary form), in *order*, without the tests that the clause's anchor decides.

    Return the entries, the position of each, and how many tests each requires unconditionally.
    """
    size = 0
    for i in range(order.size):
        c = order[i]
        size += 1 + 2 * (leaves[c] - (drops[c] >= 0) - (drops2[c] >= 0))
    code = np.empty(size, np.int64)
    places = np.empty(order.size, np.int64)
    left = np.empty(order.size, np.int32)  # number of unconditional tests that remain
    at = 0
    for i in range(order.size):
        c = order[i]
        first, second = drops[c], drops2[c]
        if first > second:
            first, second = second, first
        gone = (first >= 0) + (second >= 0)
        count = leaves[c] - gone
        places[i] = at
        left[i] = direct[c] - gone
        code[at] = np.int64(handle[c]) | (np.int64(count) << 32) | (np.int64(flags[c]) << 48)
        at += 1
        for leaf in range(leaves[c]):
            if leaf in (first, second):
                continue
            word = words[2 * (start[c] + leaf)]
            if_true = _moved((word >> 32) & 0xFFFF, first, second, count)
            if_false = _moved((word >> 48) & 0xFFFF, first, second, count)
            code[at] = (word & 0xFFFFFFFF) | (if_true << 32) | (if_false << 48)
            code[at + 1] = words[2 * (start[c] + leaf) + 1]
            at += 2
    return code, places, left


@njit(inline="always")
def _moved(target: int, first: int, second: int, count: int) -> int:
    """Return the jump target *target* after the leaves *first* and *second* (-1: none) were removed.

    *count* leaves remain. A target behind the last leaf becomes ACCEPT.
    """
    if target >= REJECT:
        return target
    moved = target - (first >= 0 and first < target) - (second >= 0 and second < target)
    return ACCEPT if moved >= count else moved


# -- bitmaps ---------------------------------------------------------------------------------------------------------


def _list_table(starts: Any, lengths: Any, blocks: Any) -> Any:
    table = np.zeros((starts.size, 4), np.int64)
    table[:, 0], table[:, 1], table[:, 2] = starts, lengths, blocks
    return table.reshape(-1)


def _blocks(code: Any, places: Any, left: Any, first: Any, lengths: Any, columns: int) -> tuple[Any, dict[str, Any]]:
    """Return each list's block number (-1: none), and the arrays of all blocks; a block has the bitmaps of one list."""
    list_block = np.full(lengths.size, -1, np.int32)
    column_bounds, bounds = _bounds(code, places, left, columns)
    columns_at: list[int] = [0]
    entries_at: list[int] = []
    shifts: list[int] = []
    entry_place: list[Any] = []
    blocked: list[int] = []
    bitmaps_at: list[int] = []
    bitmaps: list[Any] = []
    n_words = n_entries = 0
    for which in np.flatnonzero(lengths > _BLOCK_ABOVE):
        begin, length = first[which], int(lengths[which])
        shift = 0 if length > _FINE_ABOVE else _SHIFT
        found = _intervals(code, places[begin : begin + length], left[begin : begin + length])
        worth = _worth_a_bitmap(found[1], length)
        if not worth.size:
            continue
        list_block[which] = len(entries_at)
        entries_at.append(n_entries)
        shifts.append(shift)
        entry_place.append(places[begin : begin + length])
        n_entries += length
        for number in worth:
            limits = bounds[column_bounds[number] : column_bounds[number + 1]]
            bitmap = _bitmap(*found, number, limits, shift, length)
            blocked.append(int(number))
            bitmaps_at.append(n_words)
            bitmaps.append(bitmap)
            n_words += bitmap.size
        columns_at.append(len(blocked))
    return list_block, {
        "block_columns": np.array(columns_at, np.int32),
        "block_entries": np.array(entries_at, np.int64),
        "block_shift": np.array(shifts, np.int32),
        "entry_place": np.concatenate(entry_place) if entry_place else np.zeros(0, np.int64),
        "blocked_column": np.array(blocked, np.int32),
        "blocked_bitmaps": np.array(bitmaps_at, np.int64),
        "column_bounds": column_bounds,
        "bounds": bounds,
        "bitmaps": np.concatenate(bitmaps) if bitmaps else np.zeros(0, np.int64),
    }


def _bounds(code: Any, places: Any, left: Any, columns: int) -> tuple[Any, Any]:
    """Return where the bucket bounds of each column begin, and the bounds: quantiles of the filters' constants."""
    _, column, low, high = _intervals(code, places, left)
    order = np.argsort(column, kind="stable")
    start = np.searchsorted(column[order], np.arange(columns + 1))
    found: list[Any] = []
    for number in range(columns):
        mine = order[start[number] : start[number + 1]]
        edges = np.concatenate([low[mine], high[mine]])
        edges = np.sort(edges[np.isfinite(edges)])
        if edges.size > _MAX_BOUNDS:
            edges = edges[np.linspace(0, edges.size - 1, _MAX_BOUNDS).astype(np.int64)]
        found.append(np.unique(edges))
    at = np.zeros(columns + 1, np.int64)
    np.cumsum([edges.size for edges in found], out=at[1:])
    return at, np.concatenate(found) if found else np.zeros(0, np.float64)


def _worth_a_bitmap(column: Any, length: int) -> Any:
    """Return the columns of a list that get bitmaps: those with many intervals, the most first.

    *column* has the column of each interval that an entry requires. A column gets bitmaps if it has at least one
    interval per 16 of the list's *length* entries; at most ``_MAX_BLOCKED`` columns do.
    """
    numbers, counts = np.unique(column, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return numbers[order][: min(_MAX_BLOCKED, int((counts >= length / 16).sum()))]


@njit(cache=True, nogil=True)
def _intervals(code: Any, places: Any, left: Any) -> Any:
    """Return the numeric intervals that entries require unconditionally.

    They are four arrays: the index of the entry, the column, and the lower and upper bound.
    """
    reals = code.view(np.float64)
    total = 0
    for i in range(places.size):
        total += left[i]
    entry, column = np.empty(total, np.int32), np.empty(total, np.int32)
    low, high = np.empty(total, np.float64), np.empty(total, np.float64)
    n = 0
    for i in range(places.size):
        for leaf in range(left[i]):
            at = places[i] + 1 + 2 * leaf
            op = code[at] & 0xFF
            if op >= _STRING_EQ:
                continue
            value = np.float64(code[at + 1]) if op < _REAL_EQ else reals[at + 1]
            op = op if op < _REAL_EQ else op - _REAL_EQ
            entry[n] = i
            column[n] = (code[at] >> 8) & 0xFFFFFF
            low[n] = -np.inf if op in (_INT_NE, _INT_LT, _INT_LE) else value
            high[n] = value if op in (_INT_EQ, _INT_LT, _INT_LE) else np.inf
            n += 1
    return entry[:n], column[:n], low[:n], high[:n]


@njit(cache=True, nogil=True)
def _bitmap(entry: Any, column: Any, low: Any, high: Any, wanted: int, bounds: Any, shift: int, length: int) -> Any:
    """Return the bitmaps of one column: the first for events without a number in it, then one per bucket, ascending."""
    width = (length + 63) >> 6
    buckets = 2 + (bounds.size >> shift)
    least = np.full(length, -np.inf, np.float64)
    most = np.full(length, np.inf, np.float64)
    demands = np.zeros(length, np.bool_)
    for i in range(entry.size):
        if column[i] == wanted:
            demands[entry[i]] = True
            least[entry[i]] = max(least[entry[i]], low[i])
            most[entry[i]] = min(most[entry[i]], high[i])
    bits = np.zeros(buckets * width, np.int64)
    for i in range(length):
        bit = np.int64(1) << np.int64(i & 63)
        if not demands[i]:
            bits[i >> 6] |= bit
        if least[i] > most[i]:
            continue
        begin = 1 + (np.searchsorted(bounds, least[i], side="right") >> shift)
        end = 1 + (np.searchsorted(bounds, most[i], side="right") >> shift)
        for bucket in range(begin, end + 1):
            bits[bucket * width + (i >> 6)] |= bit
    return bits
