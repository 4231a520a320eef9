"""The way out of the area: an event that was heard is in a log and on a broker, with place, radius and deadline."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Client
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter
from whimbrel.model.clock import format_time
from whimbrel.model.notification import Notification
from whimbrel.model.place import Area, Place
from whimbrel.nearby.frames.values import Event
from whimbrel.nearby.group.outputs import Deliver
from whimbrel.nearby.listening import append_event, publish_event

AT = 1_800_000_000_000_000
EVENT = Event(
    origin="light",
    seq=17,
    sender="light",
    hops=0,
    max_hops=0,
    subject="traffic light",
    area=Area(Place(53.3438, -6.2546), 200),
    place=Place(53.344, -6.2546),
    epoch=1,
    number=1,
    deadline_us=500_000,
    remaining_us=500_000,
    attributes={"status": "red", "raw": b"\x01"},
)
HEARD = Deliver(event=EVENT, subscriptions=("",), attributes={**EVENT.attributes, "distance_m": 3.0}, left_us=400_000)


def test_what_is_heard_is_appended_to_the_log(tmp_path: Path) -> None:
    """As a publication of the listener; the event's own identity goes along, its consumer's own attributes do not."""
    with LogWriter(tmp_path, "post") as log:
        written = append_event(log, HEARD, at=AT)
    (fact,) = read(tmp_path, "post")
    assert isinstance(fact, Notification)
    assert fact == written
    assert (fact.subject, fact.publisher, fact.area) == ("nearby/traffic light", "light", EVENT.area)
    assert fact.attributes == {"status": "red", "raw": b"\x01", "event": "light:17", "producer_place": "53.344,-6.2546"}
    assert fact.deadline_at == fact.published_at + 400_000


def test_what_is_heard_is_published_on_a_broker(tmp_path: Path) -> None:
    """Under nearby/, for subscribers anywhere, who can filter by its parameters."""

    async def listen(port: int) -> tuple[str, dict[str, object]]:
        async with Client("127.0.0.1", port) as far, Client("127.0.0.1", port) as post:
            await far.subscribe("nearby/#", qos=1, filter="status == 'red'")
            await publish_event(post, HEARD, at=AT)
            message = await anext(aiter(far.messages()))
            return message.topic, json.loads(message.payload)

    with BrokerProcess(tmp_path) as broker:
        topic, body = asyncio.run(listen(broker.port))
    assert topic == "nearby/traffic light"
    assert body == {
        "status": "red",
        "raw": "01",
        "event": "light:17",
        "producer_place": "53.344,-6.2546",
        "place": "53.3438,-6.2546",
        "radius_m": 200.0,
        "remaining_ms": 400.0,
        "deadline_at": format_time(AT + 400_000),
    }
