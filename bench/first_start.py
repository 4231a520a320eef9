"""How long a broker takes to start: `python bench/first_start.py [--sessions N] [--runs N] [--quick]`.

With an empty folder in a home where nothing was ever compiled; then with the stored sessions of clients that are away,
each with two subscriptions, from the view. Figures: seconds by the clock until the ports answer (0x88 counts) and until
clients are served, processor seconds of the process until then, and its resident memory when it is idle. The least of
several runs, as the machine does other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from whimbrel.broker.broker import Broker
from whimbrel.broker.settings.config import Config, LimitSettings, NodeSettings
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.state.routes import Routes
from whimbrel.broker.wire.clients import Link
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connect, Subscribe, SubscriptionRequest
from whimbrel.mqtt.properties import Properties, Property

__all__ = ["main"]

_RESULT = Path(__file__).parent / "results" / "first-start.json"
_LISTENING = re.compile(r"\blistening\b.*\bmqtt=([0-9]+)")
_TICKS = os.sysconf("SC_CLK_TCK")
_CONNECT = encode(Connect("bench-first"), V5)
_NOW, _SECOND_US, _BATCH = 1_750_000_000_000_000, 1_000_000, 500


def _core_s(pid: int) -> float:
    """Return the processor seconds that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+([0-9]+) kB", status)
    assert found is not None
    return int(found[1]) / 1_000


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    """Tell whether a CONNECT has an answer, whichever."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(_CONNECT)
        return link.recv(1) == b"\x20"
    return False


def start(data: Path, home: Path, *, idle_s: float) -> dict[str, float]:
    """Start a broker and return what it took; *idle_s* later it is idle."""
    port = _free_port()
    command = [sys.executable, "-m", "whimbrel", "serve", "--port", str(port), "--data", str(data), "--node", "node"]
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    environment.pop("NUMBA_CACHE_DIR", None)
    begin = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)  # noqa: S603 # ours
    try:
        while not _answers(port):
            assert process.poll() is None, "the broker ended"
            time.sleep(0.01)
        found = {"answers_s": time.perf_counter() - begin}
        assert process.stderr is not None
        for line in process.stderr:
            if _LISTENING.search(line):
                break
        found |= {"serves_s": time.perf_counter() - begin, "core_s": _core_s(process.pid)}
        time.sleep(idle_s)
        found["resident_mb"] = _resident_mb(process.pid)
    finally:
        process.kill()
        process.wait()
    return found


def make_sessions(folder: Path, count: int) -> None:
    """Make a folder with so many sessions of clients that are away."""
    limits = LimitSettings(memory_bytes=0)
    config = Config(node=NodeSettings(name="node", data=str(folder)), limits=limits)
    storage = Storage(config)
    state, _ = storage.open(Routes())
    broker = Broker(config, storage.log, state, rng=random.Random(1))
    properties = Properties({Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF})
    for first in range(0, count, _BATCH):
        links: list[Link] = []
        for number in range(first, min(first + _BATCH, count)):
            link = broker.open_link(None, "bench", _NOW + number)
            links.append(link)
            asked = (
                SubscriptionRequest(f"home/{number}/+/set", 1),
                SubscriptionRequest(f"group/{number % 1_000}/#", 1),
            )
            data = encode(Connect(f"device-{number:06}", clean_start=False, properties=properties), V5)
            broker.receive(link, data + encode(Subscribe(1, asked), V5), _NOW + number)
        while broker.wants_sync or broker.has_work:
            broker.on_sync(storage.log.sync())
            broker.go_on(_NOW + first)
        for link in links:
            link.out.clear()
            broker.on_connection_closed(link, _NOW + first)
        broker.dirty.clear()
    broker.on_sync(storage.log.sync())
    storage.write_view(broker.applied, *state.view.changes())
    storage.close()


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, and nothing is kept")
    chosen = parser.parse_args()
    sessions, runs = (500, 1) if chosen.quick else (chosen.sessions, chosen.runs)
    result: dict[str, object] = {
        "command": f"python bench/first_start.py --sessions {sessions} --runs {runs}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared", "python": platform.python_version(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="first-start-") as scratch:
        folder = Path(scratch)
        made = folder / "sessions"
        make_sessions(made, sessions)
        found: dict[str, list[dict[str, float]]] = {"empty": [], f"{sessions} sessions": []}
        for run in range(runs):
            home = folder / f"home-{run}"
            home.mkdir()
            found["empty"].append(start(folder / f"empty-{run}", home, idle_s=1.0))
            found[f"{sessions} sessions"].append(start(made, Path.home(), idle_s=0.0))
        for name, each in found.items():
            result[name] = {key: round(min(one[key] for one in each), 2) for key in each[0]}
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if not chosen.quick:
        _RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
