"""What one new subscription costs a stream's windows, in core milliseconds: `python bench/window_subscriptions.py`.

There are counts of many subjects in windows that are not final, and subscriptions to one subject each. Then a batch has
nothing but one more subscription: to one subject, to a tenth of them, or to all. Counted is all that the batch costs
the windows, from the change to the commit; and how many rows of ``popularity`` it writes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

__all__ = ["main"]

_HOUR_US = 3_600_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subjects", type=int, default=10_000)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    costs = {
        name: _cost(options.subjects, options.windows, options.runs, text)
        for name, text in (("one subject", "ward/7/1"), ("a tenth", "ward/7/+"), ("all", "#"))
    }
    print(json.dumps(costs | vars(options)))
    return 0


def _cost(subjects: int, count: int, runs: int, text: str) -> dict[str, float]:
    import pyarrow as pa

    from whimbrel.hold.store.memory import MemoryStore
    from whimbrel.model.tables import TIME_TYPE
    from whimbrel.pipeline.stream.windows import Windows

    def intervals(texts: list[str], first: int, at: int) -> pa.Table:
        size = len(texts)
        return pa.table(
            {
                "node": ["n"] * size,
                "interest_seq": range(first, first + size),
                "session": [f"s{number}" for number in range(first, first + size)],
                "subject_filter": texts,
                "began_at": pa.array([at] * size, pa.int64()).cast(TIME_TYPE),
                "ended_at": pa.nulls(size, TIME_TYPE),
            }
        )

    windows = Windows(MemoryStore(), window_us=_HOUR_US, horizon_us=10**15)
    names = [f"ward/{number % 10}/{number // 10}" for number in range(subjects)]
    windows.change(intervals(names, 0, 0))
    windows.count((window * _HOUR_US, name, 3) for window in range(count) for name in names)
    windows.popularity()
    windows.commit(0)
    best_s, rows = float("inf"), 0
    for run in range(runs):
        began_s = time.process_time()
        windows.change(intervals([text], subjects + run, 1))
        rows = sum(table.num_rows for table in windows.popularity().values())
        windows.commit(1 + run)
        best_s = min(best_s, time.process_time() - began_s)
    return {"core_ms": round(1e3 * best_s, 1), "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
