"""Upgrade of stored state: convert rows of format 3 to rows of format 4.

Format 3 stored subscriptions twice: as rows of the hold without filters, and as rows of ``interests``. It stored the
results of policies for a notification in separate rows, and the last places of devices as rows of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import cbor2

from whimbrel.hold.rows import Key, subscription_of, subscription_row
from whimbrel.model.facts import InterestChanged
from whimbrel.model.rows import fact_of
from whimbrel.pipeline.fold.described import Described, HeldValues
from whimbrel.pipeline.fold.policies import KeptContent
from whimbrel.pipeline.fold.start_state import STATE_FORMAT

__all__ = ["upgrade"]

_Rows: TypeAlias = list[tuple[Key, bytes]]
_MARK: Key = ("log mark",)
_OF_NOTIFICATIONS = frozenset({"notification", "shaped body", "difference", "content"})


def upgrade(node: str, rows: _Rows) -> tuple[_Rows, bool]:
    """Return the *rows* of the node in the current format, and whether an older version wrote them."""
    if not rows or _format_of(rows) >= STATE_FORMAT:
        return rows, False
    return [*_upgrade_rows(node, rows)], True


def _format_of(rows: Sequence[tuple[Key, bytes]]) -> int:
    for key, value in rows:
        if key == _MARK:
            _, _, *newer = cbor2.loads(value)
            return int(newer[0]) if newer else 0
    return 0


def _upgrade_rows(node: str, rows: _Rows) -> Iterator[tuple[Key, bytes]]:
    facts: dict[tuple[Any, ...], InterestChanged] = {}
    parts: dict[int, dict[str, Any]] = {}
    marked: list[Any] = [None, None]
    for key, value in rows:
        if key[0] == "interest":
            fact = fact_of("interests", {"node": node, **cbor2.loads(value)})
            assert isinstance(fact, InterestChanged)
            wanted = fact.subscription
            facts[wanted.session, wanted.subject_filter, wanted.name] = fact
        elif key[0] in _OF_NOTIFICATIONS:
            parts.setdefault(int(str(key[1])), {})[str(key[0])] = cbor2.loads(value)
    for key, value in rows:
        if key[0] == "sighting":
            yield ("place", key[1]), value
        elif key[0] == "subscription":
            held = subscription_of(str(key[1]), cbor2.loads(value))
            found = facts.get(key[1:])
            if found is None:  # its filter cannot be read
                wanted = replace(held, seq=None)
            else:
                own = found.subscription
                wanted = replace(
                    held,
                    filter_text=own.filter_text,
                    near=own.near,
                    stale_us=own.stale_us,
                    keys=own.keys,
                    accept_insecure=own.accept_insecure,
                    seq=found.seq,
                    changed_at=found.changed_at,
                )
            yield key, cbor2.dumps(subscription_row(wanted))
        elif key == _MARK:
            marked = [*cbor2.loads(value), None, None][:2]
        elif key[0] != "interest" and key[0] not in _OF_NOTIFICATIONS:
            yield key, value
    yield _MARK, cbor2.dumps([*marked, STATE_FORMAT])  # else the rows would be upgraded twice
    for seq, found_parts in parts.items():
        if "notification" in found_parts:
            content = found_parts.get("content")
            described = Described(
                seq,
                HeldValues(*found_parts["notification"]),
                content=None if content is None else KeptContent(*content),
            )
            described.shaped, described.differences = found_parts.get("shaped body"), found_parts.get("difference")
            yield ("notification", seq), described.row()
