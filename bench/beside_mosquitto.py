"""Measure the broker beside Mosquitto with a load generator that is not ours, in paired runs.

    python bench/beside_mosquitto.py --tool TOOL [--runs 3] [--out FILE] [--extra]

TOOL is the generator: a program that takes ``thr`` or ``lat`` with ``--port --pid --qos --subs --pubs --count --secs
--rate`` and prints one line of JSON. In a run both brokers are up, and every load is given to one and then to the
other, the first of them in turn. A ratio is taken within a run, so what else the machine does weighs on both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from measure import machine_facts
from peer_brokers import MOSQUITTO, NATS, OURS, SAVING_MOSQUITTO, ours, peers
from whimbrel.sim.load.generator import Generator
from whimbrel.sim.load.load import Load
from whimbrel.sim.load.processes import Served

_RATES = {
    "1 to 1, QoS 1": "thr --qos 1 --count 200000 --secs 20",
    "1 to 1, QoS 0": "thr --qos 0 --count 600000 --secs 20",
    "100 to 1, QoS 0": "thr --qos 0 --pubs 100 --count 200000 --secs 20",
    "1 to 100, QoS 0": "thr --qos 0 --subs 100 --count 20000 --secs 20",
}
_DELAYS = {
    "1,000/s, QoS 0": "lat --qos 0 --rate 1000 --secs 5",
    "1,000/s, QoS 1": "lat --qos 1 --rate 1000 --secs 5",
}
_STORED = Load(port=0, count=40_000, qos=1, is_stored=True)
_STORED_COUNTS = {OURS: 40_000, MOSQUITTO: 40_000, NATS: 4_000, SAVING_MOSQUITTO: 400}


def main(arguments: Sequence[str]) -> int:
    """Print one JSON object: what each run measured, and the ratios; keep it in a file if one is named."""
    parser = argparse.ArgumentParser(description="Measure the broker beside Mosquitto.")
    parser.add_argument("--tool", type=Path, required=True, help="the load generator")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="of every load in a run; their median counts")
    parser.add_argument("--extra", action="store_true", help="also sessions that are stored, beside all peers")
    parser.add_argument("--only", help="measure only loads whose name has this text")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    command = "python bench/beside_mosquitto.py --tool TOOL" + (" --extra" if options.extra else "")
    machine = machine_facts(command)
    runs = [_run(options) for _ in range(options.runs)]
    found = {"what": "whimbrel beside Mosquitto, 64 bytes, MQTT 3.1.1, in paired runs", "machine": machine,
             "notes": [each.note for each in peers()], "runs": runs, "ratios": dict(_ratios(runs))}  # fmt: skip
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _run(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Return what one run measured, by load and broker."""
    with ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-bench-")))

        wanted = [each for each in peers() if each.name == MOSQUITTO or (options.extra and each.name in _STORED_COUNTS)]
        brokers = {OURS: stack.enter_context(ours(folder()))}
        brokers |= {each.name: stack.enter_context(each.run(folder())) for each in wanted if each.release is not None}
        pair = {name: brokers[name] for name in (OURS, MOSQUITTO)}
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, load in (_RATES | _DELAYS).items():
            if options.only is None or options.only in name:
                found[name] = _paired(options.tool, load, pair, options.repeats)
        if options.extra:
            found["1 to 1, QoS 1, stored session"] = _stored(brokers, options.repeats)
        return found


def _paired(tool: Path, load: str, pair: Mapping[str, Served], repeats: int) -> dict[str, dict[str, float]]:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in pair}
    for repeat in range(repeats):
        names = sorted(pair, reverse=bool(repeat % 2))
        for name in names:
            broker = pair[name]
            command = [sys.executable, str(tool), *load.split(), "--port", str(broker.port), "--pid", str(broker.pid)]
            shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 # fixed words
            rows[name].append(json.loads(shown.stdout))
    kept = ("msgs_s", "cpu_us", "lost", "p50_us", "p90_us", "p99_us", "p999_us")
    return {
        name: {key: statistics.median(row[key] for row in found) for key in kept if key in found[0]}
        for name, found in rows.items()
    }


def _stored(brokers: Mapping[str, Served], repeats: int) -> dict[str, dict[str, float]]:
    """Measure sessions that outlive their connections; the generator from outside has none, so it is ours."""
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in brokers}
    with Generator() as generator:
        for _ in range(repeats):
            for name, broker in brokers.items():
                load = replace(_STORED, port=broker.port, count=_STORED_COUNTS[name])
                result = generator.throughput(load, pid=broker.pid)
                assert not result.lost, f"{name} lost {result.lost}"
                rows[name].append((result.rate, result.cpu_us or 0.0))
    return {
        name: {
            "msgs_s": statistics.median(rate for rate, _ in found),
            "cpu_us": statistics.median(us for _, us in found),
        }
        for name, found in rows.items()
    }


def _ratios(runs: Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]]) -> Iterator[tuple[str, list[float]]]:
    """Yield what is ours divided by what is the peer's, a value for each run."""
    for name in runs[0]:
        for peer in runs[0][name]:
            if peer == OURS:
                continue
            for key in ("msgs_s", "cpu_us", "p50_us", "p99_us"):
                if key in runs[0][name][peer]:
                    each = [
                        round(run[name][OURS][key] / run[name][peer][key], 3) for run in runs if run[name][peer][key]
                    ]
                    yield f"{name}: {key}, to {peer}", each


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
