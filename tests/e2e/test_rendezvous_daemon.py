"""The daemons of the rendezvous: settings, broker, metrics, SIGTERM, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.rendezvous_processes import Programs

from whimbrel.client import Client
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.air.server import AirServer, RadioSpec

C, B = "02:00:00:00:00:01", "02:00:00:00:00:0B"
SETTINGS = """name = "whimbrel-controller hall"
metrics_port = 0

[parameters]
event_ttl_us = 300_000_000

[broker]
host = "127.0.0.1"
port = {port}
prefix = "site/"
"""


def test_a_controller_reports_counts_and_stops(tmp_path: Path) -> None:
    """Facts go to the broker of the settings, metrics are served, an event is renewed and removed by identifier."""
    config = tmp_path / "hall.toml"
    with BrokerProcess(tmp_path) as broker, Programs(C, B) as programs:
        config.write_text(SETTINGS.format(port=broker.port), encoding="utf-8")
        facts: list[tuple[str, dict[str, object]]] = []
        watching = threading.Thread(target=lambda: facts.extend(asyncio.run(_watch(broker.port))))
        watching.start()
        controller = programs.controller(C, tmp_path / "log", "--config", config)
        bob = programs.device(B, "publish", "Bob")
        event = bob.until("accepted")["id"]
        watching.join(timeout=60)
        assert facts == [("site/rendezvous/opened", {"event": event, "device": B})]
        port = controller.all("ready")[0]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:  # our own
            metrics = answer.read().decode()
        assert 'whimbrel_rendezvous_facts_total{kind="opened"} 1.0' in metrics
        assert "whimbrel_rendezvous_broker_connected 1.0" in metrics
        bob.end(9)
        again = programs.device(B, f"renew {event}", "Bob")
        assert again.until("accepted")["id"] == event
        assert again.end() == 0
        assert programs.device(B, f"unpublish {event}", "Bob").join() == 0
        refused = programs.device(B, f"unpublish {event}", "Bob")
        assert refused.join() == 1
        assert "3106" in refused.all("refused")[0]["reason"]
        assert controller.end() == 0
        assert controller.all("stopped")[0]["facts"]["opened"] >= 1


async def _watch(port: int) -> list[tuple[str, dict[str, object]]]:
    async with Client("127.0.0.1", port) as client:
        await client.subscribe("site/rendezvous/#", qos=1)
        async for message in client.messages():
            return [(message.topic, json.loads(message.payload))]
    return []


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def le_only() -> Iterator[str]:
    """Give the transport of an adapter without inquiry, in a thread of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    found: list[str] = []

    async def offer() -> AirServer:
        server = AirServer()
        found.append(await server.offer(RadioSpec(address=Address(C), refuses=frozenset({"HCI_INQUIRY_COMMAND"}))))
        ready.set()
        return server

    def run() -> None:
        server = loop.run_until_complete(offer())
        loop.run_forever()
        loop.run_until_complete(server.close())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    yield found[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=30)


def refused(*arguments: str | Path) -> str:
    """Run a command that has to be refused with exit code 2, and return what it says."""
    command = [sys.executable, "-m", "whimbrel", "rendezvous", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_adapter_without_inquiry_ends_a_controller_with_code_2(tmp_path: Path, le_only: str) -> None:
    """It says which command was refused, and what is needed."""
    said = refused("controller", "--transport", le_only, "--log", tmp_path)
    assert "the adapter refuses HCI_INQUIRY_COMMAND" in said
    assert "needed is a BR/EDR adapter" in said


def test_a_device_without_its_adapter_ends_with_code_2() -> None:
    """A port where nobody listens."""
    said = refused("device", "listen", "--transport", "tcp-client:127.0.0.1:1", "--name", "x")
    assert "no adapter at 'tcp-client:127.0.0.1:1'" in said
    assert "allowed are usb:0" in said
