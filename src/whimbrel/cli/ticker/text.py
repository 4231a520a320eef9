"""Text from strangers on a terminal: made harmless, and measured in columns.

Rule: the result of ``clean`` has no control character, no escape, no character that changes the direction of writing,
and no line end. Everything that is shown went through it.
Rule: a column is one entry of a tuple. A wide character fills two: the character, then an empty text. So columns are
cut and counted by slicing; code that cuts a wide character in two puts a space for the remaining half.

Widths are those of ``unicodedata.east_asian_width``. Terminals disagree about sequences (joined emoji, skin tones,
presentation selectors). So the joining characters are left out: each part is shown by itself, and all terminals count
the same columns.
"""

from __future__ import annotations

import unicodedata

__all__ = ["clean", "columns", "cut", "fit", "fitted_end", "width_of"]

_MAX_MARKS = 4
"""Most marks on one letter: languages need three, and more would reach into other people's lines."""
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_LEFT_OUT = frozenset(
    [chr(code) for code in range(0xFE00, 0xFE10)]  # presentation selectors
    + [chr(code) for code in range(0xE0100, 0xE01F0)]
    + [chr(code) for code in range(0x1F3FB, 0x1F400)]  # skin tones
)


def clean(text: str) -> str:
    """Return *text* without anything that controls a terminal; white space becomes single spaces, none at the ends."""
    return " ".join("".join(map(_harmless, text)).split())


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "Z" or character in "\t\n\v\f\r\x85":
        return " "
    if category in {"Cc", "Cf"} or character in _LEFT_OUT:
        return ""
    if category[0] == "C":  # not assigned, private, or half of a pair: meaning and width are unknown
        return _UNKNOWN
    return character


def columns(text: str) -> tuple[str, ...]:
    """Return the columns of a clean *text*; marks are in the column of the letter before them."""
    found: list[str] = []
    letter, marks = -1, 0
    for character in text:
        match _width(character):
            case 0:
                if letter >= 0 and marks < _MAX_MARKS:
                    found[letter] += character
                    marks += 1
            case width:
                letter, marks = len(found), 0
                found += [character, ""][:width]
    return tuple(found)


def _width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me"} or "\u1160" <= character <= "\u11ff":  # inner parts of Hangul
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def width_of(text: str) -> int:
    """Return the number of columns of a clean *text*."""
    return len(columns(text))


def cut(found: list[str]) -> list[str]:
    """Return the columns *found* with a space for each half of a wide character that was cut at an end."""
    if found and not found[0]:
        found[0] = " "
    if found and width_of(found[-1]) > 1:
        found[-1] = " "
    return found


def fit(text: str, width: int) -> str:
    """Return exactly *width* columns: the beginning of *text*, with an ellipsis if that is not all."""
    found = columns(text)
    if len(found) <= width:
        return text_of(found) + " " * (width - len(found))
    return text_of(cut(list(found[: width - 1]))) + "…" if width > 0 else ""


def fitted_end(text: str, width: int) -> str:
    """Return exactly *width* columns: the end of *text*, with an ellipsis if that is not all."""
    found = columns(text)
    if len(found) <= width:
        return text_of(found) + " " * (width - len(found))
    return "…" + text_of(cut(list(found[len(found) - width + 1 :]))) if width > 0 else ""


def text_of(found: tuple[str, ...] | list[str]) -> str:
    """Return the text in the columns *found*."""
    return "".join(found)
