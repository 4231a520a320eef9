# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Tries of the patterns in filters, in one hash table of transitions, and the functions that walk them.

Each column (attribute) has a trie of prefixes, one of suffixes and one of substrings, as far as filters use them. Tries
of substrings have the failure links of Aho and Corasick (1975), so that one pass over a text finds all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.hash_table import EMPTY, find_row, free_row, mix, rows_for

__all__ = ["build_tries", "mark_pattern", "walk_end", "walk_through"]


@njit(cache=True, nogil=True)
def _insert(roots: Any, starts: Any, data: Any, reverse: Any, seed: int, n_roots: int) -> Any:
    """Insert every pattern below its root.

    Return the hash table of transitions (keys and next states); for each state its parent, byte, depth and root; and
    for each pattern the state in which it ends.
    """
    room = rows_for(data.size + 2)
    keys = np.full(room, EMPTY, np.int64)
    after = np.zeros(room, np.int32)
    states = data.size + n_roots + 1
    parent = np.full(states, -1, np.int32)
    byte = np.zeros(states, np.uint8)
    depth = np.zeros(states, np.int32)
    root_of = np.arange(states).astype(np.int32)
    ends = np.zeros(roots.size, np.int32)
    count = n_roots
    for p in range(roots.size):
        state = roots[p]
        length = starts[p + 1] - starts[p]
        for i in range(length):
            b = data[starts[p] + (length - 1 - i if reverse[p] else i)]
            key = (np.int64(state) << 8) | np.int64(b)
            at = find_row(keys, 0, mix(key, seed), key, EMPTY)
            if at == EMPTY:
                at = free_row(keys, 0, mix(key, seed))
                keys[at] = key
                after[at] = count
                parent[count] = state
                byte[count] = b
                depth[count] = depth[state] + 1
                root_of[count] = roots[p]
                count += 1
            state = after[at]
        ends[p] = state
    return keys, after, parent[:count], byte[:count], depth[:count], root_of[:count], ends


@njit(cache=True, nogil=True)
def _link(keys: Any, after: Any, parent: Any, byte: Any, order: Any, root_of: Any, pattern: Any, seed: int) -> Any:
    """Return each state's failure link, and its link to the next shorter pattern that ends there (or -1).

    *order* lists the states with the shallow ones first.
    """
    fail = np.zeros(parent.size, np.int32)
    link = np.full(parent.size, -1, np.int32)
    for i in range(order.size):
        state = order[i]
        root = root_of[state]
        if parent[state] < 0:
            fail[state] = state
            continue
        back = parent[state]
        found = root
        while back != root:
            back = fail[back]
            step = _step(keys, after, back, byte[state], seed)
            if step >= 0:
                found = step
                break
        fail[state] = found
        link[state] = found if pattern[found] >= 0 else link[found]
    return fail, link


def build_tries(patterns: Sequence[tuple[int, bytes, bool]], roots: int, seed: int) -> dict[str, Any]:
    """Build the tries of *patterns* (root, bytes, read backwards); the roots are the states 0 to *roots* - 1.

    ``pattern`` in the result has the number of the pattern that ends in each state. Patterns of one root must be
    distinct.
    """
    starts = np.zeros(len(patterns) + 1, np.int64)
    np.cumsum([len(text) for _, text, _ in patterns], out=starts[1:])
    data = np.frombuffer(b"".join(text for _, text, _ in patterns) or b"\0", np.uint8)
    root = np.array([root for root, _, _ in patterns] or [0], np.int32)[: len(patterns)]
    reverse = np.array([backwards for _, _, backwards in patterns] or [False])[: len(patterns)]
    keys, after, parent, byte, depth, root_of, ends = _insert(root, starts, data, reverse, seed, roots)
    pattern = np.full(parent.size, -1, np.int32)
    pattern[ends] = np.arange(len(patterns), dtype=np.int32)
    order = np.argsort(depth, kind="stable").astype(np.int32)
    fail, link = _link(keys, after, parent, byte, order, root_of, pattern, seed)
    return {"key": keys, "next": after, "fail": fail, "link": link, "pattern": pattern}


@njit(cache=True)
def _step(keys: Any, after: Any, state: int, byte: int, seed: int) -> int:
    """Return the state that follows *state* after *byte*, or -1 if the trie has no such transition."""
    key = (np.int64(state) << 8) | np.int64(byte)
    at = find_row(keys, 0, mix(key, seed), key, EMPTY)
    return after[at] if at >= 0 else -1


@njit(cache=True)
def mark_pattern(number: int, epoch: int, pattern_epoch: Any, pattern_anchor: Any, active: Any, n: int) -> int:
    """Mark a pattern as found in this event, and append the list of entries that it leads to, if any, to *active*.

    Return the new length of *active*.
    """
    if number >= 0 and pattern_epoch[number] != epoch:
        pattern_epoch[number] = epoch
        if pattern_anchor[number] >= 0:
            active[n] = pattern_anchor[number]
            n += 1
    return n


@njit(cache=True)
def walk_end(
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
    """Walk from *state* along a string and mark the patterns that are its prefixes; read backwards, its suffixes."""
    n = mark_pattern(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
    for i in range(begin, stop, step):
        state = _step(keys, after, state, data[i], seed)
        if state < 0:
            break
        n = mark_pattern(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
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

    Marking a pattern also marks the shorter patterns that are its suffixes. So the walk along the suffix links stops at
    the first marked pattern. Every step along them, except the last of each byte, marks a pattern. The time is
    therefore linear in the length of the string plus the number of patterns found.
    """
    state = root
    n = mark_pattern(pattern[state], epoch, pattern_epoch, pattern_anchor, active, n)
    for i in range(begin, stop):
        found = _step(keys, after, state, data[i], seed)
        while found < 0 and state != root:
            state = fail[state]
            found = _step(keys, after, state, data[i], seed)
        state = found if found >= 0 else root
        ending = state if pattern[state] >= 0 else link[state]
        while ending >= 0 and pattern_epoch[pattern[ending]] != epoch:
            n = mark_pattern(pattern[ending], epoch, pattern_epoch, pattern_anchor, active, n)
            ending = link[ending]
    return n
