# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return, no-untyped-call, unreachable"
# (inside a kernel a number is numba's, whatever mypy takes it for)
"""The hot loops, over flat arrays: numba compiles them, nothing here knows a filter or a Python object.

How one event is matched. Its items are scattered into one slot per column. Each string looks itself up in the string
table and walks the pattern tries of its column. Each item then names the *anchors* it activates: its column is
present, its column equals this constant, this pattern matched, these two equalities hold together. An anchor leads to
a list of entries in ``code``; each entry is run as short-circuit jump code, and accepted ones are the answer. A long
list first intersects the bitmaps of its columns' buckets, so that only entries that can still match are run.

Rule: what runs once per leaf stands in one function: an array is seven words to numba, passed by value, and handing ten
of them to a helper at every leaf cost fifty times the leaf.
Rule: the kernel is given one table of addresses. Handing it fifty arrays cost 20 µs a call, more than a match; it also
counted their references. ``write_addresses`` is the only place that fills the table, and checks every type.
Rule: 64-bit integers wrap on purpose; hashes are seeded, so that a stranger cannot aim at one bucket.
``layout`` says what the words of an entry are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from whimbrel.match.index.leaves import Op
from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.layout import ACCEPT, CLOSURE, MULTI, REJECT

__all__ = [
    "DTYPES",
    "Events",
    "Matches",
    "PackedArrays",
    "Scratch",
    "hash_bytes",
    "match_event",
    "match_events",
    "mix",
    "new_table",
    "write_addresses",
]

_INT_EQ, _REAL_EQ, _STRING_EQ = int(Op.INT_EQ), int(Op.REAL_EQ), int(Op.STRING_EQ)
_STRING_NE, _PATTERN, _NOT_PATTERN, _PRESENT = int(Op.STRING_NE), int(Op.PATTERN), int(Op.NOT_PATTERN), int(Op.PRESENT)
_TYPE_IS, _TYPE_IS_NOT, _NAN, _NOT_NAN = int(Op.TYPE_IS), int(Op.TYPE_IS_NOT), int(Op.NAN), int(Op.NOT_NAN)
_INT64, _REAL, _STRING, _OPAQUE = 2, 3, 4, 5
_PRIME_A, _PRIME_B, _PRIME_C = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1D, 0x27D4EB2F165667C5
_EMPTY = -1
_LENGTH_BITS = 24
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
# The answers of == != < <= > >= (eight bits each) for: less, equal, greater, zeros of different sign, NaN.
# Looked up, not decided: which comparison a leaf makes is as good as random, and a wrong guess costs more than a leaf.
_ANSWERS = sum(bits << (8 * op) for op, bits in enumerate((0b00010, 0b01101, 0b00001, 0b01011, 0b00100, 0b01110)))


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
_AT = {name: 2 * number for number, name in enumerate(FIELDS)}


def write_addresses(table: Any, arrays: dict[str, Any]) -> None:
    """Write where *arrays* lie into the *table* the kernel reads; whoever calls keeps them alive."""
    for name, array in arrays.items():
        if array.dtype != DTYPES[name] or not array.flags.c_contiguous:
            raise TypeError(f"{name} is {array.dtype}, the kernel wants contiguous {DTYPES[name].__name__}")
        table[_AT[name]] = array.__array_interface__["data"][0]
        table[_AT[name] + 1] = array.size


def new_table() -> Any:
    """Return a table of addresses, still empty."""
    return np.zeros(2 * len(FIELDS), np.int64)


@intrinsic
def _pointer(context: Any, address: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Turn an address into a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _prefetch(context: Any, array: Any, at: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Ask the memory for the line that holds ``array[at]``, and go on without waiting for it."""

    def generate(generating: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, number = signature.args
        data = generating.make_array(kind)(generating, builder, arguments[0]).data
        place = builder.gep(data, [generating.cast(builder, arguments[1], number, types.int64)])
        flag = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch")
        builder.call(prefetch, [builder.bitcast(place, cgutils.voidptr_t), flag(0), flag(3), flag(1)])
        return generating.get_dummy_value()

    return types.void(array, at), generate


@intrinsic
def _lowest_bit(context: Any, word: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Return the place of the lowest set bit of *word*, which is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@njit(cache=True)
def _int64s(table: Any, at: int) -> Any:
    return carray(_pointer(table[at]), table[at + 1], np.int64)


@njit(cache=True)
def _int32s(table: Any, at: int) -> Any:
    return carray(_pointer(table[at]), table[at + 1], np.int32)


@njit(cache=True)
def _uint8s(table: Any, at: int) -> Any:
    return carray(_pointer(table[at]), table[at + 1], np.uint8)


@njit(cache=True)
def _float64s(table: Any, at: int) -> Any:
    return carray(_pointer(table[at]), table[at + 1], np.float64)


@njit(cache=True)
def mix(a: int, b: int) -> int:
    """Return a well-spread non-negative hash of two integers."""
    h = (a * _PRIME_A) ^ (b * _PRIME_B)
    h ^= (h >> 29) & 0x7FFFFFFFF
    h *= _PRIME_C
    h ^= (h >> 32) & 0xFFFFFFFF
    return h & 0x7FFFFFFFFFFFFFFF


@njit(cache=True)
def hash_bytes(data: Any, start: int, end: int, seed: int) -> int:
    """Return a non-negative hash of ``data[start:end]``."""
    h = seed ^ ((end - start) * _PRIME_A)
    for i in range(start, end):
        h = (h ^ np.int64(data[i])) * _PRIME_C
        h ^= (h >> 31) & 0x1FFFFFFFF
    return mix(h, seed)


@njit(cache=True)
def _find_string(table: Any, starts: Any, known: Any, data: Any, start: int, end: int, seed: int) -> int:
    """Return the id of the string ``data[start:end]``, or -1 if no filter names it."""
    mask = table.size - 1
    at = hash_bytes(data, start, end, seed) & mask
    while True:
        found = table[at]
        if found < 0:
            return -1
        begin = starts[found]
        if starts[found + 1] - begin == end - start:
            i = 0
            while i < end - start and known[begin + i] == data[start + i]:
                i += 1
            if i == end - start:
                return found
        at = (at + 1) & mask


@njit(cache=True)
def _find_symbol(table: Any, column: int, bits: int, seed: int) -> int:
    """Return where in *table* the equality stands, or -1."""
    mask = (table.size >> 2) - 1
    at = mix(column ^ seed, bits) & mask
    while table[at << 2] != _EMPTY:
        if table[at << 2] == column and table[(at << 2) + 1] == bits:
            return at << 2
        at = (at + 1) & mask
    return -1


@njit(cache=True)
def _step(keys: Any, after: Any, state: int, byte: int, seed: int) -> int:
    mask = keys.size - 1
    key = (np.int64(state) << 8) | np.int64(byte)
    at = mix(key, seed) & mask
    while keys[at] != _EMPTY:
        if keys[at] == key:
            return after[at]
        at = (at + 1) & mask
    return -1


@njit(cache=True)
def _mark(number: int, epoch: int, pattern_epoch: Any, pattern_anchor: Any, active: Any, n: int) -> int:
    """Note that a pattern was found; return how many lists are active now."""
    if number >= 0 and pattern_epoch[number] != epoch:
        pattern_epoch[number] = epoch
        if pattern_anchor[number] >= 0:
            active[n] = pattern_anchor[number]
            n += 1
    return n


@njit(cache=True)
def _walk_end(
    keys: Any,
    after: Any,
    pattern: Any,
    seed: int,
    state: int,
    data: Any,
    begin: int,
    stop: int,
    step: int,
    epoch: int,
    pattern_epoch: Any,
    pattern_anchor: Any,
    active: Any,
    n: int,
) -> int:
    """Mark the prefixes of a string that the trie below *state* holds; or, read backwards, the suffixes."""
    n = _mark(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
    for i in range(begin, stop, step):
        state = _step(keys, after, state, data[i], seed)
        if state < 0:
            break
        n = _mark(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
    return n


@njit(cache=True)
def walk_through(
    keys: Any,
    after: Any,
    pattern: Any,
    fail: Any,
    link: Any,
    seed: int,
    root: int,
    data: Any,
    begin: int,
    stop: int,
    epoch: int,
    pattern_epoch: Any,
    pattern_anchor: Any,
    active: Any,
    n: int,
) -> int:
    """Mark every pattern of the trie below *root* that occurs in a string (Aho and Corasick, 1975).

    A marked pattern has had its shorter suffixes marked with it, so the chain of suffixes ends at the first that is
    marked: every step along it but the last of each byte marks a pattern, and all of them together are linear in the
    string and in what is found.
    """
    state = root
    n = _mark(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
    for i in range(begin, stop):
        found = _step(keys, after, state, data[i], seed)
        while found < 0 and state != root:
            state = fail[state]
            found = _step(keys, after, state, data[i], seed)
        state = found if found >= 0 else root
        ending = state if pattern[state] >= 0 else link[state]
        while ending >= 0 and pattern_epoch[pattern[ending]] != epoch:
            n = _mark(pattern[ending], epoch, pattern_epoch, pattern_anchor, active, n)
            ending = link[ending]
    return n


@njit(cache=True)
def _other_holds(op: int, kind: int, real: float, string: int, constant: int, mark: int, epoch: int) -> bool:
    """Tell whether a leaf that is no comparison of numbers holds; *mark* is the epoch of its pattern."""
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
    return True  # present, or left to the closures


@njit(cache=True)
def _bucket(bounds: Any, low: int, high: int, value: float) -> int:
    """Return the bucket of a number; bucket 0 is kept for events without one."""
    first = low
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return 1 + low - first


@njit(cache=True)
def _bitmap_place(
    blocked: int,
    width: int,
    shift: int,
    epoch: int,
    blocked_column: Any,
    blocked_bitmaps: Any,
    slots: Any,
    buckets: Any,
) -> int:
    """Return where the bitmap of the bucket begins that the event's value of a block's column is in."""
    column = np.int64(blocked_column[blocked])
    bucket = buckets[column] if slots[4 * column] == epoch else 0
    if bucket > 0:
        bucket = 1 + ((bucket - 1) >> shift)
    return blocked_bitmaps[blocked] + bucket * width


@njit(cache=True)
def _intersect(
    words: Any,
    width: int,
    first: int,
    last: int,
    shift: int,
    epoch: int,
    blocked_column: Any,
    blocked_bitmaps: Any,
    bitmaps: Any,
    slots: Any,
    buckets: Any,
) -> None:
    """Intersect the bitmaps of a block's columns into *words*."""
    for blocked in range(first, last):
        at = _bitmap_place(blocked, width, shift, epoch, blocked_column, blocked_bitmaps, slots, buckets)
        if blocked == first:
            for i in range(width):
                words[i] = bitmaps[at + i]
        else:
            for i in range(width):
                words[i] &= bitmaps[at + i]


@njit(cache=True)
def _gather(words: Any, width: int, entry_place: Any, base: int, spans: Any, n: int) -> int:
    """Write the entries whose bits are set in *words* as spans of one; return how many spans there are now."""
    for i in range(width):
        word = words[i]
        while word != 0:
            spans[n] = (entry_place[base + (i << 6) + _lowest_bit(word)] << _LENGTH_BITS) | 1
            n += 1
            word &= word - 1
    return n


@njit(cache=True)
def _pair_up(table: Any, seed: int, symbols: Any, equal: int, active: Any, n: int) -> int:
    """Activate the lists of all pairs of equalities that hold together."""
    mask = (table.size >> 1) - 1
    for i in range(equal):  # ask for all of them before looking at any
        for j in range(i + 1, equal):
            low, high = symbols[i], symbols[j]
            if low > high:
                low, high = high, low
            _prefetch(table, (mix((np.int64(low) << 31) | np.int64(high), seed) & mask) << 1)
    for i in range(equal):
        for j in range(i + 1, equal):
            low, high = symbols[i], symbols[j]
            if low > high:
                low, high = high, low
            key = (np.int64(low) << 31) | np.int64(high)
            at = mix(key, seed) & mask
            while table[at << 1] != _EMPTY:
                if table[at << 1] == key:
                    active[n] = table[(at << 1) + 1]
                    n += 1
                    break
                at = (at + 1) & mask
    return n


# numba wants plain numbers
_SEED_AT = _AT["seed"]
_COLUMN_ANCHOR_AT = _AT["column_anchor"]
_COLUMN_PREFIXES_AT = _AT["column_prefixes"]
_COLUMN_SUFFIXES_AT = _AT["column_suffixes"]
_COLUMN_SUBSTRINGS_AT = _AT["column_substrings"]
_STRING_TABLE_AT = _AT["string_table"]
_STRING_START_AT = _AT["string_start"]
_STRING_BYTES_AT = _AT["string_bytes"]
_SYMBOL_TABLE_AT = _AT["symbol_table"]
_PAIR_TABLE_AT = _AT["pair_table"]
_LISTS_AT = _AT["lists"]
_TRIE_KEY_AT = _AT["trie_key"]
_TRIE_NEXT_AT = _AT["trie_next"]
_TRIE_FAIL_AT = _AT["trie_fail"]
_TRIE_LINK_AT = _AT["trie_link"]
_TRIE_PATTERN_AT = _AT["trie_pattern"]
_PATTERN_ANCHOR_AT = _AT["pattern_anchor"]
_CODE_AT = _AT["code"]
_BLOCK_COLUMNS_AT = _AT["block_columns"]
_BLOCK_ENTRIES_AT = _AT["block_entries"]
_ENTRY_PLACE_AT = _AT["entry_place"]
_BLOCKED_COLUMN_AT = _AT["blocked_column"]
_BLOCK_SHIFT_AT = _AT["block_shift"]
_COLUMN_BOUNDS_AT = _AT["column_bounds"]
_BUCKETS_AT = _AT["buckets"]
_BLOCKED_BITMAPS_AT = _AT["blocked_bitmaps"]
_BOUNDS_AT = _AT["bounds"]
_BITMAPS_AT = _AT["bitmaps"]
_EPOCH_AT = _AT["epoch"]
_SLOTS_AT = _AT["slots"]
_PATTERN_EPOCH_AT = _AT["pattern_epoch"]
_SEEN_AT = _AT["seen"]
_ACTIVE_AT = _AT["active"]
_SYMBOLS_AT = _AT["symbols"]
_WORDS_AT = _AT["words"]
_SPANS_AT = _AT["spans"]
_DEAD_AT = _AT["dead"]
_ROW_START_AT = _AT["row_start"]
_COLUMN_AT = _AT["column"]
_KIND_AT = _AT["kind"]
_INTEGER_AT = _AT["integer"]
_REAL_AT = _AT["real"]
_TEXT_START_AT = _AT["text_start"]
_TEXT_END_AT = _AT["text_end"]
_TEXT_AT = _AT["text"]
_GIVEN_START_AT = _AT["given_start"]
_GIVEN_AT = _AT["given"]
_ROWS_AT = _AT["rows"]
_HANDLES_AT = _AT["handles"]
_DOUBTS_AT = _AT["doubts"]


@njit(cache=True, nogil=True)
def match_events(table: Any, row: int) -> tuple[int, int]:
    """Match from *row* on; return the row to go on with (with more room, if it is not the last) and the matches."""
    seeds = _int64s(table, _SEED_AT)
    column_anchor = _int32s(table, _COLUMN_ANCHOR_AT)
    column_prefixes = _int32s(table, _COLUMN_PREFIXES_AT)
    column_suffixes = _int32s(table, _COLUMN_SUFFIXES_AT)
    column_substrings = _int32s(table, _COLUMN_SUBSTRINGS_AT)
    string_table = _int32s(table, _STRING_TABLE_AT)
    string_start = _int64s(table, _STRING_START_AT)
    string_bytes = _uint8s(table, _STRING_BYTES_AT)
    symbol_table = _int64s(table, _SYMBOL_TABLE_AT)
    pair_table = _int64s(table, _PAIR_TABLE_AT)
    lists = _int64s(table, _LISTS_AT)
    trie_key = _int64s(table, _TRIE_KEY_AT)
    trie_next = _int32s(table, _TRIE_NEXT_AT)
    trie_fail = _int32s(table, _TRIE_FAIL_AT)
    trie_link = _int32s(table, _TRIE_LINK_AT)
    trie_pattern = _int32s(table, _TRIE_PATTERN_AT)
    pattern_anchor = _int32s(table, _PATTERN_ANCHOR_AT)
    code = _int64s(table, _CODE_AT)
    reals = _float64s(table, _CODE_AT)
    block_columns = _int32s(table, _BLOCK_COLUMNS_AT)
    block_entries = _int64s(table, _BLOCK_ENTRIES_AT)
    entry_place = _int64s(table, _ENTRY_PLACE_AT)
    blocked_column = _int32s(table, _BLOCKED_COLUMN_AT)
    block_shift = _int32s(table, _BLOCK_SHIFT_AT)
    column_bounds = _int64s(table, _COLUMN_BOUNDS_AT)
    buckets = _int64s(table, _BUCKETS_AT)
    blocked_bitmaps = _int64s(table, _BLOCKED_BITMAPS_AT)
    bounds = _float64s(table, _BOUNDS_AT)
    bitmaps = _int64s(table, _BITMAPS_AT)
    clock = _int64s(table, _EPOCH_AT)
    slots = _int64s(table, _SLOTS_AT)
    slot_reals = _float64s(table, _SLOTS_AT)
    pattern_epoch = _int64s(table, _PATTERN_EPOCH_AT)
    seen = _int64s(table, _SEEN_AT)
    active = _int32s(table, _ACTIVE_AT)
    symbols = _int32s(table, _SYMBOLS_AT)
    words = _int64s(table, _WORDS_AT)
    spans = _int64s(table, _SPANS_AT)
    dead = _uint8s(table, _DEAD_AT)
    row_start = _int64s(table, _ROW_START_AT)
    item_column = _int32s(table, _COLUMN_AT)
    item_kind = _uint8s(table, _KIND_AT)
    integer = _int64s(table, _INTEGER_AT)
    real = _float64s(table, _REAL_AT)
    text_start = _int64s(table, _TEXT_START_AT)
    text_end = _int64s(table, _TEXT_END_AT)
    text = _uint8s(table, _TEXT_AT)
    given_start = _int64s(table, _GIVEN_START_AT)
    given = _int32s(table, _GIVEN_AT)
    rows = _int32s(table, _ROWS_AT)
    handles = _int32s(table, _HANDLES_AT)
    doubts = _uint8s(table, _DOUBTS_AT)
    seed, epoch = seeds[0], clock[0]
    has_given = given_start.size > 0
    some_dead = dead[dead.size - 1] != 0  # else nobody need be looked up, each a line of the cache
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
                continue  # a name twice, or no type: the first counts; the buffers below have room for one each
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
                string = _find_string(string_table, string_start, string_bytes, text, start, end, seed)
                slots[slot + 2] = string
                if column_prefixes[column] >= 0:
                    n = _walk_end(
                        trie_key, trie_next, trie_pattern, seed, column_prefixes[column],
                        text, start, end, 1, epoch, pattern_epoch, pattern_anchor, active, n,
                    )  # fmt: skip
                if column_suffixes[column] >= 0:
                    n = _walk_end(
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
                        if number < 0:  # neither it nor its negation is true
                            pattern_epoch[~number] = -epoch
                        else:
                            n = _mark(number, epoch, pattern_epoch, pattern_anchor, active, n)
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
                    buckets[column] = _bucket(bounds, column_bounds[column], column_bounds[column + 1], number)
            else:
                continue
            symbol = _find_symbol(symbol_table, tagged, bits, seed)
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
        done = 0  # active lists whose entries were run
        for i in range(n):
            _prefetch(lists, np.int64(active[i]) << 2)
        for i in range(n):
            which = np.int64(active[i]) << 2
            block = lists[which + 2]
            if block < 0:
                _prefetch(code, lists[which])
                _prefetch(code, lists[which] + 8)
                continue
            width = (lists[which + 1] + 63) >> 6
            for blocked in range(block_columns[block], block_columns[block + 1]):
                _prefetch(
                    bitmaps,
                    _bitmap_place(
                        blocked, width, block_shift[block], epoch, blocked_column, blocked_bitmaps, slots, buckets
                    ),
                )
            _prefetch(entry_place, block_entries[block])
        while done < n:
            # First gather what is to be run, as spans of entries, asking the memory for each; then run it. Running
            # each as it is found would wait for each; the memory answers many at a time.
            gathered = 0
            while done < n:
                which = np.int64(active[done]) << 2
                at, length, block = lists[which], lists[which + 1], lists[which + 2]
                if gathered + (length if block >= 0 else 1) > spans.size:
                    break  # there is always room for the longest list alone
                done += 1
                if block < 0:
                    spans[gathered] = (at << _LENGTH_BITS) | length
                    gathered += 1
                    continue
                width = (length + 63) >> 6
                _intersect(
                    words, width, block_columns[block], block_columns[block + 1], block_shift[block], epoch,
                    blocked_column, blocked_bitmaps, bitmaps, slots, buckets,
                )  # fmt: skip
                before = gathered
                gathered = _gather(words, width, entry_place, block_entries[block], spans, gathered)
                for i in range(before, gathered):
                    _prefetch(code, spans[i] >> _LENGTH_BITS)
                    _prefetch(code, (spans[i] >> _LENGTH_BITS) + 8)
            at = np.int64(0)
            left = np.int64(0)
            span = 0
            while left > 0 or span < gathered:
                if left == 0:
                    at, left = spans[span] >> _LENGTH_BITS, spans[span] & _LENGTH_MASK
                    span += 1
                left -= 1
                header = code[at]
                leaves = (header >> 32) & 0xFFFF
                handle = header & 0xFFFFFFFF
                flags = (header >> 48) & 0xFFFF
                step = ACCEPT if leaves == 0 else 0
                while step < REJECT:  # the jump code: one leaf, then on to wherever its answer leads
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
    """Match one event, keeping Python's lock: the match takes microseconds, getting the lock back takes milliseconds.

    Beside a thread that repacks, a match that gave the lock up would wait five milliseconds for it, every time.
    """
    return match_events(table, 0)
