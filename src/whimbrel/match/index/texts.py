"""Texts: many short strings in one buffer; each takes the bytes of its UTF-8 plus eight."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase

__all__ = ["Texts"]


_AT_ONCE = 8_192
"""Number of texts that are added together, to bound the memory for their copies."""


class Texts:
    """A list of strings that can only grow."""

    def __init__(self) -> None:
        self._bytes: Any = bytearray()
        self._starts: Any = array("q", [0])

    @classmethod
    def of(cls, data: Any, starts: Any) -> Texts:
        """Return the texts stored in two arrays, e.g. of a mapped file; these texts cannot grow.

        Raise ``InvalidValueError`` for starts that do not ascend within *data*.
        """
        if data.dtype != np.uint8 or starts.dtype != np.int64 or not starts.size:
            raise InvalidValueError(
                "texts", Phrase(f"{data.dtype} and {starts.size} of {starts.dtype}"), "bytes and starts"
            )
        if starts[0] < 0 or starts[-1] > data.size or (starts[1:] < starts[:-1]).any():
            raise InvalidValueError(
                "starts of texts", Phrase("other numbers"), f"ascending numbers from 0 to {data.size}"
            )
        texts = cls()
        texts._bytes, texts._starts = data, starts
        return texts

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> Texts:
        """Return *strings* as a new list of texts."""
        texts, rest = cls(), iter(strings)
        while some := list(islice(rest, _AT_ONCE)):
            texts.extend(some)
        return texts

    @classmethod
    def of_numbers(cls, count: int) -> Texts:
        """Return the numbers from 0 to *count* - 1 as texts."""
        numbers = [str(number) for number in range(count)]
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, numbers), np.int64, count), out=starts[1:])
        return cls.of(np.frombuffer("".join(numbers).encode(), np.uint8), starts)

    def append(self, text: str) -> None:
        """Add *text* at the end."""
        self._bytes.extend(text.encode())
        self._starts.append(len(self._bytes))

    def extend(self, texts: Iterable[str]) -> None:
        """Add *texts* at the end."""
        encoded = [text.encode() for text in texts]
        self._starts.extend(
            accumulate(map(len, encoded[1:]), initial=len(self._bytes) + len(encoded[0])) if encoded else ()
        )
        self._bytes.extend(b"".join(encoded))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, position: int) -> str:
        data = bytes(self._bytes[self._starts[position] : self._starts[position + 1]])
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidValueError("text", data[:40], "UTF-8") from None

    def arrays(self) -> dict[str, Any]:
        """Return the texts as two named arrays, the UTF-8 bytes and where each text starts.

        ``of`` restores the texts from them.
        """
        return {
            "text_bytes": np.frombuffer(bytes(self._bytes), np.uint8),
            "text_start": np.array(self._starts, np.int64),
        }

    @property
    def size_bytes(self) -> int:
        """Size of the texts in bytes."""
        return len(self._bytes) + 8 * len(self._starts)
