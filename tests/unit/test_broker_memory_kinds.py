"""Every kind of memory that clients can make grow: what is counted for it is at least what Python allocates."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing

from whimbrel.broker.settings.config import AccessSettings, Config, LimitSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V311, Puback, Publish, Pubrec, Pubrel, Will
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.node.memory import LINK_BYTES, PLACE_BYTES

Kind: TypeAlias = Callable[[Rig, int], object]
"""Make a number of things of one kind; what is returned stays alive while memory is looked at."""

COUNT = 40
MOST = 1.25
"""Bytes allocated for one that is counted: the counts are estimates, for a mix of sizes."""
_SLACK = 12_000
"""Tables that grow in steps, and what is allocated once."""


def _away(rig: Rig, name: str, **options: object) -> Peer:
    peer = rig.client(name, expiry_s=900, **options)  # type: ignore[arg-type]  # as ``client`` has them
    peer.drop()
    return peer


def reports(rig: Rig, count: int) -> object:
    """Devices that report nine kilobytes of members each: 1,500 of them took 150 MB under a limit of 48 MiB."""
    for number in range(count):
        peer = rig.client(f"device-{number}", expiry_s=900)
        members = {f"m{at}": f"{number:03}" + "x" * 67 for at in range(100)}
        peer.send(publishing("$whimbrel/report", json.dumps({"battery": 0.5, **members}).encode()))
        peer.drop()
    rig.settle()
    return None


def moves(rig: Rig, count: int) -> object:
    """Devices that say where they are, and nothing else."""
    for number in range(count):
        peer = rig.client(f"device-{number}", expiry_s=900)
        peer.send(publishing("$whimbrel/report", b'{"place":"47.%d,8.5"}' % number))
        peer.drop()
    rig.settle()
    return None


def absent_clients(rig: Rig, count: int) -> object:
    """Sessions of clients that are away."""
    return [_away(rig, f"client-{number}") for number in range(count)]


def connected_clients(rig: Rig, count: int) -> object:
    """Clients with a connection."""
    return [rig.client(f"client-{number}") for number in range(count)]


def connections(rig: Rig, count: int) -> object:
    """Open connections that have sent nothing yet."""
    return [Peer(rig, 5) for _ in range(count)]


def _subscriptions(rig: Rig, topics: list[str], *, near: str | None = None) -> object:
    peer = rig.client("subscriber", expiry_s=900)
    for topic in topics:
        peer.send(subscribing(topic, qos=1) if near is None else subscribing(topic, qos=1, near=near))
        rig.settle()
    peer.take()
    return peer


def subscriptions(rig: Rig, count: int) -> object:
    """Subscriptions by topic."""
    return _subscriptions(rig, [f"ward/{number}/+" for number in range(5 * count)])


def long_topic_filters(rig: Rig, count: int) -> object:
    """Topic filters of three kilobytes."""
    return _subscriptions(rig, [f"ward/{number}/{'y' * 3_000}" for number in range(count)])


def deep_topic_filters(rig: Rig, count: int) -> object:
    """Topic filters of many levels that no other filter shares."""
    return _subscriptions(rig, ["/".join([f"a{number}"] * 50) for number in range(count)])


def long_filters(rig: Rig, count: int) -> object:
    """Content filters of a hundred comparisons."""
    peer = rig.client("subscriber", expiry_s=900)
    for number in range(count // 2):
        text = " || ".join(f"a{at} == {number + at}" for at in range(100))
        peer.send(subscribing(f"ward/{number}", qos=1, filter=text))
        rig.settle()
    return peer


def polygons(rig: Rig, count: int) -> object:
    """Subscriptions near a polygon of sixty corners."""
    near = ";".join(f"{47 + 0.001 * at},{8 + 0.0001 * at * at}" for at in range(60))
    return _subscriptions(rig, [f"ward/{number}" for number in range(count)], near=near)


def subscription_keys(rig: Rig, count: int) -> object:
    """Subscriptions with keys of their own."""
    peer = rig.client("subscriber", expiry_s=900)
    for number in range(count):
        keys = tuple(("key", f"consumer:private:{number}-{at}") for at in range(20))
        peer.send(subscribing(f"ward/{number}", qos=1)._replace(properties=Properties(user=keys)))
    rig.settle()
    return peer


def connection_keys(rig: Rig, count: int) -> object:
    """Keys that connections carry."""
    peers = connected_clients(rig, count)
    assert isinstance(peers, list)
    for number, peer in enumerate(peers):
        assert peer.ask("keys", add=[f"consumer:private:{number}-{at}" for at in range(100)])["ok"]
    return peers


def access_lists(rig: Rig, count: int) -> object:
    """Named sessions with eighty users each."""
    peer = rig.client("maker")
    users = {f"user-{at}": ["join"] for at in range(80)}
    for number in range(count):
        access = {"owner": "me", "groups": {}, "users": users}
        assert peer.ask("create", session=f"s{count}-{number}", list=access)["ok"]
    return peer


def memberships(rig: Rig, count: int) -> object:
    """Devices that are members of sessions and away."""
    rig.client("maker").ask("create", session="ann")
    return [_away(rig, f"member-{number}", user=(("session", "ann"),)) for number in range(count)]


def wills(rig: Rig, count: int) -> object:
    """Wills with a payload."""
    return [_away(rig, f"client-{number}", will=Will("w", bytes(3_000))) for number in range(count)]


def retained_messages(rig: Rig, count: int) -> object:
    """Small retained messages."""
    peer = rig.client("publisher")
    peer.send(*(publishing(f"r/{number}", b"x", retain=True) for number in range(5 * count)))
    return peer


def deep_retained_messages(rig: Rig, count: int) -> object:
    """Retained messages under topics of fifty levels."""
    peer = rig.client("publisher")
    peer.send(*(publishing("/".join([f"a{number}"] * 50), b"x", retain=True) for number in range(count)))
    return peer


def retained_properties(rig: Rig, count: int) -> object:
    """Retained messages with fifty user properties."""
    peer = rig.client("publisher")
    for number in range(count):
        properties = Properties(user=tuple((f"k{at}", f"{number}" + "v" * 20) for at in range(50)))
        peer.send(publishing(f"r/{number}", b"x", retain=True)._replace(properties=properties))
    return peer


def held_messages(rig: Rig, count: int) -> object:
    """Small notifications that twenty absent sessions wait for."""
    return _held(rig, count, [rig.subscriber(f"sleeper-{at}", "t", qos=1, expiry_s=900) for at in range(20)])


def _held(rig: Rig, count: int, subscribers: list[Peer]) -> object:
    for peer in subscribers:
        peer.drop()
    publisher = rig.client("publisher")
    for number in range(count):
        publisher.send(publishing("t", b"x", 1, number % 60 + 1))
        rig.settle()
    return publisher


def in_flight(rig: Rig, count: int) -> object:
    """Notifications that a client was sent and does not answer."""
    peer = rig.client("subscriber", expiry_s=900)
    peer.send(subscribing("t", qos=2))
    rig.settle()
    return peer, _held(rig, 5 * count, [])


def unconfirmed_copies(rig: Rig, count: int) -> object:
    """Send a client copies of QoS 1 that it never acknowledges, and that no stored session has."""
    peer, publisher = rig.client("subscriber"), rig.client("publisher")
    peer.send(subscribing("t", qos=1))
    rig.settle()
    for number in range(count):
        publisher.send(publishing("t", f"{number}".encode() + bytes(10_000), 1, number % 60 + 1))
        rig.settle()
        peer.take()
    publisher.take()
    return peer, publisher


def unreleased_copies(rig: Rig, count: int) -> object:
    """Packet identifiers of QoS 2 that a subscriber never completes."""
    peer, publisher = rig.client("subscriber", expiry_s=900), rig.client("publisher")
    peer.send(subscribing("t", qos=2))
    rig.settle()
    for number in range(5 * count):
        publisher.send(publishing("t", b"x", 2, number % 30 + 1))
        rig.settle()
        publisher.send(Pubrel(number % 30 + 1))
        peer.send(*(Pubrec(copy.packet_id) for copy in peer.taken(Publish)))
        rig.settle()
        publisher.take()
    return peer, publisher


def unreleased_publications(rig: Rig, count: int) -> object:
    """Packet identifiers of QoS 2 that publishers never release."""
    peers = connected_clients(rig, count)
    assert isinstance(peers, list)
    for peer in peers:
        peer.send(*(publishing("t", b"x", 2, at + 1) for at in range(30)))
        rig.settle()
        peer.take()
    return peers


def unreleased_refusals(rig: Rig, count: int) -> object:
    """Packet identifiers of QoS 2 publications that are refused, which 3.1.1 has no words for, and never released."""
    peers = [rig.client(f"publisher-{at}", version=V311) for at in range(count)]
    for peer in peers:
        for first in range(1, 900, 30):
            peer.send(*(publishing("$SYS/x", b"x", 2, first + at) for at in range(30)))
        rig.settle()
        peer.take()
    return peers


def waiting_retained_messages(rig: Rig, count: int) -> object:
    """Retained messages that wait for subscribers that answer none."""
    publisher = rig.client("publisher")
    for number in range(40):
        publisher.send(publishing(f"r/{number}", b"x", 1, 1, retain=True))
        rig.settle()
    peers = [rig.client(f"subscriber-{at}", options={Property.RECEIVE_MAXIMUM: 1}) for at in range(count)]
    for peer in peers:
        peer.send(subscribing("r/#", qos=1))
        rig.settle()
        peer.take()
    return peers


def policies(rig: Rig, count: int) -> object:
    """Policies of one kilobyte."""
    peer = rig.client("publisher")
    for number in range(count):
        text = f"if (m.a > {number}) {{ return m; }} " + f"if (m.b == '{'x' * 100}') {{ return m; }} " * 8
        peer.send(publishing(f"$whimbrel/policy/p{number}", text.encode(), 1, 1))
        rig.settle()
        (answer,) = peer.taken(Puback)
        assert answer.code == 0
    return peer


def topic_aliases(rig: Rig, count: int) -> object:
    """Topics that clients have given aliases."""
    peers = connected_clients(rig, count)
    assert isinstance(peers, list)
    for number, peer in enumerate(peers):
        for at in range(12):
            properties = Properties({Property.TOPIC_ALIAS: at + 1})
            peer.send(publishing(f"{number}/{at}/{'z' * 3_500}")._replace(properties=properties))
    rig.state.routes.forget()  # the caches by topic have a bound of their own
    peers[0].send(publishing("t"))
    return peers


def visited_areas(rig: Rig, count: int) -> object:
    """Retained messages with an area that have come to sessions."""
    publisher = rig.client("publisher")
    for number in range(16):
        ice = publishing(f"r/{number}", b"x", 1, 1, retain=True)
        publisher.send(ice._replace(properties=Properties(user=(("place", "47,8"), ("radius", "500")))))
        rig.settle()
    for number in range(count):
        peer = rig.subscriber(f"car-{number}", "r/#", expiry_s=900)
        peer.send(publishing("$whimbrel/report", b'{"place":"47,8"}'))
        rig.settle()
        peer.drop()
    return publisher


KINDS: list[Kind] = [
    *(reports, moves, absent_clients, connected_clients, connections, subscriptions, long_topic_filters),
    *(deep_topic_filters, long_filters, polygons, subscription_keys, connection_keys, access_lists, memberships, wills),
    *(retained_messages, deep_retained_messages, retained_properties, held_messages, in_flight, unconfirmed_copies),
    *(unreleased_copies, unreleased_publications, unreleased_refusals, waiting_retained_messages, policies),
    *(topic_aliases, visited_areas),
]


def _rig(folder: Path, memory_bytes: int = 0) -> Rig:
    limits = LimitSettings(memory_bytes=memory_bytes, session_work_per_second=0)
    return Rig(folder, Config(access=AccessSettings(password_hash_mib=1), limits=limits))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_grows_is_counted(tmp_path: Path, kind: Kind) -> None:
    """Else a client fills the process while ``limits.memory_bytes`` says that there is room."""
    kind(_rig(tmp_path / "warm-up"), 2)
    rig = _rig(tmp_path / "broker")
    rig.state.view.changes()
    tracemalloc.start()
    before, counted_before = tracemalloc.get_traced_memory()[0], rig.broker.memory.used
    kept = kind(rig, COUNT)
    rig.sync()
    rig.broker.memory.set_outgoing(0)
    rig.state.view.changes()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = rig.broker.memory.used - counted_before
    assert kept is not rig
    assert grown <= MOST * counted + _SLACK, f"{grown} bytes were allocated, and {counted} counted"


_ENDING: dict[Kind, int] = {
    absent_clients: 0,
    connections: 0,
    connection_keys: 0,
    long_filters: 0,
    in_flight: 0,
    unconfirmed_copies: 0,
    unreleased_copies: 0,
    unreleased_publications: 0,
    unreleased_refusals: 0,
    topic_aliases: 0,
    reports: LINK_BYTES,
    moves: PLACE_BYTES,
}
"""What stays of one when its session has expired: how good a link was, and a place for a week."""


@pytest.mark.parametrize("kind", _ENDING, ids=lambda kind: kind.__name__)
def test_what_ends_with_a_session_is_given_back(tmp_path: Path, kind: Kind) -> None:
    """Each count is taken back where its thing goes: with the connection, or when the session expires."""
    rig = _rig(tmp_path)
    kept = kind(rig, 3)
    assert rig.broker.memory.used > 3 * _ENDING[kind]
    for peer in list(rig.peers):
        peer.drop()
    rig.tick(1_000)
    rig.settle()
    assert kept is not rig
    assert rig.broker.memory.used == 3 * _ENDING[kind]


def test_a_restart_counts_the_same(tmp_path: Path) -> None:
    """What is restored from the view takes as much as it did."""
    rig = _rig(tmp_path)
    for kind in (reports, moves, subscriptions, access_lists, memberships, policies, unreleased_copies, visited_areas):
        kind(rig, 2)
    for peer in list(rig.peers):
        peer.drop()
    rig.settle()
    rows, _ = rig.state.view.changes()
    restored = BrokerState.restore(NODE, rows.items())
    assert restored.memory.used == rig.broker.memory.used


def test_a_report_is_refused_where_there_is_no_room(tmp_path: Path) -> None:
    """One that says nothing new of its device is still taken."""
    rig = _rig(tmp_path)
    peer = rig.client("device")
    report = publishing("$whimbrel/report", b'{"battery": 0.5, "ward": "north"}', 1, 1)
    peer.send(report)
    rig.settle()
    rig.broker.memory.most = rig.broker.memory.used * 8 // 7 + 300  # an eighth is for what passes through
    new = report._replace(payload=b'{"floor": "third"}', packet_id=2)
    peer.send(report, new, report._replace(packet_id=3))
    rig.settle()
    codes = {answer.packet_id: answer.code for answer in peer.taken(Puback)}
    assert codes == {1: 0, 2: ReasonCode.QUOTA_EXCEEDED, 3: 0}


def test_what_is_remembered_of_subjects_is_bounded_by_memory(tmp_path: Path) -> None:
    """A hundred clients that want everything: each of thousands of subjects took a hundred kilobytes in caches."""
    rig = _rig(tmp_path, memory_bytes=32 << 20)
    peers = [rig.subscriber(f"subscriber-{number}", "#") for number in range(100)]
    publisher = rig.client("publisher")
    for number in range(20):
        publisher.send(publishing(f"warm/{number}", b"x"))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(200):
        publisher.send(publishing(f"ward/{number}", b"x"))
        for peer in peers:
            peer.take()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < (32 << 20) // 8


def test_a_client_that_never_acknowledges_is_disconnected_before_it_keeps_too_much(tmp_path: Path) -> None:
    """It may have 65,535 copies in flight, each of a megabyte: the bound is one of bytes."""
    rig = _rig(tmp_path)
    peer, publisher = rig.client("subscriber"), rig.client("publisher")
    peer.send(subscribing("t", qos=1))
    rig.settle()
    sent = 0
    while not peer.is_closed and sent < 30:
        publisher.send(publishing("t", bytes(1_000_000), 1, 1))
        rig.settle()
        publisher.take()
        peer.take()
        sent += 1
    assert peer.is_closed
    assert sent == 17, "twice what may wait in a connection"
    assert rig.broker.memory.used < 100_000
