"""Rows: a fact as the plain values of its table's columns, and back; generated from ``columns``.

Rule: plain values: times are integers (microseconds UTC), enums their values, attributes our mapping, keys sorted
``{"scheme", "digest"}``, and places, areas and displays dictionaries of their parts.
Rule: ``fact_of(*row_of(fact)) == fact``. A row from elsewhere gives a fact, or ``InvalidValueError`` with the column.
Rule: a column is the field of the fact with the same name. Exceptions are defined here: the subscription of an interest
and its ``near``, the state of a report, a will, and the id of a notification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, TypeAlias

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.attributes import INT32_MAX, FrozenAttributes, Limits, checked
from whimbrel.model.columns import LOG_SPECS, NEEDED, Column, Kind, TableSpec
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import Fact, WillChange
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme
from whimbrel.model.near import ANYWHERE, Anywhere, Around, Near
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill

__all__ = ["COLUMNS", "UNBOUNDED", "fact_of", "row_of", "subscription_values", "values_of"]

Row: TypeAlias = Mapping[str, Any]
"""A row from outside, unchecked."""

_Given: TypeAlias = dict[str, Any]
"""The fields of a fact, while it is built from a row."""
_Convert: TypeAlias = Callable[[Any], Any]

COLUMNS: dict[str, tuple[str, ...]] = {
    name: tuple(column.name for column in spec.columns) for name, spec in LOG_SPECS.items()
}
"""The columns of each table of the log: node, seq, the fact's own time, then the rest."""

UNBOUNDED = Limits(max_names=INT32_MAX, max_bytes=INT32_MAX, max_name_bytes=INT32_MAX)
"""Limits for reading the log: accepted facts must stay readable, whatever their node's limits; records are bounded."""


def row_of(fact: Fact) -> tuple[str, dict[str, object]]:
    """Return the table of *fact*, and the fact's row."""
    table, values = _WRITERS[type(fact)]
    return table, dict(zip(COLUMNS[table], values(fact)))  # noqa: B905 # equal lengths: both come from the same columns


def values_of(fact: Fact) -> tuple[str, list[object]]:
    """Return the table of *fact*, and the values of its row in the order of ``COLUMNS``; the third is its time."""
    table, values = _WRITERS[type(fact)]
    return table, values(fact)


def fact_of(table: str, row: Mapping[str, object]) -> Fact:
    """Return the fact in *row* of *table*; columns with a default may be missing."""
    reader = _READERS.get(table)
    if reader is None:
        raise InvalidValueError("table", table, ", ".join(_READERS))
    return reader(row)


# -- to values -------------------------------------------------------------------------------------------------------


def _place_value(place: Place) -> dict[str, float]:
    return {"latitude": place.latitude, "longitude": place.longitude}


def _display_value(display: Display) -> dict[str, int]:
    return {"width_px": display.width_px, "height_px": display.height_px}


def _keys_value(hashes: frozenset[KeyHash]) -> list[dict[str, object]]:
    ordered = sorted((each.scheme.value, each.digest) for each in hashes)
    return [{"scheme": scheme, "digest": digest} for scheme, digest in ordered]


def _subscriptions_value(identities: tuple[SubscriptionIdentity, ...]) -> list[dict[str, object]]:
    return [{"subject_filter": each.subject_filter, "name": each.name} for each in identities]


def _area_value(near: Near) -> dict[str, float] | None:
    if not isinstance(near, Area):
        return None
    return {"latitude": near.centre.latitude, "longitude": near.centre.longitude, "radius_m": near.radius_m}


def _around_value(near: Near) -> float | None:
    return near.radius_m if isinstance(near, Around) else None


def _corners_value(near: Near) -> list[dict[str, float]] | None:
    return [_place_value(corner) for corner in near.corners] if isinstance(near, Polygon) else None


def _anywhere_value(near: Near) -> bool | None:
    return True if isinstance(near, Anywhere) else None


_NEAR_VALUES: dict[str, _Convert] = {
    "near": _area_value,
    "around_m": _around_value,
    "corners": _corners_value,
    "hears_anywhere": _anywhere_value,
}
"""Columns for a subscription's ``near``, with the conversion of each; at most one of them is not null."""

_VALUES: dict[Kind, _Convert] = {
    Kind.PLACE: _place_value,
    Kind.DISPLAY: _display_value,
    Kind.KEYS: _keys_value,
    Kind.SUBSCRIPTIONS: _subscriptions_value,
    Kind.TEXTS: list,
}
_ELSEWHERE = {
    "notification_node": "notification.node",
    "notification_seq": "notification.seq",
    "keys": "keys.hashes",
}
"""Attribute paths of the columns that are not fields of the same name."""


def _value_of(column: Column) -> _Convert | None:
    """Return the function from a field (not None or empty) to a column's plain value; None if both are the same."""
    if column.name in _NEAR_VALUES:
        return _NEAR_VALUES[column.name]
    if _has_enum(column):
        return attrgetter("_value_") if column.is_nullable else None
    return _VALUES.get(column.kind)


def _field_of(column: Column) -> str:
    """Return the attribute path of *column* in the written object."""
    if column.name in _NEAR_VALUES:
        return "near"
    if _has_enum(column) and not column.is_nullable:
        return f"{column.name}._value_"
    return _ELSEWHERE.get(column.name, column.name)


def _has_enum(column: Column) -> bool:
    return any(isinstance(word, Enum) for word in column.words)


def _is_null_if_empty(column: Column) -> bool:
    return column.kind in {Kind.ATTRIBUTES, Kind.PROPERTIES} and column.is_nullable and column.default is not None


def _writer(columns: Sequence[Column], nested: tuple[str, int] | None = None) -> Callable[[Any], list[object]]:
    """Return a function that returns the plain values of *columns* of an object.

    *nested* is a field and a number of columns: the columns after that number belong to the field's value.
    """
    converts = [
        (at, value_of, None if column.is_nullable else column.default)
        for at, column in enumerate(columns)
        if (value_of := _value_of(column)) is not None
    ]
    emptied = [at for at, column in enumerate(columns) if _is_null_if_empty(column)]
    fields = [*map(_field_of, columns)]
    field, count = nested or ("", len(columns))
    head, part_of, inner = attrgetter(*fields[:count]), attrgetter(field), attrgetter(*(fields[count:] or [""]))
    nothing = [None if column.is_nullable else column.default for column in columns[count:]]

    def flat(found: Any) -> list[object]:  # noqa: ANN401 # a fact, or what it nests
        row = [*head(found)]
        for at, value_of, empty in converts:
            value = row[at]
            row[at] = value_of(value) if value else empty
        for at in emptied:
            row[at] = row[at] or None
        return row

    def nesting(fact: Any) -> list[object]:  # noqa: ANN401 # a fact
        part = part_of(fact)
        if part is None:
            return [*head(fact), *nothing]
        row = [*head(fact), *inner(part)]
        for at, value_of, empty in converts:
            value = row[at]
            row[at] = value_of(value) if value else empty
        for at in emptied:
            row[at] = row[at] or None
        return row

    return flat if nested is None else nesting


# -- from a row: checks that a fact makes itself when it is built are not repeated -------------------------------------


def _reader(spec: TableSpec, build: Callable[[_Given], Any]) -> Callable[[Row], Any]:
    """Return a function from a row to its fact; *build* makes the fact from converted values."""
    names = COLUMNS[spec.name]
    needed = [column.name for column in spec.columns if column.default is NEEDED]
    defaults = {column.name: column.default for column in spec.columns}
    filled = [
        (column.name, column.default) for column in spec.columns if column.is_nullable and column.default is not None
    ]
    converts = [
        (column.name, column.is_nullable, read) for column in spec.columns if (read := _read_of(column)) is not None
    ]

    def fact(row: Row) -> Any:  # noqa: ANN401 # the fact of the table
        given = dict(row)
        if tuple(given) != names:  # nearly all rows have all columns in order
            for name in needed:
                if name not in given:
                    raise InvalidValueError(name, Phrase("nothing"), "a value in every row")
            given = {name: given.get(name, default) for name, default in defaults.items()}
        for name, default in filled:
            if given[name] is None:
                given[name] = default
        for name, is_nullable, read in converts:
            value = given[name]
            if value is not None or not is_nullable:
                given[name] = read(name, value)
        return build(given)

    return fact


_Read: TypeAlias = Callable[[str, Any], Any]


def _read_of(column: Column) -> _Read | None:
    """Return the function from a column's value to a field; None if both are the same."""
    if column.name in _NEAR_READS:
        return _NEAR_READS[column.name]
    return _word(column) if _has_enum(column) else _READS.get(column.kind)


def _word(column: Column) -> _Read:
    members = {word.value: word for word in column.words if isinstance(word, Enum)}

    def read(name: str, value: object) -> Enum:
        found = members.get(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidValueError(name, value, ", ".join(members))
        return found

    return read


def _attributes(name: str, value: object) -> FrozenAttributes:
    if type(value) is FrozenAttributes:
        return value
    if not isinstance(value, Mapping):
        raise InvalidValueError(name, value, "names and values")
    found = checked(value, limits=UNBOUNDED)
    assert isinstance(found, FrozenAttributes)
    return found


def _parts(name: str, value: Any, names: tuple[str, ...]) -> list[Any]:  # noqa: ANN401 # found out here
    """Return the parts of a value with several parts, in the order of *names*."""
    is_mapping = type(value) is dict or isinstance(value, Mapping)  # the first test is faster
    if not is_mapping or (tuple(value) != names and value.keys() != set(names)):
        raise InvalidValueError(name, value, f"an object of {', '.join(names)}")
    return [value[name] for name in names]


def _place(name: str, value: object) -> Place:
    return Place(*_parts(name, value, ("latitude", "longitude")))


def _area(name: str, value: object) -> Area:
    latitude, longitude, radius_m = _parts(name, value, ("latitude", "longitude", "radius_m"))
    return Area(Place(latitude, longitude), radius_m)


def _corners(name: str, value: object) -> Polygon:
    return Polygon(tuple(Place(*each) for each in _items(name, value, ("latitude", "longitude"))))


def _anywhere(name: str, value: object) -> Anywhere | None:
    if value is not True and value is not False:
        raise InvalidValueError(name, value, "true or false")
    return ANYWHERE if value else None


def _display(name: str, value: object) -> Display:
    return Display(*_parts(name, value, ("width_px", "height_px")))


def _items(name: str, value: object, names: tuple[str, ...]) -> list[list[Any]]:
    if not isinstance(value, list | tuple):
        raise InvalidValueError(name, value, f"a list of objects of {', '.join(names)}")
    if None in value:
        raise InvalidValueError(name, None, "no null in the list")
    return [_parts(name, each, names) for each in value]


def _keys(name: str, value: object) -> KeyHashes:
    if value == []:  # the usual case, for every row
        return NO_KEYS
    hashes = _items(name, value, ("scheme", "digest"))
    return KeyHashes(frozenset(KeyHash(_scheme(name, scheme), digest) for scheme, digest in hashes))


_scheme = _word(Column("keys", Kind.KEYS, "", words=Scheme))


def _subscriptions(name: str, value: object) -> tuple[SubscriptionIdentity, ...]:
    found = []
    for subject_filter, own_name in _items(name, value, ("subject_filter", "name")):
        if not (subject_filter is None or isinstance(subject_filter, str)) or not isinstance(own_name, str):
            raise InvalidValueError(name, (subject_filter, own_name), "texts; subject_filter may be null")
        found.append(SubscriptionIdentity(subject_filter, own_name))
    return tuple(found)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidValueError(name, value, "a list of texts")
    return tuple(value)


def _around(_name: str, value: Any) -> Around:  # noqa: ANN401 # the value checks itself
    return Around(value)


_NEAR_READS: dict[str, _Read] = {"near": _area, "around_m": _around, "corners": _corners, "hears_anywhere": _anywhere}
_READS: dict[Kind, _Read] = {
    Kind.ATTRIBUTES: _attributes,
    Kind.KEYS: _keys,
    Kind.PLACE: _place,
    Kind.DISPLAY: _display,
    Kind.SUBSCRIPTIONS: _subscriptions,
    Kind.TEXTS: _texts,
}


# -- facts that contain another value ----------------------------------------------------------------------------------


def _near(given: _Given) -> Near | None:
    """Return the subscription's ``near`` from its four columns, of which at most one may be set."""
    near: Near | None = given["near"]
    others = (given.pop("around_m"), given.pop("corners"), given.pop("hears_anywhere"))
    if others == (None, None, None):  # the usual case
        return near
    found = [each for each in (near, *others) if each is not None]
    if len(found) > 1:
        raise InvalidValueError("near", [str(each) for each in found], f"one of {', '.join(_NEAR_VALUES)}")
    return found[0]


def _flat(spec: TableSpec) -> Callable[[_Given], Any]:
    """Return a function that builds a fact from its columns; a notification's two columns become its id."""
    make: Any = spec.fact
    if "notification_seq" not in COLUMNS[spec.name]:
        return lambda given: make(**given)

    def build(given: _Given) -> Any:  # noqa: ANN401 # the fact of the table
        node, seq = given.pop("notification_node"), given.pop("notification_seq")
        try:
            given["notification"] = NotificationId(node, seq)
        except InvalidValueError as error:
            raise InvalidValueError(f"notification_{error.what}", error.found, error.allowed) from None
        return make(**given)

    return build


_NESTED: dict[str, tuple[str, type, tuple[str, ...]]] = {
    "interests": ("subscription", Subscription, ("node", "seq", "changed_at", "change", "device")),
    "reports": ("state", DeviceState, ("node", "seq")),
    "wills": ("will", LastWill, ("node", "seq", "changed_at", "device", "change")),
}
"""Tables whose facts contain a value: the field, its class, and the first columns, which are the fact's own."""
_SHARED = {"interests": ("seq", "changed_at")}
"""First columns that the contained value has, too."""


def _nesting(spec: TableSpec) -> Callable[[_Given], Any]:
    """Return a function that builds a fact and its contained value, which gets all columns except the first ones."""
    field, part, names = _NESTED[spec.name]
    make: Any = spec.fact
    has_near = "near" in COLUMNS[spec.name]
    shared = _SHARED.get(spec.name, ())
    own = [name for name in names if name not in shared]

    def build(given: _Given) -> Any:  # noqa: ANN401 # the fact of the table
        if has_near:
            given["near"] = _near(given)
        head = {}
        for name in own:
            head[name] = given.pop(name)
        for name in shared:
            head[name] = given[name]
        if head.get("change") is not WillChange.WITHDRAWN:
            head[field] = part(**given)
        return make(**head)

    return build


def _writer_of(spec: TableSpec) -> Callable[[Any], list[object]]:
    if spec.name not in _NESTED:
        return _writer(spec.columns)
    field, _, names = _NESTED[spec.name]
    return _writer(spec.columns, (field, len(names)))


_WRITERS: dict[type, tuple[str, Callable[[Any], list[object]]]] = {
    spec.fact: (name, _writer_of(spec)) for name, spec in LOG_SPECS.items() if spec.fact is not None
}
_READERS: dict[str, Callable[[Row], Fact]] = {
    name: _reader(spec, _nesting(spec) if name in _NESTED else _flat(spec)) for name, spec in LOG_SPECS.items()
}
_HEAD = len(_NESTED["interests"][2])

subscription_values = _writer(LOG_SPECS["interests"].columns[_HEAD:])
"""Return the columns of ``interests`` that describe a subscription, in order: all columns after ``device``."""
