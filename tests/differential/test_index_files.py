"""Files of packed indexes from anywhere: whatever their numbers say, they are refused or can be matched against.

A checksum does not help against whoever can compute one, so all of these files have the right ones.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.match.index import packing
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.damage import CorruptIndexError
from whimbrel.match.kernels.arrays import PackedArrays
from whimbrel.match.matcher import Interest, Matcher

FILTERS = (
    *(f"a == {i % 3} && b == 'x{i % 4}' && c > {i}" for i in range(70)),
    *(f"c > {i} && c < {2 * i} && d <= {i}.5" for i in range(90)),
    "contains(b, 'abc', 'bc', 'c') && !contains(b, 'cab')",
    "begins-with(b, 'x') || ends-with(b, 'y', 'xy')",
    "regex(b, 'x+') ^^ fold-case(b) == 'xy'",
    "size(b) > 2 && require(a)",
    "nan(d) || int32(a) || !string(b)",
    "a + 1 == c",
    "equals(a, 1, 2, 'x')",
    "!require(a)",
)
EVENTS: tuple[dict[str, Any], ...] = (
    {"a": 1, "b": "x1", "c": 60, "d": 3.5},
    {"a": 2, "b": "xabcaby", "c": 7.5, "d": float("nan")},
    {"a": "x", "b": "", "c": 2**40, "d": -1},
    {"b": "xxxy" * 9, "c": 41},
    {},
)
_START, _ALIGNMENT = 24, 64


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    """Return the header and the arrays of a matcher in which everything occurs."""
    path = tmp_path_factory.mktemp("index") / "file"
    interests = [(str(i), Interest(filter_text=text)) for i, text in enumerate(FILTERS)]
    interests += [("all", Interest()), ("topic", Interest(subject_filter="s/+"))]
    interests += [("both", Interest(filter_text="a == 1", subject_filter="s/+/#"))]
    interests += [("deep", Interest(filter_text="a == 1", subject_filter="a/b/c/d/e/f/g/h/+"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BLOCK_ABOVE", 4)
        Matcher.load(interests).save(path)
    return _parts(path.read_bytes())


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[_START : _START + 8], "little")
    header = json.loads(data[_START + 16 : _START + 16 + length])
    begin = -(-(_START + 16 + length) // _ALIGNMENT) * _ALIGNMENT
    return header, data[begin:]


def _write(path: Path, header: dict[str, Any], arrays: bytes) -> None:
    """Write a file with the right checksums."""
    text = json.dumps({**header, "crc32": zlib.crc32(arrays)}).encode()
    head = (
        b"whimbrel packed index 3\n" + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little") + text
    )
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + arrays)


def _changed(header: dict[str, Any], arrays: bytes, name: str, change: Callable[[Any], None]) -> bytes:
    place, data = header["arrays"][name], bytearray(arrays)
    change(np.frombuffer(data, place["dtype"], count=place["size"], offset=place["at"]))
    return bytes(data)


def _survives(path: Path) -> bool:
    """Match everything against the file at *path*; return whether it was taken. A signal would end the test run.

    The texts of filters are not parsed when a file is mapped; one that is none may be found out by a match.
    """
    try:
        matcher, _ = Matcher.map(path)
    except CorruptIndexError:
        return False
    with suppress(FilterError, InvalidValueError):
        for event in EVENTS:
            matcher.match_parts("s/1", event)
        rows, handles = matcher.match_batch(["s/1/2"] * len(EVENTS), EVENTS)
        assert rows.size == handles.size
    return True


def test_the_file_as_it_was_written_is_taken(tmp_path: Path, saved: tuple[dict[str, Any], bytes]) -> None:
    """And everything occurs in it: else the tests below would look at nothing."""
    header, arrays = saved
    assert all(header["arrays"][name]["size"] for name in PackedArrays._fields), header["arrays"]
    _write(tmp_path / "file", header, arrays)
    assert _survives(tmp_path / "file")
    matcher, _ = Matcher.map(tmp_path / "file")
    plain = Matcher.load([(str(i), Interest(filter_text=text)) for i, text in enumerate(FILTERS)])
    for event in EVENTS:
        found = {matcher.id_of(handle) for handle in matcher.match_parts(None, event)} - {"all"}
        assert found == {plain.id_of(handle) for handle in plain.match_parts(None, event)}


_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 63, 255, 2**16, 2**24, 2**31 - 1, 2**40, 2**63 - 1)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_changed_numbers_are_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, saved: tuple[dict[str, Any], bytes], seed: int
) -> None:
    """One to three numbers of any arrays are others: larger, smaller, exchanged, or off by a bit."""
    header, arrays = saved
    random, path = Random(seed), tmp_path_factory.getbasetemp() / "changed"
    for _ in range(random.randint(1, 3)):
        name = random.choice([each for each, place in header["arrays"].items() if place["size"]])
        arrays = _changed(header, arrays, name, lambda array: _damage(array, random))
    _write(path, header, arrays)
    _survives(path)


def _damage(array: Any, random: Random) -> None:
    at, how = random.randrange(array.size), random.choice(["number", "bit", "neighbour", "more", "less"])
    bits = array.view(f"u{array.itemsize}")
    found, mask = int(bits[at]), (1 << 8 * array.itemsize) - 1
    changed = {
        "number": random.choice(_NUMBERS),
        "bit": found ^ 1 << random.randrange(8 * array.itemsize),
        "neighbour": int(bits[random.randrange(array.size)]),
        "more": found + 1,
        "less": found - 1,
    }
    bits[at] = changed[how] & mask


@pytest.mark.parametrize("seed", range(4))
def test_arrays_of_noise_are_refused_or_harmless(
    tmp_path: Path, saved: tuple[dict[str, Any], bytes], seed: int
) -> None:
    """Each array in turn is filled with numbers that could be places in it, or with anything."""
    header, arrays = saved
    random = np.random.default_rng(seed)
    for name, place in header["arrays"].items():
        most = max(2, place["size"]) if seed % 2 else 120

        def fill(array: Any, most: int = most) -> None:
            array[:] = random.integers(-1, most, array.size).astype(array.dtype)

        _write(tmp_path / "noise", header, _changed(header, arrays, name, fill))
        _survives(tmp_path / "noise")


def _some_number(random: Random, number: int) -> object:
    return random.choice([*_NUMBERS, number + 1, number - 1, number * 2, number // 2, 1.5, None, "1", True, [number]])


@pytest.mark.parametrize("seed", range(300))
def test_changed_headers_are_refused_or_harmless(
    tmp_path: Path, saved: tuple[dict[str, Any], bytes], seed: int
) -> None:
    """Sizes, places, types, counts, columns and patterns that are others than they were."""
    original, arrays = saved
    random, header = Random(seed), json.loads(json.dumps(original))
    name = random.choice(list(header["arrays"]))
    match seed % 6:
        case 0:
            key = random.choice(["size", "at"])
            header["arrays"][name][key] = _some_number(random, header["arrays"][name][key])
        case 1:
            header["arrays"][name]["dtype"] = random.choice(
                ["<i4", "<i8", "|u1", "<f8", "|O", ">i8", "<i4,<i4", "?", 7]
            )
        case 2:
            header["handles"] = _some_number(random, header["handles"])
        case 3:
            header["arrays"][name] = header["arrays"][random.choice(list(header["arrays"]))]
        case 4:
            key = random.choice(["columns", "patterns"])
            at = random.randrange(len(header[key]))
            changed = [header[key][:at], [*header[key], header[key][at]], [[_some_number(random, 1)], *header[key][1:]]]
            header[key] = random.choice(changed)
        case _:
            del header["arrays"][name]
    _write(tmp_path / "header", header, arrays)
    _survives(tmp_path / "header")


BOUNDS = {
    "a list that begins beyond the code": ("lists", 0, 2**40),
    "a list of too many entries": ("lists", 1, 2**23),
    "a block that is not there": ("lists", 2, 2**20),
    "an entry of too many leaves": ("code", 0, 0xFFFF << 32),
    "an anchor that is no list": ("column_anchor", 0, 2**30),
    "a string that ends beyond the bytes": ("string_start", -1, 2**40),
    "a string that is not there": ("string_table", 0, 2**30),
    "a state that is not there": ("trie_fail", -1, 2**30),
    "a pattern that is not there": ("trie_pattern", -1, 2**30),
    "bounds beyond their end": ("column_bounds", -1, 2**40),
    "bitmaps beyond their end": ("blocked_bitmaps", -1, 2**40),
    "a column that is not there": ("blocked_column", 0, 2**30),
    "columns of a block beyond their end": ("block_columns", -1, 2**30),
    "entries of a block beyond their end": ("block_entries", -1, 2**40),
    "a place that is no entry": ("entry_place", 0, 2**40),
    "bits beyond the last entry": ("bitmaps", slice(None), -1),
    "a hash table without an end": ("symbol_table", slice(0, None, 4), 1),
}


@pytest.mark.parametrize(("name", "at", "number"), BOUNDS.values(), ids=BOUNDS)
def test_bounds_that_do_not_fit_their_arrays_are_refused(
    tmp_path: Path, saved: tuple[dict[str, Any], bytes], name: str, at: Any, number: int
) -> None:
    """Before the first match, with what to do about it."""

    def put(array: Any) -> None:
        array[at] = number

    _write(tmp_path / "file", saved[0], _changed(*saved, name, put))
    for opened in (Matcher.map, ContentIndex.map):
        with pytest.raises(CorruptIndexError, match="build the index anew"):
            opened(tmp_path / "file")


def test_an_index_is_no_matcher(tmp_path: Path) -> None:
    """It has no ids, and must say so."""
    ContentIndex.load([(1, "a == 1")]).save(tmp_path / "file")
    assert ContentIndex.map(tmp_path / "file").match({"a": 1}) == [1]
    with pytest.raises(CorruptIndexError, match="not a matcher"):
        Matcher.map(tmp_path / "file")
