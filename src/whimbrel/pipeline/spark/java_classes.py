"""Class data sharing (CDS) for Spark: an archive of Spark's Java classes, with which Java starts faster.

At each start Java reads, verifies and links the classes of Spark's jars: some twenty thousand before the first batch of
a stream. The archive stores them in the form that they have in memory afterwards. It is made once per user and machine
(``stream.first_start``).
Rule: Java uses an archive only if the same Java made it from the same jars; otherwise it silently starts without it.
Rule: Java loads code from the archive, so its folder must belong to this user, and no other user may write to it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whimbrel.match.kernels.folder import cache_places, safe_folder

__all__ = ["ARCHIVING", "OPTIONS", "archive_file", "java", "started_from_archive", "submit_options"]

_NAME = "SPARK_SUBMIT_OPTS"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
OPTIONS = f'-XX:SharedArchiveFile="{{}}" {_QUIET}'
"""Options with which Java uses an archive."""
ARCHIVING = f'-XX:ArchiveClassesAtExit="{{}}" {_QUIET}'
"""Options with which Java writes an archive when it exits."""


def java() -> str | None:
    """Return the path of the Java that Spark would start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def archive_file() -> Path | None:
    """Return the path of the archive for this Spark and Java; None without Java, pyspark or a safe folder."""
    found = java()
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return None
    if found is None:
        return None
    made_of = sha256(f"{spark}\0{Path(found).resolve()}".encode()).hexdigest()[:16]
    folder = safe_folder(cache_places("spark-classes"), made_of)
    return None if folder is None else folder / "classes.jsa"


@contextmanager
def submit_options(options: str) -> Iterator[None]:
    """Pass *options* to a Java that Spark starts in the ``with`` block, in addition to the user's own options."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = options if before is None else f"{before} {options}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NAME]
        else:
            os.environ[_NAME] = before


@contextmanager
def started_from_archive() -> Iterator[None]:
    """Use the archive for a Java that Spark starts in the ``with`` block, if it exists and the user set no other."""
    is_told = any(word in os.environ.get(_NAME, "") for word in ("SharedArchiveFile", "ArchiveClassesAtExit"))
    archive = None if is_told else archive_file()
    if archive is None or not archive.exists():
        yield
        return
    with submit_options(OPTIONS.format(archive)):
        yield
