"""Attributes: the named, typed values of a notification, which filters test.

Rule: five types, as in Elvin: int32, int64, real64, string, opaque. In Python they are ``int``, ``Int64``, ``float``,
``str`` and ``bytes``, and the *exact* class determines the type. A plain ``int`` always fits int32.
Rule: all input from outside first passes ``checked`` or one of the readers in ``codecs``. Both return
``FrozenAttributes``, so the receiver need not check again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn, TypeAlias

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, utf8_size, whole

__all__ = [
    "DEFAULT_LIMITS",
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "INT64_MIN",
    "NO_ATTRIBUTES",
    "TYPES",
    "AttributeType",
    "Attributes",
    "FrozenAttributes",
    "Int64",
    "Limits",
    "Scalar",
    "checked",
    "integer",
    "type_of",
]

NUMBER_BYTES = 8
"""Size of a number in the count for ``Limits.max_bytes``, whatever its value."""


class AttributeType(IntEnum):
    """The type of a value; the numbers are Elvin's wire codes and the log's ``type`` column."""

    INT32 = 1
    INT64 = 2
    REAL64 = 3
    STRING = 4
    OPAQUE = 5

    @property
    def word(self) -> str:
        """The type's name in the language and in documents."""
        return self.name.lower()


class Int64(int):
    """An integer of type int64, however small its value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Int64({int(self)})"


Scalar: TypeAlias = int | float | str | bytes
"""One attribute value: ``int`` (int32), ``Int64``, ``float``, ``str`` or ``bytes``."""

Attributes: TypeAlias = Mapping[str, Scalar]
"""Checked attributes: values by name."""


class FrozenAttributes(dict[str, Scalar]):
    """Attributes that passed a check and never change.

    This is a dict that refuses changes: as fast to read as a dict and, unlike a mapping proxy, it can be pickled.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("attributes never change once they are checked; build new ones")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has no hash because it changes; this one does not
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenAttributes], tuple[dict[str, Scalar]]]:
        return FrozenAttributes, (dict(self),)


NO_ATTRIBUTES: Attributes = FrozenAttributes()

TYPES: dict[type, AttributeType] = {
    int: AttributeType.INT32,
    Int64: AttributeType.INT64,
    float: AttributeType.REAL64,
    str: AttributeType.STRING,
    bytes: AttributeType.OPAQUE,
}


def type_of(value: Scalar) -> AttributeType:
    """Return the type of a checked *value*."""
    return TYPES[type(value)]


def integer(value: int) -> int | float:
    """Return *value* in the smallest type that holds it: int32, else int64, else real64."""
    if INT32_MIN <= value <= INT32_MAX:
        return int(value)
    if INT64_MIN <= value <= INT64_MAX:
        return Int64(value)
    try:
        return float(value)
    except OverflowError:
        raise InvalidValueError("integer", value, "at most what a real64 can hold") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the attributes of one notification; they apply to everything from a socket or a file."""

    max_names: int = 1_000
    max_depth: int = 32
    max_bytes: int = 1 << 20
    max_name_bytes: int = 1_024

    def __post_init__(self) -> None:
        whole("max_names", self.max_names, 0, INT32_MAX)
        whole("max_depth", self.max_depth, 1, 128)  # the readers recurse once per level
        whole("max_bytes", self.max_bytes, 0, INT32_MAX)
        whole("max_name_bytes", self.max_name_bytes, 1, INT32_MAX)


DEFAULT_LIMITS = Limits()


def checked(values: Mapping[str, object], *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return *values* as attributes; raise ``InvalidValueError`` that names the first invalid one.

    A plain integer becomes int32 or int64 by its size, and a boolean int32; nothing else is converted.
    """
    if len(values) > limits.max_names:
        raise InvalidValueError("attributes", len(values), f"at most {limits.max_names} names")
    room = limits.max_bytes
    result: dict[str, Scalar] = {}
    for name, value in values.items():
        room -= _checked_name(name, limits)
        result[name], size = _checked_value(name, value)
        room -= size
        if room < 0:
            allowed = f"at most {limits.max_bytes} bytes in all"
            raise InvalidValueError("attributes", Phrase(f"more, up to {name!r}"), allowed)
    return FrozenAttributes(result)


def _checked_name(name: object, limits: Limits) -> int:
    """Check *name* and return its size in bytes."""
    if type(name) is not str or not name or name[0] == "\0":  # names that begin with U+0000 belong to the matcher
        raise InvalidValueError("attribute name", name, "a string of at least one character, the first not U+0000")
    size = utf8_size("attribute name", name)
    if size > limits.max_name_bytes:
        raise InvalidValueError("attribute name", name, f"at most {limits.max_name_bytes} bytes of UTF-8")
    return size


def _checked_value(name: str, value: object) -> tuple[Scalar, int]:
    """Return *value* as one of the five types, and its size in bytes; refuse subclasses of their classes."""
    if isinstance(value, bool):
        return int(value), NUMBER_BYTES
    if isinstance(value, int) and type(value) in {int, Int64}:
        if not INT64_MIN <= value <= INT64_MAX:
            raise InvalidValueError(f"attribute {name}", value, "an integer of at most 64 bits")
        return (value if type(value) is Int64 else integer(value)), NUMBER_BYTES
    if isinstance(value, float) and type(value) is float:
        return value, NUMBER_BYTES
    if isinstance(value, str) and type(value) is str:
        return value, utf8_size(f"attribute {name}", value)
    if isinstance(value, bytes) and type(value) is bytes:
        return value, len(value)
    raise InvalidValueError(f"attribute {name}", value, "an int, Int64, float, str, bytes or bool")
