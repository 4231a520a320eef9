"""Spark's classes in an archive, made once for this user of this machine (``stream.first_start``): Java starts faster.

Java reads, checks and links each class of Spark's jars whenever it starts: some twenty thousand before the first batch
of a stream. An archive (class data sharing) has them as they are in memory then.
Rule: Java uses an archive only if the same Java made it from the same jars; else it does without, and says nothing.
Rule: code is loaded from it, so its folder must belong to this user and be writable by no other.
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
"""Tell Java to use an archive,"""
ARCHIVING = f'-XX:ArchiveClassesAtExit="{{}}" {_QUIET}'
"""and to make one as it ends."""


def java() -> str | None:
    """Return the Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def archive_file() -> Path | None:
    """Return where the archive of this Spark and this Java is, or would be; None if there is no place or no Java."""
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
    """Let a Java that Spark starts meanwhile have *options*, beside those that a user gives it."""
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
    """Let a Java that Spark starts meanwhile use the archive, if there is one and the user has none of their own."""
    is_told = any(word in os.environ.get(_NAME, "") for word in ("SharedArchiveFile", "ArchiveClassesAtExit"))
    archive = None if is_told else archive_file()
    if archive is None or not archive.exists():
        yield
        return
    with submit_options(OPTIONS.format(archive)):
        yield
