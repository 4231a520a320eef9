"""Every error that Whimbrel raises on purpose.

Rule: one root, below it one class per *reaction* of the code that catches it, then one per cause.
Rule: raw values are kept in attributes and ``args``, so that errors can be pickled. The sentence is made in ``__str__``
and names what was found, what is allowed, and where.
"""

from __future__ import annotations

import unicodedata

__all__ = [
    "FilterError",
    "InvalidInputError",
    "InvalidValueError",
    "LanguageError",
    "MalformedBodyError",
    "MalformedLineError",
    "MissingDependencyError",
    "Phrase",
    "PolicyError",
    "UnsupportedNodeError",
    "WhimbrelError",
    "description_of",
]

_EXCERPT_WIDTH = 100
_MAX_SHOWN, _MAX_PHRASE = 80, 200
_KINDS: dict[type, str] = {
    type(None): "nothing",
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "an integer",
    str: "text",
}


class Phrase(str):
    """A description of what was found, shown without quotes; quotes are for values as they were given."""

    __slots__ = ()


def description_of(value: object) -> Phrase:
    """Return a description of *value* for messages, if the value is too long or too secret to show."""
    if isinstance(value, bytes):
        return Phrase(f"{len(value)} bytes")
    if isinstance(value, list | tuple):
        return Phrase(f"a list of {len(value)}")
    name = type(value).__name__
    article = "an" if name[0] in "AEIOUaeiou" else "a"
    return Phrase(_KINDS.get(type(value), f"{article} {name}"))


class WhimbrelError(Exception):
    """The root: ``except WhimbrelError`` catches everything Whimbrel raises on purpose."""


class InvalidInputError(WhimbrelError):
    """Input from outside is not acceptable. Reaction: reject it, tell the sender, carry on."""


class InvalidValueError(InvalidInputError):
    """A value is outside what its field allows; *sentence* replaces the usual wording if that would read badly."""

    def __init__(self, what: str, found: object, allowed: str, sentence: str = "") -> None:
        super().__init__(what, found, allowed, sentence)
        self.what, self.found, self.allowed, self.sentence = what, found, allowed, sentence

    def __str__(self) -> str:
        if self.sentence:
            return self.sentence
        return f"{self.what}: found {_describe(self.found)}, allowed is {self.allowed}"


class MalformedBodyError(InvalidInputError):
    """A body is not valid in its form (JSON, CBOR): the reason, and the position if it is known."""

    def __init__(
        self,
        form: str,
        reason: str,
        line: int | None = None,
        column: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(form, reason, line, column, offset)
        self.form, self.reason = form, reason
        self.line, self.column, self.offset = line, column, offset

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.form} body, line {self.line}, column {self.column}: {self.reason}"
        if self.offset is not None:
            return f"{self.form} body, byte {self.offset}: {self.reason}"
        return f"{self.form} body: {self.reason}"


class MalformedLineError(InvalidInputError):
    """One line of a file cannot be read."""

    def __init__(self, source: str, line: int, column: int, reason: str) -> None:
        super().__init__(source, line, column, reason)
        self.source, self.line, self.column, self.reason = source, line, column, reason

    def __str__(self) -> str:
        return f"{self.source}: line {self.line}, column {self.column}: {self.reason}"


class LanguageError(InvalidInputError):
    """A text is not valid in one of our languages: the stable code, the reason, and the exact position."""

    def __init__(self, code: int, reason: str, text: str, start: int, end: int) -> None:
        super().__init__(code, reason, text, start, end)
        self.code, self.reason, self.text, self.start, self.end = code, reason, text, start, end

    @property
    def line(self) -> int:
        """Line of the position, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """Column of the position in its line, in characters, from 1."""
        return self.start - self.text.rfind("\n", 0, self.start)

    def __str__(self) -> str:
        return f"error {self.code} at line {self.line}, column {self.column}: {self.reason}"

    def pointed(self) -> str:
        """Return the message, the line in question, and carets under the position."""
        first = self.text.rfind("\n", 0, self.start) + 1
        last = self.text.find("\n", self.start)
        last = len(self.text) if last < 0 else last
        # A filter may be one line of 64 KiB, so only the surroundings of the position are shown.
        left = max(first, min(self.start - _EXCERPT_WIDTH // 2, last - _EXCERPT_WIDTH))
        right = min(last, left + _EXCERPT_WIDTH)
        head, tail = "…" if left > first else "", "…" if right < last else ""
        before = head + self.text[left : self.start]
        marked = self.text[self.start : max(self.start, min(self.end, right))]
        carets = "^" * max(1, _columns(marked))
        line = head + self.text[left:right] + tail
        return f"{self}\n  {_printable(line)}\n  {' ' * _columns(before)}{carets}"


class FilterError(LanguageError):
    """A filter text is not a filter; the codes are ``language.codes.ErrorCode``."""


class PolicyError(LanguageError):
    """A policy text is not a policy; the codes are ``language.policies.codes.PolicyCode``."""


class UnsupportedNodeError(WhimbrelError):
    """A backend has no rule for a node of the tree. Reaction: use another backend for this filter."""

    def __init__(self, backend: str, node: str) -> None:
        super().__init__(backend, node)
        self.backend, self.node = backend, node

    def __str__(self) -> str:
        return f"the {self.backend} backend has no rule for {self.node}"


class MissingDependencyError(WhimbrelError):
    """An optional dependency is not installed. Reaction: install it, or do without the feature that needs it."""

    def __init__(self, what: str, needs: str, remedy: str) -> None:
        super().__init__(what, needs, remedy)
        self.what, self.needs, self.remedy = what, needs, remedy

    def __str__(self) -> str:
        return f"{self.what} needs {self.needs}, which was not found here; {self.remedy}"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Phrase):
        return _cut("".join(c if c.isprintable() else repr(c)[1:-1] for c in value), _MAX_PHRASE)
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print thousands of digits
    return _cut(repr(value), _MAX_SHOWN)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _printable(text: str) -> str:
    """Replace control characters, so that the caret stands under the right column."""
    return "".join(c if c.isprintable() else " " if c in "\t\r" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _columns(text: str) -> int:
    """Return the number of terminal cells of *text*: none for combining marks, two for wide characters."""
    cells = 0
    for character in text:
        if not unicodedata.combining(character):
            cells += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return cells
