"""What a CONNECT with a will costs the core of a broker: core time and bytes of the log, without sockets.

    python bench/will_cost.py [--clients N] [--repetitions N]

Repetitions of the four cases are interleaved; the median is printed, and the least.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "differential"))  # the rig is that of the tests

from broker_rig import Rig

from whimbrel.mqtt.packets import Will

__all__ = ["main"]

_WILL = Will("ward/3/bed-4/lost", b'{"lost": true}', 1)
_CASES = {
    "session ends with its connection": (None, 0),
    "session ends with its connection, will": (_WILL, 0),
    "persistent session": (None, 60),
    "persistent session, will": (_WILL, 60),
}
_GROUP = 50
"""How many CONNECTs share an fsync."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _CASES}
    for _ in range(options.repetitions):
        for name, (will, expiry_s) in _CASES.items():
            found[name].append(_cost(will, expiry_s, options.clients))
    for name, costs in found.items():
        took = [each[0] for each in costs]
        print(f"{name:<40} {statistics.median(took):7.1f} us  least {min(took):7.1f} us  {costs[0][1]:5.0f} bytes")


def _cost(will: Will | None, expiry_s: int, clients: int) -> tuple[float, float]:
    """Return microseconds of core time and bytes of the log for one CONNECT."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder) / "log")
        began = time.process_time()
        for number in range(clients):
            rig.connecting(f"c{number}", will=will, expiry_s=expiry_s)
            rig.peers.clear()
            rig.broker.dirty.clear()
            if number % _GROUP == _GROUP - 1:
                rig.sync()
        rig.settle()
        took = time.process_time() - began
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.seg"))
        rig.close()
    return took / clients * 1e6, size / clients


if __name__ == "__main__":
    main()
