"""Where compiled kernels are kept: in the user's cache, by what they were compiled from.

Numba keeps them by the path of their source. But on a cluster the package comes as a zip, to another path with every
job, and each worker would compile it all again, for half a minute; and a kernel that calls one of another file would
stay as it was when that file changes. So the folder is named after the content of all modules of a package and of the
packages inside it: a process that has the same modules finds what any process of this user has compiled, wherever the
modules lie.

Rule: code is loaded from the folder, so it must belong to this user and be writable by no other. Without such a
folder, and where ``NUMBA_CACHE_DIR`` is set, numba's own cache is used.
Rule: a full disk is not used as a cache: numba fails where it cannot write what it compiled.
Rule: nothing here loads numba: a service asks whether the kernels are there before it needs them.
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
"""The file that says that all kernels are there."""
_ROOM_BYTES = 32 << 20
"""Of which they take a tenth."""


@cache
def kernels_folder(package: str = "whimbrel.match") -> Path | None:
    """Return the folder of the kernels that the modules of *package* make."""
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
    """Make the folder *name* in the first of some *places* that is or can be made this user's own; return it."""
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_our_own(place):
                folder = place / name
                folder.mkdir(mode=0o700, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()  # it can be written
                if (folder / DONE).exists() or shutil.disk_usage(folder).free >= _ROOM_BYTES:
                    return folder
        except OSError:
            continue
    return None


def cache_places(what: str) -> list[Path]:
    """Return where *what* was made once may be kept; the second place is for services that have no home."""
    temporary = Path(tempfile.gettempdir()) / f"whimbrel-{what}-{os.getuid()}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return [temporary]
    return [home / "whimbrel" / what, temporary]


def _is_our_own(folder: Path) -> bool:
    """Tell whether only this user can write into *folder*."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
