"""``whimbrel warm-up``: compile the matcher before the first broker or job needs it."""

from __future__ import annotations

import time

import typer

__all__ = ["warm_up"]


def warm_up() -> None:
    """Compile the matcher, once for this user of this machine, so that nothing has to wait for it later.

    A broker that finds it not compiled matches more slowly for its first minute. Container images do this when they are
    built. The compiled code is kept in $XDG_CACHE_HOME/whimbrel, or ~/.cache/whimbrel.

    Example: whimbrel warm-up
    """
    from whimbrel.match.first_use import is_compiled, make_ready  # numba takes a second to load
    from whimbrel.match.kernels.folder import kernels_folder

    begun, is_done = time.monotonic(), is_compiled()
    make_ready(typer.echo)
    where = kernels_folder() or "numba's own cache"
    took = "it was there already" if is_done else f"{time.monotonic() - begun:.0f} s"
    typer.echo(f"the matcher is compiled ({took}): {where}")
