"""Make ``stream-N.tar.xz``: once, when the format of a stream's state changes; never again for the same N.

    python tests/data/make_stream.py N     # with the Whimbrel whose format N is, from the root of its repository

A stream without Spark (``stream_rig``) has read the first half of the logs of two nodes: sessions hold notifications,
policies have decided and left differences, devices are somewhere and meet. The archive has the logs, the tables and
the checkpoint, so that a newer Whimbrel can go on with them.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path.cwd() / "tests" / "differential"))
from random_logs import placed_log
from stream_rig import StreamRig

from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.pipeline.plans import StreamPlan

NODES, FACTS = ("node0", "node1"), 200
PLAN = {
    "retention": Retention(ttl_us=30, max_held=3),
    "window_us": 16,
    "nodes": 7,
    "slots_per_node": 3,
    "range_m": 300.0,
    "stale_us": 40,
}
NOW = 1_800_000_000_000_000
"""The time at which all batches are made, in microseconds."""


def main() -> None:
    """Write the archive beside this file."""
    number = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "stream"
        random = Random(9)
        for node in NODES:
            with LogWriter(root / "log", node) as log:
                for fact in placed_log(random, node, facts=FACTS, has_receipts=True):
                    log.append(fact)
                log.sync()
        rig = StreamRig(log=root / "log", out=root / "out", plan=StreamPlan(**PLAN), now=NOW)  # type: ignore[arg-type]  # by name
        for end in (40, 110):
            rig.take(dict.fromkeys(NODES, end))
        with tarfile.open(Path.cwd() / "tests" / "data" / f"stream-{number}.tar.xz", "w:xz") as archive:
            archive.add(root, "stream")


if __name__ == "__main__":
    main()
