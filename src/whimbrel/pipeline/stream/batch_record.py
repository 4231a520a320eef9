"""The record of the last batch: its seqs and the tables that it changed, in a file beside the tables.

Spark's checkpoint has the position of a stream; the tables have its output. The record links the two. So a checkpoint
or a table that was lost, or replaced by an old copy, is detected before a row is missing or duplicated.

Rule: the record is written and fsynced before the first commit of a batch, and again when all tables have the batch.
Rule: a batch that is repeated has the same seqs; any other batch follows the batch in the record.
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
    """The state of a stream does not match its tables. Reaction: restart the stream with a new output folder."""

    def __init__(self, what: str, found: object, wanted: object) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return (
            f"state of {self.what}: found {self.found}, needed is {self.wanted}; "
            "start the stream anew, in another folder: the log has everything that it needs"
        )


class LostLogError(InvalidInputError):
    """The log was cut before the stream had read it. Reaction: restart with a new folder, and keep more of the log."""

    def __init__(self, node: str, wanted: int) -> None:
        super().__init__(node, wanted)
        self.node, self.wanted = node, wanted

    def __str__(self) -> str:
        return (
            f"log of {self.node}: number {self.wanted} is not there any more, and was not read yet; "
            "start the stream anew, in another folder, and keep more of the log"
        )


class OtherLogError(InvalidInputError):
    """The log is not the one from which the tables were made. Reaction: name that log, or restart with a new folder."""

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
    """State of a node after a batch, as far as the record of the batch has it."""

    applied: int
    """The node's last seq in the tables."""
    last_at: int | None
    """The time of the fact with the seq ``applied``, in microseconds."""
    size: int
    size_bytes: int
    """Size of the node's state, in bytes; ``size`` is its number of items."""
    incarnation: str | None = None
    """Incarnation of the node's log; None if it has none, or an older Whimbrel wrote the record."""
    digest: str | None = None
    """Digest of the fact ``applied``; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Record of a batch, as it is stored in the file."""

    query: str
    """Spark's id of the query, which its checkpoint has too."""
    batch: int
    spans: Mapping[str, tuple[int, int]]
    """First and last seq of the batch, per node."""
    is_done: bool = False
    """Whether all tables have the batch."""
    at: int = 0
    """Time when a batch was last recorded as done, in microseconds."""
    written: Mapping[str, int] = field(default_factory=dict)
    """Last batch that changed the table, per table."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    windows: tuple[int, int] = (0, 0)
    """Size of the windows' state: number of items, and bytes."""

    @classmethod
    def read(cls, path: Path) -> BatchRecord | None:
        """Read the record in the file *path*; return None if there is no file."""
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
        """Write the record to the file *path*, and fsync it."""
        put(path, json.dumps(asdict(self)).encode())


def check_same_log(log: Path, nodes: Mapping[str, NodeRecord]) -> None:
    """Raise ``OtherLogError`` if the log of one of *nodes* is not the one from which the tables were made.

    Logs are distinguished by their incarnation (random identifier). A node without a folder in the log is not checked:
    all of its files may have been removed because of their age.
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
    """Return a new record for a batch; raise ``LostStateError`` if the batch cannot follow the recorded batch *before*.

    *tables* has the last batch that changed each table, or -1.
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
