"""Fields of configuration sections: one function for each kind of value that a setting may have.

Rule: each function has a parameter *about*, the sentence that explains the setting to operators. A section checks its
values when it is built.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast

from whimbrel.errors import InvalidValueError, Phrase, WhimbrelError
from whimbrel.model.bounds import text

__all__ = [
    "MAX_PATH_BYTES",
    "UINT16_MAX",
    "ConfigError",
    "Section",
    "Setting",
    "checked_text",
    "choice",
    "constant",
    "flag",
    "folder",
    "host",
    "hosts",
    "nearest",
    "origins",
    "path",
    "port",
    "power_of_two",
    "real",
    "refused_value",
    "setting_of",
    "settings_of",
    "unreadable",
    "whole",
]

MAX_PATH_BYTES = 4_096
UINT16_MAX = 2**16 - 1
_HOST = re.compile(r"\*|[^\x00-\x20/?#@:\[\]\x7f]+")
"""A host name, an IPv4 address, or ``*`` (any name)."""
_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^\x00-\x20/?#@\x7f]+")
"""The HTTP header Origin of a browser (RFC 6454, 7): a scheme, a host and perhaps a port, or null; or ``*`` (any)."""


class ConfigError(WhimbrelError):
    """A file or option of the broker cannot be used. Reaction: correct it; nothing was changed."""

    def __init__(
        self, source: str, where: str, found: object, allowed: str, advice: str = "", *, sentence: str = ""
    ) -> None:
        super().__init__(source, where, found, allowed, advice)
        self.source, self.where, self.found, self.allowed, self.advice = source, where, found, allowed, advice
        self.sentence = sentence
        """Text of the error, where one made of *found* and *allowed* would read badly; else None."""

    def __str__(self) -> str:
        if self.sentence:
            return ": ".join(filter(None, (self.source, self.sentence)))
        sentence = str(InvalidValueError(": ".join(filter(None, (self.source, self.where))), self.found, self.allowed))
        return f"{sentence}; {self.advice}" if self.advice else sentence


def unreadable(source: str, error: OSError) -> ConfigError:
    """Return the error for the file *source*, which the operating system could not read."""
    reason = error.strerror or str(error)
    return ConfigError(source, "", Phrase(reason), "a file", sentence=f"cannot be read: {reason}")


def refused_value(source: str, where: str, error: InvalidValueError) -> ConfigError:
    """Return *error* as a ``ConfigError`` of the file *source*; *where* names the rule in that file.

    If *error* has a sentence of its own, the sentence is kept.
    """
    sentence = f"{where}: {error.sentence}" if error.sentence else ""
    return ConfigError(source, f"{where}, {error.what}", error.found, error.allowed, sentence=sentence)


@dataclass(frozen=True, slots=True)
class Setting:
    """Description of one setting: its explanation and its allowed values; the field has name, type and default."""

    about: str
    """The sentence that explains the setting to operators."""
    allowed: str
    """The allowed values, in words."""
    admits: Callable[[object], bool] = field(repr=False)
    """Function that returns whether a value is allowed."""
    is_constant: bool = False
    """Whether the setting is deprecated and becomes a constant: a value is still obeyed, with a warning."""


_KEY = "setting"
_N = TypeVar("_N", int, float)


def whole(default: int, low: int, high: int, about: str, *, note: str = "") -> int:
    """Return the field of a setting that is a whole number from *low* to *high*; *note* explains special values."""

    def admits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    allowed = f"an integer from {low} to {high}" + (f" ({note})" if note else "")
    return field(default=default, metadata={_KEY: Setting(about, allowed, admits)})


def constant(setting: _N) -> _N:
    """Mark *setting* as deprecated, and return it: it becomes a constant in the next release.

    It is for settings of which no operator can know a better value than the default.
    """
    known = cast("Field[_N]", setting)
    about = replace(setting_of(known), is_constant=True)
    return cast("_N", field(default=known.default, metadata={_KEY: about}))


def power_of_two(default: int, low: int, high: int, about: str) -> int:
    """Return the field of a setting that is a power of two from *low* to *high*."""

    def admits(value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return low <= value <= high and value & (value - 1) == 0

    allowed = f"a power of two from {low} to {high}"
    return field(default=default, metadata={_KEY: Setting(about, allowed, admits)})


def real(default: float, low: float, high: float, about: str) -> float:
    """Return the field of a setting that is a number, whole or not, from *low* to *high*."""

    def admits(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    allowed = f"a number from {low:.12g} to {high:.12g}"
    return field(default=default, metadata={_KEY: Setting(about, allowed, admits)})


def flag(about: str, *, default: bool) -> bool:
    """Return the field of a setting that is true or false."""
    setting = Setting(about, "true or false", lambda value: isinstance(value, bool))
    return field(default=default, metadata={_KEY: setting})


def checked_text(default: str, allowed: str, check: Callable[[str], object], about: str) -> str:
    """Return the field of a setting that is a text, allowed unless *check* raises an error or returns None for it.

    *check* may raise ``InvalidValueError``; *allowed* describes the allowed texts.
    """

    def admits(value: object) -> bool:
        try:
            return isinstance(value, str) and check(value) is not None
        except InvalidValueError:
            return False

    return field(default=default, metadata={_KEY: Setting(about, allowed, admits)})


def choice(default: str, words: tuple[str, ...], about: str) -> str:
    """Return the field of a setting that is one of *words*."""
    allowed = " or ".join(f'"{word}"' for word in words)
    setting = Setting(about, allowed, lambda value: isinstance(value, str) and value in words)
    return field(default=default, metadata={_KEY: setting})


def path(about: str, *, what: str = "file") -> str:
    """Return the field of a setting that is the path of a file, by default none; *what* names its kind in errors."""
    allowed = f'the path of a {what}, at most {MAX_PATH_BYTES} bytes; "" is none'
    return checked_text("", allowed, lambda value: text("path", value, max_bytes=MAX_PATH_BYTES), about)


def folder(default: str, about: str) -> str:
    """Return the field of a setting that is the path of a directory, which must not be empty."""
    allowed = f"the path of a directory, 1 to {MAX_PATH_BYTES} bytes"
    return checked_text(default, allowed, lambda value: text("path", value, max_bytes=MAX_PATH_BYTES) or None, about)


def host(default: str, about: str) -> str:
    """Return the field of a setting that is a host name or address to listen on."""
    allowed = 'a host name or an address, at most 255 bytes; "" is all addresses of this machine'
    return checked_text(default, allowed, lambda value: text("host", value, max_bytes=255).isprintable() or None, about)


def origins(about: str) -> str:
    """Return the field of a setting that lists the web origins whose pages may connect."""
    allowed = 'origins such as "https://example.org:8443", separated by spaces; "" is pages of the same host, "*" all'

    def check(value: str) -> str | None:
        words = text("origins", value, max_bytes=MAX_PATH_BYTES).split(" ")
        return value if not value or all(_ORIGIN.fullmatch(word) for word in words) else None

    return checked_text("", allowed, check, about)


def hosts(about: str) -> str:
    """Return the field of a setting that lists the host names allowed in web requests."""
    allowed = (
        'names such as "broker.example", separated by spaces, without a port; "" is loopback names on loopback and any '
        'name elsewhere, "*" any name'
    )

    def check(value: str) -> str | None:
        words = text("hosts", value, max_bytes=MAX_PATH_BYTES).split(" ")
        return value if not value or all(_HOST.fullmatch(word) for word in words) else None

    return checked_text("", allowed, check, about)


def port(default: int, about: str) -> int:
    """Return the field of a setting that is a port to listen on; -1 turns it off, 0 chooses any free port."""
    return whole(default, -1, UINT16_MAX, about, note="-1: not at all, 0: any free port")


class Section:
    """Base class of the sections of a configuration: a section checks its values when it is built."""

    __slots__ = ()
    section: ClassVar[str]

    def __post_init__(self) -> None:
        for key, each in settings_of(type(self)).items():
            value = getattr(self, key)
            if not setting_of(each).admits(value):
                raise ConfigError("", f"{self.section}.{key}", value, setting_of(each).allowed)


def settings_of(kind: type[Section]) -> dict[str, Field[object]]:
    """Return the settings of a section as dataclass fields, by name."""
    return {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # every section is a dataclass


def setting_of(each: Field[Any]) -> Setting:
    """Return the description that the dataclass field of a setting contains."""
    setting = each.metadata[_KEY]
    assert isinstance(setting, Setting)
    return setting


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of *known* that is most like *word*, to suggest it in an error; None if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return close[0] if close else None
