"""The operations of policies as one data table, read by the parser, ``whimbrel policy explain`` and the docs page.

First come those of Figure 3 of the SUBLIM paper, then further ones of Figure 4, and ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from whimbrel.language.policies.tree import Scope

__all__ = ["AUTOMATIC", "OPERATIONS", "Operation", "is_automatic", "member_name", "scope_of"]

AUTOMATIC = MappingProxyType(
    {
        "Battery": "the fraction of the charge that is left, 0 to 1",
        "NetworkConnection": "received / sent since the report before, 0 to 1; kept while nothing is sent",
        "DisplaySize": "pixels of the display: width times height",
        "DisplayWidth": "its width in pixels",
        "DisplayHeight": "its height in pixels",
        "Place.latitude": "WGS84 degrees",
        "Place.longitude": "WGS84 degrees",
    }
)
"""Automatic variables of every deployment; a device may report others under its own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: its usage, its number of arguments (``most`` None: any number), and its effect."""

    name: str
    usage: str
    least: int
    most: int | None
    does: str
    is_statement: bool = False


def _operation(usage: str, least: int, most: int | None, does: str, *, is_statement: bool = False) -> Operation:
    name = usage.partition("(")[0]
    return Operation(name=name, usage=usage, least=least, most=most, does=does, is_statement=is_statement)


_ALL = (
    _operation("getProperty('name')", 1, 1, "the automatic variable of that name, else the manual one, else NULL"),
    _operation(
        "setProperty('name', value)",
        2,
        2,
        "sets a manual variable; NULL removes it; nothing happens to an automatic one",
        is_statement=True,
    ),
    _operation("removeProperty('name')", 1, 1, "removes a manual variable", is_statement=True),
    _operation("createMessage()", 0, 0, "a message without attributes and data"),
    _operation("getData(m)", 1, 1, "the data of a message"),
    _operation("setData(m, data)", 2, 2, "sets the data of a message: another's, or a string", is_statement=True),
    _operation("getTime()", 0, 0, "the moment of the hand-over, in whole seconds since 1970"),
    _operation(
        "compress(m, battery, displaySize, networkConnection, 'name', …)",
        4,
        None,
        "the message with a smaller body: JPEG and PNG, or a named member that is one, else JSON by its named members",
    ),
    _operation("project(m, 'name', …)", 2, None, "the message with the named members of its JSON body alone"),
    _operation(
        "summarise(m, seconds, 'name', …)",
        3,
        None,
        "NULL, or once in so many seconds of a subject a message with count, last, least, greatest and mean",
    ),
)

OPERATIONS = MappingProxyType({each.name: each for each in _ALL})


def is_automatic(name: str) -> bool:
    """Return whether *name* is automatic (read-only to policies) on every device, even if it has no value yet."""
    return name in AUTOMATIC or name == "Place"


def member_name(accessor: str, prefix: str) -> str | None:
    """Return the attribute of a Java-style accessor from the paper, or None if *accessor* is not one.

    >>> member_name("getPatientID", "get"), member_name("isResponsible", "is"), member_name("island", "is")
    ('patientID', 'responsible', None)
    """
    rest = accessor.removeprefix(prefix)
    if rest == accessor or not rest[:1].isupper():
        return None
    return rest if rest[1:2].isupper() else rest[0].lower() + rest[1:]


def scope_of(word: str) -> Scope | None:
    """Return the group of variables that the word before a dot stands for (``device`` or ``state``), or None."""
    return {"device": Scope.DEVICE, "state": Scope.STATE}.get(word)
