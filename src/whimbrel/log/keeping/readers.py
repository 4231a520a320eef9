"""Readers: registrations of programs that still need a node's log, with the last seq that each has read.

A reader registers with a small file, ``segments/NODE/readers/NAME.json``, and renews it: a stream after each batch, a
backup while it copies. The export that writes beside the segments is known by ``exported.json`` and does not register.
Rule: a registration is a request, not a lock: it keeps segments up to a limit, and it expires (``plan``).
Rule: a reader that lost unread records finds so in its registration. ``lost_readers`` names it until it registers
again.
Rule: a file that is not a valid registration keeps no segment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.errors import LogWriteError
from whimbrel.log.files import make_folder, put
from whimbrel.log.keeping.plan import Reader
from whimbrel.model.clock import US_PER_S

__all__ = [
    "EXPORT",
    "Registration",
    "lost_readers",
    "mark_lost",
    "name_for",
    "read_registered",
    "register",
    "unregister",
]

EXPORT = "export"
"""Name of the export that writes beside the segments, among the readers."""
_READERS = "readers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_BYTES = 4_096
_RENEWED_US = 10 * US_PER_S


def register(directory: Path, node: str, name: str, *, seq: int, now: int) -> None:
    """Register the reader *name* of *node*'s log, which has read up to *seq*, or renew its registration."""
    if not _NAME.fullmatch(name) or name == EXPORT:
        raise InvalidValueError(
            "name of a reader", name, f"up to 64 letters, digits, dots, dashes and underscores, and not {EXPORT!r}"
        )
    _write(directory, node, Reader(name=name, seq=seq, renewed_at=now))


def unregister(directory: Path, node: str, name: str) -> None:
    """Remove the registration of the reader *name*: it no longer keeps segments from being removed."""
    with suppress(FileNotFoundError):
        _path(directory, node, name).unlink()


def read_registered(directory: Path, node: str) -> list[Reader]:
    """Return the registered readers, and the export if there is one, sorted by name."""
    found = [_read(path) for path in _folder(directory, node).glob("*.json")]
    readers = [each for each in found if each is not None]
    exported = layout.segments_folder(directory, node) / layout.EXPORTED_FILE
    with suppress(FileNotFoundError):
        renewed_at = int(exported.stat().st_mtime * US_PER_S)
        seq = layout.exported_seq(directory, node)
        first = layout.segments(directory, node)[:1]
        lost_at = seq if first and first[0][0] > seq + 1 else None
        readers.append(Reader(name=EXPORT, seq=seq, renewed_at=renewed_at, lost_at=lost_at))
    return sorted(readers, key=lambda each: each.name)


def lost_readers(directory: Path, node: str) -> list[Reader]:
    """Return the readers that lost unread records and have not registered since."""
    return [each for each in read_registered(directory, node) if each.lost_at is not None]


def mark_lost(directory: Path, node: str, reader: Reader) -> None:
    """Record that *reader* lost unread records; nothing is recorded for the export, whose last seq shows it."""
    if reader.name != EXPORT:
        lost = Reader(name=reader.name, seq=reader.seq, renewed_at=reader.renewed_at, lost_at=reader.seq)
        _write(directory, node, lost)


def name_for(kind: str, place: Path) -> str:
    """Return the name of a reader of the kind *kind* that writes its output to the path *place*.

    The name is the same in each run.
    """
    absolute = place.absolute()
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", absolute.name)[:32]
    return f"{kind}-{plain}-{hashlib.sha256(str(absolute).encode()).hexdigest()[:8]}"


class Registration:
    """The registration of one reader with the logs of all nodes; a log in a read-only folder is read without one."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._renewed_at: dict[str, int] = {}

    def renew(self, applied: Mapping[str, int], now: int) -> None:
        """Record the last seq that was read per node (*applied*); write at most every 10 seconds per node."""
        for node, seq in applied.items():
            renewed_at = self._renewed_at.get(node)
            if renewed_at is not None and 0 <= now - renewed_at < _RENEWED_US:
                continue
            self._renewed_at[node] = now
            with suppress(LogWriteError, OSError):
                register(self._directory, node, self._name, seq=max(seq, 0), now=now)


def _folder(directory: Path, node: str) -> Path:
    return layout.segments_folder(directory, node) / _READERS


def _path(directory: Path, node: str, name: str) -> Path:
    return _folder(directory, node) / f"{name}.json"


def _write(directory: Path, node: str, reader: Reader) -> None:
    make_folder(_folder(directory, node))
    row = {"seq": reader.seq, "renewed_at": reader.renewed_at, "lost_at": reader.lost_at}
    put(_path(directory, node, reader.name), json.dumps(row).encode() + b"\n")


def _read(path: Path) -> Reader | None:
    try:
        with path.open("rb") as stream:
            found: object = json.loads(stream.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _NAME.fullmatch(path.stem):
        return None
    seq, renewed_at, lost_at = found.get("seq"), found.get("renewed_at"), found.get("lost_at")
    if type(seq) is not int or type(renewed_at) is not int or not (lost_at is None or type(lost_at) is int):
        return None
    return Reader(name=path.stem, seq=seq, renewed_at=renewed_at, lost_at=lost_at)
