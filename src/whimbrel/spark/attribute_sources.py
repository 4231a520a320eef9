"""Attribute sources: where the columns of a DataFrame have the attributes that a filter names.

A column is an attribute with the column's name. A field of a struct, a key of a map and a member of a JSON object are
attributes, too, named by their path (``vitals.pulse``), as in the body of a publication.
Rule: the type of a column is the type of its attribute: integers of up to 32 bits and booleans are int32, bigint is
int64, float and double are real64, string is string, binary is opaque. A filter that names another type is refused.
Rule: a JSON text has the attributes that a publication with this body has.
Rule: a name that two columns have is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.attributes import AttributeType
from whimbrel.pipeline.files.schemas import SCHEMAS

__all__ = ["AttributeSources", "Form", "Source"]

_ALLOWED = (
    "boolean, an integer type, float, double, string or binary, or inside of a struct, of a map with string keys and "
    "such values, or of a string or binary column with JSON (json=…)"
)
_ATTRIBUTES = SCHEMAS["publications"]["attributes"].dataType
_SHOWN = 12
_TYPES: dict[type[DataType], AttributeType] = {
    BooleanType: AttributeType.INT32,
    ByteType: AttributeType.INT32,
    ShortType: AttributeType.INT32,
    IntegerType: AttributeType.INT32,
    LongType: AttributeType.INT64,
    FloatType: AttributeType.REAL64,
    DoubleType: AttributeType.REAL64,
    StringType: AttributeType.STRING,
    BinaryType: AttributeType.OPAQUE,
}


class Form(Enum):
    """How a column has attributes."""

    VALUE = auto()
    """The column is the value of one attribute."""
    MAP = auto()
    """A map from names to values of one type."""
    ATTRIBUTES = auto()
    """A map from names to values of all types, as the column ``attributes`` of the log."""
    JSON = auto()
    """A text with a JSON object."""


class Source(NamedTuple):
    """Where an attribute is: a column, or a field of a struct, and the name inside of a map or a JSON text."""

    path: tuple[str, ...]
    form: Form
    kind: AttributeType | None
    """Type of the value; None if rows have different types."""
    key: str = ""
    is_flag: bool = False
    """Whether the value is a boolean, which counts as an int32."""


class _Leaf(NamedTuple):
    path: tuple[str, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class _Refused:
    """A name that cannot be an attribute, and why not."""

    found: str


class AttributeSources:
    """The attributes that the columns of *schema* have.

    With *inside*, the attributes are what is inside of this column: a struct, a map or a JSON text; else all columns
    are attributes, or what is inside of a column ``attributes`` of the log's type. *json* has the names of columns
    with JSON texts.
    """

    def __init__(self, schema: StructType, *, inside: str | None = None, json: Collection[str] = ()) -> None:
        asked = {json} if isinstance(json, str) else {*json}
        if inside is None and "attributes" in schema.names and schema["attributes"].dataType == _ATTRIBUTES:
            inside = "attributes"
        self._values: dict[str, list[Source | _Refused]] = {}
        self._inner: dict[str, Source] = {}
        """Maps and JSON texts, by the prefix of the names of their attributes."""
        for name in asked - {*_paths(schema)}:
            raise InvalidValueError("column with JSON", name, _list_some(_paths(schema)))
        if inside is None:
            for field in schema:
                self._add(field.name, _Leaf((field.name,), field.dataType), asked)
            return
        leaf = next((leaf for name, leaf in _leaves(schema) if name == inside), None)
        if leaf is None:
            raise InvalidValueError("column with attributes inside", inside, _list_some(_paths(schema)))
        is_text = isinstance(leaf.type, StringType | BinaryType)
        self._add("", leaf, {*asked, inside} if is_text else asked, inside)

    def _add(self, name: str, leaf: _Leaf, json: Collection[str], spelled: str | None = None) -> None:
        """Add a column, or a field of a struct, under the *name* of its attribute; a prefix if it has several."""
        path, kind = leaf
        spelled = name if spelled is None else spelled
        if isinstance(kind, StructType):
            for field in kind:
                inner = _Leaf((*path, field.name), field.dataType)
                self._add(f"{name}.{field.name}" if name else field.name, inner, json, f"{spelled}.{field.name}")
        elif spelled in json:
            if isinstance(kind, StringType | BinaryType):
                self._put_inner(name, Source(path, Form.JSON, None))
            else:
                raise InvalidValueError(f"column {spelled} with JSON", kind.simpleString(), "string or binary")
        elif isinstance(kind, MapType):
            self._add_map(name, leaf, kind)
        else:
            own = _type_of(kind)
            found = _Refused(kind.simpleString()) if own is None else Source(path, Form.VALUE, own)
            if isinstance(found, Source) and isinstance(kind, BooleanType):
                found = found._replace(is_flag=True)
            self._values.setdefault(name, []).append(found)

    def _add_map(self, name: str, leaf: _Leaf, kind: MapType) -> None:
        if kind == _ATTRIBUTES or _names_and_types(kind) == _names_and_types(_ATTRIBUTES):
            self._put_inner(name, Source(leaf.path, Form.ATTRIBUTES, None))
            return
        value = _type_of(kind.valueType)
        if _type_of(kind.keyType) is AttributeType.STRING and value is not None:
            is_flag = isinstance(kind.valueType, BooleanType)
            self._put_inner(name, Source(leaf.path, Form.MAP, value, is_flag=is_flag))
        else:
            self._values.setdefault(name, []).append(_Refused(kind.simpleString()))

    def _put_inner(self, name: str, source: Source) -> None:
        if name in self._inner:
            raise InvalidValueError("column", name, "each name once")
        self._inner[name] = source

    def find(self, name: str) -> Source | None:
        """Return where the attribute *name* is, or None; raise if a column of this name cannot be an attribute."""
        found: list[Source | _Refused] = list(self._values.get(name, ()))
        for prefix, source in self._inner.items():
            if not prefix:
                found.append(source._replace(key=name))
            elif name.startswith(f"{prefix}."):
                found.append(source._replace(key=name[len(prefix) + 1 :]))
        if len(found) > 1:
            raise InvalidValueError("attribute name", name, "each name once, but several columns have it")
        for each in found:
            if isinstance(each, _Refused):
                allowed = f"{_ALLOWED}; cast it, for example with unix_micros or to double"
                raise InvalidValueError(f"type of the column {name}", Phrase(each.found), allowed)
            return each
        return None

    def resolve(self, names: Iterable[str], *, allows_absent: bool) -> Mapping[str, Source]:
        """Return where each of *names* is; without *allows_absent*, refuse a name that no column has."""
        found = {}
        for name in sorted(names):
            source = self.find(name)
            if source is not None:
                found[name] = source
            elif not allows_absent:
                allowed = (
                    f"{_list_some(self._usable_names())}; allows_absent=True makes conditions on other names undefined"
                )
                raise InvalidValueError("attribute in the filter", name, allowed)
        return found

    def _usable_names(self) -> Iterator[str]:
        yield from (name for name, found in self._values.items() if not isinstance(found[0], _Refused))
        yield from (f"{prefix}.…" if prefix else "any name" for prefix in self._inner)


def _type_of(kind: DataType) -> AttributeType | None:
    if isinstance(kind, StringType) and kind.simpleString() != "string":  # with a collation, or a fixed length
        return None
    return _TYPES.get(type(kind))


def _names_and_types(kind: DataType) -> object:
    """Return a map's types without the nullability of values, which a DataFrame may have lost."""
    if not isinstance(kind, MapType) or not isinstance(kind.valueType, StructType):
        return None
    return kind.keyType, [(field.name, field.dataType) for field in kind.valueType]


def _leaves(schema: StructType, before: tuple[str, ...] = ()) -> Iterator[tuple[str, _Leaf]]:
    """Yield the name and place of each column, and of each field of a struct."""
    for field in schema:
        path = (*before, field.name)
        yield ".".join(path), _Leaf(path, field.dataType)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, path)


def _paths(schema: StructType) -> list[str]:
    return [name for name, _ in _leaves(schema)]


def _list_some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"one of {', '.join(found[:_SHOWN])}{more}" if found else "nothing: there are no columns"
