"""Codecs: attributes from JSON, CBOR and MQTT user properties, and back.

Rule: integers become int32, else int64, else real64; a number with point or exponent becomes real64, a boolean int32.
Nested objects are flattened with ``.``. Arrays, nulls and CBOR's undefined are skipped. CBOR bytes become opaque, and
user properties strings.
Rule: a name that occurs twice is refused, also if two paths flatten to one name; the body wins over a property.
Rule: any bytes give attributes or ``MalformedBodyError``; bad Python values raise ``InvalidValueError``.
Rule: ``attributes_of`` never raises, and its result for a body must never change. Where possible, the log stores only
bodies and derives attributes again when it is read (``log.compact``), so a changed rule would change old facts. One
rule did change (a body that is not an object has the attribute ``value``); the log records by which rule a fact was
matched.

The output of ``to_json`` and ``to_cbor`` is read back equal, except that an int64 that fits int32 becomes int32,
because neither form has both widths. The typed form (``typed``) loses nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import cbor2

from whimbrel.errors import InvalidValueError, MalformedBodyError
from whimbrel.model.attributes import (
    DEFAULT_LIMITS,
    INT32_MAX,
    INT32_MIN,
    NO_ATTRIBUTES,
    Attributes,
    FrozenAttributes,
    Limits,
    Scalar,
    checked,
    integer,
)
from whimbrel.model.cbor_body import read_cbor
from whimbrel.model.json_body import read_json
from whimbrel.model.typed import from_typed, to_typed

__all__ = [
    "attributes_of",
    "from_cbor",
    "from_json",
    "from_properties",
    "from_tree",
    "from_typed",
    "merge_attributes",
    "to_cbor",
    "to_json",
    "to_typed",
]


_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_SCALAR = re.compile(rb'[ \t\n\r]*+["0-9tfn-]')
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_MAX_TEXT_BYTES = 1_024
_LIMITS = Limits(max_names=1_000, max_depth=32, max_bytes=1 << 20, max_name_bytes=1_024)
"""Limits of ``attributes_of``; fixed, because later changes of the defaults must not change old facts."""


def attributes_of(
    body: bytes,
    properties: Sequence[tuple[str, str]] = (),
    *,
    content_type: str | None = None,
    has_value: bool = True,
) -> Attributes:
    """Return the attributes of a publication: from its *body*, and its user *properties*.

    The body is read as JSON or CBOR if its *content_type* says so, or if it begins like a JSON object or a CBOR map. A
    body that cannot be parsed has no attributes. Any other body that is one JSON scalar, or else short text, becomes
    the attribute ``value``. The body wins over a property; of two properties of one name, the first counts. A property
    that cannot be an attribute is left out; if there are too many, all are left out. With ``has_value=False`` the
    result is that of an older Whimbrel, without ``value``.
    """
    found = _attributes_of_body(body, content_type)
    if not found and has_value and _kind(content_type) != "application/cbor":
        found = _value_of(body)
    if not properties:
        return found
    values: dict[str, object] = {**found}
    for name, value in properties:
        if name not in values:
            with suppress(InvalidValueError):
                values.update(checked({name: value}, limits=_LIMITS))
    with suppress(InvalidValueError):
        return checked(values, limits=_LIMITS)
    return found


def _kind(content_type: str | None) -> str:
    return "" if content_type is None else content_type.partition(";")[0].strip().lower()


def _attributes_of_body(body: bytes, content_type: str | None) -> Attributes:
    read = _READERS.get(_kind(content_type))
    if read is None:
        if _OBJECT.match(body):
            read = from_json
        elif body and body[0] in _MAP_STARTS:
            read = from_cbor
        else:
            return NO_ATTRIBUTES
    flat = _flat_attributes(body) if read is from_json else None
    if flat is not None:
        return flat
    try:
        return read(body, limits=_LIMITS)
    except MalformedBodyError:
        return NO_ATTRIBUTES


def _value_of(body: bytes) -> Attributes:
    """Return the attribute ``value`` of a body that is one JSON scalar, or else short text without control characters.

    A body that begins like a JSON object has no attribute ``value``.
    """
    if not body or len(body) > _LIMITS.max_bytes or _OBJECT.match(body):
        return NO_ATTRIBUTES
    if _SCALAR.match(body):
        with suppress(MalformedBodyError):
            tree = read_json(b'{"value":' + body + b"}", limits=_LIMITS)
            if len(tree) == 1 and not isinstance(tree["value"], dict | list):  # else the body was not one scalar
                return _flatten("JSON", tree, _LIMITS)
    if len(body) <= _MAX_TEXT_BYTES:
        with suppress(UnicodeDecodeError, InvalidValueError):
            text = body.decode()
            if not _CONTROL.search(text):
                return checked({"value": text}, limits=_LIMITS)
    return NO_ATTRIBUTES


def _flat_attributes(body: bytes) -> Attributes | None:
    """Return the result of ``from_json`` for a short, flat, plain object, four times as fast; None for other bodies.

    Nearly all bodies are such objects. Anything with a special rule (a repeated name, nesting, large numbers, text that
    is not ASCII, syntax beyond JSON) is left to ``from_json``.
    """
    if len(body) > _SHORT:
        return None
    try:
        pairs = _PLAIN.decode(body.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    if type(pairs) is not tuple:
        return None
    found: dict[str, Scalar] = {}
    for name, value in pairs:
        kind = type(value)
        if kind is int:
            if not INT32_MIN <= value <= INT32_MAX:
                return None
        elif kind is float:
            if value - value != 0.0:  # infinite or NaN
                return None
        elif kind is str:
            if not value.isascii():
                return None
        elif kind is bool:
            value = int(value)  # noqa: PLW2901 # JSON booleans become int32
        else:
            return None
        if not name or not name.isascii() or name[0] == "\0":
            return None
        found[name] = value
    return FrozenAttributes(found) if len(found) == len(pairs) else None


_SHORT = 1_024
_PLAIN = json.JSONDecoder(object_pairs_hook=tuple)  # a tuple marks an object, a list an array


def from_json(data: bytes | str, *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return the attributes of a JSON body."""
    return _flatten("JSON", read_json(data, limits=limits), limits)


def from_tree(tree: Mapping[str, object], *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return the attributes of a JSON object that was parsed before, e.g. as part of a larger one."""
    return _flatten("JSON", tree, limits)


def from_cbor(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return the attributes of a CBOR body."""
    return _flatten("CBOR", read_cbor(data, limits=limits), limits)


_READERS: Mapping[str, Callable[..., Attributes]] = {"application/json": from_json, "application/cbor": from_cbor}
_MAP_STARTS = range(0xA0, 0xC0)  # CBOR's major type 5 (map), in all encodings of its length


def from_properties(pairs: Iterable[tuple[str, str]], *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return MQTT user properties as string attributes."""
    result: dict[str, str] = {}
    for name, value in pairs:
        if name in result:
            raise InvalidValueError("user property", name, "each name once")
        result[name] = value
        if len(result) > limits.max_names:
            break  # ``checked`` raises the error; no need to read on
    return checked(result, limits=limits)


def merge_attributes(body: Attributes, properties: Attributes, *, limits: Limits = DEFAULT_LIMITS) -> Attributes:
    """Return the attributes of body and properties together; if both have a name, the body's value counts."""
    if not properties and isinstance(body, FrozenAttributes):
        return body
    return checked({**properties, **body}, limits=limits)


def to_json(attributes: Attributes) -> str:
    """Return *attributes* as one flat JSON object; refuse opaque values, NaN and infinities, which JSON lacks."""
    for name, value in attributes.items():
        if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidValueError(f"attribute {name}", value, "what JSON has; CBOR and the typed form have more")
    return json.dumps(dict(attributes), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_cbor(attributes: Attributes) -> bytes:
    """Return *attributes* as one flat CBOR map."""
    return cbor2.dumps(dict(attributes))


def _flatten(form: str, tree: Mapping[str, object] | Mapping[object, object], limits: Limits) -> Attributes:
    flat: dict[str, Scalar] = {}
    try:
        for name, value in _leaves(form, tree, "", limits, 1):
            if name in flat:
                raise MalformedBodyError(form, f"found the name {name!r} twice once nested objects are flattened")
            if len(flat) == limits.max_names:
                raise MalformedBodyError(form, f"found more than the {limits.max_names} names allowed")
            flat[name] = value
        return checked(flat, limits=limits)
    except InvalidValueError as error:
        raise MalformedBodyError(form, str(error)) from None


def _leaves(
    form: str, tree: Mapping[str, object] | Mapping[object, object], prefix: str, limits: Limits, depth: int
) -> Iterator[tuple[str, Scalar]]:
    """Yield path and value of each attribute in *tree*; refuse values that are neither valid nor skipped."""
    if depth > limits.max_depth:  # for CBOR, whose reader accepts an empty map one level deeper
        raise MalformedBodyError(form, f"nested deeper than the {limits.max_depth} levels allowed")
    for key, value in tree.items():
        if not isinstance(key, str):
            raise MalformedBodyError(form, f"found a key of {type(key).__name__} under {prefix!r}, allowed is text")
        # The longest allowed name bounds the cost of a few long names above many short ones.
        if not key or len(prefix) + len(key) > limits.max_name_bytes:
            allowed = f"1 to {limits.max_name_bytes} bytes, counted with its path"
            raise InvalidValueError("attribute name", prefix + key[:80], allowed)
        if isinstance(value, Mapping):
            yield from _leaves(form, value, f"{prefix}{key}.", limits, depth + 1)
        elif isinstance(value, bool):
            yield prefix + key, int(value)
        elif isinstance(value, int):
            yield prefix + key, integer(value)
        elif isinstance(value, float | str | bytes):
            yield prefix + key, value
        elif value is not None and value is not cbor2.undefined and not isinstance(value, list | tuple):
            reason = f"found {type(value).__name__} at {prefix + key!r}, which is no attribute"
            raise MalformedBodyError(form, reason)
