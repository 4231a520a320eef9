"""Versions of subscriptions: when each was in force, and one packed matcher of all versions that overlap a batch.

A version is a subscription between two changes. It is in force for a publication if its seq is lower, and no later
change of the subscription came before the publication: seqs decide, never clocks. ``validity_intervals`` computes this
for matching and for counting. One packed matcher has every version that overlaps the batch; a filter on whole arrays
then keeps the matches that were in force.

Packing many versions takes long, so frequent changes go to a separate layer. This small matcher lies over a large one,
and hides all versions of the changed sessions in the large one (``LayerBase``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.hold.private import asked_for
from whimbrel.match.index.damage import CorruptIndexError
from whimbrel.match.matcher import Matcher
from whimbrel.match.prepared import NEVER, check_stored
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import SessionChange
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme
from whimbrel.model.subscription import InterestChange
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.subscriptions.subject_words import SubjectWords
from whimbrel.pipeline.subscriptions.version_places import PLACED, VersionPlaces, codes_of, distinct_wishes, whole_array

__all__ = [
    "CHANGED",
    "DELETED",
    "LayerBase",
    "PackedVersions",
    "keys_of",
    "open_intervals",
    "pack_versions",
    "touched_sessions",
    "track_arrays",
    "validity_intervals",
    "versions",
]

_INTEREST = ("session", "subject_filter", "name", "filter_text", "keys", "accept_insecure", *PLACED)
CHANGED = ("node", "seq", "changed_at", "change", *_INTEREST, "qos", "no_local")
"""Columns of ``interests`` that are needed to build matchers."""
DELETED = ("node", "seq", "changed_at", "change", "session")
"""Columns of ``sessions`` that are needed to build matchers."""

VERSIONS_SCHEMA = pa.schema(
    [
        ("session", pa.string()),
        ("subject_filter", pa.string()),
        ("name", pa.string()),
        ("interest_seq", pa.int64()),
        ("ended_seq", pa.int64()),
        ("filter_text", pa.string()),
        ("keys", pa.list_(pa.struct([("scheme", pa.string()), ("digest", pa.binary())]))),
        ("accept_insecure", pa.bool_()),
        *((name, TABLES["interests"].schema.field(name).type) for name in PLACED),
    ]
)


def validity_intervals(interests: Any, sessions: Any = None) -> Any:
    """Return the interval for which each version of a subscription was in force, in the order of node and seq.

    *interests* and *sessions* are Arrow tables of rows of one node or several, at least with node, seq, changed_at,
    change and the identifying columns. Without *sessions*, no session was ever deleted. The next change, or the
    deletion of the session, ends an interval with its seq and time.
    out: node, session, subject_filter, name, interest_seq, ended_seq (``INT64_MAX`` if still in force), began_at,
    ended_at (null if still in force), then the other columns of *interests*
    """
    changes = interests.sort_by([("node", "ascending"), ("seq", "ascending")])
    is_removal = pc.equal(changes.column("change"), InterestChange.REMOVED.value).to_numpy(zero_copy_only=False)
    ended_seqs, ended_at = _endings(changes, None if sessions is None else _deletions(sessions))
    others = [name for name in changes.column_names if name not in (*_PLACE, "seq", "changed_at")]
    columns = {
        **{name: changes.column(name) for name in _PLACE},
        "interest_seq": changes.column("seq"),
        "ended_seq": pa.array(ended_seqs),
        "began_at": changes.column("changed_at").cast(TIME_TYPE),
        "ended_at": pa.array(ended_at, mask=ended_seqs == INT64_MAX).cast(TIME_TYPE),
        **{name: changes.column(name) for name in others},
    }
    return pa.table(columns).filter(pa.array(~is_removal)).combine_chunks()


def open_intervals(interests: Any) -> Any:
    """Return the ``validity_intervals`` of subscriptions that were never changed or deleted, computed column-wise."""
    changes = interests.sort_by([("node", "ascending"), ("seq", "ascending")])
    count = changes.num_rows
    others = [name for name in changes.column_names if name not in (*_PLACE, "seq", "changed_at")]
    columns = {
        **{name: changes.column(name) for name in _PLACE},
        "interest_seq": changes.column("seq"),
        "ended_seq": pa.repeat(pa.scalar(INT64_MAX, pa.int64()), count),
        "began_at": changes.column("changed_at").cast(TIME_TYPE),
        "ended_at": pa.nulls(count, TIME_TYPE),
        **{name: changes.column(name) for name in others},
    }
    return pa.table(columns).combine_chunks()


def touched_sessions(interests: Any, sessions: Any) -> set[str]:
    """Return the sessions of one node whose subscriptions these rows of ``interests`` and ``sessions`` change."""
    is_gone = pc.equal(sessions.column("change"), SessionChange.DELETED.value)
    return {*interests.column("session").to_pylist(), *sessions.filter(is_gone).column("session").to_pylist()}


_PLACE = ("node", "session", "subject_filter", "name")
"""Columns that identify a subscription."""


def _endings(changes: Any, deletions: Any | None) -> tuple[Any, Any]:
    """Return the seq and time at which the version of each change ended: ``INT64_MAX`` and 0 if it is in force.

    *changes* are sorted by node and seq. The next change of the subscription ends a version, or the next deletion of
    its session, if that is earlier.
    """
    count = changes.num_rows
    seqs, times = (_numbers(changes.column(name)) for name in ("seq", "changed_at"))
    ended_seqs, ended_at = np.full(count, INT64_MAX, np.int64), np.zeros(count, np.int64)
    subscriptions = codes_of([changes.column(name) for name in _PLACE])
    order = np.argsort(subscriptions, kind="stable")
    is_followed = subscriptions[order][1:] == subscriptions[order][:-1]
    earlier, later = order[:-1][is_followed], order[1:][is_followed]
    ended_seqs[earlier], ended_at[earlier] = seqs[later], times[later]
    if deletions is None or not deletions.num_rows or not count:
        return ended_seqs, ended_at
    deleted_seqs, deleted_at = (_numbers(deletions.column(name)) for name in ("seq", "changed_at"))
    both = [_concat(changes.column(name), deletions.column(name)) for name in _PLACE[:2]]
    sessions = codes_of(both)
    ranks = np.unique(np.concatenate([seqs, deleted_seqs]), return_inverse=True)[1].astype(np.int64)
    keys = sessions * (ranks.size + 1) + ranks  # in the order of session and seq
    order = np.argsort(keys[count:], kind="stable")
    after = np.searchsorted(keys[count:][order], keys[:count], side="right")
    has_next = after < order.size
    following = order[np.minimum(after, order.size - 1)]
    is_deleted = has_next & (sessions[count:][following] == sessions[:count]) & (deleted_seqs[following] < ended_seqs)
    ended_seqs[is_deleted], ended_at[is_deleted] = (each[following[is_deleted]] for each in (deleted_seqs, deleted_at))
    return ended_seqs, ended_at


def _concat(*columns: Any) -> Any:
    return pa.concat_arrays([whole_array(column) for column in columns])


def _deletions(sessions: Any) -> Any:
    """Return the rows of *sessions* about deletions."""
    return sessions.filter(pc.equal(sessions.column("change"), SessionChange.DELETED.value))


def _numbers(column: Any) -> Any:
    """Return a column as integers; times are in microseconds."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME_TYPE).cast(pa.int64())
    return column.to_numpy()


def versions(interests: Any, sessions: Any, *, first: int, last: int) -> Any:
    """Return the versions of one node's subscriptions that began before the seq *last* and ended after *first*.

    These are all that are in force for a seq from *first* to *last*, and possibly some that are in force for none.
    *interests* and *sessions* are Arrow tables of the node's rows, in the form for ``validity_intervals``.
    """
    found = validity_intervals(interests, sessions)
    begun, ended = (found.column(name).to_numpy() for name in ("interest_seq", "ended_seq"))
    overlapping = found.filter(pa.array((begun < last) & (ended > first)))
    return overlapping.select(VERSIONS_SCHEMA.names).cast(VERSIONS_SCHEMA).combine_chunks()


def keys_of(value: Sequence[Mapping[str, Any]] | None) -> KeyHashes:
    """Convert a value of a ``keys`` column to key hashes."""
    if not value:
        return NO_KEYS
    return KeyHashes(frozenset(KeyHash(Scheme(each["scheme"]), each["digest"]) for each in value))


class LayerBase(NamedTuple):
    """The large matcher that a small one updates, and the sessions whose subscriptions the small one replaces."""

    path: str
    """File of the large matcher, which does not lie over another one; relative to the folder of the small one."""
    sessions: Collection[str]
    """Sessions whose versions in the large matcher are hidden, because the small matcher has all their versions."""


def pack_versions(
    path: Path,
    table: Any,
    *,
    over: LayerBase | None = None,
    tracks: Mapping[str, Any] | None = None,
    digest: str = "",
) -> None:
    """Write the matcher of the versions in *table*, with all data that workers need, to *path*.

    *tracks* are the ``track_arrays`` of the sessions' devices if places matter. *digest* is stored with the matcher.
    """
    wishes, distinct = distinct_wishes(table)
    try:
        matcher = _matcher_of(distinct)
    except FilterError:  # a stream's state has a filter that only an older version could read
        matcher = _matcher_of(distinct, read=_readable)
    places = VersionPlaces.of_table(table, wishes=wishes, wish_count=distinct.num_rows)
    extra = (
        places.arrays()
        | dict(tracks or {})
        | {
            "digest": np.frombuffer(digest.encode(), np.uint8),
            "versions": _as_bytes(table.select(["session", "subject_filter", "name", "interest_seq", "ended_seq"])),
        }
    )
    if over is not None:
        extra["below"] = np.frombuffer(over.path.encode(), np.uint8)
        extra["covered"] = _as_bytes(pa.table({"session": pa.array(sorted(over.sessions), pa.string())}))
    matcher.save(path, extra=extra)


def track_arrays(table: Any, moves: Moves) -> dict[str, Any]:
    """Return the places of devices over time for the versions in *table*, as arrays for ``pack_versions``."""
    return {"numbers": moves.numbers(table.column("session").to_pylist()), **moves.arrays()}


def _matcher_of(table: Any, *, read: Callable[[str | None], str | None] | None = None) -> Matcher:
    """Return a matcher of the filters in *table*; *read* replaces each content filter."""
    subjects, texts, accepts = (
        table.column(name).to_pylist() for name in ("subject_filter", "filter_text", "accept_insecure")
    )
    hashes = table.column("keys")
    has_keys = pc.any(pc.greater(pc.list_value_length(hashes), 0)).as_py()
    return Matcher.of_columns(
        list(map(asked_for, subjects)),
        texts if read is None else list(map(read, texts)),
        keys=map(keys_of, hashes.to_pylist()) if has_keys else repeat(NO_KEYS, len(texts)),
        accept_insecure=accepts,
    )


def _readable(text: str | None) -> str | None:
    """Return *text*, or a filter that matches nothing if *text* cannot be parsed."""
    try:
        check_stored(text)
    except FilterError:
        return NEVER
    return text


def _as_bytes(table: Any) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _from_bytes(data: Any) -> Any:
    return pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()


@dataclass(frozen=True)
class PackedVersions:
    """A memory-mapped matcher of versions; all workers of a machine share one copy of the file."""

    path: str
    matcher: Matcher
    table: Any
    begun: Any
    ended: Any
    places: VersionPlaces
    """Limits to places of the versions in this layer."""
    words: SubjectWords
    """Words in the subject filters of this layer."""
    digest: str = ""
    """Digest of what the matcher is made of, if its file has one."""
    below: PackedVersions | None = None
    """The base layer, if there is one; its versions come first in ``table``, ``begun`` and ``ended``."""
    is_seen: Any = None
    """Mask of the versions of the base layer that are not hidden."""

    @classmethod
    def map(cls, path: str, node: str, known: Sequence[PackedVersions] = ()) -> PackedVersions:
        """Map the file at *path*, the matcher of *node*; a process keeps the last mapped matcher of each node.

        Matchers that are *known* are not mapped again.
        """
        kept = _last.get(node)
        if kept is None or kept.path != path:
            kept = _last[node] = _map(path, [*known, *([] if kept is None else [kept, kept.below])])
        return kept

    @classmethod
    def last(cls, node: str) -> PackedVersions | None:
        """Return the last mapped matcher of *node*, or None."""
        return _last.get(node)

    @classmethod
    def forget(cls, node: str) -> None:
        """Forget the last mapped matcher of *node*."""
        _last.pop(node, None)

    def match(self, batch: Any, moves: Moves | None = None) -> tuple[Any, Any]:
        """Return the matches: row numbers of *batch*, ascending, and the number of the version that matches in each.

        Only versions that were in force count. *batch* is an Arrow batch of publications of one node: seq, attributes,
        deliver_insecure, and subject, keys, place and radius_m if the matcher needs them. *moves* has the tracks of
        devices, unless the file has them.
        """
        rows, handles = self._match(batch, moves)
        if self.below is not None:
            rows_below, handles_below = self.below.match(batch, moves)
            is_seen = self.is_seen[handles_below]
            rows = np.concatenate([rows_below[is_seen], rows])
            handles = np.concatenate([handles_below[is_seen], handles + self.below.begun.size])
            order = np.argsort(rows, kind="stable")
            rows, handles = rows[order], handles[order]
        seqs = batch.column("seq").to_numpy()[rows]
        in_force = (self.begun[handles] < seqs) & (seqs < self.ended[handles])
        return (rows, handles) if in_force.all() else (rows[in_force], handles[in_force])

    def _match(self, batch: Any, moves: Moves | None) -> tuple[Any, Any]:
        """Return the matches of this layer alone, also of versions that were not in force."""
        count = batch.num_rows
        subjects = self.words.plain(batch.column("subject")).to_pylist() if self.matcher.needs_subjects else None
        allowed = batch.column("deliver_insecure")
        flags = None if allowed.true_count == count else allowed.to_numpy(zero_copy_only=False)
        keys = None
        if self.matcher.needs_keys:
            keys = [keys_of(value) for value in batch.column("keys").to_pylist()]
        rows, wishes = self.matcher.match_batch(subjects, batch.column("attributes"), keys=keys, deliver_insecure=flags)
        return self.places.find_reached(rows, wishes, batch, moves)


_last: dict[str, PackedVersions] = {}
"""Last matcher per node: matchers are large, and a replaced one is not used again."""


def _map(path: str, known: Sequence[PackedVersions | None]) -> PackedVersions:
    for each in known:
        if each is not None and each.path == path:
            return each
    matcher, extra = Matcher.map(Path(path))
    table = _from_bytes(extra["versions"])
    words = SubjectWords(pc.unique(table.column("subject_filter")).to_pylist())
    try:
        places = VersionPlaces.of_arrays(table, extra, wish_count=len(matcher))
        digest = extra["digest"].tobytes().decode()
    except (InvalidValueError, KeyError, UnicodeDecodeError) as error:
        raise CorruptIndexError(path, str(error)) from error
    below, is_seen = None, None
    if "below" in extra:
        below = _map(str(Path(path).parent / extra["below"].tobytes().decode()), known)
        covered = _from_bytes(extra["covered"]).column("session")
        is_seen = ~pc.is_in(below.table.column("session"), covered).to_numpy(zero_copy_only=False)
        table = pa.concat_tables([below.table, table])
    begun, ended = (table.column(name).to_numpy() for name in ("interest_seq", "ended_seq"))
    return PackedVersions(path, matcher, table, begun, ended, places, words, digest, below, is_seen)
