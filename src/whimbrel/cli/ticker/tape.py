"""The tape: messages on a line that scrolls to the left for ever, each until its time is over.

Rule: pure. The time is an argument; the same calls give the same line.
Rule: a window always shows exactly its width in columns.
Rule: visible text only moves with the tape: a message that ends while it is visible leaves a blank.

Positions on the tape are columns from its beginning, and the window moves over them. Waiting messages are beyond the
right edge and have no position yet: first the unread ones, in the order of arrival, then those that passed and will
pass again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from whimbrel.cli.ticker.message import TickerMessage
from whimbrel.cli.ticker.text import columns, cut
from whimbrel.errors import InvalidValueError

__all__ = ["Shade", "Span", "Tape"]

_GAP = "   ·   "
_COLUMNS_PER_S = 8.0
_MAX_MESSAGES = 100
_FRESH, _FADING = 0.8, 0.3
"""Shares of a message's life: it is fresh while more than the first is left, and fades when less than the second is."""


class Shade(Enum):
    """Emphasis of a text: messages fade before they disappear."""

    FRESH = "fresh"
    PLAIN = "plain"
    FADING = "fading"


class Span(NamedTuple):
    """A part of a line in one shade."""

    text: str
    shade: Shade = Shade.PLAIN


@dataclass(slots=True)
class _Piece:
    """A message with the gap after it; ``place`` is its first column, once it is on the tape."""

    message: TickerMessage
    columns: tuple[str, ...]
    begins_at: float
    ends_at: float
    place: int = 0

    @property
    def end(self) -> int:
        return self.place + len(self.columns)

    def shade(self, now: float) -> Shade:
        left = (self.ends_at - now) / (self.ends_at - self.begins_at)
        return Shade.FRESH if left > _FRESH else Shade.FADING if left < _FADING else Shade.PLAIN


class Tape:
    """Messages that pass in a window of *width* columns."""

    def __init__(
        self, width: int, *, columns_per_s: float = _COLUMNS_PER_S, most_messages: int = _MAX_MESSAGES
    ) -> None:
        if columns_per_s < 0:
            raise InvalidValueError("columns_per_s", columns_per_s, "a number from 0 on")
        self._columns_per_s, self._most_messages = columns_per_s, max(1, most_messages)
        self._width = max(1, width)
        self._left = 0.0
        """Position of the window's left edge."""
        self._moved_at: float | None = None
        self._placed: deque[_Piece] = deque()
        self._unread: deque[_Piece] = deque()
        self._read: deque[_Piece] = deque()

    @property
    def width(self) -> int:
        """Number of columns of the window."""
        return self._width

    def resize(self, width: int) -> None:
        """Set the width of the window, in columns."""
        self._width = max(1, width)

    @property
    def messages(self) -> tuple[TickerMessage, ...]:
        """Messages on the tape, in the order in which they pass."""
        return tuple(piece.message for piece in (*self._placed, *self._unread, *self._read))

    def add(self, message: TickerMessage, *, now: float) -> None:
        """Add *message*, unless its time is over or it is a repeated delivery."""
        self.advance(now=now)
        is_known = message.message_id and message.message_id in {each.message_id for each in self.messages}
        if message.remaining_s() <= 0 or is_known:
            return
        pieces = (*self._placed, *self._unread, *self._read)
        if len(pieces) >= self._most_messages:
            oldest = min(pieces, key=lambda piece: piece.begins_at)
            self._keep_those([piece for piece in pieces if piece is not oldest])
        self._unread.append(_Piece(message, columns(str(message) + _GAP), now, now + message.remaining_s()))
        self._fill()

    def advance(self, *, now: float) -> None:
        """Advance to *now*: move the tape, and remove messages whose time is over."""
        pieces = (*self._placed, *self._unread, *self._read)
        if self._moved_at is not None:
            passed = max(0.0, now - self._moved_at) * self._columns_per_s
            whole = self._width + sum(len(piece.columns) for piece in pieces)
            self._move(self._left + min(passed, whole))  # after a long sleep, any position is as good as another
        self._moved_at = now
        if any(now >= piece.ends_at for piece in pieces):
            self._keep_those([piece for piece in pieces if now < piece.ends_at])
            self._fill()

    def window(self, *, now: float) -> list[Span]:
        """Return the visible columns at *now*."""
        self.advance(now=now)
        left = math.floor(self._left)
        found, shades = [" "] * self._width, [Shade.PLAIN] * self._width
        for piece in self._placed:
            for column, text in enumerate(piece.columns, start=piece.place - left):
                if 0 <= column < self._width:
                    found[column], shades[column] = text, piece.shade(now)
        both = zip(cut(found), shades, strict=True)
        return [Span("".join(text for text, _ in run), shade) for shade, run in groupby(both, key=lambda each: each[1])]

    def _move(self, goal: float) -> None:
        """Move the window to *goal*, stopping at each position where a message enters or leaves."""
        while self._placed:
            last = self._placed[-1].end
            is_out = self._placed[0].end
            is_next = min(is_out, last - self._width) if self._unread or self._read else is_out
            if is_next > goal:
                break
            self._left = max(self._left, float(is_next))
            while self._placed and self._placed[0].end <= self._left:
                self._read.append(self._placed.popleft())
            self._fill()
        self._left = goal

    def _fill(self) -> None:
        """Place waiting messages as long as there is room up to the right edge."""
        right = math.ceil(self._left) + self._width
        while (waiting := self._unread or self._read) and (not self._placed or self._placed[-1].end <= right):
            piece = waiting.popleft()
            piece.place = max(right, self._placed[-1].end) if self._placed else right
            self._placed.append(piece)

    def _keep_those(self, kept: list[_Piece]) -> None:
        """Drop all messages except *kept*."""
        names = {id(piece) for piece in kept}
        for pieces in (self._placed, self._unread, self._read):
            left = [piece for piece in pieces if id(piece) in names]
            pieces.clear()
            pieces.extend(left)
