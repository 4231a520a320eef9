"""How often the broker parses a content filter: once, where it enters, however it is asked about afterwards.

A parse is a run of the parser over a filter's text, or of a template's builder over its tokens. Both are counted where
they are defined, so that no way around ``Filter`` escapes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from broker_rig import NODE, Peer, Rig, subscribing

from whimbrel.broker.shell.disk.history_reader import read_chunk
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.private import private_session
from whimbrel.language import filters
from whimbrel.language.ast import Predicate
from whimbrel.language.parser import Parser
from whimbrel.language.shapes import ShapeCache
from whimbrel.log.reader import read
from whimbrel.match.prepared import prepare
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, V311, Publish, Suback, Subscribe

_SHORT = "pulse > 110 && bed == 'ICU-4'"
_REGEX = "regex(name, '(a|b)*c') && pulse > 110"
_WILDCARD = "wildcard(name, 'Dr. *') || pulse > 110"
_LONG = " || ".join(f"(pulse > {number} && bed == 'ICU-{number}')" for number in range(40))
_WANTED = b'{"pulse": 120, "bed": "ICU-4", "name": "Dr. abc"}'
_FILTERS = {"short": _SHORT, "regex": _REGEX, "wildcard": _WILDCARD, "long": _LONG}


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Count the parses from here on, with a cache of shapes that knows nothing yet."""
    found: list[str] = []
    parse, build = Parser.parse, ShapeCache.build

    def parsing(parser: Parser) -> Predicate:
        found.append(parser.text)
        return parse(parser)

    def building(cache: ShapeCache, text: str) -> object:
        built = build(cache, text)
        if built is not None:
            found.append(text)
        return built

    with (
        patch.object(filters, "_shapes", ShapeCache()),
        patch.object(Parser, "parse", parsing),
        patch.object(ShapeCache, "build", building),
    ):
        yield found


def _subscribe(rig: Rig, peer: Peer, packet: Subscribe) -> list[str]:
    """Send a SUBSCRIBE as bytes, let everything settle, and return the texts that were parsed for it."""
    peer.take()
    with _counted() as found:
        peer.send_bytes(encode(packet, peer.version))
        rig.settle()
    (answer,) = (each for each in peer.inbox if isinstance(each, Suback))
    assert all(code <= 2 for code in answer.codes), answer
    return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a broker."""
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
@pytest.mark.parametrize("wanted", ["#", "ward/3", "ward/+/pulse", "+/+"])
def test_a_subscribe_parses_its_filter_once(rig: Rig, wanted: str, text: str) -> None:
    """The work budget, the sums of patterns and bytes, and the index take the tree that was read first."""
    peer = rig.client("phone", expiry_s=60)
    assert _subscribe(rig, peer, subscribing(wanted, qos=1, filter=text)) == [text]


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
@pytest.mark.parametrize("near", ["47.37,8.54,200", "300", "any"])
def test_once_with_near(rig: Rig, near: str, text: str) -> None:
    """The routes of places take the tree as well."""
    peer = rig.client("phone", expiry_s=60)
    assert _subscribe(rig, peer, subscribing("ward/#", filter=text, near=near)) == [text]


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
def test_once_for_many_topic_filters(rig: Rig, text: str) -> None:
    """One set of options stands in a packet, however many topic filters it has."""
    peer = rig.client("phone", expiry_s=60)
    assert _subscribe(rig, peer, subscribing("a", "b/+", "#", filter=text)) == [text]


@pytest.mark.parametrize("is_request", [False, True])
def test_a_long_filter_is_prepared_for_the_index_once_for_each_topic_filter(rig: Rig, *, is_request: bool) -> None:
    """What takes long is done before the subscription has a number, so that no publication waits behind it."""
    peer = rig.client("phone", expiry_s=60)
    with patch("whimbrel.match.matcher.prepare", side_effect=prepare) as preparing:
        if is_request:
            peer.ask("create", session="ward")
            peer.ask("join", session="ward")
            peer.ask("subscribe", session="ward", topic="a", filter=_LONG)
        else:
            assert _subscribe(rig, peer, subscribing("a", "b/+", "#", filter=_LONG)) == [_LONG]
    assert preparing.call_count == (1 if is_request else 3)


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
def test_once_with_retained_messages_and_what_comes_next(rig: Rig, text: str) -> None:
    """What is retained is asked with the same tree, and so is the first publication."""
    publisher = rig.client("bed")
    for number in range(3):
        publisher.send(Publish(f"ward/{number}", _WANTED, retain=True))
    rig.settle()
    peer = rig.client("phone", expiry_s=60)
    assert _subscribe(rig, peer, subscribing("ward/#", filter=text)) == [text]
    assert len(peer.payloads()) == 3
    with _counted() as found:
        publisher.send(Publish("ward/9", _WANTED))
        rig.settle()
    assert (len(peer.payloads()), found) == (1, [])


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
def test_once_with_since(rig: Rig, text: str) -> None:
    """The log's past is asked with the same tree."""
    publisher = rig.client("bed")
    publisher.send(Publish("ward/3", _WANTED))
    rig.settle()
    peer = rig.client("phone", expiry_s=60)
    with _counted() as found:
        peer.send_bytes(encode(subscribing("ward/3", filter=text, since="1h"), V5))
        rig.settle()
        while (question := rig.broker.history.next_question(rig.now)) is not None:
            rig.broker.history.on_chunk(question, read_chunk(rig.folder, NODE, question))
            rig.settle()
        assert len(rig.broker.history) == 0
    assert len(peer.payloads()) == 1
    assert found == [text]


@pytest.mark.parametrize("text", _FILTERS.values(), ids=_FILTERS)
@pytest.mark.parametrize("is_request", [False, True])
def test_once_in_a_named_session(rig: Rig, text: str, *, is_request: bool) -> None:
    """A request and a packet come to the same."""
    peer = rig.client("phone")
    peer.ask("create", session="ward")
    peer.ask("join", session="ward")
    if not is_request:
        assert _subscribe(rig, peer, subscribing("ward/#", filter=text, session="ward")) == [text]
        return
    with _counted() as found:
        answer = peer.ask("subscribe", session="ward", topic="ward/#", filter=text)
    assert answer.get("code", 0) == 0, answer
    assert found == [text]


@pytest.mark.parametrize("text", [_SHORT, _REGEX, _WILDCARD], ids=["short", "regex", "wildcard"])
def test_once_in_version_3(rig: Rig, text: str) -> None:
    """There the filter stands in the topic filter."""
    encoded = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    peer = rig.client("phone", version=V311, clean=False)
    assert _subscribe(rig, peer, subscribing(f"$filter/{encoded}/ward/#")) == [text]


def test_once_for_each_of_a_fleet(rig: Rig) -> None:
    """Also where a template is learnt, and where it is known."""
    peers = [rig.client(f"phone{number}") for number in range(6)]
    with _counted() as found:
        for number, peer in enumerate(peers):
            peer.send(subscribing(f"ward/{number}/+", filter=f"pulse > {number} && bed == 'ICU-{number}'"))
            rig.settle()
    assert found == [f"pulse > {number} && bed == 'ICU-{number}'" for number in range(6)]


def test_no_tree_stays_with_a_stored_subscription(rig: Rig) -> None:
    """A tree takes several times the memory of its text; a million subscriptions keep the text."""
    peer = rig.client("phone", expiry_s=60)
    for packet in (subscribing("ward/#", filter=_SHORT), subscribing("ward/#", filter=_SHORT, near="300")):
        _subscribe(rig, peer, packet)
        (stored,) = rig.state.hold.subscriptions(private_session("phone"))
        assert (stored.filter_text, stored.parsed) == (_SHORT, None)
    fence = subscribing("$whimbrel/near/home", filter=_SHORT, near="47.37,8.54,200")
    _subscribe(rig, peer, fence)
    assert [each.parsed for named in rig.state.node.fences._named.values() for each in named.values()] == [None]
    assert [each.parsed for _, each in rig.state.routes.near._interests.values()] == [None] * 2


@pytest.mark.parametrize("of", [BrokerState.restore, None], ids=["view", "log"])
def test_a_restart_parses_each_stored_filter_once(tmp_path: Path, of: Callable[..., BrokerState] | None) -> None:
    """Whether this version would still accept it, what its patterns cost, and the index: all from one tree."""
    rig = Rig(tmp_path)
    peer = rig.client("phone", expiry_s=600)
    for number, text in enumerate(_FILTERS.values()):
        peer.send(subscribing("ward/#", filter=text, name=str(number), packet_id=number + 1))
    rig.settle()
    rows = rig.state.view.changes()[0]
    with _counted() as found:
        if of is not None:
            state = of(NODE, rows.items())
        else:
            state = BrokerState(NODE)
            rig.log.sync()
            for fact in read(tmp_path, NODE):
                state.apply(fact)
    assert sorted(found) == sorted(_FILTERS.values())
    rig.close()
    with _counted() as found:
        again = Rig(tmp_path, state=state)
        peer = again.client("phone", clean=False, expiry_s=600)
        peer.send(subscribing("else", filter="regex(other, 'x+')"))
        again.settle()
    assert found == ["regex(other, 'x+')"]
    again.close()
