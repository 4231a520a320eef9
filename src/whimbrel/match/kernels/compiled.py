"""Where compiled kernels are kept: in the user's cache, by what they were compiled from.

Numba keeps them by the path of their source. But on a cluster the package comes as a zip, to another path with every
job, and each worker would compile it all again, for half a minute; and a kernel that calls one of another file would
stay as it was when that file changes. So the folder is named after the content of all modules of a package and of the
packages inside it: a process that has the same modules finds what any process of this user has compiled, wherever the
modules lie.

Rule: code is loaded from the folder, so it must belong to this user and be writable by no other. Without such a
folder, and where ``NUMBA_CACHE_DIR`` is set, numba's own cache is used.
Rule: a full disk is not used as a cache: numba fails where it cannot write what it compiled.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

from numba import config, njit
from numba.core import caching

__all__ = ["DONE", "Compiled", "kernels_folder", "load_numba_alone", "njit", "read_only", "safe_folder"]

DONE = "all-compiled"
"""The file that says that all kernels are there."""
_PACKAGES = ("whimbrel.match", "whimbrel.sim.kernels")
"""Whose kernels are kept here."""
_ROOM_BYTES = 32 << 20
"""Of which they take a tenth."""
_LOOKS_FOR = {"numba.np.arraymath": "scipy.linalg", "numba.core.typing.cffi_utils": "cffi"}
"""Which package a module of numba imports, if it is installed, for functions that no kernel of ours calls."""


class Compiled(caching._CacheLocator):  # noqa: SLF001 # which is what numba wants it to be
    """Tells numba where a kernel of ours is kept; of no other function."""

    def __init__(self, kernel: Any, file: str, folder: Path) -> None:
        self._folder, self._name = folder, f"{kernel.__module__}-{kernel.__code__.co_firstlineno}"
        self._py_file = file  # numba names it in a warning

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """Return the place of a kernel, None if numba is to look for one."""
        package = next((each for each in _PACKAGES if py_func.__module__.startswith(f"{each}.")), None)
        is_ours = package is not None and not getattr(config, "CACHE_DIR", "")
        found = kernels_folder(package) if is_ours else None
        return None if found is None else cls(py_func, py_file, found)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return what must be the same for a kernel to be."""
        return self._folder.name

    def get_disambiguator(self) -> str:
        """Return what tells kernels of one name apart: numba itself looks only at the last part of a module's name."""
        return self._name


@cache
def kernels_folder(package: str = "whimbrel.match") -> Path | None:
    """Return the folder of the kernels that the modules of *package* make."""
    digest = sha256()
    for name, content in sorted(_modules(files(package))):
        digest.update(name.encode() + b"\0" + sha256(content).digest())
    return safe_folder(_places(), digest.hexdigest()[:16])


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


def _places() -> list[Path]:
    """Return where kernels may be kept; the second is for services that have no home."""
    temporary = Path(tempfile.gettempdir()) / f"whimbrel-kernels-{os.getuid()}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return [temporary]
    return [home / "whimbrel" / "kernels", temporary]


def _is_our_own(folder: Path) -> bool:
    """Tell whether only this user can write into *folder*."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def read_only(array: Any) -> Any:
    """Return *array* as one that cannot be written: numba compiles a kernel again for every mixture of the two."""
    view = array.view()
    view.flags.writeable = False
    return view


def load_numba_alone() -> None:
    """Load numba without scipy and cffi, which it imports before its first kernel where they are installed.

    They take longer to load than all kernels of the matcher. Only for a process that runs no numba code of others:
    there a kernel that multiplies matrices would be refused.
    """
    for module, package in _LOOKS_FOR.items():
        if package not in sys.modules:
            sys.modules[package] = None  # type: ignore[assignment] # an import of it fails
            try:
                import_module(module)
            finally:
                del sys.modules[package]


def _install() -> None:
    """Let numba ask here before it looks for places of its own, which it finds as ever."""
    own = f"{__name__}.{Compiled.__qualname__}"
    own_of_numba = caching.CacheImpl._locator_classes  # noqa: SLF001 # no other way to them
    usual = getattr(config, "CACHE_LOCATOR_CLASSES", "") or ",".join(each.__name__ for each in own_of_numba)
    if own not in usual:
        config.CACHE_LOCATOR_CLASSES = f"{own},{usual}"  # type: ignore[attr-defined] # numba makes it as it is loaded


_install()
