"""STEAM's prediction held against a city: which share of a million events is later than its producer's bound.

Run as ``python bench/nearby_million.py``; prints a JSON object every ten simulated seconds, the last of which is the
result. Vehicles drive as SUMO drove them; a light or sign publishes twenty times a second. A delivery that had to be
asked for (``repaired``) is outside of what the bound assumes, and so is one to a vehicle that joined after the
publication (``caught_up``); both are counted. Times are of the simulated radio: each datagram of a transmission
takes 0.3 to 1.5 ms, a repeat waits up to 7.5 ms.
"""

from __future__ import annotations

import argparse
import json
import time

from whimbrel.sim.streets.city import City, make_city

STEP_S = 10.0
FORGET_US = 2_000_000
"""After so long nobody is owed an event any more."""


def main() -> None:
    """Play the city, step by step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=670.0)
    parser.add_argument("--vehicles", type=int, default=300)
    parser.add_argument("--loss", type=float, default=0.02)
    options = parser.parse_args()
    city = City(vehicles=options.vehicles, loss=options.loss, every_s=0.05, seconds=options.seconds, is_recorded=True)
    town, watcher = make_city(city)
    town.run(city.warmup_s)
    watcher.is_counting = True
    done_s = 0.0
    while done_s < city.seconds:
        step_s = min(STEP_S, city.seconds - done_s)
        town.run(step_s)
        done_s += step_s
        recent = town.now - FORGET_US
        watcher.published = {event: told for event, told in watcher.published.items() if told[0] > recent}
        report = watcher.report
        delivered = report.latency.total
        found = {
            "simulated_s": done_s,
            "core_s": round(time.process_time(), 1),
            "published": report.counts["published"],
            "delivered": delivered,
            "late": report.late,
            "late_share": report.late / max(1, delivered),
            "repaired": report.repaired,
            "repaired_share": report.repaired / max(1, delivered),
            "caught_up": report.caught_up,
            "expired": report.counts["expired"],
            "missed": report.counts["missed"],
            "bound_ms": report.bounds.percentile(50) / 1e3,
            "measured_999_ms": report.latency.percentile(99.9) / 1e3,
            "measured_median_ms": report.latency.percentile(50) / 1e3,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
