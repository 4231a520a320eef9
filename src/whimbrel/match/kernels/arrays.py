"""The flat arrays of the kernel: what it reads of an index and of events, what it writes, and the type of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["DTYPES", "FIELDS", "Events", "Matches", "PackedArrays", "Scratch"]


class PackedArrays(NamedTuple):
    """Everything the kernel reads; each is one flat array, so the whole can be saved and memory-mapped."""

    seed: Any  # one number
    # columns
    column_anchor: Any  # list of the anchor "present", or -1
    column_prefixes: Any  # root of its trie of prefixes, or -1; the same for
    column_suffixes: Any
    column_substrings: Any
    # strings that filters name
    string_table: Any  # string id by hash, -1 empty
    string_start: Any
    string_bytes: Any
    # equalities: (column, constant) to symbol; what is read together lies together, in one line of the cache
    symbol_table: Any  # by hash, four each: tagged column (-1 empty), bits, list or -1, symbol if pairs have it or -1
    pair_table: Any  # by hash, two each: key (-1 empty), list
    # patterns
    trie_key: Any  # by hash: state << 8 | byte, -1 empty
    trie_next: Any
    trie_fail: Any  # by state
    trie_link: Any  # by state: next state on the failure path that ends a pattern, or -1
    trie_pattern: Any  # by state: the pattern that ends here, or -1
    pattern_anchor: Any  # by pattern: list, or -1
    # lists of entries
    lists: Any  # four each: where in code, entries, block of bitmaps or -1, nothing
    code: Any
    # bitmaps of long lists
    block_columns: Any  # by block, plus one: where its columns are
    block_entries: Any  # by block: where its entries' places are
    entry_place: Any  # where in code
    block_shift: Any  # by block: buckets are merged in groups of 2 to this
    blocked_column: Any  # the column
    blocked_bitmaps: Any  # where its bitmaps are
    column_bounds: Any  # by column, plus one: where its bucket bounds are
    bounds: Any
    bitmaps: Any


class Scratch(NamedTuple):
    """What the kernel writes; one per thread. A slot is valid if its epoch is the current event's."""

    epoch: Any  # the number of the event
    buckets: Any  # by column, valid with its slot: 0 no number, else 1 + how many bounds are not above it
    slots: Any  # four by column: epoch, type, the integer or string id, the number as a double's bits
    pattern_epoch: Any  # by pattern
    seen: Any  # by handle: the last event it was accepted for
    active: Any  # lists to visit
    symbols: Any  # equalities that hold
    words: Any  # one bitmap
    spans: Any  # entries to run: where the first stands, and how many there are


class Events(NamedTuple):
    """A batch of events: items by row, strings as UTF-8 in one buffer, patterns decided elsewhere by item."""

    row_start: Any  # rows plus one
    column: Any  # by item, -1 if no filter asks for it
    kind: Any  # attribute type
    integer: Any
    real: Any
    text_start: Any  # by item: where its string begins,
    text_end: Any  # and ends
    text: Any
    given_start: Any  # items plus one; empty if nothing was decided elsewhere
    given: Any  # pattern ids; ~id: this pattern is undefined here


class Matches(NamedTuple):
    """Where the kernel writes what it found."""

    rows: Any
    handles: Any
    doubts: Any  # 1: the closures must have the last word


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
