"""The interface of stores: rows under keys, and how much of the log they are the view of.

Rule: rows and ``applied`` change together or not at all, so that a hold made of the rows goes on with the next fact.
Rule: a store is a view. Whatever is wrong with it, the remedy is to replay the log, as far as the log still reaches.
Rule: keys are ordered: by kind, then part by part; None before texts (by code point) before integers (by size).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.hold.rows import Key
from whimbrel.model.bounds import INT64_MAX, INT64_MIN, utf8_size, whole

__all__ = [
    "NOTHING_APPLIED",
    "CorruptStoreError",
    "Key",
    "NewerStoreError",
    "RowStore",
    "StoreError",
    "StoreUnavailableError",
    "decode_key",
    "encode_key",
]

NOTHING_APPLIED = -1


class StoreError(WhimbrelError):
    """A store cannot be used: where it is, and why not."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class CorruptStoreError(StoreError):
    """A file is not a store, or not a whole one. Reaction: set it aside and replay the log, if that is whole."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; a log that was never cut has everything that it had"


class NewerStoreError(StoreError):
    """A newer Whimbrel wrote this file. Reaction: use that one, or set the file aside and replay a whole log."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path, f"found format {found}, known are formats up to {known}")
        self.args = (path, found, known)  # so that it pickles
        self.found, self.known = found, known

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; use a newer Whimbrel"


class StoreUnavailableError(StoreError):
    """The disk is full, the file is locked or may not be written. Reaction: put that right and try again."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; the store is as it was before"


class RowStore(Protocol):
    """The rows of a view, kept somewhere; used by one thread at a time."""

    @property
    def applied(self) -> int:
        """The number of the last fact in the view; ``NOTHING_APPLIED`` if there is none."""

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys; nothing may be committed meanwhile."""

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None."""

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Drop, then put, and be the view up to *applied*: all of it or, with an error, nothing.

        *applied* never goes back; it stands still where a tick alone changed something.
        """

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Replace all rows by *rows*, as the view up to *applied*: all of it or, with an error, nothing.

        For a shell that lost track of what it had committed: a commit failed, and the changes went on.
        """

    def close(self) -> None:
        """Close the store; closing it twice does no harm."""


# The parts after the kind are compared byte by byte: each is a tag and bytes that sort as the part does. A text ends
# with 00, and a 00 within it is 00 FF, so that no text is the beginning of another (as FoundationDB's tuples do).
_NONE, _TEXT, _INTEGER = 0x01, 0x02, 0x03
_END, _ESCAPED = b"\x00", b"\x00\xff"
_INTEGER_BYTES = 8


def encode_key(key: Key) -> tuple[str, bytes]:
    """Return *key* as its kind and bytes, which sort as keys do and are unlike those of any other key."""
    if not key or not isinstance(key[0], str):
        raise InvalidValueError("key", key, "a tuple that begins with a text")
    utf8_size("key", key[0])  # refuses lone surrogates
    encoded = bytearray()
    for part in key[1:]:
        if part is None:
            encoded.append(_NONE)
        elif isinstance(part, str):
            utf8_size("key", part)
            encoded.append(_TEXT)
            encoded += part.encode().replace(_END, _ESCAPED) + _END
        else:
            encoded.append(_INTEGER)
            encoded += (whole("key", part, INT64_MIN, INT64_MAX) - INT64_MIN).to_bytes(_INTEGER_BYTES)
    return key[0], bytes(encoded)


def decode_key(kind: str, encoded: bytes) -> Key:
    """Return the key that ``encode_key`` made these of; for any other bytes, ``InvalidValueError``."""
    parts: list[str | int | None] = [kind]
    position = 0
    while position < len(encoded):
        part, position = _part(encoded, position)
        parts.append(part)
    return tuple(parts)


def _part(encoded: bytes, position: int) -> tuple[str | int | None, int]:
    tag, start = encoded[position], position + 1
    if tag == _NONE:
        return None, start
    if tag == _INTEGER and (end := start + _INTEGER_BYTES) <= len(encoded):
        return int.from_bytes(encoded[start:end]) + INT64_MIN, end
    if tag == _TEXT:
        end = encoded.find(_END, start)
        while end >= 0 and encoded[end : end + 2] == _ESCAPED:
            end = encoded.find(_END, end + 2)
        try:
            if end >= 0:
                return encoded[start:end].replace(_ESCAPED, _END).decode(), end + 1
        except UnicodeDecodeError:
            pass
    raise InvalidValueError("encoded key", encoded, "what a key encodes to")
