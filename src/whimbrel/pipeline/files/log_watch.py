"""Log watch: find the last seq of each node repeatedly, without reading unchanged files again.

A folder whose modification time is unchanged is not listed again, and a segment that has not grown is not opened. So a
look at an idle node costs two or three system calls, even if its log is long.
Rule: a folder or segment that was changed in the last two seconds is read again, because clocks of file systems are
coarse. After a minute everything is read again, because the clock of a shared disk may be wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from whimbrel.log import layout
from whimbrel.log.reader import DurableEnd
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.schemas import TIMES

__all__ = ["LogWatch"]

_COARSE_NS = 2_000_000_000
_TRUSTED_NS = 60_000_000_000


class _Listed(NamedTuple):
    """Content of a folder, when it was listed last."""

    changed_ns: int
    looked_ns: int
    folders: tuple[str, ...]
    last: int
    """The last seq of the folder's parts; -1 if there are none."""


_NOTHING = _Listed(-1, -1, (), -1)


class _Live(NamedTuple):
    """State of a node's segments, when they were read last."""

    key: tuple[int, ...]
    """Modification times of folder and last segment, and size of the last segment."""
    looked_ns: int
    settled: int
    last: int


class LogWatch:
    """Watch over the log in *directory*: returns the last seqs of its nodes, and caches what has not changed."""

    def __init__(self, directory: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory, self._root, self._clock_ns = directory, str(directory), clock_ns
        self._listed: dict[str, _Listed] = {}
        self._live: dict[str, _Live] = {}
        self._newest: dict[str, str] = {}
        """Path of the last segment, per node."""
        self._frontiers: dict[str, DurableEnd] = {}
        self._is_node: dict[str, bool] = {}

    def look(self) -> Iterator[tuple[str, int, int]]:
        """Yield each node, sorted, with the last seq to read from Parquet and the last seq of its log."""
        layout.check_format(self._directory)  # a missing folder, or one without a log, is an error
        parts: dict[str, list[str]] = {}
        for table in self._tables():
            for day in self._below(table, "date="):
                for folder in self._below(day, "node="):
                    parts.setdefault(folder.rpartition("/node=")[2], []).append(folder)
        live = {*self._folder(f"{self._root}/{layout.SEGMENTS}").folders}
        for node in sorted(filter(self._may_be_node, live | parts.keys())):
            found = self._segments(node) if node in live else None
            if found is not None:
                yield node, found.settled, found.last
            else:
                of_log = (each for each in parts.get(node, ()) if _table_of(each) in TIMES)
                yield node, INT64_MAX, max((self._folder(each).last for each in of_log), default=-1)

    def _tables(self) -> Iterator[str]:
        """Yield the path of each table's folder that has Parquet files."""
        for name in self._folder(self._root).folders:
            table = f"{self._root}/{name}"
            days = self._below(table, "date=")
            if any(self._folder(each).last >= 0 for day in days for each in self._below(day, "node=")):
                yield table

    def _below(self, folder: str, begins: str) -> Iterator[str]:
        return (f"{folder}/{name}" for name in self._folder(folder).folders if name.startswith(begins))

    def _may_be_node(self, name: str) -> bool:
        known = self._is_node.get(name)
        if known is None:
            known = self._is_node[name] = layout.is_node(name)
        return known

    def _folder(self, path: str) -> _Listed:
        """Return the content of a folder; nothing if it does not exist."""
        known = self._listed.get(path, _NOTHING)
        try:
            changed_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 # paths are strings here: a look takes microseconds
            looked_ns = self._clock_ns()
            if changed_ns == known.changed_ns and _is_sure(known.looked_ns, changed_ns, looked_ns):
                return known
            with os.scandir(path) as entries:
                found = [(each.name, each.is_dir()) for each in entries]
        except (FileNotFoundError, NotADirectoryError):
            self._listed.pop(path, None)
            return _NOTHING
        folders = sorted(name for name, is_folder in found if is_folder and name[0] not in "._")
        last = max((layout.last_of_part(name) for name, is_folder in found if not is_folder), default=-1)
        listed = self._listed[path] = _Listed(changed_ns, looked_ns, tuple(folders), last)
        return listed

    def _segments(self, node: str) -> _Live | None:
        """Return the state of a node's segments; None if there are none."""
        known, looked_ns = self._live.get(node), self._clock_ns()
        if known is not None and _is_sure(known.looked_ns, max(known.key[:2]), looked_ns):
            with suppress(FileNotFoundError):
                if self._key(node) == known.key:
                    return known
        found = layout.segments(self._directory, node)
        if not found:
            self._live.pop(node, None)
            return None
        self._newest[node] = str(found[-1][1])
        key = self._key(node)
        settled = max(layout.exported_seq(self._directory, node), found[0][0] - 1)
        frontier = self._frontiers.setdefault(node, DurableEnd(self._directory, node))
        self._live[node] = live = _Live(key, looked_ns, settled, frontier.seq())
        return live

    def _key(self, node: str) -> tuple[int, ...]:
        """Return a key that changes whenever the node writes to its segments."""
        folder, newest = f"{self._root}/{layout.SEGMENTS}/{node}", os.stat(self._newest[node])  # noqa: PTH116
        return os.stat(folder).st_mtime_ns, newest.st_mtime_ns, newest.st_size  # noqa: PTH116


def _is_sure(looked_ns: int, changed_ns: int, now_ns: int) -> bool:
    """Return whether a cached result is valid: read long enough after the last change, and not too long ago."""
    return looked_ns - changed_ns > _COARSE_NS and now_ns - looked_ns < _TRUSTED_NS


def _table_of(folder: str) -> str:
    """Return the table's name in the path *folder* (``…/TABLE/date=…/node=…``) of a folder of Parquet files."""
    return folder.rsplit("/", 3)[1]
