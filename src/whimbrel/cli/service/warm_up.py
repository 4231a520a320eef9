"""``whimbrel warm-up``: prepares what the first broker or job would otherwise wait for."""

from __future__ import annotations

import time
from importlib.util import find_spec

import typer

from whimbrel.errors import WhimbrelError

__all__ = ["warm_up"]


def warm_up() -> None:
    """Compile the matcher and the pipeline's kernels, and archive Spark's classes, unless this is done already.

    Without a compiled matcher, a broker matches more slowly for its first minute. Spark's Java starts faster with an
    archive of its classes (200 MB), which is made if PySpark and Java are installed. Container images do this when they
    are built. Both are usually kept in $XDG_CACHE_HOME/whimbrel, or ~/.cache/whimbrel. Run this again after an upgrade
    of Whimbrel or PySpark.

    Example: whimbrel warm-up
    """
    from whimbrel.match.first_use import is_compiled, make_ready  # numba takes a second to load
    from whimbrel.match.kernels.folder import kernels_folder

    begun, is_done = time.monotonic(), is_compiled()
    make_ready(typer.echo)
    where = kernels_folder() or "numba's own cache"
    took = "it was there already" if is_done else f"{time.monotonic() - begun:.0f} s"
    typer.echo(f"the matcher is compiled ({took}): {where}")
    _compile_hold()
    _archive_classes()


def _compile_hold() -> None:
    if find_spec("pyarrow") is None:  # without it there is no pipeline
        return
    from whimbrel.pipeline.columnar.first_use import is_compiled, make_ready

    begun, is_done = time.monotonic(), is_compiled()
    make_ready(typer.echo)
    took = "it was there already" if is_done else f"{time.monotonic() - begun:.0f} s"
    typer.echo(f"the pipeline's columnar hold is compiled ({took})")


def _archive_classes() -> None:
    try:
        from whimbrel.pipeline.spark.java_classes import archive_file
        from whimbrel.pipeline.stream.first_start import make_archive
    except WhimbrelError:  # without PySpark, Spark cannot be started
        return
    archive = archive_file()
    if archive is None:
        typer.echo("Spark's classes are not written down: there is no PySpark, no Java, or no folder for them")
        return
    begun, is_done = time.monotonic(), archive.exists()
    if not is_done:
        typer.echo("writing down Spark's classes, once on this machine: about a minute")
        if not make_archive(archive):
            typer.echo("Spark's classes could not be written down; Spark starts without, more slowly")
            return
    took = "they were there already" if is_done else f"{time.monotonic() - begun:.0f} s"
    typer.echo(f"Spark's classes are written down ({took}): {archive.parent}")
