"""A first start of Spark, which records the Java classes that later starts load from an archive (``java_classes``).

    python -m whimbrel.pipeline.stream.first_start ARCHIVE

The program makes all tables of a tiny log, as a batch and as a stream. Java writes the archive when it exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["make_archive", "write_archive"]

_PATIENCE_S = 300
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options for a run of seconds: Java's optimising compiler would cost more time than it saves."""


def make_archive(archive: Path) -> bool:
    """Write *archive* in a separate process; return whether it succeeded."""
    command = [sys.executable, "-m", __name__, str(archive)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 # ours
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and archive.exists()


def write_archive(archive: Path) -> None:
    """Run a small batch and a small stream, and let Java write the classes that it loaded to *archive*."""
    from whimbrel.pipeline.spark.java_classes import ARCHIVING, submit_options
    from whimbrel.pipeline.spark.spark_session import local_session

    archive.parent.mkdir(parents=True, exist_ok=True)
    making = archive.with_name(f"{archive.name}-{os.getpid()}")
    os.environ.pop("SPARK_SUBMIT_OPTS", None)  # it may name another archive
    with submit_options(f"{_QUICK} {ARCHIVING.format(making)}"):
        spark = local_session(master="local[1]", memory="1g", partitions=1, is_light=True)
    try:
        try:
            _use(spark)
        finally:
            gateway = spark.sparkContext._gateway  # noqa: SLF001 # its Java writes the archive when it exits
            spark.stop()
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait()
        making.rename(archive)
    finally:
        making.unlink(missing_ok=True)


def _use(spark: SparkSession) -> None:
    from whimbrel.pipeline.batch.jobs import run
    from whimbrel.pipeline.stream.stream import Stream

    with tempfile.TemporaryDirectory(prefix="whimbrel-first-start-") as name:
        folder = Path(name)
        _write_log(folder / "log")
        run(spark, log=folder / "log", out=folder / "batch")
        stream = Stream(spark, log=folder / "log", out=folder / "stream")
        try:
            stream.start()
            while not stream.wait(1):
                pass
        finally:
            stream.close()


def _write_log(log: Path) -> None:
    from whimbrel.log.writer import LogWriter
    from whimbrel.model.device import DeviceState
    from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged, Reported
    from whimbrel.model.notification import Notification
    from whimbrel.model.place import Place
    from whimbrel.model.subscription import InterestChange, Subscription

    node, at = "n", 1_767_225_600_000_000
    wanted = Subscription(session="s", subject_filter="a", name="")
    with LogWriter(log, node) as writer:
        writer.append(
            InterestChanged(node=node, seq=1, changed_at=at, change=InterestChange.ADDED, subscription=wanted)
        )
        joined = PresenceChange.JOINED
        who: dict[str, Any] = {"device": "d", "session": "s", "change": joined, "receipt": Mode.TAKE}
        writer.append(PresenceChanged(node=node, seq=2, changed_at=at, **who))
        for seq in (3, 4):
            state = DeviceState(device=f"d{seq}", reported_at=at, place=Place(0.0, 0.0))
            writer.append(Reported(node=node, seq=seq, state=state))
        writer.append(Notification(node=node, seq=5, published_at=at, subject="a"))


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
