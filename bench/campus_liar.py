"""Campus++ with a liar: what its Hellos cost by the paper's rule of sight, and by the provisional one.

Run as ``python bench/campus_liar.py SEED …``: adds a row for each seed and case to ``bench/results/campus-liar.json``
and prints means over all seeds in it, with 95 % confidence. The world is the paper's, 100 nodes and 100 topics at a
workload of 80 %, with a sample every 1,000 s; a seed takes about a minute of core time, and the first three, which
also run a world with slow transfers, two. Differences are between runs of the same seed, which have the same contacts,
subscribers and publications.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))  # the plain twin is the tests' own

from campus_simulator import CampusSimulator

from whimbrel.carry.sight import Sight
from whimbrel.lab.confidence import estimate
from whimbrel.sim.campus.outcome import Recorder
from whimbrel.sim.campus.report import campus_report
from whimbrel.sim.campus.scenario import Campus
from whimbrel.sim.kernels.crossings import fast_contacts_of
from whimbrel.sim.mobility.waypoint import RandomWaypoint

RESULTS = Path(__file__).parent / "results" / "campus-liar.json"
INSTANT, SLOW = "Hello on change, instant", "Hello every 10 s, transfer 3 s"
WORLDS = {
    INSTANT: (Campus(interval_s=1_000), 12_000.0),
    SLOW: (Campus(interval_s=1_000, hello_s=10, transfer_s=3), 6_000.0),
}
CASES = [
    (INSTANT, Sight.FINAL, 0),  # a property says that the provisional rule is the same here
    (INSTANT, Sight.FINAL, 1),
    (INSTANT, Sight.PROVISIONAL, 1),
    (SLOW, Sight.FINAL, 0),
    (SLOW, Sight.PROVISIONAL, 0),
]
FIGURES = ("delay_mean_s", "delivery_prob", "spray_time_s", "copies_lost", "copies_replaced")


def measure(world_name: str, sight: Sight, liars: int, seed: int) -> dict[str, Any]:
    """Return the figures of one simulation."""
    campus, seconds = WORLDS[world_name]
    contacts = fast_contacts_of(RandomWaypoint().walks(seconds, seed=seed), range_m=50)
    world = campus.world(nodes=contacts.nodes, seconds=seconds, seed=seed)
    recorder = Recorder(world)
    begun = time.process_time()
    CampusSimulator(contacts, campus, world, [recorder], sight=sight, liars=liars).run()
    outcome = recorder.outcome()
    found = campus_report(outcome, campus, world)
    case = {"world": world_name, "sight": sight.value, "liars": liars, "seed": seed, "seconds": seconds}
    core_s = round(time.process_time() - begun, 1)
    return case | {name: found[name] for name in FIGURES} | {"requests": outcome.counters["request"], "core_s": core_s}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each case: the mean delay, and by how much it is above the paper's rule without a liar."""
    lines = []
    for name, sight, liars in CASES:
        base, found = (
            {row["seed"]: row for row in rows if (row["world"], row["sight"], row["liars"]) == (name, *case)}
            for case in ((Sight.FINAL.value, 0), (sight.value, liars))
        )
        delay = estimate(row["delay_mean_s"] for row in found.values())
        share = estimate(100 * row["delivery_prob"] for row in found.values())
        more = estimate(100 * (row["delay_mean_s"] / base[seed]["delay_mean_s"] - 1) for seed, row in found.items())
        requests = estimate(100 * (row["requests"] / base[seed]["requests"] - 1) for seed, row in found.items())
        lines.append(
            f"{name}; {sight.value}, {liars} liars, {delay.count} seeds: delay {delay} s ({more} % above), "
            f"retrieved {share} %, requests {requests} % above"
        )
    return lines


def main(seeds: list[int]) -> None:
    """Measure *seeds*, keep the rows, and print the means of all rows that were kept."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    known = {(row["world"], row["sight"], row["liars"], row["seed"]) for row in rows}
    for seed in seeds:
        for name, sight, liars in CASES:
            if (name, sight.value, liars, seed) not in known and (name == INSTANT or seed <= 3):
                rows.append(measure(name, sight, liars, seed))
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
