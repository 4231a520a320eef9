"""Restoring a backup: every file is held against the manifest before the data directory has its name.

Rule: a data directory that is there is never written over.
Rule: files are laid down beside, fsynced, and renamed together; a crash leaves nothing that looks like data.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from whimbrel.log.backup.manifest import Manifest, digest_of
from whimbrel.log.errors import CorruptLogError, LogWriteError, NotALogError
from whimbrel.log.files import make_folder, rename, sync_file, tighten

__all__ = ["check_backup", "restore"]


def check_backup(backup: Path) -> Manifest:
    """Read all of a backup; raise ``CorruptLogError`` at the first file that is not what was copied."""
    manifest = Manifest.read(backup)
    for each in manifest.files:
        _check(backup / each.path, each.size_bytes, each.sha256)
    return manifest


def restore(backup: Path, data: Path) -> Manifest:
    """Make *data*, which is empty or not there yet, of the backup."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise NotALogError(data, "not empty: move it away first, or restore to another folder")
    manifest = Manifest.read(backup)
    beside = data.with_name(f".{data.name}.restoring")
    try:
        if beside.exists():
            shutil.rmtree(beside)
        make_folder(beside)
        for each in manifest.files:
            target = beside / each.path
            make_folder(target.parent)
            if not (backup / each.path).is_file():
                raise CorruptLogError(backup / each.path, 0, "it is missing")
            shutil.copyfile(backup / each.path, target)
            _check(target, each.size_bytes, each.sha256, named=backup / each.path)
            sync_file(target)
        tighten(beside)
        for folder in {(beside / each.path).parent for each in manifest.files}:
            sync_file(folder)
        if data.exists():
            data.rmdir()
        rename(beside, data)
    except OSError as error:
        raise LogWriteError(data, error.strerror or str(error), "nothing was restored") from error
    finally:
        if beside.exists():
            shutil.rmtree(beside, ignore_errors=True)
    return manifest


def _check(path: Path, size_bytes: int, sha256: str, named: Path | None = None) -> None:
    shown = path if named is None else named
    if not path.is_file():
        raise CorruptLogError(shown, 0, "it is missing")
    size, digest = digest_of(path)
    if (size, digest) != (size_bytes, sha256):
        found = f"it has {size} bytes, not {size_bytes}" if size != size_bytes else "its checksum does not match"
        raise CorruptLogError(shown, 0, f"it is not the file that was copied: {found}")
