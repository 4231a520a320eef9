"""A controller publishes what became of events to a broker, as a user that may do nothing else there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Client, PublishRefusedError

RIGHTS = """default = "deny"

[[rule]]
user = "hall"
topics = ["rendezvous/#"]
allow = ["publish"]

[[rule]]
user = "ann"
topics = ["rendezvous/#"]
allow = ["subscribe"]
"""


def test_facts_are_published_and_only_the_controller_may(tmp_path: Path) -> None:
    """Whoever watches reads, and cannot make up a match."""
    users, rights, password = tmp_path / "users", tmp_path / "rights.toml", tmp_path / "hall.password"
    for name in ("hall", "ann"):
        command = [sys.executable, "-m", "whimbrel", "user", "add", name, "--file", str(users), "--password-file", "-"]
        subprocess.run(command, input=f"{name}'s", text=True, check=True, capture_output=True)
    rights.write_text(RIGHTS, encoding="utf-8")
    password.write_text("hall's\n", encoding="utf-8")
    with BrokerProcess(tmp_path, "--users", str(users), "--rights", str(rights)) as broker:
        facts = asyncio.run(_watch(broker.port, password))
    subjects = [topic for topic, _ in facts]
    assert subjects.count("rendezvous/matched") == subjects.count("rendezvous/notified") == 2
    assert all(set(body) <= {"event", "device", "other_event", "other_device", "detail", "count"} for _, body in facts)


async def _watch(port: int, password: Path) -> list[tuple[str, dict[str, object]]]:
    command = [sys.executable, "-m", "whimbrel", "rendezvous", "simulate", "--devices", "4", "--json"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--user", "hall", "--password-file", str(password)]
    async with Client("127.0.0.1", port, username="ann", password="ann's") as ann:  # noqa: S106 # a test's
        await ann.subscribe("rendezvous/#", qos=1)
        with pytest.raises(PublishRefusedError):
            await ann.publish("rendezvous/matched", b"{}", qos=1)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        count = len(done.stdout.splitlines()) - 1
        found = []
        async for message in ann.messages():
            found.append((message.topic, json.loads(message.payload)))
            if len(found) == count:
                break
        return found
