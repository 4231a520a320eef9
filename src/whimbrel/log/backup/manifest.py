"""The manifest of a backup: the list of its files, with their sizes and SHA-256.

Rule: the manifest is written last, so a folder without a whole manifest is not a backup.
Rule: the manifest has a checksum of itself, so that a flipped byte in any file of a backup is detected.
Rule: checksums detect accidents, not attacks. So a manifest may name only the kinds of files that a backup has. Each
must be a regular file whose path has no symbolic link.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError, NewerLogError, NotALogError
from whimbrel.log.files import put

__all__ = [
    "FORMAT",
    "LOG",
    "MANIFEST",
    "MOUNTED",
    "USERS",
    "USERS_NEEDED",
    "BackedUp",
    "Manifest",
    "digest_of",
    "pieces_of",
]

FORMAT = 1
MANIFEST = "whimbrel-backup.json"
LOG = "log"
USERS = "users"
"""Name of the users file in a data folder."""
MOUNTED = "mounted"
"""Prefix (before ``-NODE``) of the marker file: stored sessions were moved to mount points (``making``)."""
USERS_NEEDED = "users-needed"
"""Name of the marker file which records that the broker has users, and in which files."""
_MAX_BYTES = 64 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """One file of a backup."""

    path: str
    """Path relative to the backup, and to the data directory that it is restored to."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a backup: its node, its first seq, its newest checkpoint, and its files."""

    node: str
    made_at: int
    oldest: int
    """The first seq of the log in the backup."""
    checkpoint: int
    """The seq of the newest checkpoint in the backup; 0 if there is none, because the segments begin with seq 1."""
    files: tuple[BackedUp, ...]

    def write(self, folder: Path) -> None:
        """Write the manifest to *folder*, which makes the folder a backup."""
        row = {
            "format": FORMAT,
            "node": self.node,
            "made_at": self.made_at,
            "oldest": self.oldest,
            "checkpoint": self.checkpoint,
            "files": [[each.path, each.size_bytes, each.sha256] for each in self.files],
        }
        put(folder / MANIFEST, json.dumps({"backup": row, "sha256": _own_digest(row)}, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of the backup in *folder*; raise a ``LogError`` if it is missing or not valid."""
        path = folder / MANIFEST
        if not path.is_file():
            raise NotALogError(folder, f"no backup: {MANIFEST} is missing, which is written last")
        if path.stat().st_size > _MAX_BYTES:
            raise CorruptLogError(path, 0, f"it has {path.stat().st_size} bytes, allowed are {_MAX_BYTES}")
        try:
            found: object = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise CorruptLogError(path, 0, "this is not a manifest") from None
        row = found.get("backup") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(row, dict) or found.get("sha256") != _own_digest(row):
            raise CorruptLogError(path, 0, "its checksum does not match")
        version = row.get("format")
        if type(version) is not int or version > FORMAT:
            raise NewerLogError(path, version, FORMAT)
        try:
            node = str(row["node"])
            files = tuple(_file(each) for each in row["files"])
            _check_names(node, [each.path for each in files])
            numbers = {name: int(row[name]) for name in ("made_at", "oldest", "checkpoint")}
            return cls(node=node, files=files, **numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLogError(path, 0, f"it is not a list of files: {error}") from None


def _file(row: object) -> BackedUp:
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError("a file has a path, a size and a checksum")
    path, size, digest = row
    pure = PurePosixPath(str(path))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise ValueError(f"the path {path!r} leads out of the backup")
    if type(size) is not int or size < 0 or not _DIGEST.fullmatch(str(digest)):
        raise ValueError(f"{path!r} has no size and checksum")
    return BackedUp(path=str(pure), size_bytes=size, sha256=str(digest))


def _own_digest(row: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _check_names(node: str, paths: list[str]) -> None:
    """Raise ``ValueError`` unless each path is one that a backup of *node* may have, and all paths differ."""
    if not layout.is_node(node):
        raise ValueError(f"no node is called {node!r}")
    named, own = re.escape(node), re.escape(f"{LOG}/{layout.SEGMENTS}/{node}/")
    known = re.compile(
        rf"{LOG}/{re.escape(layout.FORMAT_FILE)}|{own}(?:[0-9]{{20}}\.seg|checkpoint-[0-9]{{20}})"
        rf"|heartbeat-{named}|{MOUNTED}-{named}|{USERS}|{USERS_NEEDED}"
    )
    for path in paths:
        if not known.fullmatch(path):
            raise ValueError(f"no backup has a file {path!r}")
    if len(set(paths)) < len(paths):
        raise ValueError("a file is named twice")


def pieces_of(backup: Path, path: str) -> Iterator[bytes]:
    """Yield the bytes of the file *path* of a backup; raise ``CorruptLogError`` if it is not a regular file."""
    at, full = backup, backup / path
    for part in PurePosixPath(path).parts:
        at /= part
        if at.is_symlink():
            raise CorruptLogError(at, 0, "it is a link, and a backup has none")
    try:
        descriptor = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptLogError(full, 0, "it is missing") from None
    except OSError as error:
        raise CorruptLogError(full, 0, f"it cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CorruptLogError(full, 0, "it is not a regular file")
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def digest_of(pieces: Iterator[bytes]) -> tuple[int, str]:
    """Return the total size in bytes, and the SHA-256, of *pieces* (chunks of a file)."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()
