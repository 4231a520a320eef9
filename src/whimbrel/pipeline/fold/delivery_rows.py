"""Rows of ``deliveries``: converts the outcomes of a fold to Arrow batches.

Most outcomes come for a whole session (``SessionOutcomes``), whose devices get one notification after the other. Arrow
repeats what the rows of such a session have in common, so that Python does nothing for each row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity, Settle
from whimbrel.hold.rules.assumed import SessionOutcomes
from whimbrel.hold.state import AssumedResult
from whimbrel.model.facts import Outcome
from whimbrel.model.tables import TABLES

__all__ = ["Rows"]


class Rows:
    """Buffer of outcomes of notifications of a node, converted to rows of ``deliveries`` in batches."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._settled: list[Settle] = []
        self._decided: dict[int, tuple[str | None, bytes | None]] = {}
        """Difference and body hash of each outcome that a policy decided, by index; later decisions may differ."""
        self._groups = SessionRows(node)

    def extend(self, outcomes: Iterable[Settle | SessionOutcomes]) -> None:
        """Add outcomes for single devices, or for whole sessions, to the buffer."""
        settled, groups = self._settled, self._groups
        for each in outcomes:
            if isinstance(each, SessionOutcomes):
                groups.add(each)
                continue
            kept: Any = each.kept
            if kept.shaped is not None or kept.differences is not None:
                self._decided[len(settled)] = kept.difference_for(each.device), kept.body_hash_for(each.device)
            settled.append(each)

    def __len__(self) -> int:
        return len(self._settled) + self._groups.count

    def batches(self) -> Iterator[Any]:
        """Yield the buffered rows as Arrow batches, and clear the buffer."""
        if self._groups.count:
            yield self._groups.batch()
        if self._settled:
            yield self._batch()

    def _batch(self) -> Any:
        sessions, devices, seqs, subscriptions, outcomes, decided_at, lapses_at, via, kept = zip(
            *self._settled, strict=True
        )
        known, places = _distinct(kept, map(id, kept))
        is_delivered = pa.array([each is Outcome.DELIVERED for each in outcomes])
        hashes = pa.array([each.body_hash for each in known], pa.binary()).take(places)
        differences = pa.nulls(len(seqs), pa.string())
        if self._decided:
            own_differences, own_hashes = zip(*self._decided.values(), strict=True)
            decided = np.zeros(len(seqs), bool)
            decided[list(self._decided)] = True
            hashes = pc.replace_with_mask(hashes, decided, pa.array(own_hashes, pa.binary()))
            differences = pc.replace_with_mask(differences, decided, pa.array(own_differences, pa.string()))
        given = {
            "notification_seq": seqs,
            **_of_notifications(known, places),
            "session": sessions,
            "device": devices,
            "subscriptions": _lists_of(subscriptions),
            "outcome": [each._value_ for each in outcomes],  # ``value`` is computed by Python at every access
            "body_hash": pc.if_else(is_delivered, hashes, pa.scalar(None, pa.binary())),
            "decided_at": decided_at,
            "lapses_at": lapses_at,
            "via": via,
            "difference": differences,
        }
        self._settled, self._decided = [], {}
        return _deliveries(self._node, given, len(seqs))


class SessionRows:
    """Buffer of the outcomes of whole sessions. Arrow repeats what the devices and publications have in common."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._groups: list[SessionOutcomes] = []
        self.count = 0
        """Number of rows in the buffer."""

    def add(self, group: SessionOutcomes) -> None:
        """Add the outcomes of a session."""
        result = group.result
        count = len(result.present) + len(result.absent)
        if count:
            self._groups.append(group)
            self.count += count

    def batch(self) -> Any:
        """Return the buffered rows as an Arrow batch, and clear the buffer."""
        results, kept, decided_at, lapses_at = zip(*self._groups, strict=True)
        known, of_group = _distinct_objects(results)
        notifications, whose = _distinct_objects(kept)
        sizes = np.array([len(each.present) + len(each.absent) for each in known])
        sessions, devices, subscriptions, outcomes, via = zip(
            *(row for each in known for row in _rows_of(each)), strict=True
        )
        # Each group repeats the rows of its result: these begin at the sum of the sizes of the results before.
        counts = sizes[of_group]
        groups = np.repeat(np.arange(len(results)), counts)
        nth = np.arange(groups.size) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = pa.array((np.cumsum(sizes) - sizes)[of_group][groups] + nth)
        places, groups = pa.array(whose[groups]), pa.array(groups)
        texts = {"session": sessions, "device": devices, "outcome": outcomes, "via": via}
        is_delivered = pc.equal(pa.array(outcomes), Outcome.DELIVERED.value).take(rows)
        hashes = pa.array([each.body_hash for each in notifications], pa.binary()).take(places)
        given = {
            "notification_seq": pa.array([each.seq for each in notifications]).take(places),
            **_of_notifications(notifications, places),
            **{name: pa.array(values, pa.string()).take(rows) for name, values in texts.items()},
            "subscriptions": _lists_of(subscriptions).take(rows),
            "body_hash": pc.if_else(is_delivered, hashes, pa.scalar(None, pa.binary())),
            "decided_at": pa.array(decided_at).take(groups),
            "lapses_at": pa.array(lapses_at, pa.int64()).take(groups),
            "difference": pa.nulls(len(rows), pa.string()),
        }
        self._groups, self.count = [], 0
        return _deliveries(self._node, given, len(rows))


def _rows_of(result: AssumedResult) -> Iterator[tuple[str, str | None, tuple[Identity, ...], str, str | None]]:
    """Yield session, device, subscriptions, outcome and via of each row that a publication has with this *result*."""
    name = result.session.name
    for device in result.present:
        yield name, device, result.identities, Outcome.DELIVERED.value, "live"
    for absent in result.absent:
        yield name, absent, result.ended, result.outcome.value, None


def _of_notifications(known: Sequence[Any], places: Any) -> dict[str, Any]:
    """Return the columns whose values depend only on the notification; *places* are the indices among *known*."""
    return {name: _take_column([getattr(each, name) for each in known], name, places) for name in _OF_NOTIFICATION}


def _deliveries(node: str, given: Mapping[str, Any], count: int) -> Any:
    """Return the columns *given* as a batch of ``deliveries`` with *count* rows."""
    given = {"notification_node": pa.repeat(node, count), **given}
    schema = TABLES["deliveries"].schema
    columns = [
        given[f.name].cast(f.type) if isinstance(given[f.name], pa.Array) else pa.array(given[f.name], f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_OF_NOTIFICATION = ("published_at", "subject", "deadline_at")
"""Columns of ``deliveries`` whose values depend only on the notification."""
T = TypeVar("T")


def _distinct(values: Iterable[T], keys: Iterable[Hashable]) -> tuple[list[T], Any]:
    """Return the *values* with distinct keys, and an Arrow array with the index among them of each of *values*.

    Many rows have the same notification or subscriptions; each distinct one is converted only once.
    """
    place_of: dict[Hashable, int] = {}
    found: list[T] = []
    places = []
    for value, key in zip(values, keys, strict=True):
        place = place_of.get(key)
        if place is None:
            place = place_of[key] = len(found)
            found.append(value)
        places.append(place)
    return found, pa.array(places, pa.int32())


def _distinct_objects(values: Sequence[T]) -> tuple[list[T], Any]:
    """Return each object among *values* once, and a numpy array with the index among them of each of *values*."""
    _, first, places = np.unique(np.fromiter(map(id, values), np.int64), return_index=True, return_inverse=True)
    return [values[place] for place in first.tolist()], places


def _take_column(values: Iterable[Any], name: str, places: Any) -> Any:
    return pa.array(values, TABLES["deliveries"].schema.field(name).type).take(places)


def _lists_of(subscriptions: Sequence[tuple[Identity, ...]]) -> Any:
    """Return an Arrow column with one list of subscriptions for each tuple in *subscriptions*."""
    known, places = _distinct(subscriptions, subscriptions)
    of_type = TABLES["deliveries"].schema.field("subscriptions").type
    structs = [
        [{"subject_filter": subject_filter, "name": name} for subject_filter, name in identities]
        for identities in known
    ]
    return pa.array(structs, of_type).take(places)
