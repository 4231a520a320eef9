"""The board: the content of the line, and the effect of keys. It shows the tape, an entry line, or an old message.

Rule: pure, like the tape. ``press`` returns a command for the shell.
Rule: a line is exactly as wide as the tape's window, whatever is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.cli.ticker.message import TickerMessage
from whimbrel.cli.ticker.tape import Shade, Span, Tape
from whimbrel.cli.ticker.text import clean, fit, fitted_end, width_of
from whimbrel.errors import InvalidValueError

__all__ = ["Board", "Command", "Mode", "Quit", "Send"]

_MAX_TYPED = 400
_NOTE_S = 4.0


@dataclass(frozen=True, slots=True)
class Send:
    """Command: send *text* to *group*."""

    group: str
    text: str


@dataclass(frozen=True, slots=True)
class Quit:
    """Command: end the program."""


Command: TypeAlias = Send | Quit


class Mode(Enum):
    """The kind of content that the line shows."""

    TAPE = "tape"
    ENTRY = "entry"
    HISTORY = "history"


class Board:
    """A line with a *tape*; the user can write to *groups*, and look at the last *remembered* messages."""

    def __init__(self, tape: Tape, groups: Sequence[str], *, remembered: int = 100) -> None:
        self.tape = tape
        self.mode = Mode.TAPE
        self.write_to(groups)
        self._typed = ""
        self._history: deque[TickerMessage] = deque(maxlen=max(1, remembered))
        self._back = 0
        """Distance of the shown message from the latest one, in messages."""
        self._note = ""
        self._note_ends_at = 0.0

    def write_to(self, groups: Sequence[str]) -> None:
        """Set the groups that the user can write to, and select the first."""
        if not groups:
            raise InvalidValueError("groups", None, "at least one")
        self._groups, self._group = tuple(groups), 0

    @property
    def is_still(self) -> bool:
        """Whether the line stays unchanged until a message arrives or the user types."""
        return self.mode is not Mode.TAPE or not (self._note or self.tape.messages)

    @property
    def group(self) -> str:
        """Group that the user writes to."""
        return self._groups[self._group]

    def arrived(self, message: TickerMessage, *, now: float) -> None:
        """Show *message* and remember it, unless it is a repeated delivery."""
        if message.message_id and message.message_id in {each.message_id for each in self._history}:
            return
        if self.mode is Mode.HISTORY and len(self._history) < (self._history.maxlen or 0):
            self._back += 1  # so the shown message stays the same
        self._history.append(message)
        self.tape.add(message, now=now)

    def note(self, sentence: str, *, now: float) -> None:
        """Show a *sentence* of our own for a moment; the next one replaces it, and none is remembered."""
        self._note, self._note_ends_at = clean(sentence), now + _NOTE_S

    def press(self, key: str) -> Command | None:
        """Process *key*; return a command for the shell, or None."""
        if key == "interrupt":
            return Quit()
        match self.mode:
            case Mode.TAPE:
                return self._press_on_tape(key)
            case Mode.ENTRY:
                return self._press_in_entry(key)
            case Mode.HISTORY:
                self._press_in_history(key)
        return None

    def line(self, *, now: float) -> list[Span]:
        """Return the content of the line at *now*."""
        width = self.tape.width
        if now >= self._note_ends_at:
            self._note = ""
        match self.mode:
            case Mode.TAPE if self._note:
                return [Span(fit(self._note, width), Shade.FADING)]
            case Mode.TAPE:
                return self.tape.window(now=now)
            case Mode.ENTRY:
                prompt = f"to {self.group}> "
                if width_of(prompt) >= width:
                    return [Span(fitted_end(self._typed, width))]
                return [Span(prompt, Shade.FADING), Span(fitted_end(self._typed, width - width_of(prompt)))]
            case Mode.HISTORY:
                count = len(self._history)
                said = str(self._history[-1 - self._back]) if count else "nothing was said yet"
                return [Span(fit(f"[{count - self._back if count else 0}/{count}] {said}", width))]

    @property
    def cursor(self) -> int | None:
        """Column of the text cursor, or None if the user is not typing."""
        if self.mode is not Mode.ENTRY:
            return None
        prompt, typed = width_of(f"to {self.group}> "), width_of(self._typed)
        return min(self.tape.width - 1, typed if prompt >= self.tape.width else prompt + typed)

    def _press_on_tape(self, key: str) -> Command | None:
        match key:
            case "q" | "end":
                return Quit()
            case "enter" | "i":
                self.mode = Mode.ENTRY
            case "tab" | "tab back":
                self._turn(key)
                self.mode = Mode.ENTRY
            case "h" | "up":
                self.mode, self._back = Mode.HISTORY, 0
        return None

    def _press_in_entry(self, key: str) -> Command | None:
        match key:
            case "enter":
                text, self._typed, self.mode = clean(self._typed), "", Mode.TAPE
                return Send(self.group, text) if text else None
            case "escape" | "end":
                self._typed, self.mode = "", Mode.TAPE
            case "tab" | "tab back":
                self._turn(key)
            case "backspace":
                self._typed = self._typed[:-1]
            case "erase":
                self._typed = ""
            case _ if len(key) == 1 and len(self._typed) < _MAX_TYPED:
                self._typed += key
        return None

    def _press_in_history(self, key: str) -> None:
        match key:
            case "up" | "k":
                self._back = min(self._back + 1, max(0, len(self._history) - 1))
            case "down" | "j":
                self._back = max(0, self._back - 1)
            case "h" | "q" | "escape" | "enter" | "end":
                self.mode = Mode.TAPE

    def _turn(self, key: str) -> None:
        self._group = (self._group + (1 if key == "tab" else -1)) % len(self._groups)
