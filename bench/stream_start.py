"""How long a stream takes to its first batch, and after a kill to its next one, on the machine as it is.

    python bench/stream_start.py [--runs N] [--facts N] [--master MASTER]

The log is small (two nodes), so that the start is what is measured: Python, Java, Spark, its checkpoint, the worker and
the first commit of each table. Then everything is killed, the log grows, and the stream is started again.
Rule: seconds of the clock and of cores are both told: on a busy machine only the second says anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the stream's process is that of the tests
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "differential"))

__all__ = ["main"]

_NODES = ("n0", "n1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--facts", type=int, default=200, help="of each node, before each start (default: 200)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default: local[2])")
    options = parser.parse_args(arguments)
    for number in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
            print(json.dumps(_started(Path(name), number, options.facts, options.master)), flush=True)
    return 0


def _started(folder: Path, seed: int, count: int, master: str) -> dict[str, dict[str, float]]:
    from random_logs import random_log

    facts = {node: random_log(Random(seed), node, facts=2 * count, has_receipts=True) for node in _NODES}
    (folder / "stream").mkdir()
    found = {}
    for name, some in (("start", slice(count)), ("restart", slice(count, None))):
        _append(folder / "log", {node: own[some] for node, own in facts.items()})
        found[name] = _first_batch(folder, master)
    return found


def _append(log: Path, facts: dict[str, list[Any]]) -> None:
    from whimbrel.log.writer import LogWriter

    for node, own in facts.items():
        with LogWriter(log, node) as writer:
            for fact in own:
                writer.append(fact)


def _first_batch(folder: Path, master: str) -> dict[str, float]:
    """Start the stream, wait until it tells of a batch that it made, and kill it."""
    from tests.e2e.stream_kills import StreamProcess

    from stream_cost import core_seconds

    begun = time.monotonic()
    process = StreamProcess(folder / "log", folder / "stream" / "tables", "--continuous", "--master", master)
    try:
        while not any(told.get("facts") for told in process.told):
            assert process.is_running, process.errors.read_text()[-2_000:]
            time.sleep(0.05)
        took_s = time.monotonic() - begun
        return {"seconds": round(took_s, 1), "core_seconds": round(sum(core_seconds(process).values()), 1)}
    finally:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
