"""The Python of Spark's workers on this machine: the same as ours, without the copy of PySpark that Spark puts first.

Spark puts ``pyspark.zip`` before everything else on the path of each Python process that it starts. Python compiles
each time what it imports from a ZIP: 1.4 core seconds a process against 0.5, for half a dozen processes before the
first batch of a stream; and Spark gives some of them ten seconds to connect, which a busy machine does not keep.
Rule: only where the same PySpark is installed beside us, and where we start Java: a cluster has machines of its own.
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
    """Let a Spark that is started meanwhile run its workers so; the user's own ``PYSPARK_PYTHON`` stays as it is."""
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
    """Return whether a module is a file, which one in a ZIP is not."""
    return spec is not None and spec.origin is not None and Path(spec.origin).is_file()
