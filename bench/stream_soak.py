"""Kill a stream many times while its log grows; report how its tables differ from those of the batch job.

    python bench/stream_soak.py --kills 20 [--master local|standalone] [--seed N] [--json]

This is ``tests/e2e/test_pipeline_kill.py`` for as long as you like: kill -9 of everything, at a random moment or aimed
at a step of a batch, and now and then of workers alone. On a standalone cluster (a master and two workers, processes on
this machine) these are the executors and Python's workers below them.
Rule: the exit status is 1 if any row is missing or there twice; the seed is always printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # stream and judge are those of the tests

__all__ = ["main", "soak"]

LOCAL, STANDALONE = "local", "standalone"
_FACTS_PER_KILL = 700


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how often something is killed (default: 20)")
    parser.add_argument("--master", choices=(LOCAL, STANDALONE), default=LOCAL, help="where Spark runs")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and progress to stderr")
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed

    def progress(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    progress(f"seed {seed}")
    summary = soak(kills=options.kills, master=options.master, seed=seed, progress=progress)
    found = summary["violations"]
    assert isinstance(found, list)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        for name, value in summary.items():
            if name != "violations":
                print(f"{name:>20}  {value}")
        print("\n".join(map(str, found)) or "no violations")
    return 1 if found else 0


def soak(*, kills: int, master: str, seed: int, progress: Callable[[str], None] = lambda _: None) -> dict[str, object]:
    """Kill a stream *kills* times; return how it went, with what is wrong as ``violations``."""
    from tests.e2e.stream_kills import AIMS, differences, executors, kill_stream

    from whimbrel.pipeline.spark.spark_session import local_session

    random = Random(seed)
    aims = [aim for _ in range(-(-kills // len(AIMS))) for aim in random.sample(AIMS, len(AIMS))][:kills]
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        killing = partial(kill_stream, folder, aims, seed=seed, facts=_FACTS_PER_KILL * (kills + 1), progress=progress)
        if master == LOCAL:
            killed = killing()
        else:
            address, workers = stack.enter_context(_cluster(folder))
            killed = killing(master=address, cluster=partial(executors, workers))
            stack.close()
        progress("killed; comparing with the batch job")
        spark = local_session(partitions=4)
        try:
            violations = differences(spark, folder)
        finally:
            spark.stop()
    return {"master": master, **killed.summary(), "violations": violations}


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the address of a master with two workers, and the numbers of the workers' processes."""
    from tests.e2e.test_cluster import _address, _start

    place = folder / "cluster"
    place.mkdir()
    processes = [_start(place, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")]
    try:
        address = _address(place)
        for _ in range(2):
            arguments = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0", address)
            processes.append(_start(place, "worker.Worker", *arguments))
        yield address, [process.pid for process in processes[1:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
