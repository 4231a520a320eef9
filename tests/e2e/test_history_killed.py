"""History from end to end: who subscribes since some time gets each notification once, the broker killed or not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Backoff, Client, SubscriptionRefusedError
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification

NODE = "node-1"
SOON = Backoff(first_s=0.05, most_s=0.2)
BEFORE, LIVE = 600, 600


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker with short segments, which are cut only where a test says so."""
    with BrokerProcess(tmp_path, settings={"log": {"segment_bytes": 65_536, "view_interval_s": 0.2}}) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


def test_each_comes_once_though_the_broker_is_killed_on_the_way(broker: BrokerProcess) -> None:
    """From the log and live, in order, over three lives of the broker: what a replay of the log finds."""
    got: list[tuple[str | None, bytes]] = []

    async def story() -> None:
        async with Client(port=broker.port, client_id="keeper", session_expiry_s=1_000) as keeper:
            await keeper.subscribe("ward/#", 1)  # so that all is owed, and on disk before anybody has it
        async with (
            Client(port=broker.port, client_id="nurse", reconnect=SOON) as nurse,
            Client(port=broker.port, client_id="doctor", reconnect=SOON) as doctor,
        ):
            for number in range(BEFORE):
                await nurse.publish(f"ward/{number % 3}", b"%d" % number, qos=1)
            await doctor.subscribe("ward/1", 1, since="1h")

            async def publish() -> None:
                for number in range(BEFORE, BEFORE + LIVE):
                    await nurse.publish(f"ward/{number % 3}", b"%d" % number, qos=1)
                    if number % 250 == 0:
                        await asyncio.to_thread(broker.kill)
                        await asyncio.to_thread(broker.start)
                await nurse.publish("ward/1", b"the last", qos=1)

            publishing = asyncio.create_task(publish())
            async for message in doctor.messages():
                got.append((message.id, message.payload))
                if message.payload == b"the last":
                    break
            await publishing

    asyncio.run(asyncio.wait_for(story(), 120))
    broker.stop()
    facts = [each for each in read(broker.data / "log", NODE) if isinstance(each, Notification)]
    assert got == [(f"{NODE}:{each.seq}", each.body) for each in facts if each.subject == "ward/1"]
    assert len(got) >= (BEFORE + LIVE) // 3


def test_the_command_goes_on_where_it_was(broker: BrokerProcess) -> None:
    """The id of the last message is where the next --since begins."""

    def subscribed(since: str, count: int) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "whimbrel", "subscribe", "a", "--port", str(broker.port), "--json"]
        command += ["--since", since, "--count", str(count), "--timeout", "60"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    async def published() -> None:
        async with Client(port=broker.port) as client:
            for number in range(10):
                await client.publish("a", b"%d" % number, qos=1)

    asyncio.run(published())
    first = subscribed("1h", 4)
    assert [each["body"] for each in first] == ["0", "1", "2", "3"]
    second = subscribed(str(first[-1]["id"]), 6)
    assert [each["body"] for each in second] == ["4", "5", "6", "7", "8", "9"]


def test_a_refusal_has_its_reason(broker: BrokerProcess) -> None:
    """In the client's error."""

    async def story() -> None:
        async with Client(port=broker.port) as client:
            with pytest.raises(SubscriptionRefusedError, match="since"):
                await client.subscribe("a", since="yesterday")
            with pytest.raises(SubscriptionRefusedError, match="other"):
                await client.subscribe("a", since="other:4")

    asyncio.run(story())
