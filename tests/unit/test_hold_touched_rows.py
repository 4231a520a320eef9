"""Touched rows: what a store is told of a view that changed."""

from __future__ import annotations

import cbor2

from whimbrel.hold.touched_rows import Key, TouchedRows

ROWS = {"a": 1, "b": 2, "c": 3}
TABLE = {"letter": ROWS.get}


def _touched(*names: str) -> TouchedRows:
    touched = TouchedRows(TABLE)
    for name in names:
        touched.touch(("letter", name))
    return touched


def test_a_row_that_has_gone_is_dropped() -> None:
    """A store that kept it would restore what ended."""
    assert _touched("a", "z").rows() == ({("letter", "a"): cbor2.dumps(1)}, {("letter", "z")})


def test_changes_are_told_until_they_are_taken() -> None:
    """A commit that fails is tried again with the same rows."""
    touched = _touched("a", "z")
    assert touched.rows() == touched.rows() == touched.take()
    assert touched.rows() == ({}, set())


def test_taken_in_parts_they_are_the_same_rows() -> None:
    """A long write is cut into turns of the event loop."""
    touched = _touched("a", "b", "c", "z")
    put, drop = dict[Key, bytes](), set[Key]()
    while touched:
        some, gone = touched.take_some(3)
        assert len(some) + len(gone) <= 3
        put |= some
        drop |= gone
    assert (put, drop) == _touched("a", "b", "c", "z").take()


def test_touching_continues_after_everything_was_touched() -> None:
    """The method that hot paths keep stays that of the same set."""
    touched = _touched("a")
    touch = touched.touch
    touched.touch_only([("letter", "b")])
    touch(("letter", "c"))
    assert set(touched) == {("letter", "b"), ("letter", "c")}
