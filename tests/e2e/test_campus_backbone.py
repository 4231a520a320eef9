"""Way-servers and the administrative server over a real broker; nodes on ::1 with injected reach."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.e2e.campus_rig import PATIENCE_S, Segment, until
from tests.e2e.server_here import serve_here

from whimbrel.broker.shell.server import Server
from whimbrel.carry.application import DOOR
from whimbrel.carry.backbone.messages import CENSUS
from whimbrel.carry.backbone.way_server_service import WayServerService
from whimbrel.carry.hello import SampleId
from whimbrel.client import Client, Message

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "campus.md"


def is_at_all(gates: Iterable[WayServerService], name: SampleId) -> bool:
    """Return whether the sample with this id has come to all *gates*."""
    return all(name in [each.id for each in gate.way_server.carrier.all_retrieved] for gate in gates)


def test_two_way_servers_and_an_admin_give_one_plan(tmp_path: Path) -> None:
    """A user seen at two gates counts once; both gates, and a node that met neither, have one version."""

    async def act(server: Server) -> None:
        port = server.ports["mqtt"]
        campus = Segment(tmp_path)
        topics = tmp_path / "topics"
        topics.write_text("0x00F1 lectures\nnews\n", encoding="utf-8")
        admin = campus.admin(port, topics=str(topics))
        north, south = campus.way_server(1, port), campus.way_server(2, port)
        walker, late = campus.node(3, key=(campus.key,)), campus.node(4, key=(campus.key,))
        try:
            await walker.daemon.subscribe("lectures")
            await until(lambda: north.way_server.control.in_force is not None, "control data at the gate")
            campus.meet((1, 3))
            await until(lambda: walker.participant.clock.is_synchronised, "the clock is set")
            campus.meet((2, 3))
            await until(lambda: len(south.way_server.census(own=south.node.daemon.own).users) == 1, "met at the south")
            await until(
                lambda: (
                    walker.participant.control.in_force is not None and walker.participant.control.in_force.users == 1
                ),
                "the plan counts the walker",
            )
            campus.meet((3, 4))
            await until(
                lambda: (
                    late.participant.control.in_force is not None
                    and late.participant.control.in_force.users == 1
                    and late.participant.control.in_force == south.way_server.control.in_force
                ),
                "control data of one user from node to node",
            )
            assert north.way_server.control.in_force == south.way_server.control.in_force
            data = late.participant.control.in_force
            assert data is not None
            assert {each.name: (each.topic, each.subscribers) for each in data.topics} == {
                "lectures": (0x00F1, 1),
                "news": (data.topics[-1].topic, 0),
            }
            assert not late.participant.clock.is_synchronised, "time comes from way-servers, never from neighbours"
            async with Client("127.0.0.1", port) as client:
                await client.subscribe(f"{CENSUS}/#")
                found: dict[str, Message] = {}
                async with asyncio.timeout(PATIENCE_S):
                    async for message in client.messages():
                        found[message.topic] = message
                        # A gate publishes its census a moment after it has met somebody.
                        seen = [found.get(f"{CENSUS}/gate-{each}") for each in (1, 2)]
                        if CENSUS in found and all(each is not None and each.json()["users"] for each in seen):
                            break
            merged = found[CENSUS].json()
            assert (merged["nodes"], merged["places"], merged["subscribers"]["campus/lectures"]) == (1, 10, 1)
            users = [found[f"{CENSUS}/gate-{each}"].json()["users"] for each in (1, 2)]
            assert [len(each) for each in users] == [1, 1]
            assert users[0][0][0] == users[1][0][0], "the same user has the same name at both gates"
            assert f"{3:016x}" not in json.dumps(users), "and nobody can tell which node it is"
            figures = admin.metrics()
            assert [figures[each] for each in ("users", "places", "way_servers", "topics")] == [1, 10, 2, 2]
            assert 0 <= figures["control_age_seconds"] <= PATIENCE_S
            listed = re.findall(r"`([a-z_]+)`", PAGE.read_text(encoding="utf-8"))
            counted = {each for daemon in (admin, north.node, late) for each in daemon.metrics()}
            assert {each for each in counted if not each.endswith("_total")} <= set(listed), "the page has them all"
        finally:
            await campus.stop()

    serve_here(tmp_path / "broker", act)


def test_without_broker_admin_and_pipeline_all_go_on_with_what_they_have(tmp_path: Path) -> None:
    """The admin is stopped, then the gate is restarted where no broker is: plan and clock stay, with their ages."""

    async def act(server: Server) -> None:
        port = server.ports["mqtt"]
        campus = Segment(tmp_path)
        topics = tmp_path / "topics"
        topics.write_text("news\n", encoding="utf-8")
        campus.admin(port, topics=str(topics))
        gate, node = campus.way_server(1, port), campus.node(3, key=(campus.key,))
        try:
            campus.meet((1, 3))
            await until(lambda: node.participant.control.in_force is not None)
            await until(lambda: node.participant.clock.is_synchronised)
            async with campus.application("admin") as application:
                status = await application.status()
                assert (status["role"], status["plan"], status["broker"]) == ("admin", "computed here", "connected")
            await campus.stop("admin")
            await node.daemon.subscribe("news")
            await campus.stop("node-1")
            gate = campus.way_server(1, 1)  # nothing listens there
            await until((tmp_path / "node-1" / DOOR).exists)
            async with campus.application(1) as application:
                status = await application.status()
            assert status["broker"] == "away"
            assert node.participant.control.in_force is not None
            assert status["control_version"] == node.participant.control.in_force.version
            assert status["control_age_s"] >= 0
            assert status["clock_age_s"] >= 0
            late = campus.node(4, key=(campus.key,))
            campus.meet((1, 4), (1, 3))
            await until(lambda: late.participant.clock.is_synchronised, "the gate still tells the time")
            await until(lambda: late.participant.control.in_force is not None, "and the last plan")
            await until(lambda: len(gate.way_server.census(own=gate.node.daemon.own).users) == 2, "its own counts")
        finally:
            await campus.stop()

    serve_here(tmp_path / "broker", act)


def test_the_bridge_carries_samples_both_ways_with_one_id(tmp_path: Path) -> None:
    """Up through one gate and down at another, from the broker's users to nodes; each comes once."""

    async def act(server: Server) -> None:
        port = server.ports["mqtt"]
        campus = Segment(tmp_path)
        topics = tmp_path / "topics"
        topics.write_text("news\nprivate\n", encoding="utf-8")
        campus.admin(port, topics=str(topics), bridge=("news",))
        north, south = (campus.way_server(each, port, bridge=("news",)) for each in (1, 2))
        here, there = (campus.node(each, key=(campus.key,)) for each in (3, 4))
        taken: list[str] = []
        there.daemon.listeners.append(lambda sample: taken.append(sample.body.decode()))
        try:
            async with Client("127.0.0.1", port) as client:
                await client.subscribe("campus/#")
                messages = client.messages()
                campus.meet((1, 3), (2, 4))
                await there.daemon.subscribe("news")
                await until(lambda: here.participant.clock.is_synchronised and there.participant.clock.is_synchronised)
                await until(lambda: north.link.is_connected and south.link.is_connected)
                await here.daemon.publish("private", b"not bridged")
                sample = await here.daemon.publish("news", b"from a node")
                async with asyncio.timeout(PATIENCE_S):
                    message = await anext(messages)
                assert (message.topic, message.text) == ("campus/news", "from a node")
                assert ("campus.sample", f"{sample.published_at}.{3:016x}") in message.user
                await until(lambda: taken == ["from a node"], "down at the other gate")
                await client.publish("campus/news", "from the broker", qos=1)
                async with asyncio.timeout(PATIENCE_S):
                    assert (await anext(messages)).text == "from the broker"
                await until(lambda: taken == ["from a node", "from the broker"], "a user of the broker is heard")
                await here.daemon.publish("news", b"again")
                async with asyncio.timeout(PATIENCE_S):
                    assert (await anext(messages)).text == "again", "what came from the broker did not go back to it"
                await until(lambda: taken[2:] == ["again"])
        finally:
            await campus.stop()

    serve_here(tmp_path / "broker", act)


def test_a_sample_that_two_gates_have_is_published_once(tmp_path: Path) -> None:
    """Both are in reach of its publisher, and tell the admin at the same time; also after the admin was restarted."""

    async def act(server: Server) -> None:
        port = server.ports["mqtt"]
        campus = Segment(tmp_path)
        topics = tmp_path / "topics"
        topics.write_text("news\n", encoding="utf-8")
        admin = {"topics": str(topics), "bridge": ("news",)}
        campus.admin(port, **admin)
        gates = [campus.way_server(each, port, bridge=("news",)) for each in (1, 2)]
        node = campus.node(3, key=(campus.key,))
        try:
            async with Client("127.0.0.1", port) as client:
                await client.subscribe("campus/#")
                messages = client.messages()
                campus.meet((1, 3), (2, 3))
                await until(lambda: node.participant.clock.is_synchronised)
                await until(lambda: all(each.link.is_connected for each in gates))
                for number in range(3):
                    sample = await node.daemon.publish("news", f"{number}".encode())
                    await until(partial(is_at_all, gates, sample.id), "at both gates")
                    async with asyncio.timeout(PATIENCE_S):
                        assert (await anext(messages)).text == f"{number}"
                await campus.stop("admin")
                campus.admin(port, **admin)
                last = await node.daemon.publish("news", b"last")
                async with asyncio.timeout(PATIENCE_S):
                    message = await anext(messages)
                assert message.text == "last", "each once: what is retained on the backbone is not published again"
                assert ("campus.sample", f"{last.published_at}.{3:016x}") in message.user
        finally:
            await campus.stop()

    serve_here(tmp_path / "broker", act)
