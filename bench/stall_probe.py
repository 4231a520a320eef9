"""How long a broker's loop stands still while its kernels come: `python bench/stall_probe.py [--compile] [--keep]`.

A server in this process, a client that publishes to itself every 5 ms, and a monitor on the server's event loop that
notes how much processor time the process used between two of its looks: what the loop could not use for clients. That
is the loop's own work and what other threads did with the interpreter's lock. Wall time says nothing on a machine that
does other work. Then the first content filter comes, the kernels are loaded, and the first segment takes over.
With ``--compile`` the home is fresh, so that a child process compiles the kernels meanwhile: about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import uvloop

from whimbrel.broker.settings.config import Config, ListenSettings, NodeSettings
from whimbrel.broker.shell.collector import Collector
from whimbrel.broker.shell.operate.asking import ask_broker
from whimbrel.broker.shell.server import Server
from whimbrel.client import Client

__all__ = ["main"]

_RESULT = Path(__file__).parent / "results" / "stalls.json"
_EVERY_S, _QUIET_S = 0.005, 5.0
_MANY = 300
"""Filters that are worth a segment; fewer are asked one by one for good."""


class _Monitor:
    """Looks at the processor's clock from the event loop, over and over."""

    def __init__(self) -> None:
        self.phase = "idle"
        self.stalls_ms: dict[str, list[float]] = {}

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            before, phase = time.process_time(), self.phase
            await asyncio.sleep(_EVERY_S)
            self.stalls_ms.setdefault(phase, []).append((time.process_time() - before) * 1_000)

    def worst(self) -> dict[str, dict[str, float]]:
        """Return what was found, by phase."""
        return {
            phase: {
                "looks": len(found), "worst_ms": round(max(found), 1),
                "over_50_ms": sum(each > 50 for each in found), "total_s": round(sum(found) / 1_000, 1),
            }
            for phase, found in self.stalls_ms.items()
        }  # fmt: skip


async def _kernels(folder: Path) -> object:
    status = (await asyncio.to_thread(ask_broker, folder, "status"))["status"]
    return status["kernels"] if isinstance(status, dict) else None


async def _probe(client: Client, count: list[int]) -> None:
    while True:
        await client.publish("probe", b"{}", qos=0)
        count[0] += 1
        await asyncio.sleep(_EVERY_S)


async def _listen(client: Client, count: list[int]) -> None:
    async for _ in client.messages():
        count[0] += 1


async def _measured(folder: Path, *, compiles: bool, watch_s: float) -> dict[str, object]:
    monitor, sent, heard = _Monitor(), [0], [0]
    Collector().begin()
    server = Server(
        replace(Config(), node=NodeSettings(data=str(folder)), listen=ListenSettings(host="127.0.0.1", port=0))
    )
    await server.start()
    tasks = [asyncio.create_task(monitor.run())]
    try:
        async with Client(port=server.ports["mqtt"]) as client:
            await client.subscribe("probe", qos=0)
            tasks += [asyncio.create_task(_probe(client, sent)), asyncio.create_task(_listen(client, heard))]
            await asyncio.sleep(_QUIET_S)
            deadline = time.monotonic() + watch_s
            if compiles:
                monitor.phase = "compiling in a child"
                while await _kernels(folder) == "compiling" and time.monotonic() < deadline:  # noqa: ASYNC110 # by its status
                    await asyncio.sleep(1.0)
            deadline = time.monotonic() + watch_s
            monitor.phase = "first content filter"
            await client.subscribe("bed/#", filter="pulse > 100 && begins-with(ward, 'W')")
            await asyncio.sleep(_QUIET_S)
            monitor.phase = "kernels load and take over"
            for number in range(_MANY):
                await client.subscribe(f"bed/{number}/#", filter=f"pulse > {number} && begins-with(ward, 'W')")
            while await _kernels(folder) != "loaded" and time.monotonic() < deadline:
                await client.publish("bed/1", b'{"pulse": 120, "ward": "W3"}', qos=1)
                await asyncio.sleep(0.5)
            monitor.phase = "kernels in use"
            await asyncio.sleep(_QUIET_S)
            found = {
                "kernels": await _kernels(folder),
                "probes": sent[0],
                "came_back": heard[0],
                "phases": monitor.worst(),
            }
    finally:
        for task in tasks:
            task.cancel()
        server.stop()
        await server.serve()
    return found


def main() -> None:
    """Measure, print, and keep it if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="in a fresh home")
    parser.add_argument(
        "--watch", type=float, default=900.0, metavar="S", help="how long each phase is watched at most"
    )
    parser.add_argument("--keep", action="store_true", help="write bench/results/stalls.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stalls-") as scratch:
        if chosen.compile:
            os.environ |= {"HOME": scratch, "XDG_CACHE_HOME": f"{scratch}/.cache"}
            with suppress(KeyError):
                del os.environ["NUMBA_CACHE_DIR"]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(_measured(Path(scratch) / "data", compiles=chosen.compile, watch_s=chosen.watch))
    result = {
        "command": "python bench/stall_probe.py" + " --compile" * chosen.compile,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared",
        "python": platform.python_version(),
        **found,
    }
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if chosen.keep:
        _RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
