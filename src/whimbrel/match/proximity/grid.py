# mypy: disable-error-code="no-any-return, no-untyped-call, misc, assignment, index, operator"
# (numba infers the types inside a kernel; mypy cannot know them)
"""The grid: balls in space, found by a point inside them; and points (balls of size 0), found by a ball around them.

Space around the Earth's centre is divided into cubes with edges of 32 metres, 64 metres, and so on up to 8,000 km. An
entry is in the cube of its centre, in the first size that is at least its radius. A search looks at the cubes within
reach, for each size in use. If these are more than the cubes that hold anything, the search looks at all the latter.
In space, unlike in degrees, neither the poles nor the antimeridian are special.
Rule: the result holds every entry whose centre is within the entry's own radius of the point, or within the radius of
the search. Both are lengths of chords (straight lines through the Earth). The result may hold more; the caller decides.
Rule: the entries of a cube lie side by side in one block of ``pool``, so that a search reads memory in order. A cube
that grows moves to a larger block, and its old block is reused.
Rule: if the arrays are full, a kernel stops at the entry that does not fit and returns its index. ``Grid`` then makes
larger arrays and continues from there.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.proximity.ground import POLE_RADIUS_M
from whimbrel.match.proximity.words import address, prefetch, real, set_real, set_word, word
from whimbrel.model.place import EQUATOR_RADIUS_M

__all__ = ["LEVELS", "POINT_LEVEL", "Grid", "level_of", "levels_of", "prefetch_entry", "prefetch_row", "put", "search"]

LEVELS = 19
"""Number of cube sizes: 32 m · 2^level."""
POINT_LEVEL = 3
"""Level (cube size) for points: edges of 256 m, the size of a few streets."""
_LEAST_M = 32.0
_AXIS_BITS = 19
_AXIS = (1 << _AXIS_BITS) - 1
_OFFSET = 1 << (_AXIS_BITS - 1)
_EMPTY = -1
_LEAST_ROOM = 2
_MANY = 64
"""Number of cubes within reach above which cubes without any of the Earth's surface are skipped."""
_PRIME, _OTHER_PRIME = 0x3F58476D1CE4E5B9, 0x14D049BB133111EB

# The head of a grid: numbers, then addresses, then the first free block of 2, 4, 8 … entries.
_SEED, _USED_CUBES, _USED_POOL, _LEVELS_IN_USE, _SLOTS, _POOL_ROOM = range(6)
_CUBES, _POOL, _OWNERS, _ROWS, _HOMES, _REACH = range(6, 12)
_FREE, _HEAD = 12, 12 + 40
# The fields of a cube: its key, and first row, number of entries and size of its block. A row is x, y, z and radius.
_KEY, _BEGIN, _COUNT, _ROOM, _CUBE = range(5)
_ROW = 4


def level_of(radius_m: float) -> int:
    """Return the level (class of cube sizes) for a ball of *radius_m*.

    It is the smallest whose edge is at least as long, or the largest if none is.
    """
    level = 0
    while level < LEVELS - 1 and _LEAST_M * (1 << level) < radius_m:
        level += 1
    return level


def levels_of(radii: Any) -> Any:
    """Return the level (class of cube sizes) for each radius, as ``level_of`` does."""
    return np.searchsorted(_LEAST_M * 2.0 ** np.arange(LEVELS - 1), radii, side="left").astype(np.int64)


@njit(cache=True)
def _edge_m(level: Any) -> Any:
    return _LEAST_M * (1 << level)


@njit(cache=True)
def _key(level: Any, i: Any, j: Any, k: Any) -> Any:
    packed = ((i + _OFFSET) & _AXIS) << _AXIS_BITS | ((j + _OFFSET) & _AXIS)
    return (level << _AXIS_BITS | ((k + _OFFSET) & _AXIS)) << (2 * _AXIS_BITS) | packed


@njit(cache=True)
def _key_of(level: Any, x: Any, y: Any, z: Any) -> Any:
    edge = _edge_m(level)
    return _key(level, math.floor(x / edge), math.floor(y / edge), math.floor(z / edge))


@njit(cache=True)
def _slot(c: Any, key: Any) -> Any:
    """Return the slot of the cube with *key* in the hash table, or the empty slot where it belongs."""
    cubes, mask = word(c, _CUBES), word(c, _SLOTS) - 1
    mixed = key ^ word(c, _SEED)
    # All bits of the key must reach the low bits: neighbours differ in a few bits of each coordinate, high and low.
    mixed = (mixed ^ (mixed >> 30)) * _PRIME
    mixed = (mixed ^ (mixed >> 27)) * _OTHER_PRIME
    at = (mixed ^ (mixed >> 31)) & mask
    while True:
        found = word(cubes, _CUBE * at + _KEY)
        if found in (key, _EMPTY):
            return at
        at = (at + 1) & mask


@njit(cache=True)
def _free_list(room: Any) -> Any:
    number = 0
    while _LEAST_ROOM << number < room:
        number += 1
    return _FREE + number


@njit(cache=True)
def _take_room(c: Any, room: Any) -> Any:
    """Allocate a block for *room* entries in the pool (array of all entries).

    Return its first row, or -1 if it is full.
    """
    free = _free_list(room)
    begin = word(c, free)
    if begin != _EMPTY:
        set_word(c, free, word(word(c, _OWNERS), begin))
        return begin
    begin = word(c, _USED_POOL)
    if begin + room > word(c, _POOL_ROOM):
        return -1
    set_word(c, _USED_POOL, begin + room)
    return begin


@njit(cache=True)
def _write(c: Any, row: Any, x: Any, y: Any, z: Any, radius: Any) -> Any:
    pool = word(c, _POOL)
    set_real(pool, _ROW * row, x)
    set_real(pool, _ROW * row + 1, y)
    set_real(pool, _ROW * row + 2, z)
    set_real(pool, _ROW * row + 3, radius)


@njit(cache=True)
def _copy(c: Any, source: Any, target: Any) -> Any:
    """Move an entry to another row of the pool (the array of all entries)."""
    pool, owner = word(c, _POOL), word(word(c, _OWNERS), source)
    for column in range(_ROW):
        set_real(pool, _ROW * target + column, real(pool, _ROW * source + column))
    set_word(word(c, _OWNERS), target, owner)
    set_word(word(c, _ROWS), owner, target)


@njit(cache=True)
def _begin(c: Any, cube: Any, key: Any) -> Any:
    """Turn an empty slot of the hash table into a cube with *key*; return False if the table or the pool is full."""
    if 2 * (word(c, _USED_CUBES) + 1) > word(c, _SLOTS):
        return False
    begin = _take_room(c, _LEAST_ROOM)
    if begin < 0:
        return False
    set_word(c, _USED_CUBES, word(c, _USED_CUBES) + 1)
    own = word(c, _CUBES) + 8 * _CUBE * cube
    set_word(own, _KEY, key)
    set_word(own, _BEGIN, begin)
    set_word(own, _COUNT, 0)
    set_word(own, _ROOM, _LEAST_ROOM)
    return True


@njit(cache=True)
def _widen(c: Any, own: Any) -> Any:
    """Move a cube to a block (its rows in the pool) of twice the size; return False if the pool is full."""
    old, room = word(own, _BEGIN), word(own, _ROOM)
    begin = _take_room(c, 2 * room)
    if begin < 0:
        return False
    for n in range(word(own, _COUNT)):
        _copy(c, old + n, begin + n)
    free = _free_list(room)
    set_word(word(c, _OWNERS), old, word(c, free))
    set_word(c, free, old)
    set_word(own, _BEGIN, begin)
    set_word(own, _ROOM, 2 * room)
    return True


@njit(cache=True)
def _take_out(c: Any, entry: Any) -> Any:
    """Remove an entry from its cube; the cube's last entry moves to the freed row."""
    row, cube = word(word(c, _ROWS), entry), word(word(c, _HOMES), entry)
    own = word(c, _CUBES) + 8 * _CUBE * cube
    count = word(own, _COUNT) - 1
    set_word(own, _COUNT, count)
    last = word(own, _BEGIN) + count
    if last != row:
        _copy(c, last, row)
    set_word(word(c, _ROWS), entry, _EMPTY)


@njit(cache=True)
def put(c: Any, entry: Any, level: Any, x: Any, y: Any, z: Any, radius: Any) -> Any:
    """Insert or move an entry; return False if the arrays are full, and then the entry is in no cube."""
    row = word(word(c, _ROWS), entry)
    key = _key_of(level, x, y, z)
    reach = word(c, _REACH)
    if radius > real(reach, level):
        set_real(reach, level, radius)
    if row >= 0:
        if word(word(c, _CUBES), _CUBE * word(word(c, _HOMES), entry) + _KEY) == key:
            _write(c, row, x, y, z, radius)
            return True
        _take_out(c, entry)
    cube = _slot(c, key)
    own = word(c, _CUBES) + 8 * _CUBE * cube
    if word(own, _KEY) == _EMPTY and not _begin(c, cube, key):
        return False
    if word(own, _COUNT) == word(own, _ROOM) and not _widen(c, own):
        return False
    row = word(own, _BEGIN) + word(own, _COUNT)
    set_word(own, _COUNT, word(own, _COUNT) + 1)
    _write(c, row, x, y, z, radius)
    set_word(word(c, _OWNERS), row, entry)
    set_word(word(c, _ROWS), entry, row)
    set_word(word(c, _HOMES), entry, cube)
    set_word(c, _LEVELS_IN_USE, word(c, _LEVELS_IN_USE) | 1 << level)
    return True


@njit(cache=True)
def _put_many(c: Any, count: Any, entries: Any, levels: Any, points: Any, radii: Any, begin: Any) -> Any:
    for n in range(begin, count):
        x, y, z = real(points, 3 * n), real(points, 3 * n + 1), real(points, 3 * n + 2)
        if not put(c, word(entries, n), word(levels, n), x, y, z, real(radii, n)):
            return n
    return count


@njit(cache=True)
def _drop_many(c: Any, count: Any, entries: Any) -> Any:
    for n in range(count):
        if word(word(c, _ROWS), word(entries, n)) >= 0:
            _take_out(c, word(entries, n))


@njit(cache=True)
def prefetch_entry(c: Any, entry: Any) -> Any:
    """Prefetch the memory that ``put`` reads first for an entry."""
    prefetch(word(c, _ROWS), entry)
    prefetch(word(c, _HOMES), entry)


@njit(cache=True)
def prefetch_row(c: Any, entry: Any) -> Any:
    """Prefetch the row and the cube of an entry, which ``put`` reads after the memory of ``prefetch_entry``."""
    row = word(word(c, _ROWS), entry)
    if row >= 0:
        prefetch(word(c, _POOL), _ROW * row)
        prefetch(word(c, _CUBES), _CUBE * word(word(c, _HOMES), entry))


@njit(cache=True)
def _look(c: Any, cube: Any, x: Any, y: Any, z: Any, asked: Any, found: Any, room: Any, n: Any) -> Any:
    """Append the entries of a cube that are within reach to *found*, with squared distances; return their number.

    Entries beyond *room* are counted and not written.
    """
    pool, owners = word(c, _POOL), word(c, _OWNERS)
    begin = word(word(c, _CUBES), _CUBE * cube + _BEGIN)
    for row in range(begin, begin + word(word(c, _CUBES), _CUBE * cube + _COUNT)):
        dx, dy, dz = real(pool, _ROW * row) - x, real(pool, _ROW * row + 1) - y, real(pool, _ROW * row + 2) - z
        limit = max(real(pool, _ROW * row + 3), asked)
        away = dx * dx + dy * dy + dz * dz
        if away <= limit * limit:
            if n < room:
                set_word(found, n, word(owners, row))
                set_real(found, room + n, away)
            n += 1
    return n


@njit(cache=True)
def _look_everywhere(
    c: Any, level: Any, x: Any, y: Any, z: Any, reach: Any, asked: Any, found: Any, room: Any, n: Any
) -> Any:
    """Search all cubes of one size (*level*) within *reach* for entries, by a walk over the whole hash table."""
    edge = _edge_m(level)
    for cube in range(word(c, _SLOTS)):
        key = word(word(c, _CUBES), _CUBE * cube + _KEY)
        if key == _EMPTY or key >> (3 * _AXIS_BITS) != level:
            continue
        x0 = (((key >> _AXIS_BITS) & _AXIS) - _OFFSET) * edge
        y0 = ((key & _AXIS) - _OFFSET) * edge
        z0 = (((key >> (2 * _AXIS_BITS)) & _AXIS) - _OFFSET) * edge
        dx, dy, dz = max(x0 - x, x - x0 - edge, 0.0), max(y0 - y, y - y0 - edge, 0.0), max(z0 - z, z - z0 - edge, 0.0)
        if dx * dx + dy * dy + dz * dz <= reach * reach:
            n = _look(c, cube, x, y, z, asked, found, room, n)
    return n


@njit(cache=True)
def _look_up_column(
    c: Any,
    level: Any,
    i: Any,
    j: Any,
    first: Any,
    last: Any,
    x: Any,
    y: Any,
    z: Any,
    asked: Any,
    found: Any,
    room: Any,
    n: Any,
) -> Any:
    """Search the cubes of one column (equal i and j; k from *first* to *last*) for entries within reach."""
    for k in range(first, last + 1):
        cube = _slot(c, _key(level, i, j, k))
        if word(word(c, _CUBES), _CUBE * cube + _KEY) != _EMPTY:
            n = _look(c, cube, x, y, z, asked, found, room, n)
    return n


@njit(cache=True)
def _ground(low: Any, high: Any) -> Any:
    """Return the largest and smallest distance of the Earth's surface from the equator's plane, in a column of cubes.

    *low* and *high* are the least and the greatest squared distance of the column from the Earth's axis, in square
    metres. Return (-1, -1) if the surface does not pass through the column.
    """
    inner, outer = low / (EQUATOR_RADIUS_M * EQUATOR_RADIUS_M), high / (EQUATOR_RADIUS_M * EQUATOR_RADIUS_M)
    if inner > 1.0 + 1e-9:
        return -1.0, -1.0
    return POLE_RADIUS_M * math.sqrt(max(0.0, 1 - inner)) + 1, POLE_RADIUS_M * math.sqrt(max(0.0, 1 - outer)) - 1


@njit(cache=True)
def search(c: Any, x: Any, y: Any, z: Any, asked: Any, found: Any, room: Any) -> Any:
    """Write the numbers of the entries within reach of a point to *found*.

    An entry is within reach if the point is at most *asked* metres, or the entry's own radius, from its centre. *found*
    has space for *room* entry numbers, followed by *room* squared distances. Return the number of entries; if it
    exceeds *room*, only the first *room* of them are written.
    """
    n, levels = 0, word(c, _LEVELS_IN_USE)
    for level in range(LEVELS):
        if not levels >> level & 1:
            continue
        edge, reach = _edge_m(level), max(real(word(c, _REACH), level), asked)
        width = 2 * reach / edge + 2
        if width * width > 4 * word(c, _SLOTS):
            n = _look_everywhere(c, level, x, y, z, reach, asked, found, room, n)
            continue
        low_i, high_i = math.floor((x - reach) / edge), math.floor((x + reach) / edge)
        low_j, high_j = math.floor((y - reach) / edge), math.floor((y + reach) / edge)
        low_k, high_k = math.floor((z - reach) / edge), math.floor((z + reach) / edge)
        is_wide = (high_i - low_i + 1) * (high_j - low_j + 1) * (high_k - low_k + 1) > _MANY
        for i in range(low_i, high_i + 1):
            for j in range(low_j, high_j + 1):
                if not is_wide:
                    n = _look_up_column(c, level, i, j, low_k, high_k, x, y, z, asked, found, room, n)
                    continue
                x0, y0 = i * edge, j * edge
                near_x, near_y = max(x0, -x0 - edge, 0.0), max(y0, -y0 - edge, 0.0)
                far_x, far_y = max(abs(x0), abs(x0 + edge)), max(abs(y0), abs(y0 + edge))
                most, least = _ground(near_x * near_x + near_y * near_y, far_x * far_x + far_y * far_y)
                if most < 0:
                    continue
                top, bottom = math.floor(most / edge), math.floor(least / edge)
                first, last = max(low_k, bottom), min(high_k, top)
                n = _look_up_column(c, level, i, j, first, last, x, y, z, asked, found, room, n)
                # The southern ground, without the cubes that the northern part has searched.
                first, last = max(low_k, -top - 1), min(high_k, -bottom, bottom - 1)
                n = _look_up_column(c, level, i, j, first, last, x, y, z, asked, found, room, n)
    return n


class Grid:
    """Balls and points (entries) in space, by number. The caller assigns the numbers, which should be small and reused.

    ``head`` is the address by which kernels find the grid; it never changes.
    """

    def __init__(self, *, room: int = 0) -> None:
        """Make an empty grid; up to *room* entries fit before it must be rebuilt."""
        self._words = np.full(_HEAD, _EMPTY, np.int64)
        self._words[_SEED] = random.SystemRandom().getrandbits(60)  # no device can aim places at one slot of the hash
        self._rows, self._homes = np.full(64, _EMPTY, np.int64), np.zeros(64, np.int64)
        self._clear(cubes=_power(2 * room + 256), pool=4 * room + 1_024)
        self.head = address(self._words)

    def _clear(self, *, cubes: int, pool: int) -> None:
        self._words[_USED_CUBES : _LEVELS_IN_USE + 1] = 0
        self._words[_SLOTS], self._words[_POOL_ROOM], self._words[_FREE:] = cubes, pool, _EMPTY
        self._cubes = np.full((cubes, _CUBE), _EMPTY, np.int64)
        self._pool, self._owners = np.zeros((pool, _ROW), np.float64), np.zeros(pool, np.int64)
        self._reach = np.zeros(LEVELS, np.float64)
        self._rows[:] = _EMPTY
        self._write_addresses()

    def _write_addresses(self) -> None:
        arrays = (self._cubes, self._pool, self._owners, self._rows, self._homes, self._reach)
        self._words[_CUBES : _REACH + 1] = [address(array) for array in arrays]

    def __len__(self) -> int:
        return int((self._rows >= 0).sum())

    def put_many(self, entries: Any, levels: Any, points: Any, radii: Any) -> None:
        """Insert or move *entries*, given each one's level (cube size), centre and radius as arrays."""
        if entries.size == 0:
            return
        self.make_room(int(entries.max()) + 1)
        given = np.ascontiguousarray(entries, np.int64), np.ascontiguousarray(levels, np.int64)
        balls = np.ascontiguousarray(points, np.float64), np.ascontiguousarray(radii, np.float64)
        where = (address(given[0]), address(given[1]), address(balls[0]), address(balls[1]))
        done = 0
        while (done := _put_many(self.head, entries.size, *where, done)) < entries.size:
            self.rebuild()

    def drop_many(self, entries: Any) -> None:
        """Remove entries; missing ones are ignored."""
        known = np.ascontiguousarray(entries[entries < self._rows.size], np.int64)
        _drop_many(self.head, known.size, address(known))

    def make_room(self, entries: int) -> None:
        """Make room in the tables for all entry numbers below *entries*."""
        if entries > self._rows.size:
            more = max(entries, 2 * self._rows.size) - self._rows.size
            self._rows = np.concatenate([self._rows, np.full(more, _EMPTY, np.int64)])
            self._homes = np.concatenate([self._homes, np.zeros(more, np.int64)])
            self._write_addresses()

    def rebuild(self) -> None:
        """Insert all entries into new arrays, with space for twice as many; empty cubes disappear."""
        entries = np.flatnonzero(self._rows >= 0)
        entries = entries[np.argsort(self._homes[entries], kind="stable")]
        homes, rows = self._homes[entries], self._rows[entries]
        levels, used = self._cubes[homes, _KEY] >> (3 * _AXIS_BITS), int(np.unique(homes).size)
        points, radii = np.ascontiguousarray(self._pool[rows, :3]), np.ascontiguousarray(self._pool[rows, 3])
        cubes, pool = _power(4 * used + 256), 5 * entries.size // 2 + 3 * used + 1_024
        where = (address(entries), address(levels), address(points), address(radii))
        while True:
            self._clear(cubes=cubes, pool=pool)
            if _put_many(self.head, entries.size, *where, 0) == entries.size:
                return
            cubes, pool = 2 * cubes, 2 * pool

    @property
    def size_bytes(self) -> int:
        """Memory of the grid, in bytes."""
        arrays = (self._cubes, self._pool, self._owners, self._rows, self._homes)
        return sum(int(array.nbytes) for array in arrays)


def _power(least: int) -> int:
    """Return the smallest power of two that is at least *least*."""
    return 1 << max(0, least - 1).bit_length()
