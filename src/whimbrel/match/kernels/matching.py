# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return"
# mypy: disable-error-code="no-untyped-call, return-value, unreachable"
# (numba infers the types inside a kernel; mypy cannot know them)
"""The kernel of the packed index: a loop over flat arrays, compiled by numba, that finds the filters an event matches.

How one event is matched: each of its values goes into the slot of its column (attribute). A string is also looked up
among the constants of filters, and walks the tries of its column's patterns. Each value then activates *anchors*: its
column is present, its column equals this constant, this pattern matched, these two equalities hold together. An anchor
leads to a list of *entries*, the clauses of filters that can only be true if the anchor holds (``layout``). Each entry
is run as short-circuit jump code; the accepted entries are the result. For a long list, bitmaps first select the
entries that can still match.
Rule: code that runs once per leaf (test) of an entry stands in one function. To numba an array is seven words, passed
by value; passing ten arrays to a helper at every leaf cost fifty times the leaf.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.addresses import AT, float64s, int32s, int64s, uint8s
from whimbrel.match.kernels.bitmaps import LENGTH_BITS, bitmap_place, bucket_of, gather, intersect
from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.hash_table import EMPTY, find_row, find_text, hash_bytes, mix
from whimbrel.match.kernels.intrinsics import prefetch
from whimbrel.match.kernels.layout import ACCEPT, CLOSURE, MULTI, REJECT, Op
from whimbrel.match.kernels.tries import mark_pattern, walk_end, walk_through

__all__ = ["match_event", "match_events"]

_INT_EQ, _REAL_EQ, _STRING_EQ = int(Op.INT_EQ), int(Op.REAL_EQ), int(Op.STRING_EQ)
_STRING_NE, _PATTERN, _NOT_PATTERN, _PRESENT = int(Op.STRING_NE), int(Op.PATTERN), int(Op.NOT_PATTERN), int(Op.PRESENT)
_TYPE_IS, _TYPE_IS_NOT, _NAN, _NOT_NAN = int(Op.TYPE_IS), int(Op.TYPE_IS_NOT), int(Op.NAN), int(Op.NOT_NAN)
_INT64, _REAL, _STRING, _OPAQUE = 2, 3, 4, 5
_LENGTH_MASK = (1 << LENGTH_BITS) - 1
# The results of == != < <= > >= (eight bits each) for: less, equal, greater, zeros of different sign, NaN.
# This is a table, without branches: comparisons are as good as random, and a wrong branch prediction costs more.
_ANSWERS = sum(bits << (8 * op) for op, bits in enumerate((0b00010, 0b01101, 0b00001, 0b01011, 0b00100, 0b01110)))


@njit(cache=True)
def _other_holds(op: int, kind: int, real: float, string: int, constant: int, mark: int, epoch: int) -> bool:
    """Return whether a leaf (test) that does not compare numbers is true of the event with the number *epoch*.

    *mark* is the number of the last event that the leaf's pattern matched, or minus the number of the last event for
    which the pattern was undefined.
    """
    if op == _STRING_EQ:
        return kind == _STRING and string == constant
    if op == _STRING_NE:
        return kind == _STRING and string != constant
    if op == _PATTERN:
        return kind == _STRING and mark == epoch
    if op == _NOT_PATTERN:
        return kind == _STRING and mark != epoch and mark != -epoch  # noqa: PLR1714  # a tuple is slower here
    if op == _TYPE_IS:
        return kind == constant
    if op == _TYPE_IS_NOT:
        return kind != constant
    if op == _NAN:
        return kind == _REAL and real != real  # noqa: PLR0124  # NaN
    if op == _NOT_NAN:
        return kind == _REAL and real == real  # noqa: PLR0124  # NaN
    return True  # the column is present; or the compiled filter decides


@njit(cache=True)
def _pair_key(a: int, b: int) -> int:
    """Return the key of two equalities in the table of pairs; their order makes no difference."""
    if a > b:
        a, b = b, a
    return (np.int64(a) << 31) | np.int64(b)


@njit(cache=True)
def _pair_up(table: Any, seed: int, symbols: Any, equal: int, active: Any, n: int) -> int:
    """For each two equalities that are both true of the event, append the list of entries under that pair to *active*.

    Not every pair has a list. Return the new length of *active*.
    """
    mask = (table.size >> 1) - 1
    for i in range(equal):  # prefetch all rows before the first is read
        for j in range(i + 1, equal):
            prefetch(table, (mix(_pair_key(symbols[i], symbols[j]), seed) & mask) << 1)
    for i in range(equal):
        for j in range(i + 1, equal):
            key = _pair_key(symbols[i], symbols[j])
            row = find_row(table, 1, mix(key, seed), key, EMPTY)
            if row >= 0:
                active[n] = table[row + 1]
                n += 1
    return n


# Plain integers, because a kernel cannot read the dictionary AT.
_SEED_AT = AT["seed"]
_COLUMN_ANCHOR_AT = AT["column_anchor"]
_COLUMN_PREFIXES_AT = AT["column_prefixes"]
_COLUMN_SUFFIXES_AT = AT["column_suffixes"]
_COLUMN_SUBSTRINGS_AT = AT["column_substrings"]
_STRING_TABLE_AT = AT["string_table"]
_STRING_START_AT = AT["string_start"]
_STRING_BYTES_AT = AT["string_bytes"]
_SYMBOL_TABLE_AT = AT["symbol_table"]
_PAIR_TABLE_AT = AT["pair_table"]
_LISTS_AT = AT["lists"]
_TRIE_KEY_AT = AT["trie_key"]
_TRIE_NEXT_AT = AT["trie_next"]
_TRIE_FAIL_AT = AT["trie_fail"]
_TRIE_LINK_AT = AT["trie_link"]
_TRIE_PATTERN_AT = AT["trie_pattern"]
_PATTERN_ANCHOR_AT = AT["pattern_anchor"]
_CODE_AT = AT["code"]
_BLOCK_COLUMNS_AT = AT["block_columns"]
_BLOCK_ENTRIES_AT = AT["block_entries"]
_ENTRY_PLACE_AT = AT["entry_place"]
_BLOCKED_COLUMN_AT = AT["blocked_column"]
_BLOCK_SHIFT_AT = AT["block_shift"]
_COLUMN_BOUNDS_AT = AT["column_bounds"]
_BUCKETS_AT = AT["buckets"]
_BLOCKED_BITMAPS_AT = AT["blocked_bitmaps"]
_BOUNDS_AT = AT["bounds"]
_BITMAPS_AT = AT["bitmaps"]
_EPOCH_AT = AT["epoch"]
_SLOTS_AT = AT["slots"]
_PATTERN_EPOCH_AT = AT["pattern_epoch"]
_SEEN_AT = AT["seen"]
_ACTIVE_AT = AT["active"]
_SYMBOLS_AT = AT["symbols"]
_WORDS_AT = AT["words"]
_SPANS_AT = AT["spans"]
_DEAD_AT = AT["dead"]
_ROW_START_AT = AT["row_start"]
_COLUMN_AT = AT["column"]
_KIND_AT = AT["kind"]
_INTEGER_AT = AT["integer"]
_REAL_AT = AT["real"]
_TEXT_START_AT = AT["text_start"]
_TEXT_END_AT = AT["text_end"]
_TEXT_AT = AT["text"]
_GIVEN_START_AT = AT["given_start"]
_GIVEN_AT = AT["given"]
_ROWS_AT = AT["rows"]
_HANDLES_AT = AT["handles"]
_DOUBTS_AT = AT["doubts"]


@njit(cache=True, nogil=True)
def match_events(table: Any, row: int) -> tuple[int, int]:
    """Match the events from *row* on; return the first row that was not matched, and the number of matches.

    If rows are left, the arrays for matches were too small: call again from that row with larger arrays.
    """
    seeds = int64s(table, _SEED_AT)
    column_anchor = int32s(table, _COLUMN_ANCHOR_AT)
    column_prefixes = int32s(table, _COLUMN_PREFIXES_AT)
    column_suffixes = int32s(table, _COLUMN_SUFFIXES_AT)
    column_substrings = int32s(table, _COLUMN_SUBSTRINGS_AT)
    string_table = int32s(table, _STRING_TABLE_AT)
    string_start = int64s(table, _STRING_START_AT)
    string_bytes = uint8s(table, _STRING_BYTES_AT)
    symbol_table = int64s(table, _SYMBOL_TABLE_AT)
    pair_table = int64s(table, _PAIR_TABLE_AT)
    lists = int64s(table, _LISTS_AT)
    trie_key = int64s(table, _TRIE_KEY_AT)
    trie_next = int32s(table, _TRIE_NEXT_AT)
    trie_fail = int32s(table, _TRIE_FAIL_AT)
    trie_link = int32s(table, _TRIE_LINK_AT)
    trie_pattern = int32s(table, _TRIE_PATTERN_AT)
    pattern_anchor = int32s(table, _PATTERN_ANCHOR_AT)
    code = int64s(table, _CODE_AT)
    reals = float64s(table, _CODE_AT)
    block_columns = int32s(table, _BLOCK_COLUMNS_AT)
    block_entries = int64s(table, _BLOCK_ENTRIES_AT)
    entry_place = int64s(table, _ENTRY_PLACE_AT)
    blocked_column = int32s(table, _BLOCKED_COLUMN_AT)
    block_shift = int32s(table, _BLOCK_SHIFT_AT)
    column_bounds = int64s(table, _COLUMN_BOUNDS_AT)
    buckets = int64s(table, _BUCKETS_AT)
    blocked_bitmaps = int64s(table, _BLOCKED_BITMAPS_AT)
    bounds = float64s(table, _BOUNDS_AT)
    bitmaps = int64s(table, _BITMAPS_AT)
    clock = int64s(table, _EPOCH_AT)
    slots = int64s(table, _SLOTS_AT)
    slot_reals = float64s(table, _SLOTS_AT)
    pattern_epoch = int64s(table, _PATTERN_EPOCH_AT)
    seen = int64s(table, _SEEN_AT)
    active = int32s(table, _ACTIVE_AT)
    symbols = int32s(table, _SYMBOLS_AT)
    words = int64s(table, _WORDS_AT)
    spans = int64s(table, _SPANS_AT)
    dead = uint8s(table, _DEAD_AT)
    row_start = int64s(table, _ROW_START_AT)
    item_column = int32s(table, _COLUMN_AT)
    item_kind = uint8s(table, _KIND_AT)
    integer = int64s(table, _INTEGER_AT)
    real = float64s(table, _REAL_AT)
    text_start = int64s(table, _TEXT_START_AT)
    text_end = int64s(table, _TEXT_END_AT)
    text = uint8s(table, _TEXT_AT)
    given_start = int64s(table, _GIVEN_START_AT)
    given = int32s(table, _GIVEN_AT)
    rows = int32s(table, _ROWS_AT)
    handles = int32s(table, _HANDLES_AT)
    doubts = uint8s(table, _DOUBTS_AT)
    seed, epoch = seeds[0], clock[0]
    has_given = given_start.size > 0
    some_dead = dead[dead.size - 1] != 0  # without removed filters no mark is read, which saves a cache line per match
    found = 0
    last = row_start.size - 1
    while row < last:
        epoch += 1
        n = 0  # active lists
        equal = 0  # equalities that hold and have pairs
        for item in range(row_start[row], row_start[row + 1]):
            column = item_column[item]
            if column < 0:
                continue
            kind = item_kind[item]
            slot = 4 * np.int64(column)
            if slots[slot] == epoch or kind == 0 or kind > _OPAQUE:
                continue  # a repeated name (the first item counts), or no type; buffers have room for one per column
            slots[slot] = epoch
            slots[slot + 1] = kind
            buckets[column] = 0
            if column_anchor[column] >= 0:
                active[n] = column_anchor[column]
                n += 1
            tagged = np.int64(column) << 1
            bits = np.int64(-1)
            if kind == _STRING:
                start, end = text_start[item], text_end[item]
                hashed = hash_bytes(text, start, end, seed)
                string = find_text(string_table, string_start, string_bytes, text, start, end, hashed)
                slots[slot + 2] = string
                if column_prefixes[column] >= 0:
                    n = walk_end(
                        trie_key, trie_next, trie_pattern, seed, column_prefixes[column],
                        text, start, end, 1, epoch, pattern_epoch, pattern_anchor, active, n,
                    )  # fmt: skip
                if column_suffixes[column] >= 0:
                    n = walk_end(
                        trie_key, trie_next, trie_pattern, seed, column_suffixes[column],
                        text, end - 1, start - 1, -1, epoch, pattern_epoch, pattern_anchor, active, n,
                    )  # fmt: skip
                if column_substrings[column] >= 0:
                    n = walk_through(
                        trie_key, trie_next, trie_pattern, trie_fail, trie_link, seed,
                        column_substrings[column], text, start, end, epoch,
                        pattern_epoch, pattern_anchor, active, n,
                    )  # fmt: skip
                if has_given:
                    for i in range(given_start[item], given_start[item + 1]):
                        number = given[i]
                        if number < 0:  # undefined: neither the pattern nor its negation is true
                            pattern_epoch[~number] = -epoch
                        else:
                            n = mark_pattern(number, epoch, pattern_epoch, pattern_anchor, active, n)
                if string < 0:
                    continue
                bits = np.int64(string)
                tagged |= 1
            elif kind <= _REAL:
                if kind == _REAL:
                    slot_reals[slot + 3] = real[item]
                else:
                    slots[slot + 2] = integer[item]
                    slot_reals[slot + 3] = np.float64(integer[item])
                bits = slots[slot + 3]
                number = slot_reals[slot + 3]
                if number == number:  # noqa: PLR0124  # not NaN
                    buckets[column] = bucket_of(bounds, column_bounds[column], column_bounds[column + 1], number)
            else:
                continue
            symbol = find_row(symbol_table, 2, mix(tagged ^ seed, bits), tagged, bits)
            if symbol >= 0:
                if symbol_table[symbol + 2] >= 0:
                    active[n] = symbol_table[symbol + 2]
                    n += 1
                if symbol_table[symbol + 3] >= 0:
                    symbols[equal] = symbol_table[symbol + 3]
                    equal += 1
        if equal > 1:
            n = _pair_up(pair_table, seed, symbols, equal, active, n)
        begun = found
        done = 0  # number of active lists whose entries were collected
        for i in range(n):
            prefetch(lists, np.int64(active[i]) << 2)
        for i in range(n):
            which = np.int64(active[i]) << 2
            block = lists[which + 2]
            if block < 0:
                prefetch(code, lists[which])
                prefetch(code, lists[which] + 8)
                continue
            width = (lists[which + 1] + 63) >> 6
            for blocked in range(block_columns[block], block_columns[block + 1]):
                prefetch(
                    bitmaps,
                    bitmap_place(
                        blocked, width, block_shift[block], epoch, blocked_column, blocked_bitmaps, slots, buckets
                    ),
                )
            prefetch(entry_place, block_entries[block])
        while done < n:
            # First collect the entries to run as spans, prefetching each; then run them. Running each entry as it is
            # found would wait for the memory every time; prefetched, many are loaded at the same time.
            gathered = 0
            while done < n:
                which = np.int64(active[done]) << 2
                at, length, block = lists[which], lists[which + 1], lists[which + 2]
                if gathered + (length if block >= 0 else 1) > spans.size:
                    break  # run the entries collected so far; an empty buffer has room for the longest list
                done += 1
                if block < 0:
                    spans[gathered] = (at << LENGTH_BITS) | length
                    gathered += 1
                    continue
                width = (length + 63) >> 6
                intersect(
                    words, width, block_columns[block], block_columns[block + 1], block_shift[block], epoch,
                    blocked_column, blocked_bitmaps, bitmaps, slots, buckets,
                )  # fmt: skip
                before = gathered
                gathered = gather(words, width, entry_place, block_entries[block], spans, gathered)
                for i in range(before, gathered):
                    prefetch(code, spans[i] >> LENGTH_BITS)
                    prefetch(code, (spans[i] >> LENGTH_BITS) + 8)
            at = np.int64(0)
            left = np.int64(0)
            span = 0
            while left > 0 or span < gathered:
                if left == 0:
                    at, left = spans[span] >> LENGTH_BITS, spans[span] & _LENGTH_MASK
                    span += 1
                left -= 1
                header = code[at]
                leaves = (header >> 32) & 0xFFFF
                handle = header & 0xFFFFFFFF
                flags = (header >> 48) & 0xFFFF
                step = ACCEPT if leaves == 0 else 0
                while step < REJECT:  # the jump code: evaluate one leaf, then jump by its answer
                    place = at + 1 + 2 * step
                    word = code[place]
                    op = word & 0xFF
                    slot = ((word >> 8) & 0xFFFFFF) << 2
                    holds = 0
                    if slots[slot] == epoch:
                        kind = slots[slot + 1]
                        if op < _REAL_EQ and kind <= _INT64:
                            value, literal = slots[slot + 2], code[place + 1]
                            order = 1 + (value > literal) - (value < literal)
                            holds = (_ANSWERS >> (8 * op + order)) & 1
                        elif op < _STRING_EQ:
                            if kind <= _REAL:
                                number = slot_reals[slot + 3]
                                bound = np.float64(code[place + 1]) if op < _REAL_EQ else reals[place + 1]
                                order = 1 + (number > bound) - (number < bound)
                                if number != number:  # noqa: PLR0124  # NaN
                                    order = 4
                                elif number == 0.0 and bound == 0.0 and np.signbit(number) != np.signbit(bound):
                                    order = 3
                                holds = (_ANSWERS >> (8 * (op if op < _REAL_EQ else op - _REAL_EQ) + order)) & 1
                        else:
                            mark = np.int64(0)
                            if op in (_PATTERN, _NOT_PATTERN):
                                mark = pattern_epoch[code[place + 1]]
                            if _other_holds(
                                op, kind, slot_reals[slot + 3], slots[slot + 2], code[place + 1], mark, epoch
                            ):
                                holds = 1
                    step = (word >> (48 - 16 * holds)) & 0xFFFF
                if (
                    step == ACCEPT
                    and not (some_dead and dead[handle])
                    and not (flags & MULTI and seen[handle] == epoch)
                ):
                    if found >= rows.size:
                        clock[0] = epoch
                        return row, begun
                    if flags == MULTI:
                        seen[handle] = epoch
                    rows[found] = row
                    handles[found] = handle
                    doubts[found] = 1 if flags & CLOSURE else 0
                    found += 1
                at += 1 + 2 * leaves
        row += 1
    clock[0] = epoch
    return row, found


@njit(cache=True)
def match_event(table: Any) -> tuple[int, int]:
    """Match one event without releasing Python's global lock, because the match takes only microseconds.

    While another thread repacks, a match that released the lock would wait five milliseconds to get it back.
    """
    return match_events(table, 0)
