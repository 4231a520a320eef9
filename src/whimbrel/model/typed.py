"""The typed form: attributes as JSON that keeps every type, one ``{"t": type, "v": value}`` per name.

Rule: ``t`` is int32, int64, real64, string or opaque. An opaque ``v`` is hexadecimal; a real64 ``v`` is a number or one
of ``nan``, ``inf``, ``-inf``. Nothing else is converted, and the way back loses nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import (
    DEFAULT_LIMITS,
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    Attributes,
    Int64,
    Limits,
    Scalar,
    checked,
    type_of,
)
from whimbrel.model.bounds import whole

__all__ = ["from_typed", "to_typed"]

_HEXADECIMAL = re.compile(r"(?:[0-9a-fA-F]{2})*")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def from_typed(values: Mapping[str, object], *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return the attributes in *values*; raise ``InvalidValueError`` for the first invalid one."""
    if len(values) > limits.max_names:
        raise InvalidValueError("attributes", len(values), f"at most {limits.max_names} names")
    return checked({name: _scalar(f"attribute {name}", value) for name, value in values.items()}, limits=limits)


def to_typed(attributes: Attributes) -> dict[str, dict[str, object]]:
    """Return *attributes* in the typed form, ready for ``json.dumps``."""
    return {name: {"t": type_of(value).word, "v": _plain(value)} for name, value in attributes.items()}


def _scalar(what: str, value: object) -> Scalar:
    if not isinstance(value, Mapping) or set(value) != {"t", "v"}:
        raise InvalidValueError(what, value, 'an object of "t" and "v"')
    kind = value["t"]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidValueError(f"type of {what}", kind, ", ".join(_READERS))
    return reader(what, value["v"])


def _int32(what: str, value: object) -> Scalar:
    return whole(what, value, INT32_MIN, INT32_MAX)


def _int64(what: str, value: object) -> Scalar:
    return Int64(whole(what, value, INT64_MIN, INT64_MAX))


def _real64(what: str, value: object) -> Scalar:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidValueError(what, value, 'a number a real64 can hold, "nan", "inf" or "-inf"')


def _string(what: str, value: object) -> Scalar:
    if not isinstance(value, str):
        raise InvalidValueError(what, value, "a string")
    return value


def _opaque(what: str, value: object) -> Scalar:
    if not isinstance(value, str) or not _HEXADECIMAL.fullmatch(value):
        raise InvalidValueError(what, value, "a string of hexadecimal pairs")
    return bytes.fromhex(value)


def _plain(value: Scalar) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return int(value) if isinstance(value, int) else value


_READERS: dict[str, Callable[[str, object], Scalar]] = {
    "int32": _int32,
    "int64": _int64,
    "real64": _real64,
    "string": _string,
    "opaque": _opaque,
}
