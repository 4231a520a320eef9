"""Spark sessions: create the session of Whimbrel's jobs, with the reason for each setting.

Rule: a caller's own session is not changed: an active session is returned as it is.
Rule: if pyspark or Java is missing, the error is one sentence that says what to install.
Rule: code that depends on Spark Connect (a session on a server) or on the place of the workers is only in this module.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from whimbrel.errors import MissingDependencyError, WhimbrelError

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession
except ImportError:
    raise MissingDependencyError("the pipeline", "pyspark", "run: pip install 'whimbrel[spark]'") from None

import whimbrel
from whimbrel.pipeline.spark.java_classes import started_from_archive
from whimbrel.pipeline.spark.worker_python import workers_without_zip

__all__ = [
    "NotThroughConnectError",
    "SparkJobError",
    "clear_errors",
    "is_connect",
    "is_local",
    "local_session",
    "parallelism",
    "runs_here",
    "send_file",
    "session_settings",
    "ship_package",
]

_GIB = 1 << 30
_BATCH_ROWS = 20_000
"""Rows of an Arrow batch: a few MB with attributes and bodies, and enough rows for the matcher to be efficient."""


_OURS = re.compile(r"^(?:whimbrel\.[\w.]+Error): (.+)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(?!(?:java|org|py4j|scala)\.)([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
"""Pattern of the last line of a Python traceback, which no line of Java matches."""
_CONNECT = "sc://"
_LIGHT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options without the optimising compiler (C2), which would work for minutes on code that runs for moments.

With them the first batch of a stream takes half of the time, and later batches two thirds."""
_CONNECT_PORT = 15_002


class SparkJobError(WhimbrelError):
    """Spark could not finish a job. Reaction: remove the cause that the reason names, and run the job again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"Spark could not finish: {self.reason}"


class NotThroughConnectError(WhimbrelError):
    """Spark Connect does not support this operation. Reaction: use a classic session, on this machine or a cluster."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        remedy = "use --master spark://host:7077, or leave it away to use this machine"
        return f"{self.what} does not work through Spark Connect (sc://); {remedy}"


@contextmanager
def clear_errors() -> Iterator[None]:
    """Replace Spark's errors, pages of Java and Python tracebacks, by one sentence: our own if a worker raised it."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        ours = _OURS.findall(text) or _PYTHONS.findall(text)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise SparkJobError(ours[-1] if ours else lines[0] if lines else type(error).__name__) from error


def local_session(
    *,
    master: str | None = None,
    app: str = "whimbrel",
    memory: str | None = None,
    partitions: int | None = None,
    has_ui: bool = False,
    is_light: bool = False,
) -> SparkSession:
    """Return the active session, or create one on *master*: by default this machine with all of its cores.

    *memory* is the memory of the driver, such as ``4g``, by default half of the machine's. *partitions* is the number
    of partitions of a shuffle. A *master* that begins with ``sc://`` is a server of Spark Connect. *is_light* tunes
    Java for the many small jobs of a stream, and for a machine that runs other programs too.
    """
    found = SparkSession.getActiveSession()
    if found is not None:
        return found
    # Local Spark repeats a task whose worker died only if the master states a number of attempts after the comma.
    master = master or ("local[*,4]" if is_light else "local[*]")
    if master.startswith(_CONNECT):
        return _connect(master, partitions=partitions)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first python3 on the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf().setAll(list(_settings(master, app=app, memory=memory, has_ui=has_ui).items()))
    if is_light:
        conf.set("spark.driver.extraJavaOptions", _LIGHT_JAVA)
    if partitions is not None or is_local(master):
        # Spark's default of 200 is for clusters: here each task would run for milliseconds and take ten to start.
        conf.set("spark.sql.shuffle.partitions", str(partitions or 2 * (os.cpu_count() or 1)))
    with workers_without_zip() if is_local(master) else nullcontext(), started_from_archive():
        spark = _start(conf)
    ship_package(spark)
    return spark


def _start(conf: SparkConf) -> SparkSession:
    try:
        # Java prints a greeting to stderr before it reads any log setting; failures are raised as exceptions.
        gateway = launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]  # pyspark's own
    except (PySparkRuntimeError, OSError):
        raise MissingDependencyError("Spark", "Java 17 or newer", "set JAVA_HOME if it is not on the PATH") from None
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _connect(url: str, *, partitions: int | None) -> SparkSession:
    """Return a Spark Connect session on the server *url*, with those settings that a session may set."""
    if any(find_spec(module) is None for module in ("grpc", "grpc_status", "zstandard")):
        # Checked here, because without them pyspark would end the process with exit status 0.
        raise MissingDependencyError("Spark Connect", "grpcio", "run: pip install 'whimbrel[connect]'")
    where = urlsplit(url)
    try:
        # Spark itself would retry for many minutes.
        socket.create_connection((where.hostname or "", where.port or _CONNECT_PORT), timeout=5).close()
    except (OSError, ValueError) as error:
        raise SparkJobError(f"{url}: no server answers: {error}") from None
    with clear_errors():
        spark = SparkSession.builder.remote(url).getOrCreate()
        for name, value in _settings(url, app="", memory="", has_ui=False).items():
            if name.startswith("spark.sql."):
                spark.conf.set(name, value)
        if partitions is not None:
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        ship_package(spark)
    return spark


def ship_package(spark: SparkSession) -> None:
    """Send this package to the workers of a cluster; local workers import it from the same place as we do."""
    if runs_here(spark):
        return
    root = Path(whimbrel.__file__).parent
    archive = Path(tempfile.mkdtemp(prefix="whimbrel-")) / "whimbrel.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.write(path, Path("whimbrel") / path.relative_to(root))
    if is_connect(spark):
        spark.addArtifact(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def send_file(spark: SparkSession, path: Path) -> str:
    """Make a file available to the workers; return its path on this machine, or its ``SparkFiles`` name elsewhere."""
    if runs_here(spark):
        return str(path)
    if is_connect(spark):
        spark.addArtifact(str(path), file=True)
    else:
        spark.sparkContext.addFile(str(path))
    return path.name


@contextmanager
def session_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Give the session the settings *wanted* during the ``with`` block, and restore its own settings afterwards."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks can run at once; for Spark Connect, which hides it, the number of shuffle partitions."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    """Return whether *spark* is a Spark Connect session, which has no ``sparkContext``."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def runs_here(spark: SparkSession) -> bool:
    """Return whether the workers of a session run on this machine, as processes of this user."""
    return not is_connect(spark) and is_local(spark.sparkContext.master or "local")


def is_local(master: str) -> bool:
    """Return whether *master* runs Spark on this machine (``local`` or ``local[…]``)."""
    return master == "local" or master.startswith("local[")


def _settings(master: str, *, app: str, memory: str | None, has_ui: bool) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.app.name": app,
        "spark.driver.memory": memory or _half_of_memory(),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": str(has_ui).lower(),
        "spark.ui.showConsoleProgress": "false",  # the command line shows its own
        # Dates are the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH_ROWS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Rows from the driver stay Arrow; otherwise Spark copies them into the plan and checks them row by row.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        # Recording where in Python each column was made takes longer than making it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Times in our tables are microseconds; Spark's default is Impala's int96.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    if is_local(master):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }  # no other machine takes part
    return settings


def _half_of_memory() -> str:
    """Return half of the machine's memory, within 1 to 32 GiB: Python's workers need the other half."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system reports its memory
        whole = 4 * _GIB
    return f"{min(max(whole // 2, _GIB), 32 * _GIB) // (1 << 20)}m"
