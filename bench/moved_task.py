"""What a stream's batch costs whose task moved to another worker, beside one whose task stayed, in core seconds.

    python bench/moved_task.py [--subscriptions N] [--publications N] [--batches N]

A batch has publications, and some subscriptions change meanwhile. *stays*: the process has made the batch before.
*moves*: a process that has made no batch of this stream, but has the matching's kernels loaded, as a worker has that
works for another node. *moves, no cache*: the same, and no file of the matchers is there. *new process*: a process
that has loaded nothing. Counted is the fold of the node, and in it the search for its matcher: neither Spark's work nor
the tables' commit is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent), str(_HERE.parent / "tests" / "differential"), str(_HERE)]

__all__ = ["main"]

_WAYS = ("stays", "moves", "moves, no cache", "new process")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--publications", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--batches", type=int, default=3, help="batches of each kind; the least counts")
    parser.add_argument("--groups", action="store_true", help="fold the node in groups of its sessions")
    parser.add_argument("--take", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.take:
        folder, last, is_warm = options.take
        print(json.dumps(_taken(Path(folder), [int(last)], is_warm=is_warm == "warm", is_in_groups=options.groups)))
        return 0
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        os.environ["WHIMBREL_MATCHER_FILES"] = name
        print(json.dumps(_costs(Path(name), options)))
    return 0


def _costs(folder: Path, options: Any) -> dict[str, Any]:  # an argparse.Namespace
    from random import Random

    from stream_churn import ChurnSizes, _write

    count = options.batches * len(_WAYS) // 2 + 1
    sizes = ChurnSizes(
        subscriptions=options.subscriptions,
        publications=options.publications,
        changes=options.changes,
        batches=count,
    )
    ends = iter(_write(folder / "log", sizes, Random(1)))
    kind = {"is_warm": True, "is_in_groups": options.groups}
    first = _taken(folder, [next(ends)], **kind)
    stays = _taken(folder, [next(ends) for _ in range(options.batches + 1)], **kind)[1:]
    took: dict[str, list[Any]] = {"stays": stays, "moves": [], "moves, no cache": [], "new process": []}
    for _ in range(options.batches):
        for way in _WAYS[1:]:
            if way == "moves, no cache":
                for path in folder.glob("whimbrel-matchers-*"):
                    shutil.rmtree(path)
            warm = "cold" if way == "new process" else "warm"
            command = [sys.executable, __file__, "--take", str(folder), str(next(ends)), warm]
            command += ["--groups"] if options.groups else []
            said = subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # this file
            took[way] += json.loads(said.stdout)
    parts = {
        name: {way: round(min(each[place] for each in batches), 3) for way, batches in took.items()}
        for place, name in enumerate(("batch_s", "matcher_s"))
    }
    return {"first": first[0], **parts, **vars(options)}


def _taken(folder: Path, ends: list[int], *, is_warm: bool, is_in_groups: bool) -> list[tuple[float, float]]:
    """Return the core time of the fold of each batch up to *ends*, and of finding its matcher in it, in seconds."""
    import stream_rig

    from stream_churn import NODE
    from whimbrel.match import first_use
    from whimbrel.pipeline.plans import StreamPlan
    from whimbrel.pipeline.stream.tasks import perform
    from whimbrel.pipeline.unit.matchers import Matchers

    if is_warm:
        first_use.compile_all()
    took: list[tuple[float, float]] = []
    run, find = stream_rig.Here.run, Matchers.find
    finding: list[float] = []

    def found(*args: Any) -> Any:
        before_s = time.process_time()
        try:
            return find(*args)
        finally:
            finding.append(time.process_time() - before_s)

    def timed(workers: Any, work: Any, job: Any, tasks: Any) -> Any:
        before_s = time.process_time()
        made = run(workers, work, job, tasks)
        if work is perform:
            took.append((time.process_time() - before_s, sum(finding)))
            finding.clear()
        return made

    plan = StreamPlan(facts_per_batch=10**9)
    with patch.object(stream_rig.Here, "run", timed), patch.object(Matchers, "find", found):
        given: dict[str, Any] = {} if is_in_groups else {"group_facts": 10**9}
        stream = stream_rig.StreamRig(log=folder / "log", out=folder / "out", plan=plan, **given)
        for end in ends:
            before = len(took)
            stream.take({NODE: end})
            took[before:] = [(sum(each[0] for each in took[before:]), sum(each[1] for each in took[before:]))]
    return took


if __name__ == "__main__":
    sys.exit(main())
