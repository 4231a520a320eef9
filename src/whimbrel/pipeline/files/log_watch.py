"""A watch over a log, for callers that ask again and again how far it goes: what has not changed is not read again.

A folder whose time of change is as it was is not listed, and a segment that has not grown is not opened. So a look at
a node that is silent costs two or three questions to the file system, however long its log is.
Rule: what was changed in the last seconds is read again: clocks of file systems are coarse. So is everything once a
minute: the clock of a shared disk may also be wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from whimbrel.log import layout
from whimbrel.log.reader import Frontier
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.schemas import TIMES

__all__ = ["LogWatch"]

_COARSE_NS = 2_000_000_000
_TRUSTED_NS = 60_000_000_000


class _Listed(NamedTuple):
    """What is in a folder."""

    changed_ns: int
    looked_ns: int
    folders: tuple[str, ...]
    last: int
    """The last number that a part in it has, -1 if there is none."""


_NOTHING = _Listed(-1, -1, (), -1)


class _Live(NamedTuple):
    """The segments of a node."""

    key: tuple[int, ...]
    """When folder and last segment were changed last, and how long the segment is."""
    looked_ns: int
    settled: int
    last: int


class LogWatch:
    """Looks how far the log in *directory* goes."""

    def __init__(self, directory: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory, self._root, self._clock_ns = directory, str(directory), clock_ns
        self._listed: dict[str, _Listed] = {}
        self._live: dict[str, _Live] = {}
        self._newest: dict[str, str] = {}
        """By node, its last segment."""
        self._frontiers: dict[str, Frontier] = {}
        self._is_node: dict[str, bool] = {}

    def look(self) -> Iterator[tuple[str, int, int]]:
        """Yield each node, sorted, with the number up to which Parquet is its truth and the last one there is."""
        layout.check_format(self._directory)  # a folder that is no log, or no longer there, is not a log without facts
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
        """Yield the folders of tables that have any part."""
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
        """Return what is in a folder; nothing, if it is not there."""
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
        """Return how far segments go; None if there is none."""
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
        frontier = self._frontiers.setdefault(node, Frontier(self._directory, node))
        self._live[node] = live = _Live(key, looked_ns, settled, frontier.seq())
        return live

    def _key(self, node: str) -> tuple[int, ...]:
        """Return what is different once anything has been written."""
        folder, newest = f"{self._root}/{layout.SEGMENTS}/{node}", os.stat(self._newest[node])  # noqa: PTH116
        return os.stat(folder).st_mtime_ns, newest.st_mtime_ns, newest.st_size  # noqa: PTH116


def _is_sure(looked_ns: int, changed_ns: int, now_ns: int) -> bool:
    """Return whether a look was long enough after the last change, and not too long ago."""
    return looked_ns - changed_ns > _COARSE_NS and now_ns - looked_ns < _TRUSTED_NS


def _table_of(folder: str) -> str:
    """Return the table that a folder of a node's parts belongs to."""
    return folder.rsplit("/", 3)[1]
