"""Numba with our own cache: kernels are compiled once per user and stored in the folder of ``folder``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from numba import config, njit
from numba.core import caching

from whimbrel.match.kernels.folder import kernels_folder

__all__ = ["Compiled", "load_numba_alone", "njit", "read_only"]

_PACKAGES = ("whimbrel.match", "whimbrel.pipeline.columnar", "whimbrel.sim.kernels")
"""Packages whose kernels are stored in this cache."""
_LOOKS_FOR = {"numba.np.arraymath": "scipy.linalg", "numba.core.typing.cffi_utils": "cffi"}
"""Modules of numba, and the optional package that each imports for functions that no kernel of ours calls."""


class Compiled(caching._CacheLocator):  # noqa: SLF001 # numba requires this base class
    """Cache locator for numba: finds the folder of our kernels, and of no other functions."""

    def __init__(self, kernel: Any, file: str, folder: Path) -> None:
        self._folder, self._name = folder, f"{kernel.__module__}-{kernel.__code__.co_firstlineno}"
        self._py_file = file  # numba names it in a warning

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Self | None:
        """Return the locator of one of our kernels, or None to let numba use another locator."""
        package = next((each for each in _PACKAGES if py_func.__module__.startswith(f"{each}.")), None)
        is_ours = package is not None and not getattr(config, "CACHE_DIR", "")
        found = kernels_folder(package) if is_ours else None
        return None if found is None else cls(py_func, py_file, found)

    def get_cache_path(self) -> str:
        """Return the folder of the cache."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return the stamp that must be equal for a stored kernel to be used: the digest of the sources."""
        return self._folder.name

    def get_disambiguator(self) -> str:
        """Return a name that is unique per kernel; numba itself uses only the last part of the module's name."""
        return self._name


def read_only(array: Any) -> Any:
    """Return a read-only view of *array*; numba compiles a kernel again for each mixture of writable and read-only."""
    view = array.view()
    view.flags.writeable = False
    return view


def load_numba_alone() -> None:
    """Load numba without scipy and cffi, which numba imports before its first kernel if they are installed.

    Both take longer to load than all kernels of the matcher. Call this only in a process without other numba code,
    because numba would then refuse a kernel that multiplies matrices.
    """
    for module, package in _LOOKS_FOR.items():
        if package not in sys.modules:
            sys.modules[package] = None  # type: ignore[assignment] # an import of it fails
            try:
                import_module(module)
            finally:
                del sys.modules[package]


def _install() -> None:
    """Register ``Compiled`` with numba as its first cache locator; numba's own locators stay behind it."""
    own = f"{__name__}.{Compiled.__qualname__}"
    own_of_numba = caching.CacheImpl._locator_classes  # noqa: SLF001 # no other way to them
    usual = getattr(config, "CACHE_LOCATOR_CLASSES", "") or ",".join(each.__name__ for each in own_of_numba)
    if own not in usual:
        config.CACHE_LOCATOR_CLASSES = f"{own},{usual}"  # type: ignore[attr-defined] # numba creates this setting when it is loaded


_install()
