"""The flat arrays of the kernel, with the type of each: an index, events, working memory, and matches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["DTYPES", "FIELDS", "Events", "Matches", "PackedArrays", "Scratch"]


class PackedArrays(NamedTuple):
    """A packed index as the kernel reads it; every array is flat, so that the index can be saved and memory-mapped."""

    seed: Any  # one number, the seed of the hash tables
    # columns
    column_anchor: Any  # list of the entries that any value of the column activates, or -1
    column_prefixes: Any  # root of the column's trie of prefixes, or -1; likewise the next two
    column_suffixes: Any
    column_substrings: Any
    # strings that filters use
    string_table: Any  # hash table of string ids; -1: empty
    string_start: Any
    string_bytes: Any
    # equalities, numbered as symbols; words that are read together share a cache line
    symbol_table: Any  # hash table of column << 1 | is string (-1: empty), bits, list or -1, symbol if in a pair or -1
    pair_table: Any  # hash table of two words: key of the pair (-1: empty), list
    # patterns
    trie_key: Any  # hash table of state << 8 | byte; -1: empty
    trie_next: Any
    trie_fail: Any  # by state: state to continue with if no transition fits (failure link)
    trie_link: Any  # by state: next state on the failure path in which a pattern ends, or -1
    trie_pattern: Any  # by state: the pattern that ends in it, or -1
    pattern_anchor: Any  # by pattern: list of the entries that it activates, or -1
    # lists of entries (``layout``)
    lists: Any  # four words per list: position in code, number of entries, block of bitmaps or -1, unused
    code: Any
    # bitmaps of long lists: a block has the bitmaps of one list
    block_columns: Any  # per block, plus one: position of its columns
    block_entries: Any  # per block: position of its entries in entry_place
    entry_place: Any  # position of each entry in code
    block_shift: Any  # per block: exponent of two of the number of buckets that share a bitmap
    blocked_column: Any  # per column of a block: the column
    blocked_bitmaps: Any  # per column of a block: position of its bitmaps
    column_bounds: Any  # per column, plus one: position of its bucket bounds
    bounds: Any
    bitmaps: Any


class Scratch(NamedTuple):
    """Working memory of the kernel, one per thread.

    A value is valid only if it is marked with the current event's number.
    """

    epoch: Any  # the number of the event
    buckets: Any  # per column, valid with its slot: 0 without a number, else 1 + number of bounds that are not above it
    slots: Any  # four per column: epoch, type, the integer or string id, the bits of the number as a double
    pattern_epoch: Any  # per pattern: the last event that it matched
    seen: Any  # per handle: the last event that its filter accepted
    active: Any  # lists of entries to visit
    symbols: Any  # equalities that hold for this event
    words: Any  # the intersection of bitmaps
    spans: Any  # entries to run: position of the first, and their number


class Events(NamedTuple):
    """A batch of events (one per row). An item is one value of a column; strings are UTF-8 in one buffer."""

    row_start: Any  # rows plus one: index of the first item of each row
    column: Any  # per item; -1: no filter uses it
    kind: Any  # attribute type
    integer: Any
    real: Any
    text_start: Any  # per item: begin of its string
    text_end: Any  # per item: end of its string
    text: Any
    given_start: Any  # items plus one: position in ``given``; empty: there are no patterns that RE2 decides
    given: Any  # ids of patterns that RE2 found to match; ~id: the pattern is undefined for this item


class Matches(NamedTuple):
    """The matches of a batch, which the kernel writes."""

    rows: Any
    handles: Any
    doubts: Any  # 1: the compiled filter must decide


_INT64_FIELDS = frozenset(
    "seed string_start symbol_table pair_table trie_key lists code block_entries entry_place "
    "column_bounds blocked_bitmaps bitmaps epoch buckets slots pattern_epoch seen words spans row_start integer "
    "text_start text_end given_start".split()
)
_UINT8_FIELDS = frozenset("string_bytes kind text doubts dead".split())
_FLOAT64_FIELDS = frozenset(("bounds", "real"))
FIELDS = (*PackedArrays._fields, *Scratch._fields, "dead", *Events._fields, *Matches._fields)
DTYPES: dict[str, Any] = {
    name: np.int64
    if name in _INT64_FIELDS
    else np.uint8
    if name in _UINT8_FIELDS
    else np.float64
    if name in _FLOAT64_FIELDS
    else np.int32
    for name in FIELDS
}
