"""Versions of subscriptions: when each was in force, and the matcher of all that overlap a batch.

A subscription is in force for a publication if its seq is lower, and no later change of it came before: clocks never
decide. One packed matcher holds every version that overlaps the batch; which of the matches were in force is decided
afterwards, on whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from whimbrel.hold.private import asked_for
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import SessionChange
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme
from whimbrel.model.subscription import InterestChange

__all__ = ["PackedVersions", "keys_of", "packed", "versions"]

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
    ]
)


def versions(interests: Any, sessions: Any, *, first: int, last: int) -> Any:
    """Return the versions of one node's subscriptions that a publication from *first* to *last* may meet.

    *interests* and *sessions* are Arrow tables of the node's rows; the seq that ends a version is that of the next
    change, or of the session's deletion.
    """
    changes = interests.sort_by("seq")
    deleted = _deletions(sessions)
    open_versions: dict[tuple[str, str | None, str], int] = {}
    by_session: dict[str, set[tuple[str, str | None, str]]] = {}
    seqs = changes.column("seq").to_pylist()
    kinds = changes.column("change").to_pylist()
    names = [changes.column(column).to_pylist() for column in ("session", "subject_filter", "name")]
    ended = np.full(len(seqs), INT64_MAX, np.int64)
    is_version = np.zeros(len(seqs), np.bool_)
    next_deletion = 0
    for row, (seq, kind, session, subject_filter, name) in enumerate(zip(seqs, kinds, *names, strict=True)):
        while next_deletion < len(deleted) and deleted[next_deletion][0] < seq:
            _close(deleted[next_deletion], open_versions, by_session, ended)
            next_deletion += 1
        key = (session, subject_filter, name)
        before = open_versions.pop(key, None)
        if before is not None:
            ended[before] = seq
        if kind != InterestChange.REMOVED.value:
            open_versions[key] = row
            by_session.setdefault(session, set()).add(key)
            is_version[row] = True
    for deletion in deleted[next_deletion:]:
        _close(deletion, open_versions, by_session, ended)
    begun = np.array(seqs, np.int64)
    overlapping = np.flatnonzero(is_version & (begun < last) & (ended > first))
    found = changes.append_column("interest_seq", pa.array(begun)).append_column("ended_seq", pa.array(ended))
    return found.take(pa.array(overlapping)).select(VERSIONS_SCHEMA.names).cast(VERSIONS_SCHEMA).combine_chunks()


def _deletions(sessions: Any) -> list[tuple[int, str]]:
    rows = zip(*(sessions.column(name).to_pylist() for name in ("seq", "session", "change")), strict=True)
    return sorted((seq, session) for seq, session, change in rows if change == SessionChange.DELETED.value)


def _close(
    deletion: tuple[int, str],
    open_versions: dict[tuple[str, str | None, str], int],
    by_session: dict[str, set[tuple[str, str | None, str]]],
    ended: Any,
) -> None:
    seq, session = deletion
    for key in by_session.pop(session, ()):
        row = open_versions.pop(key, None)
        if row is not None:
            ended[row] = seq


def keys_of(value: Sequence[Mapping[str, Any]] | None) -> KeyHashes:
    """Return the key hashes of a value of a ``keys`` column."""
    if not value:
        return NO_KEYS
    return KeyHashes(frozenset(KeyHash(Scheme(each["scheme"]), each["digest"]) for each in value))


def packed(path: Path, table: Any, *, groups: Any = None) -> set[str]:
    """Write the matcher of the versions in *table* to *path*, with what the workers need of them beside it.

    *groups* gives each version a number that matches are split by (see ``deliveries``). Return the columns of a
    publication, beside those that are always needed, that make a difference.
    """
    columns = (table.column(name).to_pylist() for name in ("subject_filter", "filter_text", "keys", "accept_insecure"))
    interests = (
        (
            str(row),
            Interest(subject_filter=asked_for(subject), filter_text=text, keys=keys_of(keys), accept_insecure=accepts),
        )
        for row, (subject, text, keys, accepts) in enumerate(zip(*columns, strict=True))
    )
    matcher = Matcher.load(interests)
    sink = pa.BufferOutputStream()
    needed = table.select(["session", "subject_filter", "name", "interest_seq", "ended_seq"])
    with pa.ipc.new_file(sink, needed.schema) as writer:
        writer.write_table(needed)
    extra = {
        "versions": np.frombuffer(sink.getvalue(), np.uint8),
        "groups": np.zeros(table.num_rows, np.int32) if groups is None else np.asarray(groups, np.int32),
    }
    matcher.save(path, extra=extra)
    return ({"subject"} if matcher.needs_subjects else set()) | ({"keys"} if matcher.needs_keys else set())


@dataclass(frozen=True)
class PackedVersions:
    """A mapped matcher of versions; every worker of a machine shares one copy of the file."""

    matcher: Matcher
    table: Any
    begun: Any
    ended: Any
    groups: Any

    @classmethod
    def map(cls, path: str) -> PackedVersions:
        """Map the file at *path*; a process maps it once."""
        return _mapped(path)

    def match(self, batch: Any) -> tuple[Any, Any]:
        """Return rows of *batch* and versions in force that want them, rows ascending.

        *batch* is an Arrow batch of publications of one node: seq, attributes, deliver_insecure, and subject and keys
        where these make a difference.
        """
        count = batch.num_rows
        subjects = batch.column("subject").to_pylist() if self.matcher.needs_subjects else None
        allowed = batch.column("deliver_insecure")
        flags = None if allowed.true_count == count else allowed.to_numpy(zero_copy_only=False)
        keys = None
        if self.matcher.needs_keys:
            keys = [keys_of(value) for value in batch.column("keys").to_pylist()]
        rows, handles = self.matcher.match_batch(
            subjects, batch.column("attributes"), keys=keys, deliver_insecure=flags
        )
        seqs = batch.column("seq").to_numpy()[rows]
        in_force = (self.begun[handles] < seqs) & (seqs < self.ended[handles])
        return (rows, handles) if in_force.all() else (rows[in_force], handles[in_force])


@lru_cache(maxsize=8)
def _mapped(path: str) -> PackedVersions:
    matcher, extra = Matcher.map(Path(path))
    table = pa.ipc.open_file(pa.py_buffer(extra["versions"])).read_all().combine_chunks()
    begun, ended = (table.column(name).to_numpy() for name in ("interest_seq", "ended_seq"))
    return PackedVersions(matcher, table, begun, ended, extra["groups"])
