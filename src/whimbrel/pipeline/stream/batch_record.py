"""The record of the last batch: which numbers it has and which tables it changed, in a file beside the tables.

Spark's checkpoint says where a stream is; the tables have what was made. The record ties the two together, so that a
checkpoint that was lost, or is an old copy, and a table that was, are noticed before a row is missing or there twice.

Rule: it is written, and synced, before the first commit of a batch, and again when all tables have it.
Rule: a batch that is made again has the numbers it had; any other batch follows the one in the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.log.files import put
from whimbrel.log.incarnation import incarnation
from whimbrel.log.layout import segments_folder

__all__ = [
    "BatchRecord",
    "LostLogError",
    "LostStateError",
    "NodeRecord",
    "OtherLogError",
    "check_same_log",
    "checked_record",
]


class LostStateError(InvalidInputError):
    """What a stream remembers does not fit its tables. Reaction: start it anew, in another folder."""

    def __init__(self, what: str, found: object, wanted: object) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return (
            f"state of {self.what}: found {self.found}, needed is {self.wanted}; "
            "start the stream anew, in another folder: the log has everything that it needs"
        )


class LostLogError(InvalidInputError):
    """The log was cut before the stream had read it. Reaction: start anew, and keep more of the log."""

    def __init__(self, node: str, wanted: int) -> None:
        super().__init__(node, wanted)
        self.node, self.wanted = node, wanted

    def __str__(self) -> str:
        return (
            f"log of {self.node}: number {self.wanted} is not there any more, and was not read yet; "
            "start the stream anew, in another folder, and keep more of the log"
        )


class OtherLogError(InvalidInputError):
    """A log is not the one that the tables are made of. Reaction: name that one, or start anew."""

    def __init__(self, log: Path, node: str, found: str, wanted: str) -> None:
        super().__init__(log, node, found, wanted)
        self.log, self.node, self.found, self.wanted = log, node, found, wanted

    def __str__(self) -> str:
        return (
            f"log of {self.node} in {self.log}: found {self.found}, needed is {self.wanted}: it is not the log that "
            "the tables are made of; the node was set up anew or restored, or accepted a loss, or --log names another "
            "folder: name the log of this stream, or start anew, in another folder"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node, as far as the tables have it."""

    applied: int
    """Its last number in them."""
    last_at: int | None
    """The time of that."""
    size: int
    size_bytes: int
    """What is remembered of it."""
    incarnation: str | None = None
    """Which log of the node that is; None if it has none, or an older Whimbrel wrote the record,"""
    digest: str | None = None
    """and the digest of that fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch, as the file has it."""

    query: str
    """The name that Spark gave the query: its checkpoint has it too."""
    batch: int
    spans: Mapping[str, tuple[int, int]]
    """By node, the first and the last number of the batch."""
    is_done: bool = False
    """Whether all tables have it."""
    at: int = 0
    """When it was written, in microseconds."""
    written: Mapping[str, int] = field(default_factory=dict)
    """By table, the last batch that changed it."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    windows: tuple[int, int] = (0, 0)
    """How much is remembered of windows: things and bytes."""

    @classmethod
    def read(cls, path: Path) -> BatchRecord | None:
        """Return what a file has; None if there is none."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                query=str(found["query"]),
                batch=int(found["batch"]),
                spans={node: (int(first), int(last)) for node, (first, last) in found["spans"].items()},
                is_done=bool(found["is_done"]),
                at=int(found["at"]),
                written={table: int(batch) for table, batch in found["written"].items()},
                nodes={node: NodeRecord(**told) for node, told in found["nodes"].items()},
                windows=(int(found["windows"][0]), int(found["windows"][1])),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            allowed = "what the stream wrote; start it anew, in another folder"
            raise InvalidValueError(f"record {path}", Phrase(f"another content ({error!r})"), allowed) from None

    def put(self, path: Path) -> None:
        """Write it, synced to the disk."""
        put(path, json.dumps(asdict(self)).encode())


def check_same_log(log: Path, nodes: Mapping[str, NodeRecord]) -> None:
    """Raise if the log of a node has another incarnation than the one that the tables are made of.

    A node without a folder in the log says nothing: everything of it may have been removed because it was old.
    """
    for node, each in nodes.items():
        found = None if each.incarnation is None else incarnation(log, node)
        if found != each.incarnation and segments_folder(log, node).is_dir():
            raise OtherLogError(log, node, f"incarnation {found or 'none'}", f"incarnation {each.incarnation}")


def checked_record(
    before: BatchRecord | None,
    *,
    query: str,
    batch: int,
    spans: Mapping[str, tuple[int, int]],
    tables: Mapping[str, int],
) -> BatchRecord:
    """Return the record of a batch that Spark asks for, unless it does not fit what was done *before*.

    *tables* has, by table, the last batch that changed it.
    """
    if before is None:
        begun = {table: found for table, found in tables.items() if found >= 0}
        if batch or begun:
            told = f"batch {batch} without the record of one before" if batch else f"none, beside tables of {begun}"
            raise LostStateError("the stream's record", told, "the record that the stream wrote")
        return BatchRecord(query=query, batch=batch, spans=spans)
    if before.query != query:
        raise LostStateError("the checkpoint", f"that of another query, {query}", f"the one of {before.query}")
    known = before.batch
    if batch == known and before.spans != spans:
        raise LostStateError("the checkpoint", f"batch {batch} with {spans}", f"one with {before.spans}")
    if batch not in {known, known + 1} or (batch == known + 1 and not before.is_done):
        raise LostStateError("the checkpoint", f"batch {batch}", f"batch {known + before.is_done}, or {known}")
    for table, found in tables.items():
        least = before.written.get(table, -1)
        if found > batch:
            raise LostStateError(f"table {table}", f"batch {batch}", f"batch {found}")
        if found < least:
            raise LostStateError(f"table {table}", f"a table up to batch {found}", f"one up to batch {least}")
    return replace(before, batch=batch, spans=spans, is_done=False)
