"""The commits of a local Delta table: write the next one, and remove those of the past, without reading the whole log.

``delta-rs`` lists all commits of a table before and after each commit. A stream commits every two seconds, and knows
what its last commit was; so it writes the next commit itself, and asks only whether another process did before.
Rule: a commit appears whole, under a number that no commit has: it is written and fsynced under another name, and
linked to its own. So two processes cannot both write one number.
Rule: a commit is removed only if a checkpoint has all that it says, and is fsynced. The newest state of a table never
needs that commit.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from deltalake.transaction import AddAction, RemoveAction

import whimbrel
from whimbrel.log.files import sync_file

__all__ = ["CommitLog", "retention_s"]

_DIGITS = 20
_ENTRY = re.compile(
    r"([0-9]{20})\.(json|checkpoint(?:\.[0-9]+\.[0-9]+)?\.parquet|checkpoint\.[-0-9a-f]{36}\.(?:json|parquet))"
)
_INTERVAL = re.compile(r"interval ([0-9]+) (second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_MOST_COMMITS = 10_000
"""Most commits that are kept, however young they are: a reader lists all of them when it opens the table."""


def retention_s(interval: str | None, default_s: float) -> float:
    """Parse the value of a table property such as ``interval 6 hours`` into seconds."""
    found = _INTERVAL.fullmatch(interval or "")
    return default_s if found is None else int(found[1]) * _SECONDS[found[2]]


class _Entry(NamedTuple):
    version: int
    is_commit: bool
    """Whether the file is a commit; else it is, or is part of, a checkpoint."""
    at_s: float
    path: Path


class CommitLog:
    """The folder ``_delta_log`` of the table in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._table, self._log = folder, folder / "_delta_log"

    def path(self, version: int) -> Path:
        """Return the path of the commit of a version."""
        return self._log / f"{version:0{_DIGITS}}.json"

    def has(self, version: int) -> bool:
        """Return whether there is a commit of this version."""
        return self.path(version).exists()

    def write(
        self,
        version: int,
        actions: Iterable[AddAction | RemoveAction],
        *,
        mode: str,
        transaction: tuple[str, int] | None,
    ) -> bool:
        """Write a commit, fsynced; return False, and change nothing, if there is a commit of this version already.

        The files that the commit adds must be fsynced. *transaction* is an application id, and its number.
        """
        now_ms = int(time.time() * 1_000)
        added = [each for each in actions if isinstance(each, AddAction)]
        lines: list[dict[str, Any]] = []
        if transaction is not None:
            lines.append({"txn": {"appId": transaction[0], "version": transaction[1], "lastUpdated": now_ms}})
        lines += [_as_json(each) for each in actions]
        info = {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": mode.capitalize()},
            "engineInfo": f"whimbrel:{whimbrel.__version__}",
        }
        lines.append({"commitInfo": info})
        for parent in {(self._table / each.path).parent for each in added}:
            sync_file(parent)
        beside = self._log / f"_{uuid4().hex}.tmp"
        try:
            with beside.open("x", encoding="utf-8") as stream:
                stream.write("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
                stream.flush()
                os.fsync(stream.fileno())
            try:
                self.path(version).hardlink_to(beside)
            except FileExistsError:
                return False
        finally:
            beside.unlink(missing_ok=True)
        sync_file(self._log)
        return True

    def remove_old(self, *, older_than_s: float, now_s: float | None = None) -> int:
        """Remove commits and checkpoints that are older than *older_than_s*, or too many; return their number.

        The checkpoints that readers begin with are fsynced before, because the library does not fsync them. The rest
        has a checkpoint that is as old as the oldest commit, if there is one: an older version can be read.
        """
        entries = sorted(self._entries())
        cutoff_s = (time.time() if now_s is None else now_s) - older_than_s
        commits = [each for each in entries if each.is_commit]
        newest = commits[-1].version if commits else 0
        old = max((each.version for each in commits if each.at_s <= cutoff_s), default=-1)
        first = min(newest, max(old + 1, newest - _MOST_COMMITS))
        checkpoints = [each.version for each in entries if not each.is_commit]
        if not checkpoints:
            return 0
        base = max((version for version in checkpoints if version <= first), default=checkpoints[0])
        gone = [
            each for each in entries if each.version < min(base, first) or (not each.is_commit and each.version < base)
        ]
        try:
            self._sync_checkpoints(entries, {base, max(checkpoints)})
        except FileNotFoundError:  # another process removes them too
            return 0
        gone_paths = [*(each.path for each in gone), *self._find_unfinished(cutoff_s)]
        for path in gone_paths:
            with suppress(FileNotFoundError):
                path.unlink()
        return len(gone_paths)

    def _find_unfinished(self, before_s: float) -> Iterator[Path]:
        """Yield the files of commits that a process began to write before a time, and was killed."""
        for path in self._log.glob("_*.tmp"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime <= before_s:
                    yield path

    def _sync_checkpoints(self, entries: Iterable[_Entry], versions: set[int]) -> None:
        """Fsync the checkpoints of *versions*, the name of the last one, and their folder."""
        for each in entries:
            if not each.is_commit and each.version in versions:
                sync_file(each.path)
        with suppress(FileNotFoundError):
            sync_file(self._log / "_last_checkpoint")
        sync_file(self._log)

    def _entries(self) -> Iterator[_Entry]:
        with os.scandir(self._log) as found:
            for entry in found:
                named = _ENTRY.fullmatch(entry.name)
                if named is not None:
                    with suppress(FileNotFoundError):
                        is_commit = named[2] == "json"
                        yield _Entry(int(named[1]), is_commit, entry.stat().st_mtime, Path(entry.path))


def _as_json(action: AddAction | RemoveAction) -> dict[str, Any]:
    if isinstance(action, AddAction):
        return {
            "add": {
                "path": quote(action.path),
                "partitionValues": dict(action.partition_values),
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
                "stats": action.stats,
            }
        }
    return {
        "remove": {
            "path": quote(action.path),
            "deletionTimestamp": action.deletion_timestamp,
            "dataChange": action.data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(action.partition_values or {}),
            "size": action.size,
        }
    }
