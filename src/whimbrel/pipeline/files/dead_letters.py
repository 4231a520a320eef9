"""``dead_letters``: invalid rows of the log, each with the reason; no row is dropped silently.

Rule: a row is a dead letter if ``model.rows.fact_of`` refuses it, or if a subscription's filter is invalid in every
version of the language, which only ``match`` checks. The error of these checks is the reason.
Rule: a fast check of whole Arrow columns comes first (``suspects``). A row that passes is certainly valid. A row that
fails may be valid, and only such rows get the slow checks. A test in which every row gets them must give the same
result.
Rule: a dead letter has no effect: the state before it stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.log.columns import rows_from_arrow
from whimbrel.match.prepared import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME
from whimbrel.model.clock import format_time
from whimbrel.model.rows import fact_of
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.suspects import Mask, suspects

__all__ = ["Judged", "missing_letters", "validate_rows"]

Arrow = Any
"""A ``pyarrow`` array, batch or table; pyarrow ships no types."""

_CONTENT_CHARACTERS = 4_096


class Judged(NamedTuple):
    """Result of validating a batch: the valid rows, and rows of ``dead_letters`` for the others."""

    good: Arrow
    dead: Arrow


def validate_rows(
    table: str,
    rows: Arrow,
    *,
    node: str | None,
    now: int,
    suspected: Callable[[str, Arrow, str | None], Mask] | None = None,
) -> Judged:
    """Validate *rows*, a batch of the log's *table*: return the valid rows, and dead letters for the others.

    *node* is the node to which the log belongs (None: any node). *now* is the time that dead letters get. *suspected*
    chooses the rows to check one by one (default: ``suspects``).
    """
    is_suspect = (suspected or suspects)(table, rows, node)
    reasons = {
        number: reason
        for number in np.flatnonzero(is_suspect).tolist()
        if (reason := _refusal(table, rows.slice(number, 1), node)) is not None
    }
    if not reasons:
        return Judged(rows, _NO_LETTERS)
    is_good = np.ones(rows.num_rows, np.bool_)
    is_good[list(reasons)] = False
    return Judged(rows.filter(pa.array(is_good)), _letters(table, rows, reasons, now))


def missing_letters(missing: Iterable[Missing], now: int) -> Arrow:
    """Return one row of ``dead_letters`` for each range of *missing* seqs."""
    rows = [
        {"found_at": now, "source": f"log of {each.node}", "position": each.first, "reason": str(each), "content": None}
        for each in missing
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["dead_letters"].schema)


# -- one row at a time -------------------------------------------------------------------------------------------------


def _refusal(table: str, row: Arrow, node: str | None) -> str | None:
    """Return why a row is not a valid fact, or not a valid subscription; None if the row is valid."""
    try:
        (values,) = rows_from_arrow(table, row)
        fact_of(table, values)
    except InvalidInputError as error:
        return str(error)
    if node is not None and values["node"] != node:
        return str(InvalidValueError("node", values["node"], f"{node}, whose log it is in"))
    if table == "interests":
        return _filter_refusal(values["subject_filter"], values["filter_text"])
    return None


def _filter_refusal(subject_filter: object, filter_text: object) -> str | None:
    for name, check, text in (
        ("subject_filter", check_topic_filter, subject_filter),
        ("filter_text", check_stored, filter_text),
    ):
        try:
            if text is not None:
                check(str(text))
        except InvalidInputError as error:
            return f"{name}: {error}"
    return None


def _letters(table: str, rows: Arrow, reasons: Mapping[int, str], now: int) -> Arrow:
    found = [
        {
            "found_at": now,
            "source": f"log table {table}",
            "position": rows.column("seq")[number].as_py(),
            "reason": reason,
            "content": _content(rows.slice(number, 1)),
        }
        for number, reason in reasons.items()
    ]
    return pa.Table.from_pylist(found, schema=TABLES["dead_letters"].schema)


_NO_LETTERS = TABLES["dead_letters"].schema.empty_table()


def _content(row: Arrow) -> bytes:
    """Return a row as JSON without its nulls, also if its values are invalid; long text is cut."""
    values = {name: _plain(row.column(name)) for name in row.schema.names}
    text = json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)
    return text[:_CONTENT_CHARACTERS].encode(errors="replace")


def _plain(column: Arrow) -> object:
    """Return the value of a column that has one row, as a value that JSON can hold."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        micros = column.cast(TIME_TYPE).cast(pa.int64())[0].as_py()
        return format_time(micros) if micros is not None and FIRST_TIME <= micros <= LAST_TIME else micros
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())  # invalid UTF-8 must not raise an error here
        value = column[0].as_py()
        return None if value is None else value.decode(errors="replace")
    try:
        return _jsonable(column[0].as_py())
    except (UnicodeDecodeError, ValueError) as error:
        return f"not readable: {error}"


def _jsonable(value: object) -> object:
    match value:
        case bytes():
            return value[:_CONTENT_CHARACTERS].hex()
        case dict():
            return {name: _jsonable(each) for name, each in value.items() if each is not None}
        case list():
            return [_jsonable(each) for each in value]
        case tuple():  # an entry of a map
            return [_jsonable(each) for each in value]
        case _:
            return value
