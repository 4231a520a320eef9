"""History on subscribing: what the log has, in order, then live, each notification once and with its number."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import Config
from whimbrel.broker.shell.disk import history_reader
from whimbrel.broker.shell.disk.history_reader import read_chunk
from whimbrel.log import layout
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import Disconnect, Puback, Publish, Suback, SubscriptionRequest, Unsuback, Unsubscribe
from whimbrel.mqtt.properties import Properties, Property


def read_one(rig: Rig) -> bool:
    """Read one piece of the log for whoever asks; tell whether anybody did."""
    question = rig.broker.history.next_question(rig.now)
    if question is None:
        return False
    rig.broker.history.on_chunk(question, read_chunk(rig.folder, NODE, question))
    rig.work()
    return True


def caught_up(rig: Rig) -> None:
    """Let everybody catch up with the log."""
    rig.settle()
    while len(rig.broker.history):
        if not read_one(rig):
            rig.sync()
            rig.tick()
            rig.settle()
    rig.settle()


def heard(peer: Peer) -> list[tuple[int, bytes]]:
    """Take what a client got: the numbers that the copies carry, and the payloads."""
    found = []
    for packet in peer.take():
        if isinstance(packet, Publish):
            if packet.qos:
                peer.send(Puback(packet.packet_id))
            node, _, seq = dict(packet.properties.user)["whimbrel.id"].partition(":")
            assert node == NODE
            found.append((int(seq), packet.payload))
    return found


def logged(rig: Rig, *subjects: str) -> list[tuple[int, bytes]]:
    """Return the publications to some topics in the log."""
    rig.sync()
    facts = read(rig.folder, NODE)
    return [(each.seq, each.body) for each in facts if isinstance(each, Notification) and each.subject in subjects]


def test_the_log_comes_first_and_then_what_is_live(tmp_path: Path) -> None:
    """A doctor who opens the page sees the last hour, and then what happens."""
    rig = Rig(tmp_path)
    nurse = rig.client("nurse")
    for number in range(500):
        nurse.send(publishing("ward/3" if number % 2 else "ward/4", b"%d" % number))
    doctor = rig.client("doctor")
    doctor.send(subscribing("ward/3", since="1h"))
    caught_up(rig)
    nurse.send(publishing("ward/3", b"live"), publishing("ward/4", b"live"))
    rig.settle()
    assert heard(doctor) == logged(rig, "ward/3")


@pytest.mark.parametrize("seed", range(12))
def test_at_any_speed_each_comes_once_and_in_order(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publications of QoS 0 and 1 go on while the log is read in small pieces; connections break on the way."""
    rng = random.Random(seed)
    monkeypatch.setattr(history_reader, "_MAX_RECORDS", rng.randrange(1, 40))
    rig = Rig(tmp_path)
    rig.subscriber("other", "ward/#", qos=1, expiry_s=100)
    nurse, number = rig.client("nurse"), 0
    got: list[tuple[int, bytes]] = []
    doctor: Peer | None = None
    for _ in range(400):
        kind = rng.random()
        if kind < 0.6:
            number += 1
            qos = int(rng.random() < 0.4)
            nurse.send(publishing(rng.choice(("ward/3", "ward/4")), b"%d" % number, qos, number if qos else 0))
        elif kind < 0.75:
            rig.sync()
        elif kind < 0.9:
            rig.work()
            read_one(rig)
        elif kind < 0.93:
            rig.tick(0.1)
        elif kind < 0.95 and doctor is not None:
            doctor.drop()
            doctor = None
        elif doctor is None:
            doctor = rig.client("doctor")
            since = f"{NODE}:{got[-1][0]}" if got else "7d"
            doctor.send(subscribing("ward/3", qos=rng.randrange(2), since=since))
        if doctor is not None:
            got += heard(doctor)
    if doctor is None:
        doctor = rig.client("doctor")
        doctor.send(subscribing("ward/3", since=f"{NODE}:{got[-1][0] if got else 0}"))
    caught_up(rig)
    nurse.send(publishing("ward/3", b"the last"))
    rig.settle()
    got += heard(doctor)
    assert got == logged(rig, "ward/3")
    assert len(got) > 60


def test_costly_patterns_take_turns_where_history_becomes_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was published while the last piece was read is matched on the event loop, as little in a turn as ever."""
    monkeypatch.setattr("whimbrel.broker.state.routes._PIECE_S", 0.0)  # one such search a turn
    rig = Rig(tmp_path)
    rig.subscriber("other", "ward/#", qos=1, expiry_s=100)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    nurse.send(publishing("ward/3", b'{"t": "first"}', 1, 1))
    doctor.send(subscribing("ward/3", since="1h", filter="regex(t, '(a|b)*a(a|b){10}c') || t == 'last'"))
    rig.work()
    assert read_one(rig)
    for number in range(2, 22):
        nurse.send(publishing("ward/3", b'{"t": "%s%d"}' % (b"ab" * 200, number), 1, number))
    nurse.send(publishing("ward/3", b'{"t": "last"}', 1, 22))
    rig.sync()
    question = rig.broker.history.next_question(rig.now)
    assert question is not None
    rig.broker.history.on_chunk(question, read_chunk(rig.folder, NODE, question))
    turns = rig.work()
    assert [payload for _, payload in heard(doctor)] == [b'{"t": "last"}']
    assert turns >= 20


def test_a_busy_broker_is_caught_up_with_though_a_tap_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is read from the log once more."""
    monkeypatch.setattr("whimbrel.broker.waiting.commit_queue._MAX_TAPPED", 3)
    rig = Rig(tmp_path)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    doctor.send(subscribing("a", since="1d"))
    rig.work()
    for number in range(10):
        nurse.send(*[publishing("a", b"%d" % number)] * 7)
        rig.work()
        read_one(rig)
    caught_up(rig)
    assert heard(doctor) == logged(rig, "a")


def test_what_a_subscription_asks_for_decides(tmp_path: Path) -> None:
    """Content, ttl, expiry, no local and the rights of now, as for what is live."""
    rights = Rights(
        [Rule(topics=("secret",), actions=frozenset({Action.SUBSCRIBE}), is_allowing=False, client="doctor")]
    )
    rig = Rig(tmp_path, authorizer=Authorizer(rights))
    rig.client("nurse").send(publishing("old", b'{"t": 39}'))
    rig.tick(100)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    short = Properties({Property.MESSAGE_EXPIRY_INTERVAL: 5})
    nurse.send(publishing("a", b'{"t": 39}'), publishing("a", b'{"t": 36}'), publishing("secret", b'{"t": 40}'))
    nurse.send(Publish("a", b'{"t": 41}', properties=short))
    rig.tick(10)
    doctor.send(publishing("a", b'{"t": 42}'))
    wanted = SubscriptionRequest("#", 0, no_local=True)
    doctor.send(subscribing(wanted, since="1h", filter="t > 38", ttl="60"))
    caught_up(rig)
    assert [payload for _, payload in heard(doctor)] == [b'{"t": 39}']
    doctor.send(subscribing(wanted, since="1h", filter="t > 38"))
    caught_up(rig)
    assert [payload for _, payload in heard(doctor)] == [b'{"t": 39}', b'{"t": 39}']


def reasons(rig: Rig, peer: Peer, wanted: str, since: str, **options: str) -> tuple[int, str]:
    """Subscribe; return the code and the reason of the answer."""
    peer.send(subscribing(wanted, since=since, **options))  # type: ignore[arg-type]  # user properties
    rig.settle()
    (answer,) = peer.taken(Suback)
    return answer.codes[0], answer.properties.text(Property.REASON_STRING) or ""


def test_what_cannot_have_a_history_is_refused_with_a_reason(tmp_path: Path) -> None:
    """Shares and named sessions have many readers; other nodes have other numbers."""
    rig = Rig(tmp_path)
    peer = rig.client("c")
    for text in ("", "-1", "1w", "yesterday", "node-1:x", "a b:1", "9" * 30):
        code, reason = reasons(rig, peer, "a", since=text)
        assert code >= 0x80
        assert "since" in reason
    assert "shares" in reasons(rig, peer, "$share/g/a", since="1h")[1]
    assert "'other'" in reasons(rig, peer, "a", since="other:7")[1]
    peer.ask("create", session="s")
    peer.ask("join", session="s")
    assert "named sessions" in reasons(rig, peer, "a", since="1h", session="s")[1]
    assert reasons(rig, peer, "a", since="1h")[0] == 0
    off = Rig(tmp_path / "off", replace(Config(), log=replace(Config().log, history_s=0)))
    assert "no history" in reasons(off, off.client("c"), "a", since="1h")[1]
    few = Rig(tmp_path / "few", replace(Config(), log=replace(Config().log, history_count=1)))
    peer = few.client("c")
    peer.send(subscribing("a", "b", since="1h"))
    few.broker.history._most = 1
    few.settle()
    (answer,) = peer.taken(Suback)
    assert sorted(answer.codes) == [0, 0x97]


def test_a_since_that_is_older_than_the_log_says_so(tmp_path: Path) -> None:
    """From when on it is, so that a client knows what it does not have."""
    rig = Rig(tmp_path)
    rig.log._segment_bytes = 500
    nurse = rig.client("nurse")
    for number in range(60):
        nurse.send(publishing("a", b"%d" % number))
        rig.sync()
        rig.tick(1)
    found = layout.segments(rig.folder, NODE)
    for _, path in found[:2]:
        path.unlink()
    rig.broker.history.begins(found[2][0], rig.now - 30_000_000)
    doctor = rig.client("doctor")
    for since in (f"{NODE}:3", "1h"):
        code, reason = reasons(rig, doctor, "a", since=since)
        assert code == 0
        assert reason.startswith(f"what is older was cut: the log begins with {NODE}:{found[2][0]}, after 20")
        caught_up(rig)
        assert heard(doctor) == logged(rig, "a")
    assert reasons(rig, doctor, "a", since="1")[1] == ""


def test_unsubscribing_on_the_way_ends_it(tmp_path: Path) -> None:
    """And subscribing anew without since is live alone."""
    rig = Rig(tmp_path)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    nurse.send(publishing("a", b"before"))
    doctor.send(subscribing("a", since="1h"))
    doctor.send(Unsubscribe(9, ("a",)))
    caught_up(rig)
    nurse.send(publishing("a", b"unheard"))
    (done,) = [each for each in doctor.take() if isinstance(each, Unsuback | Publish)]
    assert isinstance(done, Unsuback)
    assert done.codes == (0,)
    doctor.send(subscribing("a", since="1h"))
    doctor.send(subscribing("a", packet_id=2))
    caught_up(rig)
    nurse.send(publishing("a", b"live"))
    assert [payload for _, payload in heard(doctor)] == [b"live"]


@pytest.mark.parametrize("end", ["lost", "goodbye", "taken over"])
def test_a_session_that_goes_on_has_its_subscription(tmp_path: Path, end: str) -> None:
    """Though its connection ended before the log was sent: SUBACK said so."""
    rig = Rig(tmp_path)
    nurse, doctor = rig.client("nurse"), rig.client("doctor", expiry_s=1_000)
    nurse.send(publishing("a", b"before"))
    doctor.send(subscribing("a", qos=1, since="1h"))
    rig.sync()
    if end == "goodbye":
        doctor.send(Disconnect())
    elif end == "taken over":
        rig.client("doctor", clean=False, expiry_s=1_000).drop()
    doctor.drop()
    rig.settle()
    nurse.send(publishing("a", b"held", 1, 1))
    rig.settle()
    doctor = rig.client("doctor", clean=False, expiry_s=1_000)
    assert doctor.payloads() == [b"held"]
    doctor.send(subscribing("a", qos=1, packet_id=3, since="1h"))
    caught_up(rig)
    assert [payload for _, payload in heard(doctor)] == [b"before", b"held"]


def test_a_client_that_reads_slowly_is_sent_no_more_than_it_takes(tmp_path: Path) -> None:
    """The log waits for it, and not in memory."""
    rig = Rig(tmp_path)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    for number in range(300):
        nurse.send(publishing("a", b"%d" % number + bytes(1_000)))
    doctor.send(subscribing("a", since="1h"))
    rig.settle()
    rig.broker.set_choked(doctor.link, rig.now, is_choked=True)
    for _ in range(20):
        read_one(rig)
        rig.tick()
    assert heard(doctor) == []
    rig.broker.set_choked(doctor.link, rig.now, is_choked=False)
    caught_up(rig)
    assert heard(doctor) == logged(rig, "a")


def test_a_log_that_is_cut_on_the_way_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap in silence would be worse; the client asks again from the last that it has."""
    monkeypatch.setattr(history_reader, "_MAX_RECORDS", 5)
    rig = Rig(tmp_path)
    rig.log._segment_bytes = 500
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    for number in range(60):
        nurse.send(publishing("a", b"%d" % number))
        rig.sync()
    doctor.send(subscribing("a", since="1h"))
    rig.work()
    read_one(rig)
    for _, path in layout.segments(rig.folder, NODE)[:4]:
        path.unlink()
    question = rig.broker.history.next_question(rig.now)
    assert question is not None
    chunk = history_reader.HistoryReader(rig.folder, NODE).read(question)
    rig.broker.history.on_chunk(question, chunk)
    rig.flush()
    assert doctor.is_closed
    assert len(rig.broker.history) == 0


def test_a_policy_that_is_chosen_on_the_way_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on nothing reaches the device that the policy has not decided about."""
    monkeypatch.setattr(history_reader, "_MAX_RECORDS", 5)
    rig = Rig(tmp_path)
    nurse, doctor = rig.client("nurse"), rig.client("doctor")
    doctor.send(publishing("$whimbrel/policy/p", b"return NULL;", 1, 1))
    for number in range(30):
        nurse.send(publishing("ward/3", b"%d" % number))
    rig.settle()
    doctor.send(subscribing("ward/3", since="1h"))
    rig.work()
    assert read_one(rig)
    got = heard(doctor)
    assert 0 < len(got) < 30
    doctor.send(publishing("$whimbrel/policy", b"p", 1, 2))
    rig.settle()
    read_one(rig)
    rig.work()
    sent = doctor.take()
    assert not [packet for packet in sent if isinstance(packet, Publish)]
    (end,) = (packet for packet in sent if isinstance(packet, Disconnect))
    assert "a policy was chosen" in (end.properties.text(Property.REASON_STRING) or "")
    assert len(rig.broker.history) == 0
