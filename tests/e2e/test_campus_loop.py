"""The loop of a campus closes: gate, census, broker, log, Spark, plan, admin, control data, nodes that met no gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.e2e.campus_rig import Segment, until
from tests.unit.campus_rig import a_participant

from whimbrel.broker.settings.config import Config, ListenSettings, NodeSettings, ObserveSettings, PipelineSettings
from whimbrel.broker.shell.server import Server
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.daemon.journal import Journal
from whimbrel.carry.daemon.service import NodeService
from whimbrel.carry.hello import Sample
from whimbrel.log.reader import read as log_facts
from whimbrel.model.notification import Notification
from whimbrel.model.replicas import plan
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import Plan
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport


def plan_of(node: NodeService) -> dict[str, int]:
    """Return L of each topic, as a node knows it."""
    data = node.participant.control.in_force
    return {} if data is None else {each.name: each.copies for each in data.topics}


def copies_of(node: NodeService, body: bytes) -> int:
    """Return how many copies of a sample a node still has; half of them may have gone by now."""
    return next(copy.copies for copy in node.participant.carrier.stored if copy.sample.body == body)


def test_the_loop_closes_and_the_copies_that_are_made_follow(spark: SparkSession, tmp_path: Path) -> None:
    """Subscriptions met at a gate decide how many copies a node makes that never met it; also when they change."""
    data, out = tmp_path / "broker", tmp_path / "tables"
    config = replace(
        Config(),
        node=NodeSettings(name="town", data=str(data)),
        listen=ListenSettings(host="127.0.0.1", port=0),
        pipeline=PipelineSettings(tables=str(out), interval_s=0.2),
        observe=ObserveSettings(sys_interval_s=1),
    )

    def make_plan() -> None:
        run(spark, log=data / "log", out=out, tables=["popularity", "replicas"], plan=Plan(replicas_for="campus/#"))

    async def planned(condition: Callable[[], bool], what: str) -> None:
        """Run the pipeline again until *condition* holds: the census may reach the log after a run has read it."""
        for _ in range(8):
            await asyncio.to_thread(make_plan)
            with suppress(AssertionError):
                await until(condition, what, within_s=10)
                return
        raise AssertionError(what)

    async def work() -> None:
        server = Server(config)
        await server.start()
        campus = Segment(tmp_path, hello_s=0.25)  # nine daemons wait here while Spark works, for a minute
        (tmp_path / "topics").write_text("lunch\nnews\n", encoding="utf-8")
        try:
            port = server.ports["mqtt"]
            admin = campus.admin(port, topics=str(tmp_path / "topics"))
            gate = campus.way_server(1, port)
            walker, other = (campus.node(each, key=(campus.key,)) for each in (3, 4))
            far = campus.node(9, key=(campus.key,))
            for node, topic in ((walker, "lunch"), (other, "lunch"), (other, "news")):
                await node.daemon.subscribe(topic)
            campus.meet((1, 3), (1, 4))
            await until(
                lambda: len(gate.way_server.census(own=gate.node.daemon.own).users) == 2, "two users at the gate"
            )
            await until(lambda: len(admin.admin.users(now=gate.node.daemon.own)) == 2, "two users at the admin")
            await until(lambda: plan_of(walker) != {}, "control data")
            wanted = plan({"campus/lunch": 2, "campus/news": 1}, nodes=2, slots_per_node=10)
            campus.meet((1, 3), (1, 4), (3, 9))
            first = {name.removeprefix("campus/"): copies for name, copies in wanted.items()}
            await planned(lambda: plan_of(far) == first, "the plan at a node that met no gate")
            far.participant.clock.set(far.daemon.own, own=far.daemon.own)  # it may publish: somebody set its clock
            await far.daemon.publish("lunch", b"pasta")
            assert copies_of(far, b"pasta") in {first["lunch"], first["lunch"] - first["lunch"] // 2}

            for address in (5, 6, 7):
                await campus.node(address, key=(campus.key,), places=20).daemon.subscribe("news")
            campus.meet((1, 3), (1, 4), (3, 9), (1, 5), (1, 6), (1, 7))
            await until(lambda: len(gate.way_server.census(own=gate.node.daemon.own).users) == 5, "five users")
            wanted = plan({"campus/lunch": 2, "campus/news": 4}, nodes=5, slots_per_node=16)
            second = {name.removeprefix("campus/"): copies for name, copies in wanted.items()}
            assert second != first
            await planned(lambda: plan_of(far) == second, "the plan follows the census")
            await far.daemon.publish("news", b"it follows")
            assert copies_of(far, b"it follows") in {second["news"], second["news"] - second["news"] // 2}
        finally:
            await campus.stop()
            server.stop()
            await server.serve()

    asyncio.run(work())


def rows_of(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table that was made."""
    return list(read(out, name).to_pylist())


def logged_campus(folder: Path) -> None:
    """Run three daemons with logs: a source, a sink that subscribes, is restarted and subscribes to what it carried."""
    now = [1_700_000_000_000_000]
    air = MemoryAir()
    air.meet(1, 2)
    air.meet(2, 3)
    daemons: dict[int, CampusDaemon] = {}
    journals: dict[int, Journal] = {}

    def start(address: int) -> None:
        journals[address] = Journal(folder, address)
        journals[address].open(at=now[0])
        before = daemons[address].participant.memory() if address in daemons else None
        made = a_participant(address)
        daemons[address] = CampusDaemon(
            made, MemoryTransport(address, air), own=lambda: now[0], journal=journals[address]
        )
        if before is not None:
            daemons[address].perform(made.restore(before, own=now[0]))

    def turns() -> None:
        for _ in range(3):
            now[0] += 1_000_000
            for daemon in daemons.values():
                daemon.turn()
                for other in (*daemons.values(), *daemons.values()):
                    other.read()

    for address in (1, 2, 3):
        start(address)
    asyncio.run(daemons[2].subscribe("lunch"))
    asyncio.run(daemons[2].publish("lunch", b"its own"))
    asyncio.run(daemons[1].publish("news", b"carried"))
    turns()
    asyncio.run(daemons[1].publish("lunch", b"pasta"))
    turns()
    asyncio.run(daemons[2].subscribe("news"))
    journals[2].close(at=now[0])
    start(2)
    asyncio.run(daemons[1].publish("lunch", b"soup"))
    turns()
    for each in journals.values():
        each.close(at=now[0])


def test_the_deliveries_of_nodes_logs_are_what_their_applications_got(spark: SparkSession, tmp_path: Path) -> None:
    """Delivered, each once: live, as retained where it was carried before, and after a restart; not its own."""
    logged_campus(tmp_path / "log")
    made = run(
        spark, log=tmp_path / "log", out=tmp_path / "tables", tables=["deliveries", "dead_letters"],
        plan=Plan(),
    )  # fmt: skip
    assert made["dead_letters"]["rows"] == 0
    sink = f"{2:016x}"
    logged = log_facts(tmp_path / "log", f"campus-{sink}")
    bodies = {(fact.node, fact.seq): fact.body for fact in logged if isinstance(fact, Notification)}
    rows = rows_of(tmp_path / "tables", "deliveries")
    found = [(row["device"], bodies[row["notification_node"], row["notification_seq"]], row["outcome"]) for row in rows]
    assert sorted(found) == [(sink, body, "delivered") for body in (b"carried", b"pasta", b"soup")]


def test_the_pipeline_counts_subscribers_in_the_logs_of_nodes(spark: SparkSession, tmp_path: Path) -> None:
    """Two nodes, one sample: nothing is a dead letter, and the subscriber counts."""
    noon, at = 1_700_000_000_000_000, tmp_path / "log"
    sample = Sample(topic=7, published_at=noon, publisher=1, body=b"pasta")
    source, sink = (Journal(at, address) for address in (1, 2))
    for each in (source, sink):
        each.open(at=noon)
    sink.note_interest("lunch", is_added=True, at=noon)
    source.note_sample(sample, "lunch", giver=None, at=noon + 1)
    source.note_receipt(sample, "lunch", receiver=2, at=noon + 2)
    sink.note_sample(sample, "lunch", giver=1, at=noon + 2)
    sink.note_receipt(sample, "lunch", receiver=None, at=noon + 2)
    for each in (source, sink):
        each.close(at=noon + 3)
    made = run(spark, log=at, out=tmp_path / "tables", tables=["popularity", "dead_letters"], plan=Plan())
    assert made["dead_letters"]["rows"] == 0
    popular = rows_of(tmp_path / "tables", "popularity")
    assert [(row["subject"], row["subscribers"], row["publications"]) for row in popular] == [("campus/lunch", 1, 2)]
