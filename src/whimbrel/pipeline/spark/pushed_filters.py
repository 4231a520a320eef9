"""Pushed filters: conditions of a query that leave out files and rows before these reach Java.

Spark passes the conditions on single columns to a reader if its setting for that (filterPushdown) is on.
Rule: a condition only leaves out rows for which Spark would compute false or NULL. Spark checks all rows again.
Rule: a condition whose meaning may differ between Arrow and Spark (on reals, of which Spark orders NaN last, or inside
of structs) is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader

__all__ = ["Condition", "FilterReceiver", "as_expression", "conditions_of", "may_match"]

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": lambda column, value: column == value,
    "GreaterThan": lambda column, value: column > value,
    "GreaterThanOrEqual": lambda column, value: column >= value,
    "LessThan": lambda column, value: column < value,
    "LessThanOrEqual": lambda column, value: column <= value,
}


class Condition(NamedTuple):
    """A condition on a column: the name of Spark's filter, and its values."""

    column: str
    kind: str
    values: list[Any]


def conditions_of(filters: Iterable[Any], schema: Any) -> tuple[Condition, ...]:
    """Return the conditions of Spark's *filters* that can be checked on Arrow data with this *schema*."""
    return tuple(found for each in filters if (found := _condition(each, schema)) is not None)


def _condition(wanted: Any, schema: Any) -> Condition | None:
    kind = type(wanted).__name__
    path: tuple[str, ...] = getattr(wanted, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names or (kind not in _COMPARISONS and kind != "In"):
        return None
    values = [*wanted.value] if kind == "In" else [wanted.value]
    field = schema.field(path[0])
    is_local = any(isinstance(value, datetime) and value.tzinfo is None for value in values)
    if is_local or any(value is None for value in values) or not _is_alike(field.type):
        return None
    try:
        pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return Condition(path[0], kind, values)


def _is_alike(kind: Any) -> bool:
    """Return whether Arrow and Spark order the values of a type alike."""
    checks = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_timestamp)
    return any(check(kind) for check in checks)


def as_expression(conditions: Iterable[Condition], schema: Any) -> Any | None:
    """Return *conditions* as an Arrow expression over rows with this *schema*; None if there are none."""
    found: Any = None
    for column, kind, values in conditions:
        typed = pa.array(values, schema.field(column).type)
        field = pc.field(column)
        each = field.isin(typed) if kind == "In" else _COMPARISONS[kind](field, typed[0])
        found = each if found is None else found & each
    return found


def may_match(conditions: Iterable[Condition], least: Mapping[str, Any], most: Mapping[str, Any]) -> bool:
    """Return whether a file may have a matching row, given the *least* and *most* value of some of its columns."""
    return all(
        condition.column not in least or condition.column not in most or _meets(condition, least, most)
        for condition in conditions
    )


def _meets(condition: Condition, least: Mapping[str, Any], most: Mapping[str, Any]) -> bool:
    low, high = least[condition.column], most[condition.column]
    if condition.kind in {"EqualTo", "In"}:
        return any(low <= value <= high for value in condition.values)
    # The end of the range that goes furthest into the direction of the comparison decides.
    return bool(
        _COMPARISONS[condition.kind](high if condition.kind.startswith("Greater") else low, condition.values[0])
    )


class FilterReceiver:
    """A reader's ``pushFilters``, which Spark may call or not.

    Spark refuses a reader that has a ``pushFilters`` of its own where pushing filters is switched off, as it is by
    default. It recognises one by its function; this object shows it that of Spark's base class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.conditions: tuple[Condition, ...] = ()

    def __call__(self, filters: Sequence[Any]) -> Sequence[Any]:
        """Note the *filters*; return all of them, because Spark checks all rows again."""
        self.conditions = conditions_of(filters, self._schema)
        return filters
