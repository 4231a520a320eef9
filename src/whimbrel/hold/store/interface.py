"""Interface of stores: rows under keys, and the seq of the last fact that the rows include.

Rule: rows and ``applied`` change together or not at all. So a hold that is restored continues with the next fact.
Rule: a store is derived from the log. If a store is damaged, replay the log, as far back as the log still reaches.
Rule: keys are ordered by kind, then part by part: None before texts (by code point) before integers (by size).
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
    """A store cannot be used; the error has its path and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class CorruptStoreError(StoreError):
    """A file is not a store, or is damaged. Reaction: set it aside and replay the log, if that was never cut."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; a log that was never cut has everything that it had"


class NewerStoreError(StoreError):
    """A newer Whimbrel wrote this file. Reaction: use that version, or set the file aside and replay a complete log."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path, f"found format {found}, known are formats up to {known}")
        self.args = (path, found, known)  # so that it pickles
        self.found, self.known = found, known

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; use a newer Whimbrel"


class StoreUnavailableError(StoreError):
    """The disk is full, or the file is locked or not writable. Reaction: remove the cause and try again."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; the store is as it was before"


class RowStore(Protocol):
    """Typing protocol of a store for the rows of a view (saved state); used by one thread at a time."""

    @property
    def applied(self) -> int:
        """Seq of the last fact that the rows include; ``NOTHING_APPLIED`` if there is none."""

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys; do not commit before the last."""

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None."""

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Delete the rows under *drop*, write *put* and set ``applied``, atomically: an error changes nothing.

        *applied* never decreases; it stays the same if only the passing of time (a tick) changed rows.
        """

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Replace all rows by *rows* and set ``applied``, atomically: an error changes nothing.

        For a caller that does not know which changes the store has, because a commit failed and more changes followed.
        """

    def close(self) -> None:
        """Close the store; closing it twice does no harm."""


# Encoded keys are compared byte by byte: each part after the kind is a tag and bytes that sort as the part does. A text
# ends with 00, and a 00 within it is escaped as 00 FF, so that no text is a prefix of another (as in FoundationDB).
_NONE, _TEXT, _INTEGER = 0x01, 0x02, 0x03
_END, _ESCAPED = b"\x00", b"\x00\xff"
_INTEGER_BYTES = 8


def encode_key(key: Key) -> tuple[str, bytes]:
    """Return the kind of *key*, and its other parts as bytes that sort as keys do and differ for different keys."""
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
    """Return the key that ``encode_key`` encoded; raise ``InvalidValueError`` for any other bytes."""
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
