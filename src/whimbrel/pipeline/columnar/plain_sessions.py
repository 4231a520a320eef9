"""Plain sessions: those of a node whose deliveries the columnar hold can compute, found from the whole log.

Sessions that share a device depend on each other (``fold.components``), so all of them are plain, or none is.
Rule: a session is plain if it is not the private one of an MQTT client, and if its subscriptions have no quality of
service, no policy and no share, and at most ``BITS`` different identities in the whole log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity
from whimbrel.hold.private import is_private, is_shared
from whimbrel.pipeline.columnar.tables import BITS

__all__ = ["SUBSCRIBED", "PlainSessions", "find_plain_sessions"]

Arrow = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

SUBSCRIBED = ("session", "subject_filter", "name", "qos", "policy")
"""Columns of ``interests`` that decide whether a session is plain."""

_TABLE = pa.schema(
    [("session", pa.string()), ("has_any", pa.bool_()), ("subject_filter", pa.string()), ("name", pa.string())]
)


@dataclass(frozen=True, slots=True)
class PlainSessions:
    """Names of the plain sessions of a node, with the identities of their subscriptions; and of their devices."""

    identities: Mapping[str, Collection[Identity]] = field(default_factory=dict)
    """Identities (subject filter, name) that each session has at some time in the log."""
    devices: Collection[str] = ()

    def as_table(self) -> Arrow:
        """Return the sessions with their identities as a table; a session without a subscription has none of these."""
        rows = [
            (session, has_any, subject_filter, name)
            for session, own in self.identities.items()
            for has_any, subject_filter, name in [(True, *each) for each in own] or [(False, None, "")]
        ]
        columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(_TABLE)
        return pa.table([pa.array(column, f.type) for column, f in zip(columns, _TABLE, strict=True)], schema=_TABLE)

    @classmethod
    def of_tables(cls, tables: Iterable[Arrow], sessions: Collection[str], devices: Collection[str]) -> PlainSessions:
        """Return some *sessions* of *tables* made by ``as_table``, whose devices are *devices*."""
        found: dict[str, set[Identity]] = {}
        for table in tables:
            for session, has_any, subject_filter, name in zip(*(c.to_pylist() for c in table.columns), strict=True):
                if session in sessions:
                    own = found.setdefault(session, set())
                    if has_any:
                        own.add((subject_filter, name))
        return cls(found, devices)


def find_plain_sessions(interests: Arrow, joined: Iterable[tuple[str, str]]) -> PlainSessions:
    """Return the plain sessions of a node.

    *interests* has the columns ``SUBSCRIBED`` of all rows of the log; *joined* has pairs of a device and a session that
    it is in at some time.
    """
    identities: dict[str, set[Identity]] = {}
    others: set[str] = set()
    columns = [*SUBSCRIBED[:3], "is_special"]
    is_special = pc.or_(pc.is_valid(interests.column("qos")), pc.is_valid(interests.column("policy")))
    distinct = (
        pa.table([*(interests.column(name) for name in SUBSCRIBED[:3]), is_special], names=columns)
        .group_by(columns, use_threads=False)
        .aggregate([])
    )
    for session, subject_filter, name, special in zip(*(distinct.column(c).to_pylist() for c in columns), strict=True):
        own = identities.setdefault(session, set())
        own.add((subject_filter, name))
        if special or is_private(session) or is_shared(subject_filter) or len(own) > BITS:
            others.add(session)
    of_device: dict[str, set[str]] = {}
    of_session: dict[str, set[str]] = {}
    for device, session in joined:
        of_device.setdefault(device, set()).add(session)
        of_session.setdefault(session, set()).add(device)
    others.update(session for session in of_session if is_private(session))
    left = list(others)
    while left:  # what shares a device with a session that is not plain is not plain either
        for device in of_session.get(left.pop(), ()):
            found = of_device[device] - others
            others |= found
            left += found
    plain = {session: own for session, own in identities.items() if session not in others}
    for session in of_session.keys() - others:
        plain.setdefault(session, set())
    devices = {device for session in plain for device in of_session.get(session, ())}
    return PlainSessions(plain, devices)
