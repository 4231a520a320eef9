"""The folder of compiled kernels: in the user's cache, named after the content of their sources.

Numba's own cache goes by the path of a source file. That fails us twice. On a cluster the package arrives as a zip, at
another path for every job, so each worker would compile everything again, for half a minute. And a kernel that calls a
kernel of another file would not be compiled again when that file changes. So the folder's name is a digest of all
modules of a package and its subpackages. A process with the same modules finds the kernels that any process of this
user compiled, wherever the modules lie.
Rule: code is loaded from the folder, so the folder must belong to this user, and no other user may write to it. Without
such a folder, and if ``NUMBA_CACHE_DIR`` is set, numba's own cache is used.
Rule: a full disk is not used as a cache, because numba fails if it cannot write a compiled kernel.
Rule: nothing here loads numba: a service checks for compiled kernels before it needs them.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

__all__ = ["DONE", "cache_places", "kernels_folder", "safe_folder"]

DONE = "all-compiled"
"""Name of the file whose presence means that all kernels are compiled."""
_ROOM_BYTES = 32 << 20
"""Least free disk space for the cache, ten times the size of all kernels."""


@cache
def kernels_folder(package: str = "whimbrel.match") -> Path | None:
    """Return the cache folder for the kernels in *package*, or None if no folder is safe."""
    digest = sha256()
    for name, content in sorted(_modules(files(package))):
        digest.update(name.encode() + b"\0" + sha256(content).digest())
    return safe_folder(cache_places("kernels"), digest.hexdigest()[:16])


def _modules(package: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every module in *package* and in the packages inside it."""
    for found in package.iterdir():
        if found.name.endswith(".py"):
            yield prefix + found.name, found.read_bytes()
        elif found.is_dir() and found.name != "__pycache__":
            yield from _modules(found, f"{prefix}{found.name}/")


def safe_folder(places: Iterable[Path], name: str) -> Path | None:
    """Create the folder *name* in the first of the folders *places* that is safe and has room; return it, or None.

    A folder is safe if it belongs to this user and no other user may write to it.
    """
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_our_own(place):
                folder = place / name
                folder.mkdir(mode=0o700, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()  # fails if the folder is not writable
                if (folder / DONE).exists() or shutil.disk_usage(folder).free >= _ROOM_BYTES:
                    return folder
        except OSError:
            continue
    return None


def cache_places(what: str) -> list[Path]:
    """Return the folders in which *what* may be cached, the best first; the last is for a service without a home."""
    temporary = Path(tempfile.gettempdir()) / f"whimbrel-{what}-{os.getuid()}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return [temporary]
    return [home / "whimbrel" / what, temporary]


def _is_our_own(folder: Path) -> bool:
    """Return whether only this user can write into *folder*."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
