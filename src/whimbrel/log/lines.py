"""Lines: one fact as one line of JSON, the format in which other systems import facts and scripts read them.

``{"table": "publications", "published_at": "2004-05-17T09:30:00Z", "subject": "ward/3", "attributes": {…}}``

Rule: columns are those of the table. A time is ISO 8601 or integer microseconds. Attributes, and other maps of values,
are an object (``attributes``, with the types that ``model.codecs`` derives) or keep their types (``attributes_typed``).
A body is text (``body``) or ``body_base64``. Keys are texts ``scheme:hex``. A place is ``{latitude, longitude}`` or
"lat,lon"; an area is the same with ``radius_m``; ``corners`` is a list of places or "lat,lon;lat,lon;lat,lon". A hash
and MQTT properties are hexadecimal.
Rule: ``row_from_json`` reads back a row that ``json_of`` wrote, and gets an equal row.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, Attributes, Int64, Scalar
from whimbrel.model.clock import format_time, parse_time
from whimbrel.model.codecs import from_tree, from_typed, to_typed
from whimbrel.model.columns import LOG_SPECS, Column, Kind
from whimbrel.model.keys import KeyHash
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.rows import COLUMNS

__all__ = ["json_of", "row_from_json"]

_Reader = Callable[[str, object], object]


def row_from_json(tree: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return table name and row of one parsed line; only the form of values is checked, ``fact_of`` checks the rest."""
    table = tree.get("table")
    if not isinstance(table, str) or table not in COLUMNS:
        raise InvalidValueError("table", table, ", ".join(COLUMNS))
    row, forms = dict[str, object](), _FORMS[table]
    for name, value in tree.items():
        if name == "table":
            continue
        form = forms.get(name)
        if form is None:
            raise InvalidValueError("column", name, f"the columns of {table}: {', '.join(COLUMNS[table])}")
        column, read = form
        if column in row:
            raise InvalidValueError(name, Phrase("the column a second time"), "one form of each column")
        row[column] = value if value is None or read is None else read(name, value)
    return table, row


def json_of(table: str, row: Mapping[str, object]) -> dict[str, object]:
    """Return *row* as a JSON object: values without a JSON type become text or objects."""
    shown: dict[str, object] = {"table": table}
    writers = _PLAIN[table]
    for column, value in row.items():
        write = writers.get(column)
        if write is None or value is None:
            shown[column] = value
        else:
            name, plain = write(column, value)
            shown[name] = plain
    return shown


# -- from JSON -------------------------------------------------------------------------------------------------------


def _time(column: str, value: object) -> object:
    try:
        return parse_time(value) if isinstance(value, str) else value
    except InvalidValueError as error:
        raise InvalidValueError(column, error.found, error.allowed) from None


def _attributes(column: str, value: object) -> object:
    if not isinstance(value, dict):
        raise InvalidValueError(column, value, "an object")
    try:
        return from_typed(value) if column.endswith("_typed") else from_tree(value)
    except InvalidInputError as error:
        raise InvalidValueError(column, Phrase(str(error)), "what attributes can be") from None


def _text_body(column: str, value: object) -> object:
    try:
        return _text(column, value).encode()
    except UnicodeEncodeError:
        raise InvalidValueError(column, value, "Unicode without lone surrogates") from None


def _base64_body(column: str, value: object) -> object:
    try:
        return base64.b64decode(_text(column, value), validate=True)
    except ValueError:  # binascii.Error is a ValueError
        raise InvalidValueError(column, value, "base64") from None


def _hexadecimal(column: str, value: object) -> object:
    try:
        return bytes.fromhex(_text(column, value))
    except ValueError:
        raise InvalidValueError(column, value, "hexadecimal") from None


def _text(column: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(column, value, "text")
    return value


def _keys(column: str, value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidValueError(column, value, "a list of scheme:hex")
    hashes = [KeyHash.parse(each) for each in value]
    return [{"scheme": each.scheme.value, "digest": each.digest} for each in hashes]


def _place(_column: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    place = Place.parse(value)
    return {"latitude": place.latitude, "longitude": place.longitude}


def _corners(_column: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    return [{"latitude": each.latitude, "longitude": each.longitude} for each in Polygon.parse(value).corners]


def _near(_column: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    area = Area.parse(value)
    return {"latitude": area.centre.latitude, "longitude": area.centre.longitude, "radius_m": area.radius_m}


_READERS: dict[Kind, _Reader] = {
    Kind.TIME: _time,
    Kind.ATTRIBUTES: _attributes,
    Kind.BODY: _text_body,
    Kind.HASH: _hexadecimal,
    Kind.PROPERTIES: _hexadecimal,
    Kind.KEYS: _keys,
    Kind.PLACE: _place,
    Kind.AREA: _near,
    Kind.CORNERS: _corners,
}
"""Function that reads the JSON value of a column, per kind; a column of another kind keeps its JSON value."""


def _forms(column: Column) -> Iterator[tuple[str, tuple[str, _Reader | None]]]:
    """Yield each JSON key that a line may use for *column*, with the column's name and its reader, or None."""
    yield column.name, (column.name, _READERS.get(column.kind))
    if column.kind is Kind.ATTRIBUTES:
        yield f"{column.name}_typed", (column.name, _attributes)
    if column.kind is Kind.BODY:
        yield f"{column.name}_base64", (column.name, _base64_body)


_FORMS = {table: dict(form for column in spec.columns for form in _forms(column)) for table, spec in LOG_SPECS.items()}


# -- to JSON ---------------------------------------------------------------------------------------------------------


def _time_text(column: str, time_us: int) -> tuple[str, object]:
    try:
        return column, format_time(time_us)
    except InvalidValueError:
        return column, time_us  # expires_at may lie beyond the year 9999


def _plain_attributes(column: str, attributes: Attributes) -> tuple[str, object]:
    if all(map(_is_plain, attributes.values())):
        return column, dict(attributes)
    return f"{column}_typed", to_typed(attributes)


def _plain_body(column: str, body: bytes) -> tuple[str, object]:
    try:
        return column, body.decode()
    except UnicodeDecodeError:
        return f"{column}_base64", base64.b64encode(body).decode()


def _is_plain(value: Scalar) -> bool:
    """Return whether *value* keeps its attribute type when it is written as plain JSON and read back."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str) or (
        isinstance(value, int) and isinstance(value, Int64) == (not INT32_MIN <= value <= INT32_MAX)
    )


def _plain_keys(column: str, keys: Sequence[Mapping[str, Any]]) -> tuple[str, object]:
    return column, [f"{each['scheme']}:{each['digest'].hex()}" for each in keys]


def _digits(column: str, value: bytes) -> tuple[str, object]:
    return column, value.hex()


_WRITERS: dict[Kind, Callable[[str, Any], tuple[str, object]]] = {
    Kind.TIME: _time_text,
    Kind.ATTRIBUTES: _plain_attributes,
    Kind.BODY: _plain_body,
    Kind.HASH: _digits,
    Kind.PROPERTIES: _digits,
    Kind.KEYS: _plain_keys,
}
"""Function that returns JSON name and value of a column, per kind; a column of another kind is written as it is."""
_PLAIN = {
    table: {column.name: _WRITERS[column.kind] for column in spec.columns if column.kind in _WRITERS}
    for table, spec in LOG_SPECS.items()
}
