"""Drives vehicles through a city of our own with SUMO, and keeps where they were: the trace that the city lab uses.

``pip install 'whimbrel[vehicles]'``, then ``python tools/make_vehicle_trace.py`` writes the trace anew; with the same
version of SUMO it is the same to the last byte. The network comes from netgenerate: a grid of signalled junctions. Each
vehicle has a long drive of its own, straight on twice as often as it turns, so that their number stays the same; SUMO
decides how they follow each other, brake, queue at red lights and pull away.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from pathlib import Path

import libsumo
import numpy as np
import sumo
from numpy.typing import NDArray

from whimbrel.sim.mobility.traffic import STREETS, TRACE, write_traffic

LIMIT_M_S = 13.9
SETTLE_S = 150
"""Until all vehicles are on the road and have met their first lights; it is not recorded."""
EDGES = 140
"""Of one drive: more than anybody drives."""
_WAYS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def network(folder: Path, *, seed: int) -> Path:
    """Make the network: a grid with a traffic light at every junction, one lane for each direction."""
    made = folder / "grid.net.xml"
    command = [
        str(Path(sumo.SUMO_HOME) / "bin" / "netgenerate"),
        *("--grid", f"--grid.number={STREETS.blocks + 1}", f"--grid.length={STREETS.block_m}"),
        *("--default.lanenumber=1", f"--default.speed={LIMIT_M_S}", "--default-junction-type=traffic_light"),
        *(f"--seed={seed}", f"--output-file={made}"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 # SUMO's own program
    return made


def drive(rng: random.Random) -> list[str]:
    """Return the edges of one drive, as netgenerate calls them: A0B0 leads from column 0, row 0 to column 1, row 0."""
    column, row, way = rng.randint(0, STREETS.blocks), rng.randint(0, STREETS.blocks), rng.randrange(4)
    edges: list[str] = []
    while len(edges) < EDGES:
        choices = [each for each in (way, way, (way + 1) % 4, (way + 3) % 4) if _is_street(column, row, each)]
        way = rng.choice(choices or [(way + 2) % 4])
        east, north = column + _WAYS[way][0], row + _WAYS[way][1]
        edges.append(f"{_node(column, row)}{_node(east, north)}")
        column, row = east, north
    return edges


def _is_street(column: int, row: int, way: int) -> bool:
    east, north = column + _WAYS[way][0], row + _WAYS[way][1]
    return 0 <= east <= STREETS.blocks and 0 <= north <= STREETS.blocks


def _node(column: int, row: int) -> str:
    return f"{chr(ord('A') + column)}{row}"


def record(net: Path, *, vehicles: int, seconds: int, seed: int) -> NDArray[np.float64]:
    """Return where each vehicle was at each second: by vehicle, second and axis, in metres."""
    # No teleports: SUMO would otherwise lift vehicles out of a jam after a while.
    quiet = ("--no-step-log", "--no-warnings", "--time-to-teleport", "-1")
    libsumo.start(["sumo", "--net-file", str(net), "--seed", str(seed), "--step-length", "1", *quiet])
    rng = random.Random(f"{seed}/trips")  # noqa: S311 # a made-up city
    for number in range(vehicles):
        libsumo.route.add(f"r{number}", drive(rng))
        libsumo.vehicle.add(f"v{number}", f"r{number}", depart=str(number * 60 // vehicles), departPos="random_free")
    found = np.empty((vehicles, seconds, 2))
    for second in range(-SETTLE_S, seconds):
        libsumo.simulationStep()
        if second >= 0:
            for number in range(vehicles):
                found[number, second] = libsumo.vehicle.getPosition(f"v{number}")
    libsumo.close()
    return found


def main() -> None:
    """Make the network, drive, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vehicles", type=int, default=301, help="how many; the first is the ambulance")
    parser.add_argument("--seconds", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=TRACE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        net = network(Path(folder), seed=options.seed)
        places = record(net, vehicles=options.vehicles, seconds=options.seconds, seed=options.seed)
    write_traffic(places, options.out)
    moved_m = np.linalg.norm(np.diff(places, axis=1), axis=2)
    print(f"{options.out}: {options.vehicles} vehicles, {options.seconds} s, {options.out.stat().st_size:,} bytes")
    print(f"{libsumo.getVersion()[1]}: {moved_m.mean():.1f} m/s on average, {moved_m.max():.1f} at most")
    print(f"standing for {(moved_m < 0.1).mean():.0%} of the time")


if __name__ == "__main__":
    main()
