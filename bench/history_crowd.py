"""A crowd that asks for history at once: what a client that only listens notices of it.

    python bench/history_crowd.py [--clients 100] [--messages 20000] [--keep]   # --keep writes bench/results/history

A broker in a process of its own has logged the messages of a day. A live client is sent one message every 20 ms, first
alone, then while all the others subscribe to everything with ``since`` and read as fast as they can.
Rule: each of the crowd gets every message once and in order; that is asserted. Latencies are of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from measure import Check, Figure, Report, machine_facts, write
from whimbrel.client import Client
from whimbrel.sim.load.processes import cpu_s

PAYLOAD = b'{"bed": "W3-4", "pulse": 78, "spo2": 97, "temperature": 36.9}'
EVERY_S, ALONE_S = 0.02, 10.0
AIM_MS = 50


def started(data: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a broker; return its process and port."""
    command = [sys.executable, "-m", "whimbrel", "serve", "--port", "0", "--data", str(data)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 # our own command
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening .*\bmqtt=(\d+)", line):
            return process, int(found[1])
    raise SystemExit("the broker did not start")


def percentile(values: list[float], of_100: int) -> float:
    """Return a percentile, in milliseconds."""
    return sorted(values)[min(len(values) * of_100 // 100, len(values) - 1)] * 1_000


async def asking(port: int, count: int) -> float:
    """Ask for the day; return how many seconds it took to have all of it."""
    began, expected = time.monotonic(), 0
    async with Client(port=port) as client:
        await client.subscribe("ward/#", 0, since="1d")
        async for message in client.messages():
            assert message.payload.startswith(b"%d " % expected), (expected, message.payload)
            expected += 1
            if expected == count:
                return time.monotonic() - began
    raise AssertionError("the messages ended")


async def live(port: int, until: asyncio.Event, seconds: float | None) -> list[float]:
    """Send one message after the other to a client; return how long each took."""
    taken: list[float] = []
    async with Client(port=port) as sender, Client(port=port) as receiver:
        await receiver.subscribe("live", 0)
        messages, end = receiver.messages(), None if seconds is None else time.monotonic() + seconds
        while not until.is_set() and (end is None or time.monotonic() < end):
            sent = time.monotonic()
            await sender.publish("live", b"x", qos=0)
            await anext(messages)
            taken.append(time.monotonic() - sent)
            await asyncio.sleep(EVERY_S)
    return taken


async def crowd(port: int, clients: int, count: int) -> float:
    """Let all of them ask at once; return how long the slowest had to wait."""
    return max(await asyncio.gather(*(asking(port, count) for _ in range(clients))))


def run_crowd(port: int, clients: int, count: int) -> float:
    """Be a process that is the crowd: what it takes to read everything is not the live client's."""
    return asyncio.run(crowd(port, clients, count))


async def measured(port: int, pid: int, clients: int, count: int) -> Report:
    """Log a day, measure alone, then with the crowd."""
    async with Client(port=port) as nurse:
        for number in range(count):
            await nurse.publish("ward/3", b"%d " % number + PAYLOAD, qos=int(number % 500 == 499))
    alone = await live(port, asyncio.Event(), ALONE_S)
    used, load = cpu_s(pid) or 0.0, os.getloadavg()[0]
    done = asyncio.Event()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        watching = asyncio.create_task(live(port, done, None))
        slowest = await asyncio.get_running_loop().run_in_executor(pool, run_crowd, port, clients, count)
        done.set()
        crowded = await watching
    report = Report("history", ("whimbrel",))
    core_us = ((cpu_s(pid) or 0.0) - used) * 1e6 / (clients * count)
    report.figures += [
        Figure("clients that asked for history at once", clients, ""),
        Figure("messages that each was sent", count, ""),
        Figure("until the last had all", slowest, "s"),
        Figure("the broker's core time for a copy", core_us, "µs"),
        Figure("load average before the crowd", load, ""),
    ]
    for name, values in (("alone", alone), ("with the crowd", crowded)):
        report.figures += [
            Figure(f"live, {name}: messages", len(values), ""),
            Figure(f"live, {name}: p50", percentile(values, 50), "ms"),
            Figure(f"live, {name}: p99", percentile(values, 99), "ms"),
            Figure(f"live, {name}: most", max(values) * 1_000, "ms"),
        ]
    claim = f"live p99 with the crowd below {AIM_MS} ms"
    report.checks += [Check(claim, percentile(crowded, 99) < AIM_MS), Check("each copy came once and in order", True)]
    return report


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--keep", action="store_true", help="write the results beside those of the other benchmarks")
    options = parser.parse_args()
    machine = machine_facts(" ".join(["python", "bench/history_crowd.py", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory(prefix="whimbrel-crowd-") as folder:
        process, port = started(Path(folder) / "data")
        try:
            report = asyncio.run(measured(port, process.pid, options.clients, options.messages))
        finally:
            process.terminate()
            process.wait()
    for figure in report.figures:
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}")
    for check in report.checks:
        print("holds" if check.passed else "FAILS", check.claim)
    if options.keep:
        write(report, machine, Path(__file__).parent / "results")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
