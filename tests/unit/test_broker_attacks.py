"""The table of cost attacks: what each asks for, and the counted work that it gets at most; nothing is timed.

``bench/bench_attacks.py`` runs the same attacks at full size beside a well-behaved client and prints its times.
Other rows of the table are tests elsewhere, beside what they are about:

| attack | bound | test |
|---|---|---|
| packet: 10,000 plain topic filters | 200 filters a turn | ``test_broker_bounds.test_many_topic_filters_are_put_piece_by_piece`` |
| packet: more work than a packet may ask for | ``limits.packet_work`` | ``test_broker_bounds.test_one_packet_may_ask_for_so_much_work_and_no_more`` |
| filter: contains() of growing lengths | steps linear in the string and what is found | ``test_match_substrings`` |
| filter: bombs | leaves | ``test_match_bombs`` |
| pattern: one that stops a broker | refused; ``MAX_STEPS`` | ``test_language_pattern_cost`` |
| retained: many, and large ones | 200 a turn; ``limits.retained_bytes`` | ``test_broker_bounds`` |
| login: thousands of wrong passwords | two hashes until a right one's turn | ``test_broker_blocking_tasks`` |
| requests: 300 ``create`` requests | the same turns | ``test_broker_blocking_tasks`` |
| TLS: connections that never shake hands | ``limits.connect_timeout_s``, ``limits.connections`` | ``test_broker_service`` |
| WebSocket: frames of one byte, or of none | 8 KB a read, 1,024 frames and a read a turn, 1 KB of each further client | ``test_broker_websocket_turns`` |
| connections: silent, or byte by byte | ``limits.connect_timeout_s`` | ``test_broker_hostile`` |

Rule: each bound is counted in one turn of the event loop, or for one publication.
"""  # noqa: E501  # a table's rows are lines

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.limits.work_budget import filter_cost, topic_cost
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.broker.shell.net.http import BadRequestError, HttpExchange
from whimbrel.broker.shell.net.websocket import Framing
from whimbrel.broker.state.routes import Routes
from whimbrel.broker.waiting.long_work import PIECE
from whimbrel.hold.sessions import PIECE as SESSIONS
from whimbrel.language import patterns
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.filters import Filter, filter_of
from whimbrel.language.parser import Parser
from whimbrel.language.pattern_cost import MAX_STEPS
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Connack, Pingreq, Publish, Suback, Subscribe, SubscriptionRequest, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties
from whimbrel.node.retained import Retained

LONG = " || ".join(f"attribute{number} > {number}.5" for number in range(400))
HEAVY = "regex(a, '(x|y)*x(x|y){%d}z')"
PACKETS = 2_000
"""How many packets of one client may be handled in one turn."""
HEAD_BYTES = 8_192
"""How long the head of an HTTP request may be."""
WORDS = random.Random(2)


class Counted:
    """What is done from now on: subscriptions put, their cost, filters parsed and compiled, patterns run, steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.puts = self.cost = self.parsed_bytes = self.patterns = self.steps = self.compiled = self.finds = 0
        self._patch(patch, Retained, "finding", self._find)
        self._patch(patch, Routes, "put", self._put)
        self._patch(patch, Parser, "parse", self._parse)
        patch.setattr(patterns, "_compiled", partial(_CountedRegex, self, patterns._compiled))
        patch.setattr("whimbrel.broker.state.routes._PIECE_S", 0)  # an attempt makes one dear search, whatever its time
        patch.setattr("whimbrel.match.index.delta.compile_filter", self._compile)

    @staticmethod
    def _patch(patch: pytest.MonkeyPatch, owner: type, name: str, count: Callable[..., None]) -> None:
        was = getattr(owner, name)

        def counted(*arguments: object) -> object:
            count(*arguments)
            return was(*arguments)

        patch.setattr(owner, name, counted)

    def _put(self, _routes: Routes, subscription: Subscription) -> None:
        self.puts += 1
        self.cost += topic_cost(subscription.subject_filter or "") + filter_cost(filter_of(subscription))

    def _find(self, _retained: Retained, _subject_filter: str) -> None:
        self.finds += 1

    def _parse(self, parser: Parser) -> None:
        self.parsed_bytes += len(parser.text)

    def _compile(self, tree: Predicate) -> VerdictFunction:
        self.compiled += 1
        return compile_filter(tree)


class _CountedRegex:
    """A compiled regular expression that counts what it is asked."""

    def __init__(self, counted: Counted, compiled: Callable[[str], Any], regex: str) -> None:
        self._counted, self._compiled = counted, compiled(regex)
        self.programsize, self.programfanout = self._compiled.programsize, self._compiled.programfanout
        self._regexp = self

    def Match(self, anchor: object, data: bytes, begin: int, end: int) -> Any:  # noqa: N802 # RE2's name
        self._counted.patterns += 1
        self._counted.steps += len(data) * self.programsize
        return self._compiled._regexp.Match(anchor, data, begin, end)


class Attacked:
    """A broker, and how much one turn of its event loop did at most."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        access = AccessSettings(users="users", anonymous=True)
        config = replace(Config(), access=access)
        self.rig = Rig(folder, config, verify=lambda _name, password: password == b"right")
        self.counted = Counted(patch)

    def turns(self, client: Peer, data: bytes) -> Iterator[None]:
        """Let *client* say *data* in one read, and yield after each turn."""
        client.send_bytes(data)
        yield
        yield from self.remaining()

    def remaining(self) -> Iterator[None]:
        """Go on until nothing is left to do, and yield after each turn."""
        while self.rig.broker.has_work or self.rig.broker.wants_sync:
            self.rig.sync()
            self.rig.broker.go_on(self.rig.now)
            self.rig.flush()
            yield

    def most(self, client: Peer, data: bytes, count: Callable[[], int]) -> int:
        """Return how much *count* grows in one turn at most."""
        most, before = 0, count()
        for _ in self.turns(client, data):
            most, before = max(most, count() - before), count()
        return most


def _many(count: int, text: str | None = None, packet_id: int = 1) -> Subscribe:
    properties = NO_PROPERTIES if text is None else Properties(user=(("filter", text),))
    return Subscribe(packet_id, tuple(SubscriptionRequest(f"a/{n}", 1) for n in range(count)), properties)


def _wire(*packets: Subscribe | Publish | Pingreq) -> bytes:
    return b"".join(encode(packet, V5) for packet in packets)


# -- packets -----------------------------------------------------------------------------------------------------------


def _topics_with_one_filter(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    return attacked.most(client, _wire(_many(10, LONG)), lambda: attacked.counted.parsed_bytes)


def _small_subscribes(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    packets = (subscribing(f"a/{number}", packet_id=number + 1) for number in range(2_000))
    return attacked.most(client, _wire(*packets), lambda: attacked.counted.puts)


def _pings(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    return attacked.most(client, _wire(*[Pingreq()] * (10 * PACKETS)), lambda: len(client.inbox))


def _small_publications(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    packets = [publishing("a")] * (10 * PACKETS)
    return attacked.most(client, _wire(*packets), lambda: attacked.rig.broker.counters.received)


# -- filters and patterns ----------------------------------------------------------------------------------------------


def _large_filters(attacked: Attacked) -> int:
    clients = [attacked.rig.client(f"client-{number}") for number in range(4)]
    for client in clients[:3]:
        client.send(_many(5, LONG))
    return attacked.most(clients[3], _wire(_many(5, LONG)), lambda: attacked.counted.cost)


def _large_filters_of_sessions(attacked: Attacked) -> int:
    """Let four clients whose sessions last subscribe with large filters that all become durable at once."""
    clients = [attacked.rig.client(f"client-{number}", expiry_s=100) for number in range(4)]
    for number, client in enumerate(clients):
        client.send(*(_many(1, f"a > {number}.{each} || {LONG}", packet_id=each + 1) for each in range(5)))
    most = attacked.most(clients[0], _wire(Pingreq()), lambda: attacked.counted.parsed_bytes)
    assert attacked.counted.puts == 20
    return most


def _refused_patterns(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    eighteen = " || ".join(HEAVY % (1_000 - number) for number in range(18))
    client.send(_many(1, HEAVY % 1_000), _many(1, eighteen, packet_id=2))
    codes = [code for each in client.taken(Suback) for code in each.codes]
    assert codes == [ReasonCode.TOPIC_FILTER_INVALID] * 2
    return _steps(attacked, 1 << 19)


def _steps(attacked: Attacked, length: int, client: Peer | None = None) -> int:
    body = json.dumps({"a": "".join(WORDS.choices("xy", k=length))}).encode()
    client = client or attacked.rig.client("publisher")
    return attacked.most(client, _wire(publishing("a/0", body, 1, 1)), lambda: attacked.counted.steps)


def _one_admitted_pattern(attacked: Attacked) -> int:
    attacked.rig.client("client").send(_many(1, HEAVY % 740))
    return max(_steps(attacked, length) for length in (100, 1_300, 5_000, 1 << 19))


def _subscribe_heavily(attacked: Attacked, name: str = "client") -> Peer:
    client = attacked.rig.client(name)
    for number in range(20):
        client.send(subscribing("a/0", packet_id=number + 1, name=f"n{number}", filter=HEAVY % (740 - number)))
    attacked.rig.work()
    return client


def _many_admitted_patterns(attacked: Attacked) -> int:
    _subscribe_heavily(attacked)
    return _steps(attacked, 1_300)


def _body(length: int) -> bytes:
    return json.dumps({"a": "".join(WORDS.choices("xy", k=length))}).encode()


def _will_for_patterns(attacked: Attacked) -> int:
    _subscribe_heavily(attacked)
    will = Will("a/0", _body(1_300), 1)
    attacked.rig.client("dying", will=will).drop()
    most = before = 0
    for _ in attacked.remaining():
        most, before = max(most, attacked.counted.steps - before), attacked.counted.steps
    assert attacked.counted.steps >= 20 * MAX_STEPS // 2
    return most


def _pattern_over_retained(attacked: Attacked) -> int:
    publisher = attacked.rig.client("publisher")
    for number in range(20):
        publisher.send(publishing(f"a/{number}", _body(1_300), 1, number + 1, retain=True))
    attacked.rig.work()
    asked = _wire(subscribing("a/+", filter=HEAVY % 740))
    most = attacked.most(attacked.rig.client("client"), asked, lambda: attacked.counted.steps)
    assert attacked.counted.steps >= 20 * MAX_STEPS // 2
    return most


def _patterns_that_change(attacked: Attacked) -> int:
    """Let a subscription change while a publication that many dear patterns were asked about waits for the disk."""
    holder, other = _subscribe_heavily(attacked), attacked.rig.client("other", expiry_s=100)
    other.send(subscribing("a/#", qos=1))
    attacked.rig.work()
    before, changes = attacked.rig.state.routes.epoch, iter(range(2, 60_000))

    def counted() -> int:
        if attacked.rig.broker.has_work:
            holder.send(subscribing("b", packet_id=next(changes)))
        return attacked.counted.steps

    most = attacked.most(attacked.rig.client("publisher"), _wire(publishing("a/0", _body(1_300), 1, 1)), counted)
    assert attacked.rig.state.routes.epoch > before
    return most


def _cheap_behind_dear(attacked: Attacked) -> int:
    """Send one publication that dear patterns are asked about, and many behind it that are matched one by one."""
    _subscribe_heavily(attacked)
    packets = [publishing("a/0", _body(1_300)), *(publishing("a/0", b"{}") for _ in range(1_000))]
    counters = attacked.rig.broker.counters
    return attacked.most(attacked.rig.client("publisher"), _wire(*packets), lambda: counters.received)


def _subscribes_just_short(attacked: Attacked) -> int:
    """Send SUBSCRIBEs with as many topic filters as one piece has, many in one write."""
    packets = [
        Subscribe(each + 1, tuple(SubscriptionRequest(f"p/{each}/{n}", 0) for n in range(PIECE - 1)), NO_PROPERTIES)
        for each in range(60)
    ]
    return attacked.most(attacked.rig.client("client"), _wire(*packets), lambda: attacked.counted.puts)


def _subscriptions_that_look(attacked: Attacked) -> int:
    """Subscribe often to what is looked for among many retained messages, each time in one piece."""
    looked, client = attacked.counted, attacked.rig.client("client")
    requests = tuple(SubscriptionRequest(f"a/{number}/#", 0) for number in range(600))
    return attacked.most(client, _wire(Subscribe(1, requests, NO_PROPERTIES)), lambda: looked.finds)


def _new_filters(attacked: Attacked) -> int:
    """Return how many filters are compiled while the first publication since they came waits."""
    client = attacked.rig.client("client")
    for number in range(100):
        text = LONG if number % 2 else f"regex(a, 'sensor-{number}-(alarm|alert)')"
        client.send(subscribing("a/0", packet_id=number + 1, name=f"n{number}", filter=text))
    attacked.rig.work()
    body = json.dumps({"a": "sensor", "attribute9": 2}).encode()
    return attacked.most(client, _wire(publishing("a/0", body)), lambda: attacked.counted.compiled)


def _ordinary_patterns(attacked: Attacked) -> int:
    client = attacked.rig.client("client")
    for number in range(500):
        text = f"regex(a, 'sensor-{number}-(alarm|alert)')"
        client.send(subscribing("a/0", packet_id=number + 1, name=f"n{number}", filter=text))
    attacked.rig.work()
    attacked.rig.state.routes._matcher._content.repack()  # as a process beside the broker does at 128 patterns
    body = json.dumps({"a": "at home: sensor-77-alarm"}).encode()
    return attacked.most(client, _wire(publishing("a/0", body)), lambda: attacked.counted.patterns)


# -- retained, absent --------------------------------------------------------------------------------------------------


def _everything_again(attacked: Attacked) -> int:
    rig = attacked.rig
    publisher, client = rig.client("publisher"), rig.client("client")
    for number in range(1_000):
        publisher.send(publishing(f"r/{number}", b"x", retain=True))
    again = _wire(*(subscribing("#", packet_id=number + 1) for number in range(10)))
    return attacked.most(client, again, lambda: len(client.inbox))


def _absent_crowd(attacked: Attacked) -> int:
    rig, total = attacked.rig, 4 * SESSIONS
    crowd = [rig.connecting(f"absent-{number}", expiry_s=60) for number in range(total)]
    rig.settle()
    for peer in crowd:
        peer.send(subscribing("crowd", qos=1))
    rig.settle()
    for peer in crowd:
        peer.drop()
    publisher = rig.client("publisher")
    turns = sum(1 for _ in attacked.turns(publisher, _wire(publishing("crowd", b"x", 1, 1))))
    assert len(publisher.inbox) == 1, "it is acknowledged when it is held for all of them"
    return -(-total // turns)


# -- passwords ---------------------------------------------------------------------------------------------------------


def _newcomer_behind_a_guesser(attacked: Attacked) -> int:
    """Return how many passwords are verified until a newcomer at the guesser's address is answered."""
    rig = attacked.rig
    for number in range(1_000):
        rig.connecting(f"guess-{number}", username=f"nobody-{number}", password=b"wrong", address="10.0.0.1:1")
    newcomer = rig.connecting("newcomer", username="ann", password=b"right", address="10.0.0.1:2")
    asked = 0
    while not (answers := newcomer.taken(Connack)):
        question = rig.broker.blocking_tasks.next(rig.listened_us)
        if question is not None:
            rig.broker.on_answer(question, question.ask(), rig.now)
            asked += 1
        rig.sync()
    assert answers[0].code in {0, ReasonCode.QUOTA_EXCEEDED}
    return asked


# -- WebSocket ---------------------------------------------------------------------------------------------------------


def _fragments(attacked: Attacked) -> int:
    framing, most = Framing(max_frame_bytes=1 << 20), 0
    del attacked
    wire = (b"\x02\xff" + (1 << 16).to_bytes(8, "big") + bytes(4 + (1 << 16))) + (
        b"\x00\xff" + (1 << 16).to_bytes(8, "big") + bytes(4 + (1 << 16))
    ) * 15
    for at in range(0, len(wire), 1_000):
        framing.receive(wire[at : at + 1_000])
        most = max(most, len(framing._incomplete))
    return most


def _endless_handshake(attacked: Attacked) -> int:
    exchange, sent = HttpExchange(), 0
    del attacked
    try:
        exchange.receive(b"GET / HTTP/1.1\r\nX: ")
        while sent <= 10 * HEAD_BYTES:
            exchange.receive(b"x" * 100)
            sent += 100
    except BadRequestError:
        pass
    return sent


# -- the table ---------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """An attack, and how much of something it gets at most."""

    attack: str
    unit: str
    bound: int
    found: Callable[[Attacked], int]


_ONE_LONG = topic_cost("a/0") + filter_cost(Filter(LONG))
_UNBOUNDED_READ = "all packets of one read are handled in one turn: 256 KB, up to 131,072 of them"

TABLE = (
    Row("packet: topic filters beside one long filter", "bytes parsed a turn", len(LONG), _topics_with_one_filter),
    Row("packet: small SUBSCRIBEs in one write", "filters put a turn", PIECE, _small_subscribes),
    Row("packet: PINGREQs in one write", "answers a turn", PACKETS, _pings),
    Row("packet: small publications in one write", "a turn", PACKETS, _small_publications),
    Row("packet: SUBSCRIBEs of 99 topic filters", "filters a turn", 2 * PIECE, _subscribes_just_short),
    Row("filter: large ones of four clients", "units of work a turn", PIECE + _ONE_LONG, _large_filters),
    Row(
        "filter: large ones of four clients, durable at once",
        "bytes of filters read a turn",
        2 * len(LONG),
        _large_filters_of_sessions,
    ),
    Row("pattern: refused, then 512 KB", "steps", 0, _refused_patterns),
    Row("pattern: the dearest that is admitted", "steps a turn", MAX_STEPS, _one_admitted_pattern),
    Row("pattern: twenty of the dearest", "steps a turn", MAX_STEPS, _many_admitted_patterns),
    Row("pattern: twenty of the dearest, and a will", "steps a turn", 2 * MAX_STEPS, _will_for_patterns),
    Row("pattern: one of the dearest over 20 retained", "steps a turn", MAX_STEPS, _pattern_over_retained),
    Row("pattern: twenty of the dearest, changed meanwhile", "steps a turn", MAX_STEPS, _patterns_that_change),
    Row("pattern: 1,000 cheap publications behind a dear one", "publications a turn", 50, _cheap_behind_dear),
    Row("pattern: 100 new and dear filters", "filters compiled a publication", 0, _new_filters),
    Row("pattern: 500 ordinary ones", "patterns run a publication", 16, _ordinary_patterns),
    Row("retained: # ten times in one write", "messages sent a turn", PIECE + 10, _everything_again),
    Row("retained: 600 subscriptions that look for some", "searches a turn", 17, _subscriptions_that_look),
    Row("absent: a publication for 1,000 sessions", "sessions a turn", SESSIONS, _absent_crowd),
    Row("login: a newcomer behind 1,000 guesses", "passwords verified first", 101, _newcomer_behind_a_guesser),
    Row("WebSocket: 1 MB in fragments", "bytes kept", 139, _fragments),
    Row("WebSocket: a handshake that never ends", "bytes read", HEAD_BYTES, _endless_handshake),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.attack)
def test_an_attack_gets_no_more_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    """What one client asks for is done in pieces, or refused; the others wait behind one piece of it."""
    assert row.found(Attacked(tmp_path, monkeypatch)) <= row.bound, row.unit
