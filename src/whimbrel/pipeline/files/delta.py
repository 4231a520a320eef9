"""Delta: write the pipeline's tables as Delta tables, which DuckDB, Polars, pandas, Trino and Spark can read meanwhile.

A table is a folder of Parquet files and a log of commits (``_delta_log``), which lists the files of each version. A
reader sees the whole version of some commit. A file that no commit lists does not belong to the table.

Rule: a batch of a stream is one commit, with (stream, batch) as its application transaction. A lock refuses a second
stream (``stream``), so no other stream commits in between; any other process may.
Rule: a commit of a batch costs the same however long the table's history is: one question to the file system tells
whether others have committed, and the next commit is written without reading the ones before (``commit_log``).
Rule: a commit and its files are fsynced before we rely on it (``delta-rs`` does not fsync).
Rule: only a commit of the operation WRITE adds new rows, in files with ``dataChange``; compaction and the removal of
old rows copy rows (``table_feed`` relies on that).
Rule: the rows of a file are ordered by whom they are about, then by time, and its commit states their ranges. So an
engine skips files, and parts of files, of other sessions, devices and days.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from whimbrel.errors import InvalidValueError, MissingDependencyError
from whimbrel.log.files import sync_file
from whimbrel.log.parts import statistics
from whimbrel.model.bounds import INT64_MAX, INT64_MIN
from whimbrel.model.tables import TABLES, TIME_TYPE

try:
    from deltalake import DeltaTable, WriterProperties
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:
    raise MissingDependencyError("the pipeline's tables", "deltalake", "run: pip install 'whimbrel[spark]'") from None

from whimbrel.pipeline.files.delta_files.commit_log import CommitLog, retention_s
from whimbrel.pipeline.files.delta_files.concurrency import ATTEMPTS, ConcurrentChangeError, repeat_until_undisturbed
from whimbrel.pipeline.files.delta_files.data_file import COMPRESSION, add_action, delta_schema, written_file
from whimbrel.pipeline.files.delta_files.file_statistics import statistics_columns

__all__ = [
    "LARGEST_BYTES",
    "TIME_COLUMNS",
    "WHOLE",
    "ConcurrentChangeError",
    "DeltaOutput",
    "by_window",
    "check_folder",
    "data_files",
    "delta_schema",
    "files_of",
    "open_table",
    "read",
    "replace_table",
    "written_file",
]

WHOLE = 0
"""Key that stands for the whole table, in place of the begin of a window."""
STREAM = "whimbrel-stream"
"""Application id of a stream's transactions; a folder has at most one stream."""
TIME_COLUMNS = {
    "matches": "published_at",
    "deliveries": "decided_at",
    "latency": "window_start",
    "popularity": "window_start",
    "link_quality": "reported_at",
    "contacts": "began_at",
    "dead_letters": "found_at",
}
"""Column with the time of a row, per table; a table that is not listed is replaced as a whole, and has no old rows."""

_DIGITS = 20
LARGEST_BYTES = 16 << 20
"""Size up to which files are compacted: a merge sorts its rows in memory, where they take many times as much."""
_TOGETHER = 8
"""Least number of small files that ``compact`` merges in a table of time windows."""
_KEPT_HOURS = 24
"""Least age of a file that no commit names before it is removed, in hours: longer than a run takes."""
_RETENTION, _INDEXED = "delta.logRetentionDuration", "delta.dataSkippingStatsColumns"
_HISTORY_S = 6 * 3_600.0
"""Time for which commits are kept: a follower of a table may be away for so long. With a batch every two seconds, these
are 10,800."""
_SETTINGS = {
    _RETENTION: "interval 6 hours",
    "delta.checkpointInterval": "50",
    # A checkpoint lists the files that were removed within this time: of a busy stream, 43,200 in a day.
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}
_OLD_RETENTION = "interval 7 days"
"""The property of tables of an older Whimbrel."""
_CHECKPOINT_EVERY = 50


def check_folder(out: Path, table: str) -> None:
    """Raise ``InvalidValueError`` if the folder of *table* has tables that are not Delta tables."""
    folder = out / table
    if folder.is_symlink() or (out / "_versions").is_dir() or _is_plain(folder):
        allowed = (
            "another one: an older Whimbrel made these tables, which are no Delta tables; make them anew elsewhere"
        )
        raise InvalidValueError("directory for the tables", str(out), allowed)


def open_table(out: Path, table: str) -> DeltaTable:
    """Open a Delta table, or create it empty; add columns that it lacks; refuse a folder that is not a Delta table."""
    check_folder(out, table)
    folder = out / table
    if not DeltaTable.is_deltatable(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        described = TABLES[table].description
        settings = {**_SETTINGS, _INDEXED: ",".join(statistics_columns(table))}
        DeltaTable.create(
            str(folder), delta_schema(table), mode="ignore", name=table, description=described, configuration=settings
        )
        _sync_commit(folder, 0)
        sync_file(out)
    found = DeltaTable(str(folder))
    known = {field.name for field in found.schema().fields}
    missing = [field for field in delta_schema(table) if field.name not in known]
    if missing:  # an older Whimbrel created the table
        from deltalake import Schema

        found.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
        found = DeltaTable(str(folder))
    if found.metadata().configuration.get(_RETENTION) == _OLD_RETENTION:
        found.alter.set_table_properties(_SETTINGS)
        found = DeltaTable(str(folder))
    return found


def _is_plain(folder: Path) -> bool:
    """Return whether a folder has Parquet files and no Delta log."""
    return not (folder / "_delta_log").is_dir() and next(folder.rglob("*.parquet"), None) is not None


class _File(NamedTuple):
    """A data file of a table, with its size and its range of times as the commit states them."""

    path: str
    size: int
    first: int
    last: int
    """Times of its oldest (``first``) and newest (``last``) row; the full range of int64 if the commit lacks them."""


class DeltaOutput:
    """One Delta table in a folder of tables, for one writer and any number of readers."""

    def __init__(self, out: Path, table: str) -> None:
        self._out, self._folder, self.table = out, out / table, table
        self._time = TIME_COLUMNS.get(table)
        self._has_windows = self._time == "window_start"
        check_folder(out, table)
        self._opened: DeltaTable | None = None
        """The table as it was read last; it may lack our own last commits."""
        self._log = CommitLog(self._folder)
        self._version, self._batch = -1, -1
        """The table's version, and the last batch in it, as far as we know."""

    def create(self) -> None:
        """Create the table, empty and with its columns, unless it exists."""
        self._read(open_table(self._out, self.table))

    def _read(self, found: DeltaTable) -> None:
        self._opened, self._version = found, found.version()
        batch = found.transaction_version(STREAM)
        self._batch = -1 if batch is None else int(batch)

    def _look(self) -> DeltaTable:
        """Read the commits that others made since the last look; if there are none, only look up two names."""
        if self._opened is None or not self._log.has(self._version):
            self.create()
        elif self._log.has(self._version + 1):
            self._update()
        assert self._opened is not None
        return self._opened

    def _update(self) -> None:
        assert self._opened is not None
        try:
            self._opened.update_incremental()
        except DeltaError:  # a commit in between was removed since
            self._opened = DeltaTable(str(self._folder))
        self._read(self._opened)

    @property
    def _delta(self) -> DeltaTable:
        """The table with all commits, our own too."""
        found = self._look()
        if found.version() < self._version:
            self._update()
        assert self._opened is not None
        return self._opened

    def last_batch(self) -> int:
        """Return the number of the last batch that changed the table; -1 if none did, or the table does not exist."""
        if not (self._folder / "_delta_log").is_dir():
            self._opened = None
            return -1
        self._look()
        return self._batch

    def is_of_a_stream(self) -> bool:
        """Return whether a stream may add to the table: a stream has written it, or the table is empty."""
        return self.last_batch() >= 0 or not data_files(self._out, self.table)

    def has(self, batch: int) -> bool:
        """Return whether *batch* was committed already."""
        return batch <= self.last_batch()

    def add(self, batch: int, rows: Any) -> None:  # a pyarrow.Table
        """Commit the rows of *batch*, unless there are none or the batch was committed already."""
        if rows.num_rows and not self.has(batch):
            self._commit([self._add_file(rows)], batch)

    def add_files(self, batch: int, files: Sequence[AddAction]) -> None:
        """Commit the files that workers wrote for *batch*, unless there are none or it was committed already."""
        if files and not self.has(batch):
            self._commit([*files], batch)

    def replace(self, batch: int, windows: Mapping[int, Any]) -> None:  # of pyarrow.Tables
        """Replace rows of time windows; *windows* maps the begin of each to its new rows (``WHOLE``: to all rows)."""
        if windows:
            repeat_until_undisturbed(lambda: self._replace(batch, windows))

    def _replace(self, batch: int, windows: Mapping[int, Any]) -> None:
        if self.has(batch):
            return
        if not self._has_windows:
            self._replace_all([self._add_file(windows[WHOLE])], batch)
            return
        files = self._files()
        read_at = self._version
        gone = [each for each in files if any(each.first <= window <= each.last for window in windows)]
        new = dict(windows)
        for file in gone:
            if file.first < file.last:  # a merged file: write its other windows to files of their own
                new = by_window(self._rows([file])) | new
        self._commit([*map(self._add_file, new.values()), *map(_remove_action, gone)], batch, read_at=read_at)

    def replace_all(self, paths: Iterable[Path]) -> None:
        """Replace all rows by the Parquet files *paths*, in one commit."""
        new = list(paths)
        for path in new:
            sync_file(path)
        repeat_until_undisturbed(
            lambda: self._replace_all([add_action(self._out, self.table, path) for path in new], None)
        )

    def _replace_all(self, new: list[AddAction], batch: int | None) -> None:
        files = self._files()
        self._commit([*new, *map(_remove_action, files)], batch, "overwrite", read_at=self._version)

    def replace_between(self, paths: Iterable[Path], since: int | None, until: int | None) -> None:
        """Replace the rows from *since* on and before *until* by the Parquet files *paths*, in one commit.

        Other rows stay. A file that has both kinds of rows is rewritten without those that are replaced.
        """
        first, after = INT64_MIN if since is None else since, INT64_MAX if until is None else until
        new = list(paths)
        for path in new:
            sync_file(path)
        repeat_until_undisturbed(lambda: self._replace_between(new, first, after))

    def _replace_between(self, new: list[Path], first: int, after: int) -> None:
        actions: list[AddAction | RemoveAction] = [add_action(self._out, self.table, path) for path in new]
        files = self._files()
        read_at = self._version
        for file in files:
            if file.first < after and file.last >= first:
                if file.first < first or file.last >= after:
                    actions += self._outside(file, first, after)
                actions.append(_remove_action(file))
        self._commit(actions, None, read_at=read_at)

    def _outside(self, file: _File, first: int, after: int) -> list[AddAction]:
        """Copy rows with a time before *first*, or from *after* on, to a new file; return the action that adds it."""
        path = self._folder / f"part-{uuid4().hex}.parquet"
        source = pads.dataset(str(self._folder / file.path), schema=delta_schema(self.table), format="parquet")
        with pq.ParquetWriter(path, delta_schema(self.table), compression=COMPRESSION) as writer:
            for batch in source.to_batches():
                times = batch.column(self._time).cast(pa.int64())
                writer.write_batch(batch.filter(pc.or_(pc.less(times, first), pc.greater_equal(times, after))))
        if statistics(path, ())[0]:
            sync_file(path)
            return [add_action(self._out, self.table, path, is_new=False)]
        path.unlink()
        return []

    def window(self, window: int) -> Any | None:  # a pyarrow.Table
        """Return the rows of the window that begins at *window*; None if there are none."""
        found = [each for each in self._files() if each.first <= window <= each.last]
        return by_window(self._rows(found)).get(window) if found else None

    def rows(self) -> Any:  # a pyarrow.Table
        """Return all rows of the table, as of now."""
        return read(self._out, self.table)

    def _rows(self, files: list[_File]) -> Any:
        paths = [str(self._folder / each.path) for each in files]
        return pads.dataset(paths, schema=delta_schema(self.table), format="parquet").to_table()

    def _files(self) -> list[_File]:
        """Return the files of the table, the oldest first."""
        known = pa.table(self._delta.get_add_actions(flatten=True))
        count = known.num_rows
        times = [
            known.column(name).cast(TIME_TYPE).cast(pa.int64()).to_pylist()
            if name in known.column_names
            else [None] * count
            for name in (f"min.{self._time}", f"max.{self._time}")
        ]
        columns = (known.column("path").to_pylist(), known.column("size_bytes").to_pylist(), *times)
        found = [
            _File(path, size, INT64_MIN if first is None else first, INT64_MAX if last is None else last)
            for path, size, first, last in zip(*columns, strict=True)
        ]
        return sorted(found, key=lambda each: (each.first, each.last, each.path))

    def _add_file(self, rows: Any, *, is_new: bool = True) -> AddAction:
        if self._opened is None:
            self.create()
        return written_file(self._out, self.table, rows, is_new=is_new)

    def _commit(
        self,
        actions: list[AddAction | RemoveAction],
        batch: int | None,
        mode: str = "append",
        *,
        read_at: int | None = None,
    ) -> None:
        """Commit *actions*; if another process commits first, try again as the next version.

        Actions that were made from the files of version *read_at* are wrong for a later one: they are not committed,
        and ``ConcurrentChangeError`` is raised.
        """
        for _ in range(ATTEMPTS):
            self._look()
            if batch is not None and batch <= self._batch:
                return
            if read_at is not None and read_at != self._version:
                raise ConcurrentChangeError(self.table)
            transaction = None if batch is None else (STREAM, batch)
            if self._log.write(self._version + 1, actions, mode=mode, transaction=transaction):
                break
        else:
            raise ConcurrentChangeError(self.table)
        self._version += 1
        self._batch = self._batch if batch is None else batch
        if self._version % _CHECKPOINT_EVERY == 0:
            self.tidy_log()

    def tidy_log(self) -> int:
        """Write a checkpoint, and remove commits that are too old; return the number of files that were removed."""
        delta = self._delta
        delta.create_checkpoint()
        kept_s = retention_s(delta.metadata().configuration.get(_RETENTION), _HISTORY_S)
        return self._log.remove_old(older_than_s=kept_s)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def compact(self, *, target_bytes: int = LARGEST_BYTES, before: int | None = None) -> int:
        """Merge files that are smaller than *target_bytes*; return the number of merged files.

        Windows that begin at *before* or later are not merged, because they still change. Raise
        ``ConcurrentChangeError``, and merge nothing, if another process commits meanwhile.
        """
        small: list[_File] = []
        room = target_bytes
        bins: list[list[_File]] = [small]
        files = self._files()
        read_at = self._version
        for file in files:
            if file.size >= target_bytes or (self._has_windows and before is not None and file.last >= before):
                continue
            if file.size > room:
                if self._has_windows:  # the rest waits for the next turn
                    continue
                small, room = [], target_bytes
                bins.append(small)
            small.append(file)
            room -= file.size
        least = _TOGETHER if self._has_windows else 2
        merged = [each for each in bins if len(each) >= least]
        actions: list[AddAction | RemoveAction] = []
        for each in merged:
            actions.append(self._add_file(self._rows(each), is_new=False))
            actions += [_remove_action(file, is_new=False) for file in each]
        if actions:
            self._commit(actions, None, read_at=read_at)
        return sum(map(len, merged))

    def expire(self, older_than: int, *, before: int | None = None) -> int:
        """Delete the rows before the time *older_than*, in microseconds; return their number.

        Windows that begin at *before* or later stay, because rows are still added to them. Raise
        ``ConcurrentChangeError``, and delete nothing, if another process changes the same files meanwhile.
        """
        horizon = older_than if before is None else min(older_than, before)
        if self._time is None or not any(each.first < horizon for each in self._files()):
            return 0
        try:
            found = self._delta.delete(
                f"{self._time} < {_moment(horizon)}", writer_properties=WriterProperties(compression=COMPRESSION)
            )
        except CommitFailedError:
            raise ConcurrentChangeError(self.table) from None
        self._update()
        _sync_commit(self._folder, self._version)
        return int(found["num_deleted_rows"] or 0)

    def sweep(self) -> int:
        """Remove files that no version of the last six hours needs, and of dead batches; return their number."""
        return len(vacuum(self._delta))


def vacuum(delta: DeltaTable) -> list[str]:
    """Remove files that no version of the last six hours needs; return their names."""
    gone: list[str] = delta.vacuum(
        retention_hours=_KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=True
    )
    return gone


def replace_table(out: Path, table: str, paths: Iterable[Path]) -> None:
    """Replace all rows of a table by the Parquet files *paths* in its folder, in one commit."""
    output = DeltaOutput(out, table)
    output.replace_all(paths)
    output.sweep()


def _remove_action(file: _File, *, is_new: bool = True) -> RemoveAction:
    return RemoveAction(file.path, is_new, int(time.time() * 1_000), file.size, {})


def _moment(micros: int) -> str:
    """Return a time as a literal for DataFusion, which compares only times of the same type."""
    return f"arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _sync_commit(folder: Path, version: int) -> None:
    """Fsync a commit, the files that it adds, and their folders."""
    log = folder / "_delta_log"
    path = log / f"{version:0{_DIGITS}}.json"
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:  # the commits before a checkpoint may be cleaned up at once
        return
    for line in lines:
        new = json.loads(line).get("add")
        if new is not None:
            sync_file(folder / new["path"])
    sync_file(path)
    sync_file(log)
    sync_file(folder)


# -- readers -----------------------------------------------------------------------------------------------------------


def read(out: Path, table: str) -> Any:  # a pyarrow.Table
    """Return all rows of a table, as of now; no rows if it does not exist."""
    folder = out / table
    if not DeltaTable.is_deltatable(str(folder)):
        if folder.exists():
            check_folder(out, table)
        return delta_schema(table).empty_table()
    paths = [str(path) for path in data_files(out, table)]
    # With the schema given, columns that an older Whimbrel did not write are null.
    return pads.dataset(paths, schema=delta_schema(table), format="parquet", partitioning=None).to_table()


def data_files(out: Path, table: str) -> list[Path]:
    """Return the data files of a table, as of now; none if it does not exist."""
    folder = out / table
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return files_of(DeltaTable(str(folder)))


def files_of(delta: DeltaTable) -> list[Path]:
    """Return the data files of a version of a table; decodes the library's URLs, in which ``%20`` is a space."""
    return [Path(unquote(uri.removeprefix("file://"))) for uri in delta.file_uris()]


def by_window(rows: Any) -> dict[int, Any]:  # pyarrow.Tables
    """Return a dict from the begin of each window, in microseconds, to the rows of the window."""
    starts = rows.column("window_start").cast(pa.int64())
    return {start: rows.filter(pc.equal(starts, start)) for start in pc.unique(starts).to_pylist()}
