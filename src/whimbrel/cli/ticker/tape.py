"""The tape: messages on a line that scrolls to the left for ever, until each has lived its time.

Rule: pure. The time is an argument; the same calls give the same line.
Rule: a window has exactly as many columns as it is wide, whatever was written.
Rule: what is in sight only moves with the tape: a message that leaves before its turn leaves a blank.

Places on the tape are counted in columns from where it began, and the window moves over them. What comes next waits
beyond the right edge, without a place: first what was not read yet, in the order in which it was said, then what passed
and is to pass again.
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
"""A message is fresh while more than this share of its life is left, and fades when there is less than that."""


class Shade(Enum):
    """How strongly something is written: messages fade before they go."""

    FRESH = "fresh"
    PLAIN = "plain"
    FADING = "fading"


class Span(NamedTuple):
    """A part of a line that is written in one shade."""

    text: str
    shade: Shade = Shade.PLAIN


@dataclass(slots=True)
class _Piece:
    """A message with the gap behind it, and its place if it has one."""

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
    """Messages that pass by in a window of *width* columns."""

    def __init__(
        self, width: int, *, columns_per_s: float = _COLUMNS_PER_S, most_messages: int = _MAX_MESSAGES
    ) -> None:
        if columns_per_s < 0:
            raise InvalidValueError("columns_per_s", columns_per_s, "a number from 0 on")
        self._columns_per_s, self._most_messages = columns_per_s, max(1, most_messages)
        self._width = max(1, width)
        self._left = 0.0
        """Where the left edge of the window is."""
        self._moved_at: float | None = None
        self._placed: deque[_Piece] = deque()
        self._unread: deque[_Piece] = deque()
        self._read: deque[_Piece] = deque()

    @property
    def width(self) -> int:
        """How many columns the window has."""
        return self._width

    def resize(self, width: int) -> None:
        """Have a window of *width* columns from now on."""
        self._width = max(1, width)

    @property
    def messages(self) -> tuple[TickerMessage, ...]:
        """What is on the tape, in the order in which it passes."""
        return tuple(piece.message for piece in (*self._placed, *self._unread, *self._read))

    def add(self, message: TickerMessage, *, now: float) -> None:
        """Put *message* on the tape, unless its time is over or it is there: a broker may deliver it again."""
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
        """Let time pass until *now*: the tape moves, and messages whose time is over leave it."""
        pieces = (*self._placed, *self._unread, *self._read)
        if self._moved_at is not None:
            passed = max(0.0, now - self._moved_at) * self._columns_per_s
            whole = self._width + sum(len(piece.columns) for piece in pieces)
            self._move(self._left + min(passed, whole))  # after a long sleep its position is unknown
        self._moved_at = now
        if any(now >= piece.ends_at for piece in pieces):
            self._keep_those([piece for piece in pieces if now < piece.ends_at])
            self._fill()

    def window(self, *, now: float) -> list[Span]:
        """Return what is seen at *now*: as many columns as the window has."""
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
        """Move the window to *goal*, from one place to the next where something comes in or is out."""
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
        """Give a place to what waits, as long as there is one before the right edge or at it."""
        right = math.ceil(self._left) + self._width
        while (waiting := self._unread or self._read) and (not self._placed or self._placed[-1].end <= right):
            piece = waiting.popleft()
            piece.place = max(right, self._placed[-1].end) if self._placed else right
            self._placed.append(piece)

    def _keep_those(self, kept: list[_Piece]) -> None:
        """Drop all others."""
        names = {id(piece) for piece in kept}
        for pieces in (self._placed, self._unread, self._read):
            left = [piece for piece in pieces if id(piece) in names]
            pieces.clear()
            pieces.extend(left)
