"""Reports in, and what the pipeline learned of them out again: a real broker, real files, and both of them broken."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, P, RawClient

from whimbrel.client import Client
from whimbrel.errors import InvalidValueError
from whimbrel.log.reader import read
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import Reported
from whimbrel.model.tables import TABLES

REPORT, PLAN, LINKS = "$whimbrel/report", "$SYS/broker/replicas", "$SYS/broker/link/"
_VERSIONS = "_versions"


def _reports(broker: BrokerProcess) -> list[DeviceState]:
    return [fact.state for fact in read(broker.data / "log", "node-1") if isinstance(fact, Reported)]


# -- reports -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker with all defaults."""
    with BrokerProcess(tmp_path) as process:
        yield process
    assert "Traceback" not in "".join(process.lines)


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, "report") as found:
        yield found


def test_an_acknowledged_report_survives_kill_9(broker: BrokerProcess, clients: Clients) -> None:
    """A device that was told so has begun to count anew: the log must have what it counted before."""
    device = clients.connect("device", properties=((P.SESSION_EXPIRY, 600),))
    device.subscribe((clients.topic("t"), 1))
    publisher = clients.connect("publisher")
    answers = [device.publish(REPORT, b'{"battery": 0.75, "received": 0}', qos=1)]
    for _ in range(3):
        publisher.publish(clients.topic("t"), b"x", qos=1)
    device.messages(3)
    answers.append(device.publish(REPORT, b'{"received": 3, "place": "47.05,8.3"}', qos=2))
    broker.kill()
    first, second = _reports(broker)
    assert [answer.code for answer in answers if answer is not None] == [0, 0]
    assert (first.device, first.battery, first.sent) == ("report-device", 0.75, 0)
    assert (second.received, second.sent, second.network_connection) == (3, 3, 1.0)
    broker.start()
    with Clients(broker.port, "report") as again:
        back = again.connect("device", clean=False, properties=((P.SESSION_EXPIRY, 600),))
        assert back.connack.session_present
        back.publish(REPORT, b"{}", qos=1)
    broker.stop()
    assert [state.sent for state in _reports(broker)] == [0, 3, None]


def test_a_bad_report_is_answered_and_the_connection_lives(broker: BrokerProcess, clients: Clients) -> None:
    """Whoever writes the device's software is told what is wrong; the device goes on."""
    device = clients.connect("device")
    answer = device.publish(REPORT, b'{"battery": 75}', qos=1)
    assert answer is not None
    assert answer.code == 0x99
    assert str(answer[P.REASON_STRING]).endswith("battery: found 75, allowed is a number from 0 to 1")
    device.publish(REPORT, b"?", qos=0)
    older = RawClient(broker.port, version=4)
    older.connect("older")
    older.publish(REPORT, b"?", qos=1)
    for each in (device, older):
        each.ping()
        each.drop()
    broker.stop()
    assert _reports(broker) == []


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])
def test_our_client_counts_what_the_broker_counts(broker: BrokerProcess, version: int) -> None:
    """Where nothing is lost the link is perfect, whatever the client was told of its sessions on the way."""

    async def run() -> None:
        async with (
            Client(port=broker.port, client_id="device", version=version) as device,
            Client(port=broker.port, client_id="publisher") as publisher,
        ):
            await device.sessions.create("group")
            await device.sessions.join("group")
            await device.subscribe("t", session="")
            await device.report(battery=0.5, display=(320, 240), place="47.05,8.3")
            await device.sessions.list()
            messages = device.messages()
            for _ in range(3):
                await publisher.publish("t", b"x", qos=1)
                await anext(messages)
            with pytest.raises(InvalidValueError, match="battery: found 50, allowed is a number from 0 to 1"):
                await device.report(battery=50)
            await device.report()

    asyncio.run(run())
    broker.stop()
    first, second = _reports(broker)
    assert (first.battery, first.display) == (0.5, Display(320, 240))
    assert first.received == first.sent == 2  # the answers to its requests: the session is new, so all were counted
    assert second.received == second.sent
    assert second.sent is not None
    assert second.sent >= 3


# -- what was learned --------------------------------------------------------------------------------------------------


class Tables:
    """The pipeline's tables, as its stream keeps them: a link to a version, replaced in one step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._version = folder, 0

    def put(self, table: str, rows: list[dict[str, object]]) -> None:
        """Let the next version of a table appear."""
        version = self._made(table)
        pq.write_table(pa.Table.from_pylist(rows, schema=TABLES[table].schema), version / "rows.parquet")
        self._lead(table, version)

    def put_broken(self, table: str) -> None:
        """Let a version appear that nobody can read."""
        version = self._made(table)
        (version / "rows.parquet").write_bytes(b"PAR1 and nothing that follows")
        self._lead(table, version)

    def _made(self, table: str) -> Path:
        self._version += 1
        version = self.folder / _VERSIONS / table / str(self._version)
        version.mkdir(parents=True)
        return version

    def _lead(self, table: str, version: Path) -> None:
        beside = version.parent / "_link"
        beside.symlink_to(version.relative_to(self.folder))
        beside.rename(self.folder / table)


def _planned(**copies: int) -> list[dict[str, object]]:
    return [
        {"subject": subject, "subscribers": 1, "share": 0.1, "replicas": count, "memory_bytes": 100 * count}
        for subject, count in copies.items()
    ]


def _linked(seq: int, device: str, connection: float) -> dict[str, object]:
    """Return a row of ``link_quality``; columns that the broker does not ask for are as they come."""
    row: dict[str, object] = {"node": "node-1", "seq": seq, "device": device, "since_at": 0, "reported_at": seq}
    return row | {"received": 1, "sent": 2, "network_connection": connection}


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Return tables of which there are none yet."""
    return Tables(tmp_path / "tables")


@pytest.fixture
def learner(tmp_path: Path, tables: Tables) -> Iterator[BrokerProcess]:
    """Yield a broker that looks at *tables* ten times a second, and tells as often."""
    settings = {
        "pipeline": {"tables": str(tables.folder), "interval_s": 0.1, "tells_links": True},
        "observe": {"sys_interval_s": 0.1, "log_format": "json"},
    }
    with BrokerProcess(tmp_path / "broker", "--http-port", "0", settings=settings) as process:
        yield process
    assert "Traceback" not in "".join(process.lines)


def _metric(broker: BrokerProcess, name: str) -> float | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return None


def _told(broker: BrokerProcess) -> list[str]:
    """Return what the broker wrote about the pipeline."""
    events = [json.loads(line)["event"] for line in broker.lines]
    return [event for event in events if "pipeline" in event]


def test_the_plan_follows_the_pipeline(learner: BrokerProcess, tables: Tables) -> None:
    """Way-servers hear of a new plan a moment after the pipeline made it, and once."""
    with RawClient(learner.port) as watcher:
        watcher.connect("watcher")
        watcher.subscribe(PLAN)
        tables.put("replicas", _planned(a=1, b=5))
        assert watcher.message().payload == b'{"b":5,"a":1}'
        tables.put("replicas", _planned(c=2))
        assert watcher.message().payload == b'{"c":2}'
        with RawClient(learner.port) as later:
            later.connect("later")
            later.subscribe(PLAN)
            retained = later.message()
            assert (retained.payload, retained.retain) == (b'{"c":2}', True)
    assert _metric(learner, "whimbrel_learned_subjects") == 1
    assert _metric(learner, "whimbrel_learned_failures_total") == 0
    assert _metric(learner, "whimbrel_learned_age_seconds") is not None
    learner.stop()
    assert _told(learner) == []


def test_links_of_connected_devices_are_told(learner: BrokerProcess, tables: Tables) -> None:
    """Of who is here, the newest value; of who is gone, nothing any more."""
    with RawClient(learner.port) as watcher, RawClient(learner.port) as device:
        watcher.connect("watcher")
        watcher.subscribe(f"{LINKS}#")
        device.connect("device")
        tables.put("link_quality", [_linked(7, "device", 0.75), _linked(3, "device", 0.25), _linked(9, "gone", 0.5)])
        found = watcher.message()
        assert (found.topic, found.payload) == (f"{LINKS}device", b"0.750")
        device.disconnect()
        found = watcher.message()
        assert (found.topic, found.payload) == (f"{LINKS}device", b"")
    assert _metric(learner, "whimbrel_learned_devices") == 2


def test_broken_tables_disturb_nobody(learner: BrokerProcess, tables: Tables) -> None:
    """What is known stays, one line says so, clients are served, and what is repaired is read."""
    with RawClient(learner.port) as watcher, RawClient(learner.port) as clock:
        watcher.connect("watcher")
        watcher.subscribe(PLAN)
        clock.connect("clock")
        clock.subscribe("$SYS/broker/uptime")
        tables.put("replicas", _planned(a=1))
        assert watcher.message().payload == b'{"a":1}'
        tables.put_broken("replicas")
        while (_metric(learner, "whimbrel_learned_failures_total") or 0) < 3:
            clock.message()
        assert _metric(learner, "whimbrel_learned_subjects") == 1
        watcher.publish("somewhere", b"x", qos=1)
        tables.put("replicas", _planned(a=2))
        assert watcher.message().payload == b'{"a":2}'
    learner.stop()
    lost, found = _told(learner)
    assert lost == "what the pipeline learned cannot be read; what is known stays"
    assert found == "what the pipeline learned can be read again"
