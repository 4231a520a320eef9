"""First use on a machine: the numba kernels are compiled once, in about a minute; later processes load a cache.

A command compiles them before it begins (``make_ready``). A service does not wait: ``Kernels`` compiles them in a child
process. Until the kernels are ready, all filters stay unpacked (``index.delta``) and are matched in plain Python.
Rule: a service loads kernels outside its event loop. It runs each kernel once before a packed segment is used.
Rule: this module loads numba only in the functions whose docstring says so.
Rule: a service loads the kernels of geographic matching only when it first needs them (``has_places``); many services
never do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.match.index.packer import PackingProcess, PackingProcessError
from whimbrel.match.kernels.folder import DONE, kernels_folder

if TYPE_CHECKING:
    from whimbrel.match.index.parts import Part
    from whimbrel.match.index.segments import Segment
    from whimbrel.match.matcher import Matcher

__all__ = ["COMPILING", "Kernels", "compile_all", "is_compiled", "load_kernels", "load_place_kernels", "make_ready"]

COMPILING = "compiling the matcher, once on this machine: about a minute"
_NICE, _BESIDE = 10, "--beside-a-service"
_END_S = 5.0


def is_compiled() -> bool:
    """Return whether the kernels are compiled.

    Return True also where numba keeps its own cache, which cannot be queried.
    """
    folder = kernels_folder()
    return folder is None or (folder / DONE).exists()


def make_ready(say: Callable[[str], object]) -> None:
    """Compile the kernels if they are not in the cache; first call *say* with a notice that it takes a while."""
    if not is_compiled():
        say(COMPILING)
        compile_all()


def load_kernels() -> Matcher:
    """Load numba, and load every kernel of content matching by running it once, for one event and for many."""
    from whimbrel.language.ast import PatternFunction
    from whimbrel.language.pattern_cost import UNBOUNDED
    from whimbrel.match.events.bodies import Bodies
    from whimbrel.match.events.searching import FEW, ColumnPattern, ColumnPatterns
    from whimbrel.match.matcher import Interest, Matcher

    matcher = Matcher.load([("first", Interest(filter_text="a == 'x' && begins-with(b, 'y')"))])
    matcher.match_parts(None, {"a": "x"})
    matcher.content.match_rows([{"a": "x"}])
    matcher.content.match_rows(Bodies([b'{"a": "x"}']))
    many = [ColumnPattern(number, PatternFunction.REGEX, f"x{number}", UNBOUNDED) for number in range(FEW)]
    ColumnPatterns(many, seed=1).candidates(b"x")
    return matcher


def load_place_kernels() -> None:
    """Load numba, and load every kernel of geographic matching by running it once."""
    from whimbrel.match.matcher import Interest, Matcher, PublishedAt
    from whimbrel.model.near import Around
    from whimbrel.model.place import Area, Place

    here = Place(0.0, 0.0)
    matcher, area = Matcher(), Area(here, 100.0)
    for session, device in (("s", "d"), ("s", "e"), ("t", "d")):
        matcher.places.join(session, device)
    for number, near in enumerate((Around(100.0), area, None)):
        matcher.add(str(number), Interest(subject_filter="a", near=near, session="s"))
    matcher.places.move("d", here, 0)
    matcher.match_parts("a", {}, where=PublishedAt(here, 100.0, 0))
    matcher.match_batch(["a"], [{}])
    matcher.places.devices_within(area)
    matcher.places.rebuild()
    matcher.remove("1")
    matcher.places.forget("d")


def compile_all() -> None:
    """Compile every kernel by running it once, and mark the cache as complete; this loads numba."""
    import pyarrow as pa  # only compiling needs it

    from whimbrel.match.matcher import Matcher
    from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

    matcher = load_kernels()
    load_place_kernels()
    with tempfile.TemporaryDirectory(prefix="whimbrel-first-use-") as scratch:
        matcher.save(Path(scratch) / "matcher")
        Matcher.map(Path(scratch) / "matcher")
    matcher.content.match_arrow(pa.array([attributes_to_column_value({"a": "x"})], ATTRIBUTES_TYPE))
    folder = kernels_folder()
    if folder is not None:
        with suppress(OSError):  # without the mark, the next process runs all kernels again, from the cache
            (folder / DONE).touch()


def _load_numba_alone() -> None:
    from whimbrel.match.kernels.compiled import load_numba_alone  # it loads numba

    load_numba_alone()


class Kernels:
    """The kernels of a service: compiled in a child process, loaded in the thread that packs the first segment.

    An instance is itself a ``Pack`` (a function that packs filters into a segment): it loads the kernels, then packs
    with *packing*. It reports progress by calls of *say* with a log level and a sentence.
    """

    def __init__(self, packing: PackingProcess, *, say: Callable[[str, str], object]) -> None:
        self._packing, self._say = packing, say
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_loaded, self._is_closed = False, False
        self._place_loader: threading.Thread | None = None
        self._has_places = False

    @property
    def state(self) -> str:
        """State of the kernels: loaded, compiled (they load with the first packing), compiling or not compiled."""
        if self._is_loaded:
            return "loaded"
        if self._child is not None and self._child.poll() is None:
            return "compiling"
        return "compiled" if is_compiled() else "not compiled"

    def begin(self) -> None:
        """Start a child process that compiles the kernels, if they are not in the cache; return at once."""
        with self._lock:
            if self._child is not None or self._is_closed or is_compiled():
                return
            self._child = self._start()
        threading.Thread(target=self._watch, args=(self._child,), name="compiling", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._say("info", f"{COMPILING}; until then filters are matched without it, more slowly")
        command = [sys.executable, "-m", __name__, _BESIDE]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: S603 # ours

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        code = child.wait()
        if self._is_closed:
            return
        if code == 0:
            self._say("info", "the matcher is compiled")
        else:
            self._say("warning", f"the matcher could not be compiled beforehand (exit code {code}); it is tried again")

    def __call__(self, parts: Sequence[Part]) -> Segment:
        """Wait until the kernels are compiled and loaded.

        Then pack the filters in *parts* (flat arrays) into one segment.
        """
        self.begin()
        if self._child is not None:
            self._child.wait()
        with self._lock:
            if self._is_closed:
                raise PackingProcessError("the service stops")
            if not self._is_loaded:
                _load_numba_alone()
                load_kernels()
                self._is_loaded = True
        return self._packing(parts)

    def has_places(self) -> bool:
        """Return whether the kernels of geographic matching are loaded.

        The first call starts a thread that loads them.
        """
        if self._place_loader is None:
            self._place_loader = threading.Thread(target=self._load_places, args=(), name="places", daemon=True)
            self._place_loader.start()
        return self._has_places

    def _load_places(self) -> None:
        self.begin()
        if self._child is not None:
            self._child.wait()
        with self._lock:
            if self._is_closed:
                return
            try:
                _load_numba_alone()
                load_place_kernels()
            except Exception as error:  # noqa: BLE001 # whatever fails, the broker works without these kernels
                self._say("warning", f"the grid of places could not be loaded ({error!r}); places are asked one by one")
                return
            self._has_places = True

    def close(self) -> None:
        """End all child processes."""
        self.stop_compiling()
        self._packing.close()

    def stop_compiling(self) -> None:
        """End the child process that compiles, so that no thread waits for it; finished kernels stay in the cache."""
        self._is_closed = True
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)


if __name__ == "__main__":
    if sys.argv[1:] == [_BESIDE]:
        os.nice(_NICE)
    make_ready(print)
