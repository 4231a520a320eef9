"""Numba with a cache of our own: kernels are compiled once for each user, and kept in the folder of ``folder``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from numba import config, njit
from numba.core import caching

from whimbrel.match.kernels.folder import kernels_folder

__all__ = ["Compiled", "load_numba_alone", "njit", "read_only"]

_PACKAGES = ("whimbrel.match", "whimbrel.sim.kernels")
"""Whose kernels are kept here."""
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
