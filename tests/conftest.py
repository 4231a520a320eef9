"""What all tests share: the effort of property tests, and Java: which, and set up for runs of a minute.

No property test has a deadline: tests never assert wall-clock time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.shared_classes import OPTIONS as SHARED

settings.register_profile("whimbrel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.register_profile("thorough", parent=settings.get_profile("whimbrel"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whimbrel"))

_JAVA = Path(__file__).parents[1] / ".java"
_CLASSES = _JAVA / "spark-classes.jsa"
if "JAVA_HOME" not in os.environ and (_JAVA / "home").exists():  # `make java` chose one; `make test` exports it
    os.environ["JAVA_HOME"] = (_JAVA / "home").read_text(encoding="utf-8").strip()
# Of every Java that is started below: for less than a minute its second compiler costs more than it saves.
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{os.environ['SPARK_DAEMON_JAVA_OPTS']} {SHARED.format(_CLASSES)}")


def pytest_configure(config: pytest.Config) -> None:
    """Have Spark's classes written down, once, beside the first tests of a run by several workers."""
    is_leader = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if is_leader and not _CLASSES.exists():
        script = Path(__file__).with_name("shared_classes.py")
        command = [sys.executable, str(script), str(_CLASSES)]
        made = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        config.add_cleanup(lambda: _end(made))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of a file to one worker, and all that share a Spark session: each Java has to warm up anew."""
    for item in items:
        needs_spark = isinstance(item, pytest.Function) and "spark" in item.fixturenames
        item.add_marker(pytest.mark.xdist_group("spark" if needs_spark else item.path.stem))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
