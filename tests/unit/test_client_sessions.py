"""Named sessions, the client's side: what it says to a broker that is a script, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pytest

from whimbrel.client import (
    AccessControlList,
    Backoff,
    CannotConnectError,
    Client,
    ClientClosedError,
    Grant,
    Join,
    MalformedAnswerError,
    RequestLostError,
    Right,
    SessionRefusedError,
    SessionSubscription,
    SubscriptionRefusedError,
)
from whimbrel.client.answers import change_of, details_of, members_of, summaries_of
from whimbrel.client.interest import Interest
from whimbrel.client.joining import Joins, checked_keys
from whimbrel.client.messages import publication
from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from whimbrel.mqtt.properties import Properties, Property

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])
SOON = Backoff(first_s=0.001, most_s=0.002)
TOPICS = "$whimbrel/session/"
PRODUCER = "producer:private:very secret"
MARK = ("whimbrel", "1")
CONSUMER = "consumer:" + "ab" * 32
SUBSCRIPTION = {
    "topic": "a/#", "name": "n", "filter": "t > 1", "ttl": 60, "max": 5, "qos": 1, "keys": [CONSUMER],
    "insecure": False,
}  # fmt: skip
WORD, SECRET = "x", "secret"
_PATIENCE_S = 60

Members = dict[str, Any]
Answering = Callable[[str, Members], Members | None]


def agreeing(verb: str, members: Members) -> Members | None:
    """Answer everything with yes, as a broker would."""
    more: dict[str, Members] = {
        "join": {"subscriptions": [SUBSCRIPTION]},
        "subscribe": {"subscription": SUBSCRIPTION | {"topic": members.get("topic")}},
        "list": {"sessions": []},
        "show": {"subscriptions": [], "devices": [], "held": 0},
    }
    return {"ok": True, "session": members.get("session"), **more.get(verb, {})}


class Peer:
    """A broker that is a script: it keeps what it hears, and answers requests as *answering* says; None: not at all."""

    def __init__(self, answering: Answering = agreeing) -> None:
        self.answering = answering
        self.heard: list[list[Packet]] = []
        """Packets, by connection."""
        self.requests: list[tuple[str, Members]] = []
        self.is_acknowledging = True
        self.codes: dict[str, ReasonCode] = {}
        """Codes of acknowledgements, by verb."""
        self._writers: list[asyncio.StreamWriter] = []
        self._version = V5
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.hang_up()
        await asyncio.sleep(0)
        await self._server.wait_closed()

    def hang_up(self) -> None:
        """Lose all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def say(self, topic: str, tree: object) -> None:
        """Publish to whoever is connected."""
        self._say(self._writers[-1], Publish(topic, json.dumps(tree).encode()))

    def packets(self, kind: type[Packet], connection: int = -1) -> list[Any]:
        """Return what was heard of one kind on a connection."""
        return [packet for packet in self.heard[connection] if type(packet) is kind]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was heard is as *condition* wants it."""
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    def verbs(self) -> list[str]:
        """Return what was asked."""
        return [verb for verb, _ in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        decoder, heard = Decoder(), list[Packet]()
        self.heard.append(heard)
        with suppress(OSError):
            while data := await reader.read(65_536):
                for packet in decoder.receive(data):
                    heard.append(packet)
                    self._react(writer, packet)
                    self._moved.set()
        writer.close()

    def _react(self, writer: asyncio.StreamWriter, packet: Packet) -> None:
        match packet:
            case Connect():
                self._version = packet.version
                self._say(writer, Connack())
            case Subscribe():
                self._say(writer, Suback(packet.packet_id, tuple(each.qos for each in packet.requests)))
            case Unsubscribe():
                self._say(writer, Unsuback(packet.packet_id, (0,) if self._version == V5 else ()))
            case Disconnect():
                writer.close()
            case Publish():
                verb = packet.topic.removeprefix(TOPICS)
                if packet.qos and (self.is_acknowledging or verb != packet.topic):
                    self._say(writer, Puback(packet.packet_id, self.codes.get(verb, ReasonCode.SUCCESS)))
                if verb != packet.topic:
                    self._answer(writer, verb, packet)

    def _answer(self, writer: asyncio.StreamWriter, verb: str, packet: Publish) -> None:
        members = json.loads(packet.payload)
        number = members.pop("id")
        self.requests.append((verb, members))
        answer = self.answering(verb, members)
        if answer is not None:
            topic = packet.properties.text(Property.RESPONSE_TOPIC) if self._version == V5 else f"{TOPICS}answer"
            assert topic is not None
            self._say(writer, Publish(topic, json.dumps({"request": verb, "id": number, **answer}).encode()))

    def _say(self, writer: asyncio.StreamWriter, packet: Packet) -> None:
        if not writer.is_closing():
            writer.write(encode(packet, self._version))


def _run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_PATIENCE_S):  # a hang is a failure, not a pause
            await work

    asyncio.run(bounded())


def _client(peer: Peer, version: int = 5, **options: Any) -> Client:
    options = {"client_id": "phone", "reconnect": SOON, "rng": random.Random(1), **options}
    return Client("127.0.0.1", peer.port, version=version, **options)


# -- joining ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("joins", "said"),
    [
        (["a", "b"], [("session", "a"), ("session", "b")]),
        ([Join("a", "x")], [("session", "a"), ("password", "x")]),
        (
            [Join("a", "x"), Join("b")],
            [("session", "a"), ("session", "b"), ("password", "x"), ("password", "")],
        ),
        (
            [Join("a"), Join("b", receipt="keep")],
            [("session", "a"), ("session", "b"), ("receipt", "take"), ("receipt", "keep")],
        ),
    ],
)
def test_connect_says_sessions_passwords_and_receipts(joins: list[Join | str], said: list[tuple[str, str]]) -> None:
    """One for each session where they differ, for one alone would be for all."""
    assert list(Joins(joins, [CONSUMER]).in_connect(5)) == [MARK, *said, ("key", CONSUMER)]
    assert Joins(joins).in_connect(4) == ()


def test_what_connect_has_no_room_for_is_joined_by_request() -> None:
    """CONNECT names sixteen sessions at most."""
    joins = Joins([f"s{number}" for number in range(18)])
    assert len(joins.in_connect(5)) == 1 + 16
    assert [session for _, session, _ in joins.by_request(5)] == ["s16", "s17"]
    assert len(joins.by_request(4)) == 18


@pytest.mark.parametrize("bad", ["", "a/b", "a+", "#", "$a", "a\nb", "x" * 256, "\ud800"])
def test_what_is_no_name_of_a_session_is_refused(bad: str) -> None:
    """The broker would say the same, later and less clearly."""
    with pytest.raises(InvalidValueError, match="session"):
        Join(bad)


def test_no_secret_is_shown() -> None:
    """Errors and values are logged."""
    shown = [repr(Join("a", "secret")), repr(Interest(topic_filter="a", keys=(PRODUCER,)))]
    for work in (
        lambda: Join("a", "secret" * 1_000),
        lambda: Join("a", "secret\ud800"),
        lambda: checked_keys(["secret"]),
        lambda: Joins([], ["bad:private:secret"]),
        lambda: publication("a", b"", version=4, keys=[PRODUCER]),
        lambda: Interest(topic_filter="a", keys=(PRODUCER,)).properties(4),
    ):
        with pytest.raises(InvalidValueError) as refused:
            work()
        shown.append(f"{refused.value} {refused.value!r}")
    assert "secret" not in " ".join(shown)


@VERSIONS
def test_a_client_is_in_its_sessions_when_it_is_entered(version: int) -> None:
    """Version 5 says it in CONNECT; 3.1.1 asks, keys first, and waits for the answers."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, version, join=[Join("a", "x"), "b"], keys=[CONSUMER]):
            [connect] = peer.packets(Connect)
            if version == 5:
                said = Joins([Join("a", "x"), "b"], [CONSUMER]).in_connect(5)
                assert (connect.properties.user, peer.requests) == (said, [])
            else:
                assert peer.requests == [
                    ("keys", {"add": [CONSUMER], "remove": []}),
                    ("join", {"session": "a", "receipt": "take", "password": "x"}),
                    ("join", {"session": "b", "receipt": "take"}),
                ]

    _run(work())


def test_a_client_that_may_not_join_does_not_enter() -> None:
    """Whoever asked for a session would wait in vain for its messages; even if it may be allowed in a minute."""

    async def work() -> None:
        for code in (0x87, 0x97):
            async with Peer(lambda *_: {"ok": False, "code": code, "reason": "no"}) as peer:  # noqa: B023
                with pytest.raises(SessionRefusedError, match=rf"session a: request refused: no \(0x{code:02X}"):
                    async with _client(peer, 4, join=["a"]):
                        pass

    _run(work())


def test_a_broker_that_knows_no_sessions_is_not_waited_for_for_ever() -> None:
    """Any other broker takes the request for a publication that nobody wants."""

    async def work() -> None:
        async with Peer(lambda *_: None) as peer:
            with pytest.raises(CannotConnectError, match="request to join"):
                async with _client(peer, 4, join=["a"], connect_timeout_s=0.05):
                    pass

    _run(work())


@VERSIONS
def test_a_session_joined_by_request_is_joined_again(version: int) -> None:
    """An application that lost its connection must not lose its session without a word; one that left it stays out."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, version) as client:
            assert await client.sessions.join("a", password=WORD, receipt="keep") == (
                SessionSubscription(
                    topic_filter="a/#", name="n", filter="t > 1", ttl_s=60, max=5, qos=1, keys=(CONSUMER,),
                    insecure=False,
                ),
            )  # fmt: skip
            await client.sessions.join("b")
            await client.sessions.leave("b")
            await client.sessions.set_keys([PRODUCER, CONSUMER])
            await client.sessions.set_keys(remove=[CONSUMER])
            peer.requests.clear()
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2)
            await client.publish("p", qos=1)
            if version == 5:
                said = (MARK, ("session", "a"), ("password", "x"), ("receipt", "keep"), ("key", PRODUCER))
                assert peer.packets(Connect)[0].properties.user == said
            else:
                joining = ("join", {"session": "a", "receipt": "keep", "password": "x"})
                assert peer.requests == [("keys", {"add": [PRODUCER], "remove": []}), joining]

    _run(work())


def test_what_is_sent_again_waits_for_its_keys() -> None:
    """A publication that overtook the keys of its connection would go to everybody."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, 4, keys=[PRODUCER]) as client:
            peer.is_acknowledging = False
            publishing = asyncio.create_task(client.publish("secret", b"x", qos=1))
            await peer.until(lambda: any(each.topic == "secret" for each in peer.packets(Publish)))
            peer.answering = lambda *_: None
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2 and len(peer.requests) == 2)
            assert [each.topic for each in peer.packets(Publish)] == [f"{TOPICS}keys"]
            peer.answering, peer.is_acknowledging = agreeing, True
            peer.hang_up()
            await publishing
            assert [each.topic for each in peer.packets(Publish)] == [f"{TOPICS}keys", "secret"]

    _run(work())


# -- subscribing -----------------------------------------------------------------------------------------------------


def _session_said(packet: Subscribe | Unsubscribe) -> str | None:
    return next((value for name, value in packet.properties.user if name == "session"), None)


def test_subscribe_names_the_session_that_is_not_the_home() -> None:
    """Nothing is said for the home, so that a client of plain MQTT says nothing either."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, join=["a", "b"]) as client:
            await client.subscribe("t")
            await client.subscribe("t", session="b", keys=[CONSUMER], insecure=False)
            await client.subscribe("t", session="")
            await client.subscribe("$SYS/x")
            await client.unsubscribe("t", session="b")
            said = [_session_said(packet) for packet in peer.packets(Subscribe)]
            assert said == [None, "b", "", ""]
            assert peer.packets(Subscribe)[1].properties.user == (
                ("key", CONSUMER),
                ("insecure", "no"),
                ("session", "b"),
            )
            assert _session_said(peer.packets(Unsubscribe)[0]) == "b"

    _run(work())


def test_the_home_of_a_client_stays_what_it_was() -> None:
    """A session joined later stands in the next CONNECT, and must not become the home of a client that had none."""

    async def work() -> None:
        async with Peer() as peer, _client(peer) as client:
            await client.sessions.join("a")
            await client.subscribe("t")
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2)
            await client.subscribe("u")
            assert [_session_said(packet) for packet in peer.packets(Subscribe, 0)] == [None]
            renewed = {packet.requests[0].topic_filter: _session_said(packet) for packet in peer.packets(Subscribe, 1)}
            assert renewed == {"t": "", "u": ""}

    _run(work())


def test_only_subscriptions_of_the_private_session_are_renewed() -> None:
    """Those of a named one are the session's: somebody may have removed them meanwhile."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, join=["a"]) as client:
            await client.subscribe("named")
            await client.subscribe("mine", session="")
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2)
            await client.subscribe("later")
            filters = {packet.requests[0].topic_filter for packet in peer.packets(Subscribe)}
            assert filters == {"mine", "later"}

    _run(work())


def test_the_older_version_subscribes_in_a_session_by_request() -> None:
    """Its SUBSCRIBE has no place for the session, nor for the options."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, 4, join=["a"]) as client:
            peer.requests.clear()
            assert await client.subscribe("t", 1, filter="t > 1", ttl_s=5, name="n", keys=[CONSUMER]) == 1
            await client.unsubscribe("t", name="n", session="a")
            await client.subscribe("mine", session="")
            assert peer.requests == [
                (
                    "subscribe",
                    {
                        "session": "a", "topic": "t", "name": "n", "qos": 1, "filter": "t > 1", "ttl": 5,
                        "keys": [CONSUMER],
                    },
                ),
                ("unsubscribe", {"session": "a", "topic": "t", "name": "n"}),
            ]  # fmt: skip
            assert [packet.requests[0].topic_filter for packet in peer.packets(Subscribe)] == ["mine"]
            with pytest.raises(InvalidValueError, match="options"):
                await client.subscribe("t", no_local=True)
            peer.answering = lambda *_: {"ok": False, "code": 0x8F, "reason": "no filter"}
            with pytest.raises(SubscriptionRefusedError, match="no filter"):
                await client.subscribe("t")

    _run(work())


def test_no_caller_waits_for_a_client_that_has_failed() -> None:
    """What fails may be the caller's own: here the function that is told what goes on."""

    def told(_: str) -> None:
        raise ZeroDivisionError

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with Peer() as peer, Client("127.0.0.1", peer.port, told=told) as client:
            waiting = asyncio.create_task(client.publish("t", qos=1))
            await asyncio.sleep(0)
            peer.hang_up()
            with pytest.raises(ClientClosedError):
                await waiting

    _run(work())


def test_keys_of_a_publication_are_user_properties() -> None:
    """As the broker reads them, behind the application's own."""
    packet = publication("t", b"", version=5, user=[("a", "b")], keys=[PRODUCER], insecure=True)
    assert packet.properties == Properties(user=(("a", "b"), ("key", PRODUCER), ("insecure", "yes")))


# -- requests --------------------------------------------------------------------------------------------------------


@VERSIONS
def test_every_request_is_said_as_the_contract_has_it(version: int) -> None:
    """An unknown member would be refused, and one that is missing not obeyed."""
    acl = AccessControlList(owner="ann", grants=(Grant(who="bob", rights=frozenset({Right.JOIN})),))

    async def work() -> None:
        async with Peer() as peer, _client(peer, version) as client:
            sessions = client.sessions
            await sessions.create("a", user="u", admin="x")
            await sessions.create("b", acl=acl)
            await sessions.leave("a", device="tablet")
            await sessions.set_access("a", password=WORD, owner="o")
            await sessions.set_access("a", is_open=True)
            await sessions.subscribe("a", "t", subscription="n", max=0, insecure=True, password=WORD)
            await sessions.unsubscribe("a", "t", subscription="n")
            await sessions.delete("a", password=WORD)
            await sessions.list()
            listed = {"owner": "ann", "users": {"bob": ["join"]}, "groups": {}}
            assert peer.requests == [
                ("create", {"session": "a", "passwords": {"user": "u", "admin": "x"}}),
                ("create", {"session": "b", "list": listed}),
                ("leave", {"session": "a", "device": "tablet"}),
                ("access", {"session": "a", "passwords": {"owner": "o"}, "password": "x"}),
                ("access", {"session": "a", "open": True}),
                (
                    "subscribe",
                    {
                        "session": "a", "topic": "t", "name": "n", "qos": 1, "max": 0, "insecure": True,
                        "password": "x",
                    },
                ),
                ("unsubscribe", {"session": "a", "topic": "t", "name": "n"}),
                ("delete", {"session": "a", "password": "x"}),
                ("list", {}),
            ]  # fmt: skip
            assert all(packet.qos == 1 for packet in peer.packets(Publish))

    _run(work())


def test_access_is_one_thing() -> None:
    """Half a scheme, or two at once, is a slip."""

    async def work() -> None:
        async with Peer() as peer, _client(peer) as client:
            for options in ({}, {"owner": "o", "is_open": True}, {"admin": "a"}, {"user": "u", "owner": "o"}):
                with pytest.raises(InvalidValueError):
                    await client.sessions.set_access("a", **options)
            assert peer.requests == []

    _run(work())


def test_a_refusal_says_session_code_and_reason() -> None:
    """An application reacts to the code, a person to the reason."""

    async def work() -> None:
        async with Peer(lambda *_: {"ok": False, "code": 135, "reason": "no such session"}) as peer:
            peer.codes["show"] = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # the answer behind it says more
            async with _client(peer) as client:
                with pytest.raises(SessionRefusedError, match=r"session a: .*no such session") as refused:
                    await client.sessions.show("a", password=SECRET)
                assert (refused.value.session, refused.value.code) == ("a", ReasonCode.NOT_AUTHORIZED)
                assert "secret" not in repr(refused.value)

    _run(work())


def test_an_acknowledgement_that_refuses_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker without sessions answers no request; that it does not take the publication says the same."""
    monkeypatch.setattr("whimbrel.client.requests._GRACE_S", 0.0)

    async def work() -> None:
        async with Peer(lambda *_: None) as peer, _client(peer) as client:
            peer.codes["list"] = ReasonCode.NOT_AUTHORIZED
            with pytest.raises(SessionRefusedError, match="not authorized"):
                await client.sessions.list()

    _run(work())


@pytest.mark.parametrize(
    "answer", [{"ok": "yes"}, {"ok": False}, {"ok": True}, {"ok": True, "session": "a", "subscriptions": 3}]
)
def test_an_answer_that_cannot_be_read_is_an_error(answer: Members) -> None:
    """Not a traceback from the middle of the client, and no wait for ever."""

    async def work() -> None:
        async with Peer(lambda *_: answer) as peer, _client(peer) as client:
            with pytest.raises(MalformedAnswerError):
                await client.sessions.show("a")

    _run(work())


@VERSIONS
def test_a_question_is_asked_again_after_the_connection_was_lost(version: int) -> None:
    """Whoever waits for an answer goes on waiting, as for everything else."""

    async def work() -> None:
        async with Peer(lambda *_: None) as peer, _client(peer, version) as client:
            asking = asyncio.create_task(client.sessions.show("a"))
            await peer.until(lambda: peer.verbs() == ["show"])
            peer.answering = agreeing
            peer.hang_up()
            assert (await asking).held == 0
            assert peer.verbs() == ["show", "show"]

    _run(work())


@VERSIONS
def test_what_must_not_be_done_twice_is_not(version: int) -> None:
    """Nobody knows whether it was done; MQTT alone would send it again."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, version, join=["a"]) as client:
            for work in (
                client.sessions.create("b", owner="o"),
                client.sessions.set_access("a", owner="o"),
                client.sessions.delete("a"),
            ):
                peer.answering = lambda verb, members: agreeing(verb, members) if verb == "join" else None
                count, connections = len(peer.requests), len(peer.heard)
                asking = asyncio.create_task(work)
                await peer.until(lambda: len(peer.requests) > count)  # noqa: B023
                peer.hang_up()
                with pytest.raises(RequestLostError, match="not known whether"):
                    await asking
                peer.answering = agreeing
                await peer.until(lambda: len(peer.heard) > connections)  # noqa: B023
                await client.publish("p", qos=1)
            assert sorted(verb for verb in peer.verbs() if verb != "join") == ["access", "create", "delete"]
            assert ("session", "a") not in peer.packets(Connect)[0].properties.user  # it may be gone
            assert peer.requests[-1][0] == "delete"

    _run(work())


def test_who_changes_the_access_comes_back_with_what_is_valid_then() -> None:
    """The password it joined with would keep it out, with all its other sessions."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, join=[Join("a", "old", "keep")]) as client:
            await client.sessions.set_access("a", user="u", admin="new")
            peer.answering = lambda *_: {"ok": False, "code": 135}
            with pytest.raises(SessionRefusedError):
                await client.sessions.delete("a")
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2)
            await client.publish("p", qos=1)
            said = (MARK, ("session", "a"), ("password", "new"), ("receipt", "keep"))
            assert peer.packets(Connect)[0].properties.user == said

    _run(work())


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """An answer that comes too late is nobody's, and the request is not sent again."""

    async def work() -> None:
        async with Peer(lambda *_: None) as peer, _client(peer) as client:
            peer.codes.clear()
            asking = asyncio.create_task(client.sessions.create("a"))
            await peer.until(lambda: peer.verbs() == ["create"])
            asking.cancel()
            await asyncio.wait([asking])
            peer.say(f"{TOPICS}answer", {"request": "create", "id": 1, "ok": True, "session": "a"})
            peer.answering = agreeing
            assert await client.sessions.list() == ()
            assert peer.verbs() == ["create", "list"]

    _run(work())


def test_an_answer_comes_although_nobody_takes_messages() -> None:
    """An application that asks while it handles a message would wait for ever."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, queue_messages=1) as client:
            for number in range(5):
                peer.say("t", number)
            assert await client.sessions.list() == ()
            assert [(await anext(client.messages())).text for _ in range(5)] == ["0", "1", "2", "3", "4"]

    _run(work())


# -- being told ------------------------------------------------------------------------------------------------------


def test_changes_come_by_themselves_and_not_as_messages() -> None:
    """They are about the session; an application that reads messages did not ask for them."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, join=["a"]) as client, client.sessions.changes() as changes:
            [packet] = peer.packets(Subscribe)
            assert packet.requests[0].topic_filter == f"{TOPICS}+/changes"
            told = {"session": "a", "change": "added", "subscription": SUBSCRIPTION, "device": "tablet"}
            peer.say(f"{TOPICS}a/changes", told)
            peer.say(f"{TOPICS}a/subscriptions", {"session": "a", "subscriptions": []})
            peer.say(f"{TOPICS}a/changes", "what?")
            peer.say("t", "message")
            change = await anext(changes)
            assert (change.session, change.change, change.device) == ("a", "added", "tablet")
            assert change.subscription is not None
            assert change.subscription.topic_filter == "a/#"
            assert (await anext(client.messages())).topic == "t"

    _run(work())


@pytest.mark.parametrize("change", ["left", "deleted"])
def test_a_session_that_is_gone_is_not_joined_again(change: str) -> None:
    """The whole CONNECT would be refused because of it."""

    async def work() -> None:
        async with Peer() as peer, _client(peer, join=["a", "b"]) as client, client.sessions.changes() as changes:
            peer.say(f"{TOPICS}a/changes", {"session": "a", "change": change, "device": None})
            assert (await anext(changes)).subscription is None
            peer.hang_up()
            await peer.until(lambda: len(peer.heard) == 2)
            await client.subscribe("t")
            assert peer.packets(Connect)[0].properties.user == (MARK, ("session", "b"))
            said = {each.requests[0].topic_filter: _session_said(each) for each in peer.packets(Subscribe)}
            assert said["t"] == "a"  # the home, whatever becomes of it

    _run(work())


def test_the_iteration_over_changes_ends_with_the_client() -> None:
    """A task that only watches ends without an error."""

    async def work() -> None:
        async with Peer() as peer:
            async with _client(peer) as client:
                changes = client.sessions.changes()
                watching = asyncio.create_task(anext(changes, None))
                await peer.until(lambda: bool(peer.packets(Subscribe)))
            assert await watching is None

    _run(work())


# -- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_values() -> None:
    """What an application gets has names and types."""
    device = {"device": "d", "present": True, "receipt": "keep"}
    members = {"session": "a", "subscriptions": [SUBSCRIPTION], "devices": [device], "held": 3, "more": 1}
    details = details_of(members)
    assert (details.held, details.devices[0].is_present, details.subscriptions[0].max) == (3, True, 5)
    line = {"session": "a", "joined": False, "devices": 1, "subscriptions": 2, "held": 3}
    [summary] = summaries_of({"sessions": [line]})
    assert (summary.session, summary.is_joined, summary.subscriptions) == ("a", False, 2)


@pytest.mark.parametrize("payload", [b"", b"[]", b"\xff", b"[" * 100_000, b"1"])
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    """Whatever comes, it is one error."""
    with pytest.raises(MalformedAnswerError):
        members_of(payload)


def test_an_unknown_change_is_refused() -> None:
    """It may mean anything, so it must not be taken for one that is known."""
    with pytest.raises(MalformedAnswerError, match="added, modified"):
        change_of({"session": "a", "change": "painted", "device": "d"})
