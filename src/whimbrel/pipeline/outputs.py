"""Outputs: tables that a stream keeps up to date while others read them.

A table is a symbolic link, ``deliveries``, to a folder of Parquet files, one version of the table. Files are never
changed: the next version is another folder, with hard links to the files that stay, and the link is replaced in one
step. Whoever follows the link once (``os.path.realpath``) therefore reads one version, whatever the stream does; a
version that was replaced is kept for some minutes.

Rule: a batch is in the table or not, whole: it appears with its version, and a version that is there is not made again.
Rule: a file has a key, the rows that it replaces go with it: ``rows`` adds to what there is, ``window`` replaces the
rows of a window, ``whole`` replaces all. Small neighbours are put together on the way (``Keep``).
Rule: rows are removed for their age (``expire``) a file at a time, by the times in them and not by that of the file.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import sync_file
from whimbrel.log.parts import statistics
from whimbrel.model.bounds import INT64_MAX, INT64_MIN
from whimbrel.model.tables import TABLES

__all__ = ["TIME_COLUMNS", "WHOLE", "Keep", "Output", "by_window", "current", "read"]

VERSIONS = "_versions"
WHOLE = 0
"""The key of a file that is the whole table."""

_NAME = re.compile(r"(rows|window)-(-?[0-9]{1,20})_(-?[0-9]{1,20})-([0-9]{1,18})\.parquet")
_DIGITS = 12
TIME_COLUMNS = {
    "matches": "published_at",
    "deliveries": "decided_at",
    "latency": "window_start",
    "popularity": "window_start",
    "link_quality": "reported_at",
    "dead_letters": "found_at",
}
"""By table, the time that says how old a row is; one that is not here is replaced as a whole, and has no old rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long a version is kept that was replaced, and which files are put together."""

    seconds: float = 600
    """Longer than a reader takes that has followed the link."""
    together: int = 8
    """This many neighbours that are small, of one size, become one file;"""
    largest_bytes: int = 128 << 20
    """and no file grows beyond this."""


class File(NamedTuple):
    """A file of a version, by its name."""

    kind: str
    first: int
    last: int
    """Its keys: batches, or the beginnings of windows."""
    batch: int
    """The batch that made it."""
    path: Path

    @classmethod
    def named(cls, path: Path) -> File | None:
        """Return what the name of a file says; None if it is none of ours."""
        found = _NAME.fullmatch(path.name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]), int(found[4]), path)


class Output:
    """One table below a folder; one writer, any number of readers."""

    def __init__(self, out: Path, table: str, *, keep: Keep | None = None) -> None:
        self.link, self._versions = out / table, out / VERSIONS / table
        self._schema, self._keep = TABLES[table].schema, keep or Keep()
        self._time = TIME_COLUMNS.get(table)
        self._times: dict[str, tuple[int, int]] = {}
        """By the name of a file, the times of its oldest and its newest row: files do not change."""
        version = self.version()
        if self.link.exists() and (version is None or version.parent != self._versions):
            allowed = "a folder without tables of a batch run, or one that a stream made"
            raise InvalidValueError("directory for the tables", str(self.link), allowed)

    def version(self) -> Path | None:
        """Return the folder that the link leads to."""
        return self.link.parent / self.link.readlink() if self.link.is_symlink() else None

    def last_batch(self) -> int:
        """Return the last batch that changed the table; -1 if none did, or what the link leads to is gone."""
        version = self.version()
        return -1 if version is None or not version.is_dir() else int(version.name.partition(".")[0])

    def has(self, batch: int) -> bool:
        """Tell whether a batch is in the table."""
        return batch <= self.last_batch()

    def files(self) -> list[File]:
        """Return the files of the table, in order."""
        version = self.version()
        found = (File.named(path) for path in version.iterdir()) if version is not None else iter(())
        return sorted(file for file in found if file is not None)

    def add(self, batch: int, rows: Any) -> None:  # a pyarrow.Table
        """Add the rows of a batch; none, and the table stays as it is, or appears empty with its columns."""
        if (rows.num_rows or not self.link.exists()) and not self.has(batch):
            self._appear(batch, {("rows", batch): rows}, self.files())

    def replace(self, batch: int, windows: Mapping[int, Any]) -> None:  # of pyarrow.Tables
        """Replace the rows of windows, by their beginnings; ``WHOLE`` stands for all there is."""
        if windows and not self.has(batch):
            kept: list[File] = []
            new: dict[int, Any] = {}
            for file in self.files():
                if not any(file.first <= each <= file.last for each in windows):
                    kept.append(file)
                elif file.first < file.last:  # they were put together: those that stay go apart again
                    new |= by_window(_table([file.path], self._schema))
            new |= windows
            self._appear(batch, {("window", window): rows for window, rows in new.items()}, kept)

    def window(self, window: int) -> Any | None:  # a pyarrow.Table
        """Return the rows of a window, if it has any."""
        for file in self.files():
            if file.first <= window <= file.last:
                rows = _table([file.path], self._schema)
                return rows if file.first == file.last else by_window(rows).get(window)
        return None

    def rows(self) -> Any:  # a pyarrow.Table
        """Return the whole table as it is now."""
        return _table([file.path for file in self.files()], self._schema)

    # -- versions ----------------------------------------------------------------------------------------------------

    def _appear(self, batch: int, new: Mapping[tuple[str, int], Any], kept: list[File]) -> None:
        version = self._versions / f"{batch:0{_DIGITS}}"
        if not version.exists():
            self._versions.mkdir(parents=True, exist_ok=True)
            making = self._versions / f"_making-{uuid4().hex}"
            making.mkdir()
            try:
                for file in kept:
                    os.link(file.path, making / file.path.name)
                for (kind, key), rows in new.items():
                    _write(
                        rows.cast(self._schema), making / f"{kind}-{key:0{_DIGITS}}_{key:0{_DIGITS}}-{batch}.parquet"
                    )
                sync_file(making)
                making.rename(version)
                sync_file(self._versions)
            finally:
                shutil.rmtree(making, ignore_errors=True)
        self._lead_to(version)

    def _lead_to(self, version: Path) -> None:
        beside = self._versions / f"_link-{uuid4().hex}"
        beside.symlink_to(Path(VERSIONS) / self._versions.name / version.name)
        beside.rename(self.link)
        sync_file(self.link.parent)

    def sweep(self, *, now: float | None = None) -> int:
        """Remove versions that were replaced long enough ago, and what an interrupted stream left; return how many."""
        current, removed = self.version(), 0
        if not self._versions.is_dir():
            return 0
        now = time.time() if now is None else now
        replaced_at = float("inf")
        for path in sorted(self._versions.iterdir(), reverse=True):
            if path.name.startswith("_"):
                _remove(path)
            elif current is None or path.name > current.name:
                _remove(path)  # the link never led there: the batch is made again
            else:
                appeared_at = path.stat().st_mtime
                if now - replaced_at > self._keep.seconds:
                    # A reader that took too long finds nothing, never a part of the version.
                    _remove(path.rename(self._versions / f"_gone-{uuid4().hex}"))
                    removed += 1
                replaced_at = appeared_at  # of the one before it
        return removed

    # -- small files -------------------------------------------------------------------------------------------------

    def compact(self, *, before: int | None = None, within: int | None = None) -> int:
        """Put small neighbours together, in the version that is there; return how many files went.

        *before* keeps windows apart that begin there or later: these still change. *within* keeps rows apart that are
        further apart than so many microseconds: who removes old ones (``expire``) wants them in files of their own.
        Rule: as a version of its own, with the number of the last batch, so that no batch is made again or left out.
        """
        files = [file for file in self.files() if before is None or file.last < before]
        runs = list(self._runs(files, within))
        written = {
            f"{run[0].kind}-{run[0].first:0{_DIGITS}}_{run[-1].last:0{_DIGITS}}-{run[-1].batch}.parquet": run
            for run in runs
        }
        return self._renew([file for run in runs for file in run], written)

    def expire(self, older_than: int, *, before: int | None = None) -> int:
        """Remove files of which every row is *older than* a time in microseconds; return how many.

        *before* keeps windows that begin there or later: what is still to come is added to them.
        """
        if self._time is None:
            return 0
        files = [file for file in self.files() if before is None or file.last < before]
        return self._renew([file for file in files if self._times_of(file)[1] < older_than], {})

    def _times_of(self, file: File) -> tuple[int, int]:
        """Return the times of the oldest and the newest row; where none is told, all times there are."""
        name = file.path.name
        if name not in self._times:
            column = self._time or ""
            _, found = statistics(file.path, (column,)) if column else (0, {})
            self._times[name] = found.get(column, (INT64_MIN, INT64_MAX))
        return self._times[name]

    def _renew(self, gone: list[File], written: Mapping[str, list[File]]) -> int:
        """Let a version appear without some files, and with others *written* of some; return how many are gone."""
        version = self.version()
        if not gone or version is None:
            return 0
        names = {file.path.name for file in gone}
        making = self._versions / f"_making-{uuid4().hex}"
        making.mkdir()
        try:
            for file in self.files():
                if file.path.name not in names:
                    os.link(file.path, making / file.path.name)
            for name, run in written.items():
                _write(_table([file.path for file in run], self._schema), making / name)
            sync_file(making)
            # Two folders cannot change places in one step, so the new one has a name of its own behind the old one's.
            fresh = self._versions / _after(version.name)
            _remove(fresh)  # of a try that was interrupted; the link never led there
            making.rename(fresh)
            sync_file(self._versions)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self._lead_to(fresh)
        for name in names:
            self._times.pop(name, None)
        return len(gone)

    def _runs(self, files: list[File], within: int | None = None) -> Iterator[list[File]]:
        """Yield neighbours to put together: of one tier, so that a row is written anew a few times, not for ever.

        One that a larger one follows counts as large: it has no other neighbours, and would stay small for ever.
        """
        sizes = [file.path.stat().st_size for file in files]
        tiers = [*accumulate(map(_tier, reversed(sizes)), max)][::-1]
        run: list[File] = []
        size = tier = 0
        for file, here, its_tier in zip(files, sizes, tiers, strict=True):
            if run and (
                its_tier != tier
                or file.kind != run[0].kind
                or size + here > self._keep.largest_bytes
                or self._is_far([*run, file], within)
            ):
                if len(run) >= self._keep.together:
                    yield run
                run, size = [], 0
            tier = its_tier
            run.append(file)
            size += here
        if len(run) >= self._keep.together:
            yield run

    def _is_far(self, run: list[File], within: int | None) -> bool:
        """Tell whether rows would come together that are further apart than they should be."""
        if within is None or self._time is None:
            return False
        times = [self._times_of(file) for file in run]
        return max(newest for _, newest in times) - min(oldest for oldest, _ in times) > within


def read(out: Path, table: str) -> Any:  # a pyarrow.Table
    """Return a table that a stream keeps, or a batch run made, as it is now: one version of it."""
    folder = current(out, table)
    return _table([] if folder is None else sorted(folder.rglob("*.parquet")), TABLES[table].schema)


def current(out: Path, table: str) -> Path | None:
    """Return the folder of a table as it is now, one version of it, whatever the stream does; None if it has none."""
    folder = Path(os.path.realpath(out / table))
    if not folder.is_dir():
        return None
    # A link that appeared since we looked where it leads is not followed yet.
    return Path(os.path.realpath(folder)) if folder.is_symlink() else folder


def by_window(rows: Any) -> dict[int, Any]:  # pyarrow.Tables
    """Return the rows of each window, by its beginning."""
    starts = rows.column("window_start").cast(pa.int64())
    return {start: rows.filter(pc.equal(starts, start)) for start in pc.unique(starts).to_pylist()}


def _tier(size: int) -> int:
    """Return how often a size can be divided by eight."""
    return max(size >> 16, 1).bit_length() // 3


def _after(name: str) -> str:
    """Return a name that sorts after that of a version and before the next: 12, 12.1, 12.2."""
    batch, _, turn = name.partition(".")
    return f"{batch}.{int(turn or 0) + 1:06}"


def _table(paths: list[Path], schema: Any) -> Any:
    """Read files with the schema of today: columns that an older Whimbrel did not write are null."""
    if not paths:
        return schema.empty_table()
    return pads.dataset([str(path) for path in paths], schema=schema, format="parquet").to_table()


def _write(table: Any, path: Path) -> None:
    with path.open("wb") as stream:
        pq.write_table(table, stream, compression="zstd")
        stream.flush()
        os.fsync(stream.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
