"""The first use on a machine: kernels are compiled, which takes half a minute, before a service begins.

Rule: a service compiles all kernels before it accepts work; later processes load them from the cache (``compiled``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whimbrel.language.ast import PatternFunction
from whimbrel.language.budget import UNBOUNDED
from whimbrel.match.events.bodies import Bodies
from whimbrel.match.events.searching import FEW, ColumnPattern, ColumnPatterns
from whimbrel.match.kernels.compiled import DONE, kernels_folder
from whimbrel.match.matcher import Interest, Matcher, Publications
from whimbrel.model.near import Around
from whimbrel.model.place import Area, Place

__all__ = ["compile_all", "is_compiled", "make_ready"]


def is_compiled() -> bool:
    """Tell whether the kernels are compiled; True where numba keeps its own cache, which cannot be asked."""
    folder = kernels_folder()
    return folder is None or (folder / DONE).exists()


def make_ready(say: Callable[[str], object]) -> None:
    """Compile the kernels if they are not in the cache, and *say* that it takes a while."""
    if not is_compiled():
        say("compiling the matcher, once on this machine: half a minute")
        compile_all()


def compile_all() -> None:
    """Use every kind of kernel once."""
    import pyarrow as pa  # only compiling needs it

    from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

    matcher = Matcher.load([("first", Interest(filter_text="a == 'x' && begins-with(b, 'y')"))])
    matcher.match_parts(None, {"a": "x"})
    matcher.content.match_rows([{"a": "x"}])
    matcher.content.match_rows(Bodies([b'{"a": "x"}']))
    many = [ColumnPattern(number, PatternFunction.REGEX, f"x{number}", UNBOUNDED) for number in range(FEW)]
    ColumnPatterns(many, seed=1).candidates(b"x")
    with tempfile.TemporaryDirectory(prefix="whimbrel-first-use-") as scratch:
        matcher.save(Path(scratch) / "matcher")
        Matcher.map(Path(scratch) / "matcher")
    matcher.content.match_arrow(pa.array([attributes_to_column_value({"a": "x"})], ATTRIBUTES_TYPE))
    _compile_places()
    folder = kernels_folder()
    if folder is not None:
        with suppress(OSError):  # the next one does it again, from what is there
            (folder / DONE).touch()


def _compile_places() -> None:
    """Use every kernel of proximity once."""
    matcher, here = Matcher(), Place(0, 0)
    matcher.places.join("session", "device")
    matcher.add("around", Interest(near=Around(5.0), session="session"))
    matcher.add("circle", Interest(near=Area(here, 5.0), session="session"))
    matcher.add("plain", Interest(session="session"))
    matcher.places.move("device", here, 0)
    where = Publications.of([here], [5.0], [1])
    matcher.match_batch(None, [{}], where=where)
    matcher.places.inside(where, 0)
    matcher.remove("circle")


if __name__ == "__main__":
    make_ready(print)
