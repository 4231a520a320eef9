"""Nodes on sockets of ::1 with injected reach: Figure 1b message for message, a line with a walker, and a liar."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e.campus_rig import Segment, until

from whimbrel.carry.daemon.service import NodeService
from whimbrel.carry.daemon.settings import NodeSettings
from whimbrel.carry.hello import Acknowledgement, Entry, Hello, Request, SampleId
from whimbrel.carry.transport.interface import Heard
from whimbrel.carry.wire import AnswerChunk, Part
from whimbrel.multicast.loopback import LoopbackLink
from whimbrel.multicast.reach import Reach

LECTURES = 0x00F1
AT = 45_353
"""The data-sample-id of Figure 1b: the time of publication."""


def listen_in(service: NodeService, heard: list[Part]) -> None:
    """Note all that a node hears."""
    transport: Any = service.transport
    receive = transport.receive

    def noted() -> Heard | None:
        found: Heard | None = receive()
        if found is not None:
            heard.append(found.part)
        return found

    transport.receive = noted


def test_the_retrieval_of_figure_1b_message_for_message_on_loopback(tmp_path: Path) -> None:
    """Hello with {0x00F1, 45353}, the request for it, the data: over real sockets, on ::1."""
    everybody: list[LoopbackLink] = []
    (tmp_path / "topics").write_text("0x00F1 lectures\n", encoding="utf-8")

    async def run() -> None:
        services, heard = [], dict[int, list[Part]]()
        for address in (1, 2):
            settings = NodeSettings(
                data=str(tmp_path / str(address)), address=str(address), topics=str(tmp_path / "topics"), hello_s=0.05
            )
            service = NodeService(settings, link=lambda: LoopbackLink(everybody), own=lambda: AT)
            service.open()
            listen_in(service, heard.setdefault(address, []))
            services.append(service)
        left, right = services
        await left.daemon.publish("lectures", b"in room 2")
        await right.daemon.subscribe("lectures")
        stop = asyncio.Event()
        running = [asyncio.ensure_future(each.run(stop)) for each in services]
        await until(lambda: any(isinstance(each, Acknowledgement) for each in heard[1]))
        stop.set()
        await asyncio.gather(*running)
        for each in services:
            each.close()
        name = SampleId(AT, 1)
        assert [each for each in heard[1] if not isinstance(each, Hello)] == [
            Request(topic=LECTURES, id=name, is_subscriber=True, wants_copies=True),
            Acknowledgement(LECTURES, name, 4),  # ours: it also carries, and copies are acknowledged
        ]
        said = [each for each in heard[2] if each != Hello((), is_first=False)]
        assert said[0] == Hello((Entry(LECTURES, name, has_copies=True),))
        answers = [each for each in said if isinstance(each, AnswerChunk)]
        assert [(each.topic, each.id, each.copies) for each in answers] == [(LECTURES, name, 4)]
        assert answers[0].chunk.endswith(b"in room 2")
        sample = right.participant.carrier.retrieved(LECTURES)
        assert sample is not None
        assert sample.is_unsynchronised

    asyncio.run(run())


def test_where_frames_are_lost_no_copies_are(tmp_path: Path) -> None:
    """Three daemons on sockets that lose a third of all that comes: eight copies stay eight."""

    async def run() -> None:
        campus = Segment(tmp_path)
        nodes = [campus.node(each) for each in (1, 2, 3)]
        try:
            for each in nodes:
                transport: Any = each.transport
                transport._reach = Reach("lossy", loss=0.33, random=Random(each.participant.address))
            campus.meet((1, 2), (1, 3), (2, 3))
            await nodes[0].daemon.publish("lunch", b"pasta")

            def copies() -> list[int]:
                return [sum(copy.copies for copy in each.participant.carrier.stored) for each in nodes]

            await until(lambda: min(copies()) > 0 and not any(each.participant.grants for each in nodes), "spread")
            assert sum(copies()) == 8
        finally:
            await campus.stop()

    asyncio.run(run())


def test_a_restarted_daemon_goes_on_with_its_samples_and_subscriptions(tmp_path: Path) -> None:
    """SIGTERM or a crash: the next subscriber gets what it carried."""

    async def run() -> None:
        campus = Segment(tmp_path)
        node = campus.node(1)
        try:
            await node.daemon.publish("lunch", b"pasta")
            await node.daemon.subscribe("news")
            await campus.stop()
            node = campus.node(1)
            other = campus.node(2)
            await other.daemon.subscribe("lunch")
            campus.meet((1, 2))
            await until(lambda: len(other.participant.carrier.all_retrieved) == 1)
            await node.daemon.publish("lunch", b"soup")
            await until(lambda: other.participant.carrier.all_retrieved[0].body == b"soup")
            assert node.participant.subscriptions == ["news"]
        finally:
            await campus.stop()

    asyncio.run(run())
