"""The manifest of a backup: which files it has, how long they are, and their SHA-256.

Rule: a backup without a whole manifest is none: it is written last.
Rule: the manifest has a checksum of itself, so that a flipped byte in any file of a backup is noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from whimbrel.log.errors import CorruptLogError, NewerLogError, NotALogError
from whimbrel.log.files import put

__all__ = ["FORMAT", "MANIFEST", "BackedUp", "Manifest", "digest_of"]

FORMAT = 1
MANIFEST = "whimbrel-backup.json"
_MOST_BYTES = 64 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """One file of a backup."""

    path: str
    """Below the backup, and below the data directory that it is restored to."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup has."""

    node: str
    made_at: int
    oldest: int
    """The first number of the log that it has."""
    checkpoint: int
    """The newest checkpoint that it has; 0 if none is needed."""
    files: tuple[BackedUp, ...]

    def write(self, folder: Path) -> None:
        """Write the manifest: from here on *folder* is a backup."""
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
        """Return the manifest of the backup in *folder*; raise our errors where it is none."""
        path = folder / MANIFEST
        if not path.is_file():
            raise NotALogError(folder, f"no backup: {MANIFEST} is missing, which is written last")
        if path.stat().st_size > _MOST_BYTES:
            raise CorruptLogError(path, 0, f"it has {path.stat().st_size} bytes, allowed are {_MOST_BYTES}")
        try:
            found: object = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise CorruptLogError(path, 0, "this is no manifest") from None
        row = found.get("backup") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(row, dict) or found.get("sha256") != _own_digest(row):
            raise CorruptLogError(path, 0, "its checksum does not match")
        version = row.get("format")
        if type(version) is not int or version > FORMAT:
            raise NewerLogError(path, version, FORMAT)
        try:
            files = tuple(_file(each) for each in row["files"])
            numbers = {name: int(row[name]) for name in ("made_at", "oldest", "checkpoint")}
            return cls(node=str(row["node"]), files=files, **numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLogError(path, 0, f"it is no list of files: {error}") from None


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


def digest_of(path: Path) -> tuple[int, str]:
    """Return how long a file is, and its SHA-256."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()
