"""The Python of local Spark workers: start it without ``pyspark.zip``, so that it starts faster.

Spark puts ``pyspark.zip`` first on the path of each Python process that it starts. Python compiles modules from a ZIP
at every import: 1.4 core seconds per process instead of 0.5, for half a dozen processes before the first batch of a
stream. Spark gives some of them only ten seconds to connect, which is too short on a busy machine.
Rule: this is done only if the same PySpark is installed here and we start Java ourselves; a cluster has its own Python.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

__all__ = ["workers_without_zip"]

_SCRIPT = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH#*/pyspark.zip:}}"
export PYTHONPATH
exec {python} "$@"
"""
_NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@contextmanager
def workers_without_zip() -> Iterator[None]:
    """Start Spark's workers without ``pyspark.zip`` in the ``with`` block, unless the user set ``PYSPARK_PYTHON``."""
    chosen = {name: os.environ.get(name, sys.executable) for name in _NAMES}
    is_installed = all(_is_file(find_spec(name)) for name in ("py4j", "pyspark"))
    if os.name != "posix" or not is_installed or set(chosen.values()) != {sys.executable}:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="whimbrel-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    script.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)), encoding="utf-8")
    script.chmod(0o700)
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.update(dict.fromkeys(_NAMES, str(script)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_file(spec: ModuleSpec | None) -> bool:
    """Return whether a module is a file of its own, not in a ZIP."""
    return spec is not None and spec.origin is not None and Path(spec.origin).is_file()
