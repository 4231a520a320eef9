"""Drive brokers with random devices and named sessions for as long as you like; report what they broke.

    python bench/session_soak.py --seeds 1 100 [--ops N] [--shorten RUNS]

This is ``tests/e2e/test_session_model.py`` with seeds and lengths of your own: devices come and go, join, subscribe,
publish, acknowledge or do not, brokers are stopped and killed among them, and every client's view is held against what
the naive hold makes of the broker's log.
Rule: the exit status is 1 if anything was violated; the seed, the operations and the difference are always printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "property"))  # the naive hold
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))  # the pipeline in one process
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # driver and judge are those of the tests

from tests.e2e.session_driver import perform, plan, shorten

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, required=True, metavar=("A", "B"), help="from A to B, both too")
    parser.add_argument("--ops", type=int, default=500, help="how many operations a seed has (default: 500)")
    parser.add_argument(
        "--shorten", type=int, default=40, help="how many runs to spend on a shorter history; 0 is none"
    )
    options = parser.parse_args(arguments)
    failed: list[int] = []
    first, last = options.seeds
    for seed in range(first, last + 1):
        began = time.monotonic()
        operations = plan(seed, options.ops)
        run = perform(operations)
        print(
            f"seed {seed}: {run.performed} operations, {run.facts} facts, {run.heard} heard, {run.restarts} restarts, "
            f"{time.monotonic() - began:.1f} s, {len(run.violations)} violations",
            flush=True,
        )
        if not run.violations:
            continue
        failed.append(seed)
        _print(run.violations)
        history = operations[: run.performed]
        if options.shorten:
            history, run = shorten(operations, most_runs=options.shorten)
            print(f"  shortened to {len(history)} operations:")
        _print(map(str, history))
        _print(run.violations)
    print(f"{len(failed)} of {last - first + 1} seeds failed: {failed}" if failed else "no violations")
    return 1 if failed else 0


def _print(lines: Sequence[str] | map[str]) -> None:
    for line in lines:
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
