"""The archive of Spark's classes, made by the Java of this machine and used by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from whimbrel.pipeline.spark.java_classes import OPTIONS
from whimbrel.pipeline.stream.first_start import make_archive

_START = "from whimbrel.pipeline.spark.spark_session import local_session; local_session(master='local[1]').stop()"


def test_java_loads_its_classes_from_the_archive(tmp_path: Path) -> None:
    """One that it refused would change nothing, and nobody would notice."""
    archive, log = tmp_path / "cache" / "classes.jsa", tmp_path / "classes.log"
    assert make_archive(archive)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    told = {"SPARK_SUBMIT_OPTS": f"{OPTIONS.format(archive)} -Xlog:class+load:file={log}"}
    subprocess.run([sys.executable, "-c", _START], env={**os.environ, **told}, check=True, capture_output=True)
    loaded = log.read_text(errors="replace").count("source: shared objects file (top)")
    assert loaded > 1_000
