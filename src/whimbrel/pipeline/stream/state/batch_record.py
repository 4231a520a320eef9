"""The record of the last batch: its seqs, the state after it, and the tables that it changed, in a file beside these.

The record is the memory of a stream: it names the objects that have the state (``objects``), and the files of a
batch that some tables may lack. So a state or a table that was lost, or replaced by an old copy, is detected before a
row is missing or duplicated.

Rule: the record is written and fsynced before the first commit of a batch, and again when all tables have the batch.
Rule: until the first of these, the batch never was; from then on, all that is left to do is to commit its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.log.files import put
from whimbrel.log.incarnation import incarnation
from whimbrel.log.layout import segments_folder
from whimbrel.log.reader import LogPlace
from whimbrel.model.bounds import INT64_MAX

__all__ = [
    "BatchRecord",
    "GroupRecord",
    "LostLogError",
    "LostStateError",
    "NodeRecord",
    "OtherLogError",
    "check_same_log",
    "check_tables",
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


class GroupRecord(NamedTuple):
    """State of a group of a node's sessions after a batch."""

    state: str | None = None
    """Name of the object with the state; None if the group has none yet."""
    due_at: int | None = None
    """The time from which on the group has something to do even without an event, in microseconds."""
    oldest_at: int = INT64_MAX
    """Publication time of the oldest notification that is held; ``INT64_MAX`` if none is."""
    size: int = 0
    size_bytes: int = 0


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
    state: str | None = None
    """Name of the object with the node's state; None if an older Whimbrel wrote the record.

    If the node is in groups, the object has its directory.
    """
    groups: tuple[GroupRecord, ...] = ()
    """The groups of the node's sessions; empty if the node is folded as a whole."""
    reports: str | None = None
    """Name of the object with the state of the reports, if the node is in groups."""
    place: LogPlace | None = None
    """Place of the last fact in the node's segments; None if it is not known."""

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> NodeRecord:
        """Return the record that is stored as *told*."""
        groups = tuple(GroupRecord(*each) for each in told.get("groups", ()))
        place = None if told.get("place") is None else LogPlace(*told["place"])
        return cls(**{**told, "groups": groups, "place": place})

    @property
    def places(self) -> tuple[LogPlace, ...]:
        """Known places of records, for a reader."""
        return () if self.place is None else (self.place,)

    @property
    def objects(self) -> list[str]:
        """Names of the objects that have the node's state."""
        own = (self.state, self.reports, *(each.state for each in self.groups))
        return [name for name in own if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Record of a batch, as it is stored in the file."""

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
    windows_state: str | None = None
    """Name of the object with the windows' state; None if an older Whimbrel wrote the record."""
    output: str | None = None
    """Name of the file with the output of the batch, while some tables may lack it; None if the batch was not made."""

    @property
    def is_made(self) -> bool:
        """Whether the output of the batch is known; else the batch has seqs, and has to be made."""
        return self.is_done or self.output is not None

    @property
    def is_of_spark(self) -> bool:
        """Whether an older Whimbrel wrote the record, with the state in Spark's checkpoint."""
        return self.windows_state is None

    @property
    def objects(self) -> list[str]:
        """Names of the objects that have the state."""
        own = [name for each in self.nodes.values() for name in each.objects]
        return own if self.windows_state is None else [*own, self.windows_state]

    @classmethod
    def read(cls, path: Path) -> BatchRecord | None:
        """Read the record in the file *path*; return None if there is no file."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                batch=int(found["batch"]),
                spans={node: (int(first), int(last)) for node, (first, last) in found["spans"].items()},
                is_done=bool(found["is_done"]),
                at=int(found["at"]),
                written={table: int(batch) for table, batch in found["written"].items()},
                nodes={node: NodeRecord.read(told) for node, told in found["nodes"].items()},
                windows=(int(found["windows"][0]), int(found["windows"][1])),
                windows_state=found.get("windows_state"),
                output=found.get("output"),
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


def check_tables(record: BatchRecord | None, tables: Mapping[str, int]) -> None:
    """Raise ``LostStateError`` if *tables*, with the last batch that changed each or -1, do not match *record*."""
    if record is None:
        begun = {table: found for table, found in tables.items() if found >= 0}
        if begun:
            raise LostStateError(
                "the stream's record", f"none, beside tables of {begun}", "the record that the stream wrote"
            )
        return
    for table, found in tables.items():
        least = record.written.get(table, -1)
        if found > record.batch:
            raise LostStateError(f"table {table}", f"batch {record.batch}", f"batch {found}")
        if found < least:
            raise LostStateError(f"table {table}", f"a table up to batch {found}", f"one up to batch {least}")
