"""A backup of a broker that is being published to: what was acknowledged before it began is in the restored broker."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Client
from whimbrel.log.backup.making import back_up
from whimbrel.log.backup.restoring import restore
from whimbrel.log.verification import verify
from whimbrel.model.clock import SystemClock

NODE = "node-1"
SETTINGS = {"log": {"segment_bytes": 65_536, "view_interval_s": 0.1, "retain_bytes": 400_000}}
BEFORE = 150


def test_a_backup_under_load_loses_nothing_acknowledged_before_it_began(tmp_path: Path) -> None:
    """While segments are closed, checkpointed and cut; and nothing is wrong with the copy."""

    async def published(port: int) -> None:
        """Publish before and while a backup is made."""
        async with Client(port=port, client_id="ward", session_expiry_s=10_000) as ward:
            await ward.subscribe("t", 1)
        target, number = tmp_path / "backup", 0
        async with Client(port=port, client_id="nurse") as nurse:
            copying: asyncio.Task[object] | None = None
            while copying is None or not copying.done():
                await nurse.publish("noise", bytes(5_000), qos=1, retain=True)
                await nurse.publish("t", b"%d" % number, qos=1)
                number += 1
                if number == BEFORE:
                    now, data = SystemClock().now(), tmp_path / "broker" / "data"
                    copy = partial(back_up, data, NODE, target, now=now, bytes_per_second=2 << 20)
                    copying = asyncio.create_task(asyncio.to_thread(copy))
            await copying

    async def held(port: int, count: int) -> list[bytes]:
        async with Client(port=port, client_id="ward", clean_start=False, session_expiry_s=10_000) as ward:
            messages = ward.messages()
            return [(await anext(messages)).payload for _ in range(count)]

    with BrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker:
        asyncio.run(asyncio.wait_for(published(broker.port), 120))
    restore(tmp_path / "backup", tmp_path / "again" / "data")
    assert verify(tmp_path / "again" / "data" / "log").problems == []
    with BrokerProcess(tmp_path / "again", settings=SETTINGS) as again:
        found = asyncio.run(asyncio.wait_for(held(again.port, BEFORE), 120))
    assert found == [b"%d" % number for number in range(BEFORE)]
