"""A dead stream, a dead export and an absent session: none of them fills the disk, and each is named."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Client
from whimbrel.log import layout
from whimbrel.log.export import export
from whimbrel.log.keeping.readers import register
from whimbrel.log.verification import verify
from whimbrel.model.clock import SystemClock
from whimbrel.pipeline.doctor.logs import examine_log

NODE = "node-1"
RETAIN, READER = 300_000, 150_000
SETTINGS = {
    "log": {
        "segment_bytes": 65_536,
        "view_interval_s": 0.1,
        "retain_bytes": RETAIN,
        "retain_reader_bytes": READER,
        "retain_free_bytes": 0,
    }
}
BODY = os.urandom(4_000)


def test_none_of_them_fills_the_disk_and_each_is_named(tmp_path: Path) -> None:
    """In the broker's log lines, and by the doctor; what the absent session holds is all there."""

    async def story(broker: BrokerProcess) -> tuple[int, list[bytes]]:
        log, most = broker.data / "log", 0
        async with Client(port=broker.port, client_id="phone", session_expiry_s=10_000) as phone:
            await phone.subscribe("t", 1)
        async with Client(port=broker.port, client_id="nurse") as nurse:
            for number in range(20):
                await nurse.publish("t", b"%d" % number, qos=1)
            export(log, NODE, closed_only=False)  # the last that this export does
            register(log, NODE, "dead-stream", seq=layout.exported_seq(log, NODE), now=SystemClock().now())
            while "dead-stream" not in (told := "".join(broker.lines)) or "reader=export" not in told:
                for _ in range(20):
                    await nurse.publish("noise", BODY, qos=1, retain=True)
                most = max(most, sum(path.stat().st_size for _, path in layout.segments(log, NODE)))
        async with Client(port=broker.port, client_id="phone", clean_start=False, session_expiry_s=10_000) as phone:
            messages = phone.messages()
            return most, [(await anext(messages)).payload for _ in range(20)]

    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        most, held = asyncio.run(asyncio.wait_for(story(broker), 120))
        log = broker.data / "log"
        checks = {check.name: check.found for check in examine_log(log)}
    assert held == [b"%d" % number for number in range(20)]
    # What is published between two looks of the keeper comes on top: it looks every 0.1 s.
    assert most < RETAIN + READER + 40 * len(BODY) + 20 * 65_536
    assert "most_held_by=$mqtt/phone" in "".join(broker.lines)
    assert "lost its place" in checks[f"reader dead-stream of {NODE}"]
    assert "lost its place" in checks[f"reader export of {NODE}"]
    assert "$mqtt/phone holds 20 notifications" in checks[f"absent sessions of {NODE}"]
    assert verify(log).checkpoints == 2
