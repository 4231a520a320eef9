"""What all tests share: the effort of property tests, and Java: which, and set up for runs of a minute.

No property test has a deadline: tests never assert wall-clock time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.core_seconds import CoreSeconds

from whimbrel.pipeline.spark.java_classes import OPTIONS, archive_file

settings.register_profile("whimbrel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.register_profile("thorough", parent=settings.get_profile("whimbrel"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whimbrel"))

_JAVA = Path(__file__).parents[1] / ".java"
if "JAVA_HOME" not in os.environ and (_JAVA / "home").exists():  # `make java` chose one; `make test` exports it
    os.environ["JAVA_HOME"] = (_JAVA / "home").read_text(encoding="utf-8").strip()
# Of every Java that is started below: for less than a minute its second compiler costs more than it saves.
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
_CLASSES = archive_file()
_SUBMIT = "" if _CLASSES is None else OPTIONS.format(_CLASSES)
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{os.environ['SPARK_DAEMON_JAVA_OPTS']} {_SUBMIT}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a developer ask where the core seconds go."""
    parser.addoption("--core-seconds", type=int, metavar="N", help="Print the N tests that take most core time.")


def pytest_configure(config: pytest.Config) -> None:
    """Have done once, before several workers do it side by side: Spark's classes written down, kernels compiled."""
    if (shown := config.getoption("core_seconds")) is not None:
        config.pluginmanager.register(CoreSeconds(shown))
    is_leader = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if is_leader and _CLASSES is not None and not _CLASSES.exists():  # `make test` has made it
        command = [sys.executable, "-m", "whimbrel.pipeline.stream.first_start", str(_CLASSES)]
        made = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        config.add_cleanup(lambda: _end(made))
    if is_leader:
        code = "from whimbrel.sim.worlds import make_ready; make_ready()"
        with subprocess.Popen([sys.executable, "-c", code]) as of_the_simulator:
            for module in ("whimbrel.match.first_use", "whimbrel.pipeline.columnar.first_use"):
                subprocess.run([sys.executable, "-m", module], check=True)
        assert of_the_simulator.returncode == 0


@pytest.hookimpl(optionalhook=True)  # of xdist, which `make check` does without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests of a file to one worker, and all files that share a Spark session: each Java has to warm up anew.

    Xdist's own groups are marks that it writes into the names of tests, where pytest 9.2 no longer looks.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it ships none

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # so
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "spark" if _needs_spark(config.rootpath / file) else file

    return Scheduling(config, log)


@cache
def _needs_spark(file: Path) -> bool:
    return "spark: SparkSession" in file.read_text(encoding="utf-8")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
