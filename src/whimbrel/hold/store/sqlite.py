"""Store in an SQLite file, so that a broker that restarts reads rows instead of the whole log.

Rule: ``synchronous=NORMAL`` is enough, because the log is the truth. In WAL mode a commit is complete or absent after
any crash. After a power failure the last commits may be absent; ``applied`` shows how far the store reaches, and the
log has the facts after it. A caller that keeps several stores in step needs every commit fsynced (*is_synced*).
Rule: each row carries its CRC-32, because SQLite checks the structure of its pages and not the values in them.
Rule: a file that Whimbrel did not write is refused and never overwritten.
Rule: a new file is accessible to its owner only; SQLite gives its -wal and -shm files the same mode.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.hold.store.interface import (
    NOTHING_APPLIED,
    CorruptStoreError,
    Key,
    NewerStoreError,
    StoreUnavailableError,
    decode_key,
    encode_key,
)
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["FORMAT", "SqliteStore"]

FORMAT = 3
"""Version of the format: 2 added the seq of each subscription and the links of devices, 3 the subscription's time."""

_SCHEMA = """
CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""
_CRC_BYTES = 4
_PRIVATE_FILE = 0o600
# Errors of the machine (disk, memory, locks, permissions); every other error of SQLite means a damaged file.
_ENVIRONMENT = frozenset({
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
})  # fmt: skip
_PRIMARY_CODE = 0xFF


class SqliteStore:
    """Store in one file with one writer; *is_synced*: a commit that has returned survives a power failure.

    A *snapshot* is read-only and may be used by any thread while another store writes the same file. It shows all rows
    as of one commit; the -wal file grows until the snapshot is closed.
    """

    def __init__(self, path: Path, *, is_synced: bool = False, snapshot: bool = False) -> None:
        self._path, self._is_synced = path, is_synced
        if snapshot:
            self._open_snapshot()
            return
        with suppress(OSError):  # it exists already, or SQLite will report why it cannot be created
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE))
        with self._translated():
            # The broker may open it in one thread and commit in another; never in two at a time.
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._translated():
                self._open()
                self._applied = self._read_applied()
        except BaseException:
            self._connection.close()
            raise

    def _open_snapshot(self) -> None:
        with self._translated():
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            with self._translated():
                self._connection.execute("BEGIN")
                self._check_format()
                self._applied = self._read_applied()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        execute = self._connection.execute
        execute(f"PRAGMA synchronous={'FULL' if self._is_synced else 'NORMAL'}")
        names = {name for (name,) in execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        pages = execute("PRAGMA page_count").fetchone()[0]
        # The file is new (empty), or has one page without tables because its creation was interrupted.
        if not names and pages == min(self._path.stat().st_size, 1):
            execute("PRAGMA journal_mode=WAL")
            with self._transaction():
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    execute(statement)
                execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
                self._write_applied(NOTHING_APPLIED)
            return
        if names != {"meta", "rows"}:
            raise self._corrupt("its tables are not those of a hold")
        self._check_format()
        execute("PRAGMA journal_mode=WAL")
        # This reads the file once, as restoring a hold does anyway. Undetected loss of rows would lose notifications.
        for (complaint,) in execute("PRAGMA quick_check(1)"):
            if complaint != "ok":
                raise self._corrupt(str(complaint))

    @property
    def applied(self) -> int:
        """Seq of the last fact that the rows include; ``NOTHING_APPLIED`` if there is none."""
        return self._applied

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys; do not commit before the last."""
        with self._translated():
            for kind, encoded, sealed in self._connection.execute(
                "SELECT kind, key, value FROM rows ORDER BY kind, key"
            ):
                yield self._key(kind, encoded), self._unseal(sealed, kind, encoded)

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None."""
        encoded = encode_key(key)
        with self._translated():
            found = self._connection.execute("SELECT value FROM rows WHERE kind = ? AND key = ?", encoded).fetchone()
        return None if found is None else self._unseal(found[0], *encoded)

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Delete the rows under *drop*, write *put* and set ``applied``, atomically: an error changes nothing."""
        whole("applied", applied, self._applied, INT64_MAX)
        with self._translated(), self._transaction():
            self._connection.executemany("DELETE FROM rows WHERE kind = ? AND key = ?", map(encode_key, drop))
            self._connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", map(_row, put.items()))
            self._write_applied(applied)
        self._applied = applied

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Replace all rows by *rows* and set ``applied``, atomically: an error changes nothing."""
        self.load(applied, rows.items())

    def load(self, applied: int, rows: Iterable[tuple[Key, bytes]]) -> None:
        """Replace all rows by *rows* from an iterator; an error that *rows* raises leaves the store unchanged."""
        whole("applied", applied, self._applied, INT64_MAX)
        with self._translated(), self._transaction():
            self._connection.execute("DELETE FROM rows")
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", map(_row, rows))
            self._write_applied(applied)
        self._applied = applied

    def close(self) -> None:
        """Close the file; closing it twice does no harm."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert errors of SQLite to ``StoreError``; errors from misuse of its interface are bugs and pass through."""
        try:
            yield
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError):
            raise
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY_CODE
            if code in _ENVIRONMENT:
                raise StoreUnavailableError(str(self._path), str(error)) from error
            raise self._corrupt(str(error)) from error
        except UnicodeDecodeError as error:  # the error message of SQLite quotes the damaged bytes
            raise self._corrupt("its schema is not text") from error

    def _corrupt(self, reason: str) -> CorruptStoreError:
        return CorruptStoreError(str(self._path), reason)

    def _check_format(self) -> None:
        found = self._connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if found is None or not isinstance(found[0], int) or found[0] < 1:
            raise self._corrupt("it has no format number")
        if found[0] > FORMAT:
            raise NewerStoreError(str(self._path), found[0], FORMAT)

    def _write_applied(self, applied: int) -> None:
        # The first commit sets the format of the file to this one: an older Whimbrel could not read all its rows.
        self._connection.execute("UPDATE meta SET value = ? WHERE name = 'format' AND value < ?", (FORMAT, FORMAT))
        sealed = _seal(str(applied).encode(), "meta", b"applied")
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('applied', ?)", (sealed,))

    def _read_applied(self) -> int:
        found = self._connection.execute("SELECT value FROM meta WHERE name = 'applied'").fetchone()
        if found is None:
            raise self._corrupt("it has no last applied seq")
        try:
            return whole("applied", int(self._unseal(found[0], "meta", b"applied")), NOTHING_APPLIED, INT64_MAX)
        except (ValueError, InvalidValueError):
            raise self._corrupt("its last applied seq is not readable") from None

    def _key(self, kind: object, encoded: object) -> Key:
        if isinstance(kind, str) and isinstance(encoded, bytes):
            try:
                return decode_key(kind, encoded)
            except InvalidValueError:
                pass
        raise self._corrupt("a key is not one")

    def _unseal(self, sealed: object, kind: str, encoded: bytes) -> bytes:
        if isinstance(sealed, bytes) and len(sealed) >= _CRC_BYTES:
            value = sealed[_CRC_BYTES:]
            if _seal(value, kind, encoded) == sealed:
                return value
        raise self._corrupt("a row does not have its checksum")


def _row(row: tuple[Key, bytes]) -> tuple[str, bytes, bytes]:
    kind, encoded = encode_key(row[0])
    return kind, encoded, _seal(row[1], kind, encoded)


def _seal(value: bytes, kind: str, encoded: bytes) -> bytes:
    """Return *value* with a CRC-32 in front, computed over its key and *value*."""
    return zlib.crc32(value, zlib.crc32(encoded, zlib.crc32(kind.encode()))).to_bytes(_CRC_BYTES) + value
