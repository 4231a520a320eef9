"""First use on a machine: the kernel of the columnar hold is compiled once per user, in half a minute of core time.

Later processes load it from the cache (``match.kernels.folder``). A batch run on this machine compiles it before its
workers start, because each of them would compile it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from whimbrel.match.kernels.folder import DONE, kernels_folder

__all__ = ["COMPILING", "is_compiled", "make_ready"]

COMPILING = "compiling the columnar hold, once on this machine: about half a minute"
_PACKAGE = "whimbrel.pipeline.columnar"


def is_compiled() -> bool:
    """Return whether the kernel is compiled; also True where numba keeps its own cache, which cannot be queried."""
    folder = kernels_folder(_PACKAGE)
    return folder is None or (folder / DONE).exists()


def make_ready(say: Callable[[str], object] = lambda _: None) -> None:
    """Compile the kernel if it is not in the cache; first call *say* with a notice that it takes a while."""
    if is_compiled():
        return
    say(COMPILING)
    _compile()
    folder = kernels_folder(_PACKAGE)
    if folder is not None:
        with suppress(OSError):  # without the mark, the next run loads all kernels from the cache
            (folder / DONE).touch()


def _compile() -> None:
    """Run every kernel once; this loads numba."""
    import numpy as np
    import pyarrow as pa

    from whimbrel.hold.retention import DEFAULT_RETENTION
    from whimbrel.pipeline.columnar.columnar_hold import ColumnarHold
    from whimbrel.pipeline.columnar.identity_sets import intern_sets, rehash_sets
    from whimbrel.pipeline.columnar.plain_sessions import PlainSessions
    from whimbrel.pipeline.columnar.tables import COLUMNS
    from whimbrel.pipeline.fold.folds import EVENT

    hold = ColumnarHold("n", PlainSessions({"s": {(None, "")}}, ["d"]), retention=DEFAULT_RETENTION)
    for _ in hold.take({}, pa.Table.from_batches([], EVENT), 1, 1):
        pass
    table, numbers = np.zeros((4, 2), np.int64), np.full(4, -1, np.int64)
    intern_sets(np.zeros((1, COLUMNS), np.int64), table, numbers, 0)
    rehash_sets(table, numbers, 1, np.zeros((8, 2), np.int64), np.full(8, -1, np.int64))


if __name__ == "__main__":
    make_ready(print)
