"""Bounded work: one packet neither stops the broker for the others nor asks for more than its share.

Work is counted (filters, leaves, parses, turns of the event loop), never timed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Rig, publishing, subscribing

from whimbrel.broker.limits.work_budget import WorkBudget, filter_cost, topic_cost
from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.language.filters import Filter
from whimbrel.language.parser import Parser
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import (
    V311,
    Connack,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

LEAVES = 400
LONG = " || ".join(f"attribute{number} > {number}.5" for number in range(LEAVES))
PIECE = 100


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of the texts that are parsed from now on."""
    lengths: list[int] = []
    parse = Parser.parse

    def counted(parser: Parser) -> object:
        lengths.append(len(parser.text))
        return parse(parser)

    monkeypatch.setattr(Parser, "parse", counted)
    return lengths


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topic filters that are put into the routes from now on."""
    found: list[str] = []
    put = Routes.put

    def counted(routes: Routes, subscription: Subscription) -> None:
        found.append(subscription.subject_filter or "")
        put(routes, subscription)

    monkeypatch.setattr(Routes, "put", counted)
    return found


def _limited(folder: Path, **limits: int) -> Rig:
    return Rig(folder, replace(Config(), limits=LimitSettings(**limits)))


def _many(count: int, *, text: str | None = None, packet_id: int = 1) -> Subscribe:
    properties = NO_PROPERTIES if text is None else Properties({}, user=(("whimbrel.filter", text),))
    requests = tuple(SubscriptionRequest(f"a/{number}", 1) for number in range(count))
    return Subscribe(packet_id, requests, properties)


def _suback(packets: Sequence[object]) -> Suback:
    (answer,) = (packet for packet in packets if isinstance(packet, Suback))
    return answer


def test_a_filter_beside_many_topic_filters_is_parsed_once(tmp_path: Path, parses: list[int]) -> None:
    """2,000 topic filters with one filter of 16 KB took minutes, most of it to parse the same text."""
    rig = Rig(tmp_path)
    client = rig.client("client")
    client.send(_many(20, text=LONG))
    rig.work()
    assert _suback(client.take()).codes == (1,) * 20
    assert [length for length in parses if length >= len(LONG)] == [len(LONG)], "nor once it is joined to each of them"


def test_one_packet_may_ask_for_so_much_work_and_no_more(tmp_path: Path, puts: list[str]) -> None:
    """Whatever is beyond the budget is refused with 0x97 and the setting to look at, and costs nothing."""
    cost = topic_cost("a/0") + filter_cost(Filter(LONG))
    rig = _limited(tmp_path, packet_work=5 * cost)
    client = rig.client("client")
    client.send(_many(2_000, text=LONG))
    rig.work()
    answer = _suback(client.take())
    assert answer.codes == (1,) * 5 + (ReasonCode.QUOTA_EXCEEDED,) * 1_995
    assert "limits.packet_work" in (answer.properties.text(Property.REASON_STRING) or "")
    assert len(puts) == 5


def test_a_session_may_ask_for_so_much_work_a_second(tmp_path: Path) -> None:
    """Many packets are no way around the budget of one; later there is as much again."""
    rig = _limited(tmp_path, packet_work=100, session_work_per_second=10)
    client = rig.client("client")
    assert set(_suback(client.tell(_many(100))).codes) == {1}
    answer = _suback(client.tell(_many(1, packet_id=2)))
    assert answer.codes == (ReasonCode.QUOTA_EXCEEDED,)
    assert "limits.session_work_per_second" in (answer.properties.text(Property.REASON_STRING) or "")
    rig.tick(1)
    codes = _suback(client.tell(_many(20, packet_id=3))).codes
    assert codes == (1,) * 10 + (ReasonCode.QUOTA_EXCEEDED,) * 10


def test_another_connection_of_the_session_has_no_budget_of_its_own(tmp_path: Path) -> None:
    """To come again is no way around it."""
    rig = _limited(tmp_path, packet_work=100, session_work_per_second=10)
    rig.client("client", expiry_s=60).send(_many(100))
    rig.settle()
    again = rig.client("client", clean=False, expiry_s=60)
    assert _suback(again.tell(_many(1))).codes == (ReasonCode.QUOTA_EXCEEDED,)


def test_many_topic_filters_are_put_piece_by_piece(tmp_path: Path, puts: list[str]) -> None:
    """60,000 of them in one packet kept everybody waiting for 3 s; now somebody else's packet waits for one piece."""
    rig = Rig(tmp_path)
    client, other = rig.client("client"), rig.client("other")
    client.send(_many(5_000))
    assert len(puts) <= PIECE
    assert client.take() == []
    most = 0
    while rig.broker.has_work:
        before = len(puts)
        rig.broker.go_on(rig.now)
        most = max(most, len(puts) - before)
        assert other.tell(Pingreq()) == [Pingresp()]
    assert most <= PIECE
    assert len(_suback(client.take()).codes) == 5_000
    assert len(puts) == 5_000


def test_clients_take_turns(tmp_path: Path) -> None:
    """A small SUBSCRIBE behind a large one waits for a piece of it."""
    rig = Rig(tmp_path)
    large, small = rig.client("large"), rig.client("small")
    large.send(_many(5_000))
    small.send(_many(PIECE + 1))
    rig.broker.go_on(rig.now)
    rig.broker.go_on(rig.now)
    rig.flush()
    assert len(_suback(small.take()).codes) == PIECE + 1
    assert large.take() == []


def test_clients_take_turns_however_many_subscriptions_one_has_made(tmp_path: Path) -> None:
    """Each looks for what is retained, by itself; all of a client's together have one turn in two."""
    rig = Rig(tmp_path)
    large, small = rig.client("large"), rig.client("small")
    large.send(_many(2_000))
    while not large.take():
        rig.broker.go_on(rig.now)
        rig.flush()
    assert rig.broker.has_work
    small.send(_many(PIECE + 1))
    rig.broker.go_on(rig.now)
    rig.broker.go_on(rig.now)
    rig.flush()
    assert len(_suback(small.take()).codes) == PIECE + 1


def test_packets_behind_a_long_one_are_handled_in_order(tmp_path: Path) -> None:
    """What was subscribed to and unsubscribed from in one breath is not subscribed to."""
    rig = Rig(tmp_path)
    client, names = rig.client("client"), tuple(f"a/{number}" for number in range(1_000))
    client.send(_many(1_000), Unsubscribe(2, names), publishing("a/1", b"x", 1, 3))
    client.send(Pingreq())
    assert client.take() == []
    rig.work()
    answers = client.take()
    assert [type(each).__name__ for each in answers] == ["Suback", "Unsuback", "Puback", "Pingresp"]
    assert isinstance(answers[1], Unsuback)
    assert set(answers[1].codes) == {0}
    assert len(rig.state.routes) == 0


def test_what_is_broken_behind_a_long_packet_ends_the_connection_after_it(tmp_path: Path) -> None:
    """A breach of the protocol does not overtake what came before it."""
    rig = Rig(tmp_path)
    client = rig.client("client")
    client.send(_many(1_000))
    client.send_bytes(b"\xf0\x00")
    assert not client.is_closed
    rig.work()
    assert [type(each).__name__ for each in client.take()] == ["Suback", "Disconnect"]


def test_a_client_that_leaves_takes_its_work_along(tmp_path: Path, puts: list[str]) -> None:
    """Nobody waits for the answer."""
    rig = Rig(tmp_path)
    client = rig.client("client")
    client.send(_many(5_000))
    client.drop()
    rig.work()
    assert len(puts) <= PIECE
    assert len(rig.state.routes) == 0


def test_durable_subscriptions_are_applied_piece_by_piece(tmp_path: Path, puts: list[str]) -> None:
    """An fsync lets many facts in at once, of one client or of many."""
    rig = Rig(tmp_path)
    clients = [rig.client(f"client-{number}", expiry_s=60) for number in range(20)]
    for client in clients:
        client.send(_many(90))
    assert puts == []
    rig.sync()
    assert 0 < len(puts) <= 500
    assert not rig.broker.wants_sync
    rig.work()
    assert len(puts) == 1_800
    assert all(len(_suback(client.take()).codes) == 90 for client in clients)


def test_the_filters_of_a_session_are_bounded_together(tmp_path: Path) -> None:
    """Memory, and the log, are everybody's."""
    rig = _limited(tmp_path, filter_bytes_per_session=1_000)
    client = rig.client("client", expiry_s=60)
    text = f"name == '{'x' * 280}'"
    client.send(_many(5, text=text))
    rig.settle()
    answer = _suback(client.take())
    assert answer.codes == (1,) * 3 + (ReasonCode.QUOTA_EXCEEDED,) * 2
    assert "limits.filter_bytes_per_session" in (answer.properties.text(Property.REASON_STRING) or "")
    client.send(Unsubscribe(2, ("a/0",)), _many(1, text=text, packet_id=3))
    rig.settle()
    assert _suback(client.take()).codes == (1,), "what is gone makes room"
    client.send(_many(3, text=text, packet_id=4))
    rig.settle()
    assert _suback(client.take()).codes == (1,) * 3, "to replace one takes no more"
    again = rig.client("client", expiry_s=60, clean=True)
    again.send(_many(3, text=text))
    rig.settle()
    assert _suback(again.take()).codes == (1,) * 3, "a new session begins anew"


REGEX = "regex(a, '^[a-z]+[0-9]{40}$')"


def _instructions(rig: Rig, client: str) -> int:
    """Return what one such filter costs, as the broker counts it."""
    peer = rig.client(client)
    peer.send(_many(1, text=REGEX))
    rig.settle()
    assert _suback(peer.take()).codes == (1,)
    return rig.state.routes.pattern_instructions


def test_the_patterns_of_a_session_are_bounded_together(tmp_path: Path) -> None:
    """Each is cheap enough; a thousand of them would cost everybody seconds a publication."""
    cost = _instructions(Rig(tmp_path / "measured"), "measured")
    assert 40 < cost < 1_000
    rig = _limited(tmp_path / "limited", pattern_instructions_per_session=3 * cost)
    client = rig.client("client", expiry_s=60)
    client.send(_many(5, text=REGEX))
    rig.settle()
    answer = _suback(client.take())
    assert answer.codes == (1,) * 3 + (ReasonCode.QUOTA_EXCEEDED,) * 2
    assert "limits.pattern_instructions_per_session" in (answer.properties.text(Property.REASON_STRING) or "")
    client.send(_many(3, text=REGEX, packet_id=2))
    rig.settle()
    assert _suback(client.take()).codes == (1,) * 3, "to replace one takes no more"
    client.send(Unsubscribe(3, ("a/0",)), _many(1, text=REGEX, packet_id=4))
    rig.settle()
    assert _suback(client.take()).codes == (1,), "what is gone makes room"
    client.send(Subscribe(5, (SubscriptionRequest("plain", 1),)))
    rig.settle()
    assert _suback(client.take()).codes == (1,), "without patterns there is no limit"
    other = rig.client("other")
    other.send(_many(1, text=REGEX))
    rig.settle()
    assert _suback(other.take()).codes == (1,), "each session has its own"
    assert rig.state.routes.pattern_instructions == 4 * cost


def test_the_patterns_of_all_sessions_are_bounded_together(tmp_path: Path) -> None:
    """Many sessions are no way around it; when one ends, there is room."""
    cost = _instructions(Rig(tmp_path / "measured"), "measured")
    rig = _limited(tmp_path / "limited", pattern_instructions=2 * cost)
    clients = [rig.client(f"client-{number}") for number in range(3)]
    for number, client in enumerate(clients):
        client.send(_many(1, text=REGEX))
        rig.settle()
        answer = _suback(client.take())
        assert answer.codes == ((1,) if number < 2 else (ReasonCode.QUOTA_EXCEEDED,))
    assert "limits.pattern_instructions)" in (answer.properties.text(Property.REASON_STRING) or "")
    clients[0].drop()
    rig.settle()
    clients[2].send(_many(1, text=REGEX, packet_id=2))
    rig.settle()
    assert _suback(clients[2].take()).codes == (1,)


def test_patterns_are_counted_again_after_a_restart(tmp_path: Path) -> None:
    """Also those beyond the limit: what was accepted stays, and nothing more comes in."""
    rig = Rig(tmp_path)
    client = rig.client("client", expiry_s=600)
    client.send(_many(4, text=REGEX))
    rig.settle()
    rows, _ = rig.state.view.changes()
    restored = BrokerState.restore(NODE, rows.items())
    assert restored.routes.pattern_instructions == rig.state.routes.pattern_instructions > 0
    rig.close()
    limits = LimitSettings(pattern_instructions_per_session=restored.routes.pattern_instructions // 4)
    again = Rig(tmp_path, replace(Config(), limits=limits), state=restored)
    client = again.client("client", clean=False, expiry_s=600)
    client.send(Subscribe(1, (SubscriptionRequest("new", 1),), Properties({}, user=(("whimbrel.filter", REGEX),))))
    again.settle()
    assert _suback(client.take()).codes == (ReasonCode.QUOTA_EXCEEDED,)
    assert len(again.state.routes) == 4


def test_filters_in_topic_filters_are_counted_too(tmp_path: Path) -> None:
    """3.1.1 says a content filter in the topic filter."""
    rig = _limited(tmp_path, packet_work=60)
    client = rig.client("client", version=V311)
    texts = [" || ".join(f"a{leaf} == {number}" for leaf in range(20)) for number in range(10)]
    filters = [base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts]
    requests = tuple(SubscriptionRequest(f"$filter/{each}/a", 1) for each in filters)
    client.send(Subscribe(1, requests))
    rig.work()
    codes = _suback(client.take()).codes
    assert codes.count(1) == 2
    assert codes.count(0x80) == 8


def test_a_pattern_costs_more_than_a_comparison() -> None:
    """It is looked for in every byte."""
    assert filter_cost(Filter("a == 1")) == 1
    assert filter_cost(Filter("a == 1 && !(b > 2 || require(c))")) == 3
    assert filter_cost(Filter("contains(a, 'x', 'y')")) == 32
    assert filter_cost(Filter("equals(a, 'x', 'y', 'z')")) == 3
    assert filter_cost(None) == 0


def test_sessions_that_owe_nothing_are_forgotten() -> None:
    """Memory is bounded however many sessions there were."""
    budget = WorkBudget(10, 10)
    for number in range(30_000):
        budget.spend(f"session-{number}", 1, number)
    assert len(budget) <= 10_000
    budget.spend("last", 10, SECOND_US)
    with pytest.raises(ProtocolError):
        budget.spend("last", 1, SECOND_US)
    budget.spend("last", 1, 2 * SECOND_US)


def test_a_subscription_in_force_before_the_last_is_put_receives(tmp_path: Path) -> None:
    """Pieces are whole subscriptions."""
    rig = Rig(tmp_path)
    client, publisher = rig.client("client"), rig.client("publisher")
    client.send(_many(1_000))
    publisher.send(publishing("a/1", b"early"))
    assert [each.payload for each in client.taken(Publish)] == [b"early"]
    rig.work()
    assert client.tell(subscribing("b")) != []


def test_retained_bytes_are_bounded(tmp_path: Path) -> None:
    """600 retained messages of 1 MB took 1.28 GB: neither their number nor what is held bounds them."""
    rig = _limited(tmp_path, retained_bytes=100_000)
    publisher = rig.client("publisher")
    codes = []
    for number in range(10):
        publisher.send(publishing(f"a/{number}", bytes(20_000), 1, number + 1, retain=True))
        rig.settle()
        codes += [each.code for each in publisher.taken(Puback)]
    assert codes.count(ReasonCode.QUOTA_EXCEEDED) == 6, "a payload is kept once"
    assert rig.state.retained.size_bytes <= 100_000
    publisher.send(publishing("a/0", bytes(10_000), 1, 20, retain=True), publishing("a/1", b"", 1, 21, retain=True))
    rig.settle()
    assert ReasonCode.QUOTA_EXCEEDED not in {each.code for each in publisher.taken(Puback)}
    for number in (0, 2, 3):
        publisher.send(publishing(f"a/{number}", b"", 1, 22 + number, retain=True))
    rig.settle()
    assert rig.state.retained.size_bytes == 0


def test_private_sessions_are_bounded(tmp_path: Path) -> None:
    """Each CONNECT with another name leaves a session behind; those who have one come back."""
    rig = _limited(tmp_path, private_sessions=2)
    for name in ("one", "two"):
        rig.client(name, expiry_s=60).drop()
    third = rig.connecting("three", expiry_s=60)
    rig.settle()
    assert [each.code for each in third.taken(Connack)] == [ReasonCode.QUOTA_EXCEEDED]
    again = rig.connecting("one", clean=False, expiry_s=60)
    rig.settle()
    assert [each.code for each in again.taken(Connack)] == [0]


def _retain(rig: Rig, count: int) -> None:
    publisher = rig.client("retaining")
    for number in range(count):
        publisher.send(publishing(f"r/{number}", b"%d" % number, 0, retain=True))
    rig.settle()


@pytest.mark.parametrize("qos", [0, 1])
def test_many_retained_messages_are_sent_piece_by_piece(tmp_path: Path, qos: int) -> None:
    """A subscription to everything over 100,000 retained messages stopped everybody for a second; in order."""
    rig = Rig(tmp_path)
    _retain(rig, 1_000)
    client = rig.client("client")
    packets = client.tell(subscribing("r/#", qos=qos))
    assert len([each for each in packets if isinstance(each, Publish)]) < 2 * PIECE
    payloads = [each.payload for each in packets if isinstance(each, Publish)]
    while rig.broker.has_work:
        rig.broker.go_on(rig.now)
        rig.flush()
        more = client.payloads()
        assert len(more) <= PIECE
        payloads += more
    assert payloads == [b"%d" % number for number in range(1_000)]


def test_a_retained_message_that_was_replaced_meanwhile_is_not_sent(tmp_path: Path) -> None:
    """It would come after the newer one, and be taken for the last."""
    rig = Rig(tmp_path)
    _retain(rig, 1_000)
    client, publisher = rig.client("client"), rig.client("publisher")
    client.send(subscribing("r/#"))
    publisher.send(publishing("r/999", b"new", 0, retain=True))
    rig.work()
    assert [each.payload for each in client.taken(Publish) if each.topic == "r/999"] == [b"new"]


def test_to_subscribe_again_begins_anew(tmp_path: Path) -> None:
    """What the first SUBSCRIBE had left is not sent twice."""
    rig = Rig(tmp_path)
    _retain(rig, 1_000)
    client = rig.client("client")
    client.send(subscribing("r/#"), subscribing("r/#"))
    rig.work()
    assert len(client.taken(Publish)) <= 1_000 + 2 * PIECE
