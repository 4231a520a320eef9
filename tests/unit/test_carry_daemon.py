"""The daemon of a node: frames of strangers, its door for applications, its log, its settings and its metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.campus_rig import CAMPUS, NOON, Campus, S, a_participant, plan_of

from whimbrel.carry.application import DOOR, CampusRequestError, NoNodeError
from whimbrel.carry.application import Campus as Application
from whimbrel.carry.control.segments import segments_of
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.daemon.door import Door
from whimbrel.carry.daemon.journal import Journal
from whimbrel.carry.daemon.metrics import MetricsServer, prometheus_text
from whimbrel.carry.daemon.settings import NodeSettings, SettingsError, read_settings, signer_of
from whimbrel.carry.daemon.status import node_metrics, node_status, status_lines
from whimbrel.carry.hello import Entry, Hello
from whimbrel.carry.memory import read_memory
from whimbrel.carry.signatures import SampleSigner
from whimbrel.carry.wire import AnswerChunk, record_of
from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.log.reader import read
from whimbrel.model.facts import Fact, InterestChanged, Mode, PresenceChanged, Receipt
from whimbrel.model.notification import Notification
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport

head = st.binary(min_size=8, max_size=8).flatmap(
    lambda sender: st.integers(1, 9).map(lambda kind: bytes([2, kind]) + sender)
)
datagrams = st.lists(
    st.tuples(st.builds(bytes.__add__, head, st.binary(max_size=90)) | st.binary(max_size=200), st.booleans()),
    max_size=30,
)


@given(datagrams=datagrams)
def test_whatever_is_on_the_air_a_daemon_goes_on(datagrams: list[tuple[bytes, bool]]) -> None:
    """No traceback, no more than its bounds; and an honest neighbour is heard afterwards."""
    campus = Campus(a_participant(1, keys=[CAMPUS.public]), a_participant(2, subscriptions=["lunch"]))
    campus.air.meet(1, 2)
    transport = campus.daemons[2].transport
    assert isinstance(transport, MemoryTransport)
    for data, came_to_all in datagrams:
        transport.put(data, came_to_all=came_to_all)
    campus.daemons[1].participant.clock.set(NOON, own=NOON)
    campus.publish(1, "lunch", b"pasta")
    campus.run(6)
    assert campus.taken[2][-1:] == [b"pasta"]


def test_frames_beyond_a_rate_are_dropped_before_they_are_read() -> None:
    """Reading a long Hello costs most; here each content is broken, and 600 of 1,000 are never looked at."""
    campus = Campus(a_participant(1))
    daemon, transport = campus.daemons[1], campus.daemons[1].transport
    assert isinstance(transport, MemoryTransport)
    for _ in range(1_000):
        transport.put(bytes([2, 1]) + (66).to_bytes(8, "big") + b"\xff" * 300, came_to_all=True)
    daemon.read()
    assert (transport.counts["malformed"], daemon.participant.counts["too many frames"]) == (400, 600)


def a_daemon(folder: Path, *, subscriptions: tuple[str, ...] = ()) -> tuple[CampusDaemon, Journal]:
    """Return a node alone on its air, with a log and a memory in *folder*."""
    participant = a_participant(0x17, subscriptions=subscriptions)
    journal = Journal(folder / "log", participant.address)
    journal.open(at=NOON)
    transport = MemoryTransport(participant.address, MemoryAir())
    daemon = CampusDaemon(participant, transport, own=lambda: NOON, journal=journal, memory=folder / "memory")
    return daemon, journal


def with_application(folder: Path, daemon: CampusDaemon, work) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Run ``work(application)`` while the node of *daemon* has its door open."""

    async def run() -> None:
        door = Door(folder, daemon, lambda: node_status(daemon.participant, daemon.transport, own=NOON))
        await door.start()
        try:
            async with Application(folder) as application:
                await work(application)
        finally:
            door.close()

    asyncio.run(run())


def test_an_application_publishes_subscribes_and_gets_samples(tmp_path: Path) -> None:
    """The interface of figure 3a: topics, mine, publish, subscribe; what it published is on the disk."""
    daemon, _ = a_daemon(tmp_path)

    async def work(campus: Application) -> None:
        first = await campus.publish("lunch", "pasta")
        memory = read_memory(tmp_path / "memory")
        assert memory is not None
        assert [copy.sample.body for copy in memory.stored] == [b"pasta"]
        assert (first.topic, first.text, first.id) == ("lunch", "pasta", f"{NOON}.0000000000000017")
        assert first.is_unsynchronised
        async with campus.samples("lunch", "news") as samples:
            assert await anext(samples) == first
            assert await campus.mine() == ["lunch", "news"]
            daemon.participant.follow(plan_of("lunch", "news", first=daemon.participant.topics.id_of("lunch")), 9)
            await campus.publish("other", b"\xff")
        assert [each.copies for each in await campus.topics() if each.name == "lunch"] == [4]
        await campus.unsubscribe("news")
        assert await campus.mine() == ["lunch"]
        assert (await campus.status())["address"] == "0000000000000017"

    with_application(tmp_path, daemon, work)


def test_a_request_that_cannot_be_met_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """A sample that is too long, a topic without a name, no request at all; the connection goes on."""
    daemon, _ = a_daemon(tmp_path)

    async def work(campus: Application) -> None:
        with pytest.raises(CampusRequestError, match="bytes of a sample's body: found 1025, allowed is"):
            await campus.publish("lunch", b"x" * 1_025)
        with pytest.raises(CampusRequestError, match="name of a topic: found ''"):
            await campus.subscribe("")
        for act in (campus.subscribe("C++"), campus.publish("#", "pasta")):
            with pytest.raises(
                CampusRequestError, match=r"name of a topic: found .*, allowed is text without \+ and #"
            ):
                await act
        assert daemon.participant.carrier.stored == []
        with pytest.raises(CampusRequestError, match="topic: found 'lunch'"):
            await campus.unsubscribe("lunch")
        reader, writer = await asyncio.open_unix_connection(tmp_path / DOOR)
        for line in (b"}{\n", b"[1]\n", b'{"do": "fly"}\n', b'{"do": "publish", "topic": 7, "body": ""}\n'):
            writer.write(line)
            answer = json.loads(await reader.readline())
            assert answer["ok"] is False
            assert answer["reason"]
        writer.close()
        assert await campus.mine() == []

    with_application(tmp_path, daemon, work)


def test_without_a_node_an_application_says_which_folder(tmp_path: Path) -> None:
    """The first thing that a user forgets."""

    async def ask() -> None:
        async with Application(tmp_path / "nowhere"):
            pass

    with pytest.raises(NoNodeError, match=r"no campus node answers in .*nowhere.*--data names"):
        asyncio.run(ask())


def test_the_log_has_what_was_published_taken_given_and_received(tmp_path: Path) -> None:
    """A campus is read as brokers are: publications, receipts, interests, presence."""
    air = MemoryAir()
    air.meet(1, 2)
    daemons, journals = {}, {}
    for address, topics in ((1, ()), (2, ("lunch",))):
        journals[address] = Journal(tmp_path, address)
        journals[address].open(at=NOON)
        transport = MemoryTransport(address, air)
        daemons[address] = CampusDaemon(a_participant(address), transport, own=lambda: NOON, journal=journals[address])
        for each in topics:
            asyncio.run(daemons[address].subscribe(each))
    asyncio.run(daemons[1].publish("lunch", b"pasta"))
    for _ in range(3):
        for daemon in daemons.values():
            daemon.turn()
            for other in daemons.values():
                other.read()
    for journal in journals.values():
        journal.close(at=NOON)

    def facts(address: int) -> list[Fact]:
        return list(read(tmp_path, f"campus-{address:016x}"))

    *_, published, gave, _ = facts(1)
    assert isinstance(published, Notification)
    assert (published.subject, published.body, published.publisher) == ("campus/lunch", b"pasta", f"{1:016x}")
    assert published.attributes["sample"] == f"{NOON}.{1:016x}"
    assert isinstance(gave, Receipt)
    assert (gave.device, gave.notification) == (f"{2:016x}", published.id)
    here, joined, wants, taken, got, left = facts(2)
    assert isinstance(here, PresenceChanged)
    assert isinstance(joined, PresenceChanged)
    assert (joined.session, joined.receipt) == (f"$mqtt/{2:016x}", Mode.TAKE)
    assert isinstance(left, PresenceChanged)
    assert isinstance(wants, InterestChanged)
    assert wants.subscription.subject_filter == "campus/lunch"
    assert isinstance(taken, Notification)
    assert taken.attributes["giver"] == f"{1:016x}"
    assert isinstance(got, Receipt)
    assert (got.device, got.notification) == (f"{2:016x}", taken.id)


def test_the_log_of_a_node_is_bounded(tmp_path: Path) -> None:
    """A neighbour that gives and gives fills no disk."""
    journal = Journal(tmp_path, 1, max_bytes=1 << 20)
    journal.open(at=NOON)
    participant = a_participant(1)
    for number in range(6_000):
        [stored] = participant.publish(f"t{number % 8}", b"x" * 1_000, own=NOON + number)[-1:]
        journal.note_sample(stored.sample, "t", giver=2, at=NOON + number)  # type: ignore[union-attr] # it is stored
        if number % 100 == 0:
            journal.sync()
    journal.close(at=NOON + S)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 1 << 19 < size < 6 << 20
    assert journal.counts == {}


def test_the_status_names_a_neighbour_whose_clock_is_wrong(tmp_path: Path) -> None:
    """With the difference of the clocks, as text and as JSON."""
    campus = Campus(a_participant(1, subscriptions=["lunch"]))
    campus.add(a_participant(2), skew_us=2 * 24 * 3_600 * S)
    campus.air.meet(1, 2)
    campus.publish(2, "lunch", b"x")
    campus.run(3)
    daemon = campus.daemons[1]
    status = node_status(daemon.participant, daemon.transport, own=campus.now)
    assert json.loads(json.dumps(status)) == status
    lines = status_lines(status)
    assert lines[:4] == [
        "node 0000000000000001: 0000000000000002 in reach",
        "clock: own; samples may be 86400 s in the future",
        "control data: none",
        "subscriptions: lunch",
    ]
    assert lines[-1] == "refused: samples of 0000000000000002 are 172797.0 s ahead of this clock"
    figures = node_metrics(daemon.participant, daemon.transport, own=campus.now)
    assert figures["from_the_future_total"] == 3
    assert "whimbrel_campus_from_the_future_total 3\n" in prometheus_text(figures)
    assert not (tmp_path / "log").exists()


def test_status_and_metrics_count_control_data_that_was_ignored() -> None:
    """An operator sees that somebody forges or replays control data; before that, the counters are 0."""
    [old], [new], [forged] = (
        segments_of(plan_of("lunch", version=NOON + at), signer)
        for at, signer in ((1, CAMPUS), (2, CAMPUS), (3, SampleSigner(b"s" * 32)))
    )
    campus = Campus(a_participant(1, keys=[CAMPUS.public]))
    node, transport = campus.daemons[1].participant, campus.daemons[1].transport
    before = node_metrics(node, transport, own=NOON)
    assert [before[f"control_{each}_total"] for each in ("forged", "malformed", "older")] == [0, 0, 0]
    for each in (new, old, old, forged):
        node.receive(66, Hello((Entry(0, each.id, has_copies=False),)), own=NOON)
        record = record_of(each)
        chunk = AnswerChunk(topic=0, id=each.id, copies=0, record_bytes=len(record), offset=0, chunk=record)
        node.receive(66, chunk, own=NOON)
    status = node_status(node, transport, own=NOON)
    assert status["control_version"] == NOON + 2
    assert "control data that was ignored: 1 forged, 2 older" in status_lines(status)
    after = node_metrics(node, transport, own=NOON)
    assert [after[f"control_{each}_total"] for each in ("forged", "malformed", "older")] == [1, 0, 2]


def test_publish_says_how_many_copies_there_will_be_and_why(tmp_path: Path) -> None:
    """L of the plan with its subscribers, else the node's setting; the sample in memory has as many."""
    daemon, _ = a_daemon(tmp_path)

    async def work(campus: Application) -> None:
        unplanned = await campus.publish("lunch", "pasta")
        assert (unplanned.copies, unplanned.subscribers) == (8, None)
        daemon.participant.follow(plan_of("lunch", first=daemon.participant.topics.id_of("lunch")), 9)
        planned = await campus.publish("lunch", "soup")
        assert (planned.copies, planned.subscribers) == (4, 3)
        stored = {copy.sample.body: copy.copies for copy in daemon.participant.carrier.stored}
        assert stored == {b"pasta": 8, b"soup": 4}

    with_application(tmp_path, daemon, work)


def test_metrics_are_served_over_http() -> None:
    """A request at a time, bounded; anything else is refused."""

    async def ask(port: int, head: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.read()
        writer.close()
        return answer

    async def run() -> None:
        server = MetricsServer(lambda: {"neighbours": 3})
        port = await server.start("127.0.0.1", 0)
        good = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert good.startswith(b"HTTP/1.1 200 OK")
        assert good.endswith(b"# TYPE whimbrel_campus_neighbours gauge\nwhimbrel_campus_neighbours 3\n")
        assert b" 200 " in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b" 404 " in await ask(port, b"GET / HTTP/1.1\r\n\r\n")
        assert b" 405 " in await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")
        assert await ask(port, b"x" * 9_000) == b""
        with pytest.raises(InvalidValueError, match=rf"port of /metrics: found {port}, allowed is one that is free"):
            await MetricsServer(dict).start("127.0.0.1", port)
        server.close()

    asyncio.run(run())


def test_settings_come_from_options_then_the_file_then_defaults(tmp_path: Path) -> None:
    """As every daemon of ours reads them."""
    file = tmp_path / "node.toml"
    file.write_text('places = 30\nhello_s = 2\ntopics = "words"\nkey = ["' + "ab" * 32 + '"]\n', encoding="utf-8")
    found = read_settings(NodeSettings, file, {"places": 5, "copies": None})
    assert (found.places, found.hello_s, found.topics, found.copies) == (5, 2.0, "words", 8)
    assert found.key == ("ab" * 32,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("colour = 1", "node.toml: colour: found an unknown setting, allowed is address, copies"),
        ('places = "many"', "node.toml: places: found 'many', allowed is a whole number"),
        ("places = true", "node.toml: places: found True, allowed is a whole number"),
        ('key = "ab"', "node.toml: key: found 'ab', allowed is a list of texts"),
        ("places =", "node.toml: the file: found Invalid value"),
        ("places = 0", "places: found 0, allowed is an integer from 1 to 65535"),
        ('profile = "wifi"', "profile: found 'wifi', allowed is link or 802.15.4"),
        ('key = ["ab"]', "public key: found 2 characters, allowed is 64 hexadecimal digits"),
        ('address = "xyz"', "address: found 'xyz', allowed is at most 16 hexadecimal digits"),
    ],
)
def test_a_bad_setting_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """What was found, what is allowed, and where."""
    file = tmp_path / "node.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises((SettingsError, InvalidValueError)) as raised:
        read_settings(NodeSettings, file, {})
    assert sentence in str(raised.value)


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A secret that everybody has signs nothing."""
    file = tmp_path / "key"
    file.write_text("0c" * 32, encoding="ascii")
    file.chmod(0o640)
    with pytest.raises(InvalidValueError, match=r"key: found mode 0640, allowed is 0600"):
        signer_of(file)
    file.chmod(0o600)
    assert signer_of(file).public
    file.write_text("short", encoding="ascii")
    with pytest.raises(WhimbrelError, match="found 5 characters, allowed is 64 hexadecimal digits"):
        signer_of(file)


def test_a_clock_that_was_set_is_written_down(tmp_path: Path) -> None:
    """A way-server that is restarted where no broker is tells the time again."""
    daemon, _ = a_daemon(tmp_path)
    asyncio.run(daemon.save())
    daemon.set_clock(NOON + S)
    asyncio.run(daemon.save())
    memory = read_memory(tmp_path / "memory")
    assert memory is not None
    assert (memory.clock_set_at, memory.offset_us) == (NOON + S, S)
