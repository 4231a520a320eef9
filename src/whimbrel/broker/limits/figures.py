"""Figures: each metric of a broker is a dataclass field that contains its own description.

Rule: a figure is one field of a dataclass. Metrics, ``$SYS``, ``whimbrel status`` and the reference page are made from
these fields, so that a new figure is one line of code.
Rule: the value None means that the figure is unknown; it is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Figure", "Reading", "count", "figures_of", "now", "read_figures"]

_KEY = "figure"


@dataclass(frozen=True, slots=True)
class Figure:
    """Description of one figure (a metric or status value)."""

    about: str
    """Text that describes the number, for the reference page and the help of the metric."""
    is_counter: bool
    """Whether the number only grows (a counter), as opposed to a current value (a gauge)."""
    topic: str = ""
    """The topic below ``$SYS/broker/``; the sum of all figures with the same topic is published there."""
    place: str = ""
    """The place in the JSON of ``whimbrel status``, such as ``clients.connected``."""
    has_rate: bool = False
    """Whether the status shows the growth per second over the last minute, under ``per_second``."""


class Reading(NamedTuple):
    """A figure's description, with its name and current value."""

    name: str
    value: float
    figure: Figure


def count(about: str, *, topic: str = "", has_rate: bool = False) -> Any:  # noqa: ANN401 # a field of any number
    """Return a dataclass field for a counter, which starts at 0."""
    return field(default=0, metadata={_KEY: Figure(about, is_counter=True, topic=topic, has_rate=has_rate)})


def now(about: str, *, topic: str = "", place: str = "") -> Any:  # noqa: ANN401 # a field of any number
    """Return a dataclass field for a current value (a gauge), which is None until it is known."""
    return field(default=None, metadata={_KEY: Figure(about, is_counter=False, topic=topic, place=place)})


def figures_of(kind: type[DataclassInstance]) -> dict[str, Figure]:
    """Return the descriptions of a dataclass's figures (metrics), by field name."""
    return {each.name: each.metadata[_KEY] for each in fields(kind)}


def read_figures(*tables: DataclassInstance) -> Iterator[Reading]:
    """Yield name, value and description of each figure in the dataclass objects *tables* whose value is not None."""
    for table in tables:
        for name, figure in figures_of(type(table)).items():
            value = getattr(table, name)
            if value is not None:
                yield Reading(name, value, figure)
