"""The scenarios of the Elvin proxy paper (4 and 5.2), on a real broker, with clients of others and with our own.

A scenario is written once and told by four kinds of device: paho-mqtt and our client, in versions 5 and 3.1.1.
Rule: nobody sleeps. That nothing more comes is known by asking: an answer comes behind whatever was sent before it.
Rule: minutes are seconds here; the paper's own five minutes pass on the core alone, whose clock is moved by hand.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count, permutations, product
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import paho.mqtt.client as paho
import pytest
from broker_rig import Rig, publishing
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Clients

from whimbrel.client import Client, ConnectRefusedError, Join, SessionRefusedError
from whimbrel.mqtt.packets import Puback, Publish

TIMEOUT_S = 60.0
SESSIONS, ANSWERS = "$whimbrel/session/", "$whimbrel/session/answer"
NOT_AUTHORIZED = 0x87
USER, ADMIN, OWNER, WRONG = "word for users", "word for admins", "word for the owner", "no word"
_T = TypeVar("_T")
_ids = count(1)

Wish = tuple[str, str | None, str]
"""A session to be joined: its name, password, and take or keep."""


class RefusedError(Exception):
    """The broker did not let a device in."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# -- devices -----------------------------------------------------------------------------------------------------------


class Device(ABC):
    """A device that is connected and has joined what it wished to."""

    is_v5: bool
    messages: queue.Queue[tuple[str, bytes]]
    """Topic and payload of what came, of which the broker was told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go()

    @abstractmethod
    def go(self) -> None:
        """Say goodbye."""

    @abstractmethod
    def ask(self, verb: str, **members: Any) -> dict[str, Any]:
        """Make a request and return the answer, of which only ``ok``, ``code`` and what tests look at are there."""

    @abstractmethod
    def publish(self, topic: str, payload: bytes, *, keys: Sequence[str] = ()) -> None:
        """Publish with QoS 1, and wait until it is accepted."""

    @abstractmethod
    def hear(self) -> None:
        """Want to be told what others change."""

    @abstractmethod
    def change(self) -> tuple[str, str, str | None, str | None]:
        """Return the next change that was told: session, change, topic, device."""

    def received(self, number: int) -> list[bytes]:
        """Return the payloads of the next *number* of messages."""
        return [self.messages.get(timeout=TIMEOUT_S)[1] for _ in range(number)]

    def rest(self) -> list[bytes]:
        """Return the payloads of all that came until now; the broker has heard of all of them then."""
        for _ in range(2):  # the first is answered behind all messages, the second asked behind all acknowledgements
            assert self.ask("list")["ok"]
        return [self.messages.get_nowait()[1] for _ in range(self.messages.qsize())]

    def create(self, *sessions: str, **access: Any) -> None:
        """Make sessions."""
        for session in sessions:
            assert self.ask("create", session=session, **access)["ok"]

    def subscribe(self, session: str, topic: str, **options: Any) -> None:
        """Let a session subscribe."""
        answer = self.ask("subscribe", session=session, topic=topic, **options)
        assert answer["ok"], answer

    def may(self, verb: str, **members: Any) -> bool:
        """Tell whether a request is granted; if it is not, that has the one code."""
        answer = self.ask(verb, **members)
        assert answer["ok"] or answer["code"] == NOT_AUTHORIZED
        return bool(answer["ok"])


class PahoDevice(Device):
    """paho-mqtt, which knows nothing of named sessions: what it says of them is written out here."""

    def __init__(
        self, broker: BrokerProcess, name: str, version: int, wishes: Sequence[Wish], keys: Sequence[str]
    ) -> None:
        self.is_v5 = version == 5
        self.messages = queue.Queue()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._changes: queue.Queue[dict[str, Any]] = queue.Queue()
        self._connected, self._subscribed = Event(), Event()
        self._code = 0
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=None if self.is_v5 else True,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=False,
        )
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        user = [("whimbrel.session", session) for session, _, _ in wishes]
        user += [("whimbrel.password", password or "") for _, password, _ in wishes]
        user += [("whimbrel.receipt", receipt) for _, _, receipt in wishes]
        user += [("whimbrel.key", key) for key in keys]
        properties = _properties(PacketTypes.CONNECT, user) if self.is_v5 else None
        self._client.connect("127.0.0.1", broker.port, properties=properties)
        self._client.loop_start()
        assert self._connected.wait(TIMEOUT_S)
        if self._code:
            self.go()
            raise RefusedError(self._code)
        if not self.is_v5:
            self._join(wishes, keys)

    def _join(self, wishes: Sequence[Wish], keys: Sequence[str]) -> None:
        if keys:
            assert self.ask("keys", add=list(keys))["ok"]
        for session, password, receipt in wishes:
            answer = self.ask("join", session=session, password=password, receipt=receipt)
            if not answer["ok"]:
                self.go()
                raise RefusedError(answer["code"])

    def _on_connect(self, _client: object, _data: object, _flags: object, code: ReasonCode, _more: object) -> None:
        self._code = code.value
        self._connected.set()

    def _on_message(self, _client: object, _data: object, message: MQTTMessage) -> None:
        if message.topic == ANSWERS:
            self._answers.put(json.loads(message.payload))
        elif message.topic.startswith(SESSIONS):
            if message.topic.endswith("/changes"):
                self._changes.put(json.loads(message.payload))
        else:
            self.messages.put((message.topic, bytes(message.payload)))

    def go(self) -> None:
        """Say goodbye, and let go of the socket and the thread."""
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # paho leaves that to the garbage collector, which warns of open sockets

    def ask(self, verb: str, **members: Any) -> dict[str, Any]:
        """Make a request and return the answer."""
        number = next(_ids)
        properties = None
        if self.is_v5:
            properties = _properties(PacketTypes.PUBLISH)
            properties.ResponseTopic = ANSWERS
        body = json.dumps({**members, "id": number})
        self._client.publish(SESSIONS + verb, body, number % 3, properties=properties)
        answer = self._answers.get(timeout=TIMEOUT_S)
        assert (answer["request"], answer["id"]) == (verb, number)
        return answer

    def subscribe(self, session: str, topic: str, **options: Any) -> None:
        """Let a session subscribe, with SUBSCRIBE where that can be said."""
        if not self.is_v5 or "password" in options:  # a SUBSCRIBE has the rights that were joined with
            super().subscribe(session, topic, **options)
            return
        user = [("whimbrel.session", session), *(("whimbrel.key", key) for key in options.pop("keys", ()))]
        user += [(f"whimbrel.{name}", str(value)) for name, value in options.items()]
        user.append(("whimbrel.modify", "yes"))
        self._subscribe(topic, 1, _properties(PacketTypes.SUBSCRIBE, user))

    def _subscribe(self, topic: str, qos: int, properties: Properties | None = None) -> None:
        self._subscribed.clear()
        if self.is_v5:
            self._client.subscribe(topic, options=SubscribeOptions(qos), properties=properties)
        else:
            self._client.subscribe(topic, qos)
        assert self._subscribed.wait(TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, *, keys: Sequence[str] = ()) -> None:
        """Publish with QoS 1, and wait until it is accepted."""
        properties = _properties(PacketTypes.PUBLISH, [("whimbrel.key", key) for key in keys]) if self.is_v5 else None
        published = self._client.publish(topic, payload, 1, properties=properties)
        published.wait_for_publish(TIMEOUT_S)
        assert published.is_published()

    def hear(self) -> None:
        """Want to be told what others change."""
        self._subscribe(f"{SESSIONS}+/changes", 0)

    def change(self) -> tuple[str, str, str | None, str | None]:
        """Return the next change that was told."""
        told = self._changes.get(timeout=TIMEOUT_S)
        return told["session"], told["change"], told.get("subscription", {}).get("topic"), told["device"]


def _properties(kind: int, user: Sequence[tuple[str, str]] = ()) -> Properties:
    properties = Properties(kind)  # type: ignore[no-untyped-call]  # paho has no type for it
    if user:
        properties.UserProperty = list(user)
    return properties


class OurDevice(Device):
    """Our client, on a loop of its own in another thread."""

    def __init__(
        self, broker: BrokerProcess, name: str, version: int, wishes: Sequence[Wish], keys: Sequence[str]
    ) -> None:
        self.is_v5 = version == 5
        self.messages = queue.Queue()
        self._changes: queue.Queue[tuple[str, str, str | None, str | None]] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []
        joins = [
            Join(session, password, "keep" if receipt == "keep" else "take") for session, password, receipt in wishes
        ]
        try:
            self._client = self._run(self._open(broker.port, name, version, joins, keys))
        except (ConnectRefusedError, SessionRefusedError) as error:
            self._end()
            raise RefusedError(error.code) from error

    async def _open(self, port: int, name: str, version: int, joins: Sequence[Join], keys: Sequence[str]) -> Client:
        client = Client(
            port=port,
            client_id=name,
            version=version,
            join=joins,
            keys=keys,
            clean_start=True,
            reconnect=None,
            connect_timeout_s=TIMEOUT_S,  # a broker that hashes passwords beside other tests takes its time
        )
        await client.__aenter__()
        self._tasks.append(asyncio.create_task(self._take(client)))
        return client

    async def _take(self, client: Client) -> None:
        async for message in client.messages():
            self.messages.put((message.topic, message.payload))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def go(self) -> None:
        """Say goodbye, and let go of the socket and the thread."""
        self._run(self._close())
        self._end()

    async def _close(self) -> None:
        await self._client.__aexit__(None, None, None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(self, verb: str, **members: Any) -> dict[str, Any]:
        """Make a request and return the answer."""
        try:
            return {"ok": True, **self._run(self._asked(verb, members))}
        except SessionRefusedError as error:
            return {"ok": False, "code": error.code}

    async def _asked(self, verb: str, members: dict[str, Any]) -> dict[str, Any]:
        """Say it as an application would."""
        sessions = self._client.sessions
        if verb == "list":
            await sessions.list()
            return {}
        name, words = members.pop("session"), members.pop("passwords", {})
        if verb == "show":
            shown = await sessions.show(name, **members)
            topics = [{"topic": each.topic_filter, "keys": list(each.keys)} for each in shown.subscriptions]
            return {"held": shown.held, "subscriptions": topics}
        if verb == "join":
            return {"subscriptions": [{"topic": each.topic_filter} for each in await sessions.join(name, **members)]}
        if verb in {"subscribe", "unsubscribe"}:
            topic = members.pop("topic")
            if "ttl" in members:
                members["ttl_s"] = members.pop("ttl")
            if verb == "subscribe":
                await sessions.subscribe(name, topic, **members)
            else:
                await sessions.unsubscribe(name, topic, **members)
        elif verb == "access":
            await sessions.set_access(name, is_open=members.pop("open", False), **members, **words)
        else:
            await getattr(sessions, verb)(name, **members, **words)
        return {}

    def publish(self, topic: str, payload: bytes, *, keys: Sequence[str] = ()) -> None:
        """Publish with QoS 1, and wait until it is accepted."""
        self._run(self._client.publish(topic, payload, qos=1, keys=keys if self.is_v5 else ()))

    def hear(self) -> None:
        """Want to be told what others change."""
        self._run(self._hear())

    async def _hear(self) -> None:
        changes = await self._client.sessions.changes().__aenter__()

        async def take() -> None:
            async for told in changes:
                topic = None if told.subscription is None else told.subscription.topic_filter
                self._changes.put((told.session, told.change, topic, told.device))

        self._tasks.append(asyncio.create_task(take()))

    def change(self) -> tuple[str, str, str | None, str | None]:
        """Return the next change that was told."""
        return self._changes.get(timeout=TIMEOUT_S)


Come = Callable[..., Device]
"""Make a device come: its name, what it wishes to join, and keys."""


# -- the broker --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield the broker of all scenarios, which is killed in the middle of some."""
    settings: Settings = {"access": {"wrong_passwords_per_minute": 0}, "log": {"view_interval_s": 0.2}}
    folder = tmp_path_factory.mktemp("elvin")
    with BrokerProcess(folder, "--http-port", "0", settings=settings) as process:
        yield process
    assert "Traceback" not in "".join(process.lines)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses, for sessions and topics."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


KINDS = (
    "paho 5",
    "ours 3.1.1",
    pytest.param("paho 3.1.1", marks=pytest.mark.slow),  # all four together take a minute or two
    pytest.param("ours 5", marks=pytest.mark.slow),
)


@pytest.fixture(params=KINDS)
def come(request: pytest.FixtureRequest, broker: BrokerProcess, name: str) -> Come:
    """Return how a device comes, for each kind of device."""
    kind, _, version = request.param.partition(" ")

    def device(who: str, *wishes: Wish, keys: Sequence[str] = ()) -> Device:
        made = PahoDevice if kind == "paho" else OurDevice
        return made(broker, f"{name}-{who}", 5 if version == "5" else 4, wishes, keys)

    return device


def _kill(broker: BrokerProcess, come: Come) -> None:
    """Let the broker die, and another take its place.

    What devices acknowledged is certain with the next that is: a crash may undo an acknowledgement, not a promise.
    """
    with come("last") as last:
        last.create(f"certain-{next(_ids)}")
    broker.kill()
    broker.start()


def _seconds_pass(broker: BrokerProcess, name: str, seconds: int) -> None:
    with Clients(broker.port, f"{name}-clock") as clock:
        for _ in range(seconds):
            clock.let_a_second_pass()


def _publish(come: Come, topic: str, *payloads: bytes, keys: Sequence[str] = ()) -> None:
    with come("publisher") as publisher:
        for payload in payloads:
            publisher.publish(topic, payload, keys=keys)


# -- scenarios ---------------------------------------------------------------------------------------------------------


def test_the_pda_reads_on_the_road_and_the_laptop_archives_later(broker: BrokerProcess, name: str, come: Come) -> None:
    """The paper's own example (4.4): nothing twice, and nothing after the laptop has taken it."""
    pda, laptop = (name, None, "keep"), (name, None, "take")
    with come("laptop") as device:
        device.create(name)
    with come("laptop", laptop) as device:
        device.subscribe(name, name)
    _publish(come, name, b"1", b"2")
    with come("pda", pda) as device:
        assert device.received(2) == [b"1", b"2"]
        assert device.rest() == []
    _kill(broker, come)
    _publish(come, name, b"3")
    with come("pda", pda) as device:
        assert device.rest() == [b"3"]
    with come("laptop", laptop) as device:
        assert device.received(3) == [b"1", b"2", b"3"]
        assert device.rest() == []
    with come("pda", pda) as device:
        assert device.rest() == []
    with come("third", pda) as device:
        assert device.rest() == []


def test_devices_of_one_session_see_its_changes_as_they_happen(broker: BrokerProcess, name: str, come: Come) -> None:
    """State on join, updates, and what each subscribes to comes to both (4.3 and 4.5)."""
    with come("desk") as maker:
        maker.create(name)
    with come("desk", (name, None, "keep")) as desk, come("pda", (name, None, "keep")) as pda:
        desk.hear()
        pda.subscribe(name, f"{name}/a")
        assert desk.change() == (name, "added", f"{name}/a", f"{name}-pda")
        desk.publish(f"{name}/a", b"1")
        assert (desk.received(1), pda.received(1)) == ([b"1"], [b"1"])
        pda.subscribe(name, f"{name}/a", max=5)
        assert desk.change()[1] == "modified"
        pda.subscribe(name, f"{name}/b")
        assert desk.change()[1:3] == ("added", f"{name}/b")
        assert pda.ask("unsubscribe", session=name, topic=f"{name}/a")["ok"]
        assert desk.change()[1:3] == ("removed", f"{name}/a")
        desk.publish(f"{name}/a", b"2")
        assert (desk.rest(), pda.rest()) == ([], [])
    _kill(broker, come)
    with come("late") as late:
        joined = late.ask("join", session=name)
        assert [each["topic"] for each in joined["subscriptions"]] == [f"{name}/b"]
    with come("desk", (name, None, "keep")) as desk, come("pda", (name, None, "keep")) as pda:
        desk.hear()
        assert pda.ask("delete", session=name)["ok"]
        assert desk.change() == (name, "deleted", None, f"{name}-pda")


def test_a_device_in_two_sessions_gets_one_copy(broker: BrokerProcess, name: str, come: Come) -> None:
    """And has it in both (4.6), live and held."""
    home, work = (f"{name}-home", None, "take"), (f"{name}-work", None, "take")
    with come("pda") as device:
        device.create(home[0], work[0])
    with come("pda", home, work) as device:
        device.subscribe(home[0], f"{name}/#")
        device.subscribe(work[0], f"{name}/a")
        device.publish(f"{name}/a", b"1")
        assert device.received(1) == [b"1"]
        assert device.rest() == []
    _publish(come, f"{name}/a", b"2")
    _kill(broker, come)
    with come("pda", home, work) as device:
        assert device.received(1) == [b"2"]
        assert device.rest() == []
        assert [device.ask("show", session=each)["held"] for each in (home[0], work[0])] == [0, 0]
    with come("other", work, home) as device:
        assert device.rest() == []


def test_a_session_joined_later_does_not_bring_again_what_came_through_another(name: str, come: Come) -> None:
    """One device, one copy, whenever it joins (4.6)."""
    home, work = (f"{name}-home", None, "keep"), (f"{name}-work", None, "keep")
    with come("pda") as device:
        device.create(home[0], work[0])
    with come("pda", home, work) as device:
        device.subscribe(home[0], name)
        device.subscribe(work[0], name)
    _publish(come, name, b"1")
    with come("pda", home) as device:
        assert device.received(1) == [b"1"]
        assert device.rest() == []
        assert device.ask("join", session=work[0], receipt="keep")["ok"]
        assert device.rest() == []


def test_a_chat_keeps_the_last_minutes_and_the_last_few(broker: BrokerProcess, name: str, come: Come) -> None:
    """For at most X, and no more than Y of them (4.7)."""
    chat = (name, None, "take")
    with come("pda") as device:
        device.create(name)
    with come("pda", chat) as device:
        device.subscribe(name, f"{name}/chat", ttl=3_600, max=20)
        device.subscribe(name, f"{name}/price", ttl=2)
    _publish(come, f"{name}/chat", *(b"%d" % number for number in range(25)))
    _publish(come, f"{name}/price", b"old")
    _kill(broker, come)
    _seconds_pass(broker, name, 3)
    _publish(come, f"{name}/price", b"new")
    with come("pda", chat) as device:
        assert device.rest() == [*(b"%d" % number for number in range(5, 25)), b"new"]


def test_what_expired_while_a_device_was_away_is_never_delivered_and_swept(
    broker: BrokerProcess, name: str, come: Come
) -> None:
    """The store shrinks without anybody coming by (5.1.3)."""
    with come("pda") as device:
        device.create(name)
    with come("pda", (name, None, "take")) as device:
        device.subscribe(name, name, ttl=2)
    before = _held(broker)
    _publish(come, name, *(b"%d" % number for number in range(10)))
    assert _held(broker) >= before
    _seconds_pass(broker, name, 3)
    with come("stranger") as device:
        assert device.ask("show", session=name)["held"] == 0
    assert _held(broker) <= before
    with come("pda", (name, None, "take")) as device:
        assert device.rest() == []


def _held(broker: BrokerProcess) -> int:
    """Return how many notifications are stored, as the broker says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics", timeout=TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("whimbrel_held_notifications "))))


LEVELS: dict[str, tuple[dict[str, str], dict[str, tuple[str, ...]]]] = {
    "one": ({"owner": OWNER}, {OWNER: ("join", "subscribe", "delete"), WRONG: ()}),
    "two": ({"user": USER, "admin": ADMIN}, {USER: ("join",), ADMIN: ("join", "subscribe", "delete"), WRONG: ()}),
    "three": (
        {"user": USER, "admin": ADMIN, "owner": OWNER},
        {USER: ("join",), ADMIN: ("join", "subscribe"), OWNER: ("join", "subscribe", "delete"), WRONG: ()},
    ),
}


@pytest.mark.parametrize("levels", LEVELS)
def test_strangers_may_what_their_password_gives_them(
    broker: BrokerProcess, name: str, come: Come, levels: str
) -> None:
    """At each of the paper's password levels (5.2.1), also after a restart."""
    passwords, expected = LEVELS[levels]
    with come("maker") as maker:
        maker.create(name, passwords=passwords)
    if levels == "three":
        _kill(broker, come)
    for word, rights in expected.items():
        if not rights:
            with pytest.raises(RefusedError) as refused:
                come("stranger", (name, word, "take"))
            assert refused.value.code == NOT_AUTHORIZED
            with pytest.raises(RefusedError) as none:
                come("stranger", (f"{name}-none", word, "take"))
            assert none.value.code == refused.value.code
            continue
        with come("stranger", (name, word, "take")) as stranger:
            assert stranger.may("subscribe", session=name, topic="a") is ("subscribe" in rights)
            assert stranger.may("access", session=name, passwords=passwords) is ("delete" in rights)
            assert stranger.may("delete", session=name) is ("delete" in rights)
        if "delete" in rights:
            with come("maker") as maker:
                maker.create(name, passwords=passwords)


def test_after_the_password_changes_only_the_new_one_lets_in(broker: BrokerProcess, name: str, come: Come) -> None:
    """The others are put out, are told so, and miss nothing."""
    with come("maker") as maker:
        maker.create(name, passwords={"owner": OWNER})
    with come("desk", (name, OWNER, "take")) as desk, come("pda", (name, OWNER, "take")) as pda:
        pda.hear()
        desk.subscribe(name, name)
        assert pda.change()[1] == "added"
        assert desk.ask("access", session=name, passwords={"owner": ADMIN})["ok"]
        assert pda.change() == (name, "left", None, f"{name}-desk")
        assert not pda.may("show", session=name)
        assert desk.may("show", session=name)
    _publish(come, name, b"1")
    _kill(broker, come)
    with pytest.raises(RefusedError):
        come("pda", (name, OWNER, "take"))
    with come("pda", (name, ADMIN, "take")) as pda:
        assert pda.rest() == [b"1"]


def _public(scheme: str, secret: str) -> str:
    return f"{scheme}:{hashlib.sha256(secret.encode()).hexdigest()}"


SCHEMES: dict[str, Callable[[str, str], tuple[list[str], list[str]]]] = {
    "producer": lambda ours, _: ([f"producer:private:{ours}"], [_public("producer", ours)]),
    "consumer": lambda _, theirs: ([_public("consumer", theirs)], [f"consumer:private:{theirs}"]),
    "dual": lambda ours, theirs: (
        [f"dual_producer:private:{ours}", _public("dual_consumer", theirs)],
        [_public("dual_producer", ours), f"dual_consumer:private:{theirs}"],
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_decide_who_receives_from_whom(broker: BrokerProcess, name: str, come: Come, scheme: str) -> None:
    """In all three schemes, live and held; keys of one session never match in another (5.2.3)."""
    publishes, subscribes = SCHEMES[scheme](f"{name} ours", f"{name} theirs")
    _, mistaken = SCHEMES[scheme](f"{name} mine", f"{name} mine")
    who = {"right": subscribes, "wrong": mistaken, "plain": []}
    with come("maker") as maker:
        maker.create(*(f"{name}-{each}" for each in who))
    for each, keys in who.items():
        with come(each, (f"{name}-{each}", None, "keep"), keys=keys) as device:
            device.subscribe(f"{name}-{each}", name)
    _publish(come, name, b"open")
    with come("sender", keys=publishes) as sender:
        sender.publish(name, b"locked")
    if scheme == "dual":
        _kill(broker, come)
    found = {}
    for each in who:
        with come(each, (f"{name}-{each}", None, "keep")) as device:
            found[each] = device.rest()
    assert found == {"right": [b"locked"], "wrong": [], "plain": [b"open"]}


# -- take and keep, in every order -------------------------------------------------------------------------------------

Case = tuple[tuple[str, ...], tuple[bool, ...], tuple[int, ...]]
"""What each device's receipt is, whether it is present at the publication, and the order in which they come later."""


def _cases(devices: int) -> list[Case]:
    """Return all of them; the order matters only for those that were away."""
    found: dict[tuple[Any, ...], Case] = {}
    for modes, present, order in product(
        product(("take", "keep"), repeat=devices), product((True, False), repeat=devices), permutations(range(devices))
    ):
        coming = tuple(each for each in order if not present[each])
        found[modes, present, coming] = (modes, present, coming)
    return list(found.values())


def _expected(case: Case) -> list[bool]:
    """Return whether each device gets it: those who are there always, the others until one has taken it."""
    modes, present, order = case
    gets = list(present)
    is_taken = any(here and mode == "take" for here, mode in zip(present, modes, strict=True))
    for each in order:
        gets[each] = not is_taken
        is_taken = is_taken or modes[each] == "take"
    return gets


@pytest.mark.parametrize("devices", [2, 3])
def test_in_every_order_of_take_and_keep_each_device_gets_what_it_is_owed_on_the_core(
    tmp_path: Path, devices: int
) -> None:
    """Destructive and non-destructive receipt (4.4), all orders, and nobody gets it twice."""
    rig = Rig(tmp_path)
    maker = rig.client("maker")
    for number, case in enumerate(_cases(devices)):
        modes, present, order = case
        session = f"s{number}"

        def joined(each: int, session: str = session, modes: tuple[str, ...] = modes) -> list[bytes]:
            """Come, take what there is, acknowledge, and go."""
            peer = rig.client(f"d{each}", user=(("session", session), ("receipt", modes[each])))
            found = peer.taken(Publish)
            peer.send(*(Puback(packet.packet_id) for packet in found))
            peer.drop()
            return [packet.payload for packet in found]

        assert maker.ask("create", session=session)["ok"]
        assert maker.ask("subscribe", session=session, topic=session)["ok"]
        for each in range(devices):
            joined(each)
        here = {
            each: rig.client(f"d{each}", user=(("session", session), ("receipt", modes[each])))
            for each in range(devices)
            if present[each]
        }
        maker.send(publishing(session, b"1", 1, 7))
        rig.settle()
        gets = [False] * devices
        for each, peer in here.items():
            found = peer.taken(Publish)
            gets[each] = [packet.payload for packet in found] == [b"1"]
            peer.send(*(Puback(packet.packet_id) for packet in found))
            peer.drop()
        for each in order:
            gets[each] = joined(each) == [b"1"]
        assert gets == _expected(case), case
        assert all(joined(each) == [] for each, has_it in enumerate(gets) if has_it)


@pytest.mark.parametrize("come", ["paho 5", "ours 3.1.1"], indirect=True)
def test_in_every_order_of_take_and_keep_two_devices_get_what_they_are_owed(name: str, come: Come) -> None:
    """The same over sockets, with two of the kinds."""
    with come("maker") as maker:
        for number, case in enumerate(_cases(2)):
            modes, present, order = case
            session = f"{name}-{number}"
            wishes = [(session, None, mode) for mode in modes]
            maker.create(session)
            assert maker.ask("subscribe", session=session, topic=session)["ok"]
            here = {each: come(f"d{each}", wishes[each]) for each in range(2) if present[each]}
            maker.publish(session, b"1")
            gets = [False, False]
            for each, device in here.items():
                gets[each] = device.rest() == [b"1"]
                device.go()
            for each in order:
                with come(f"d{each}", wishes[each]) as device:
                    gets[each] = device.rest() == [b"1"]
            assert gets == _expected(case), case


# -- with the paper's own numbers, on the core -------------------------------------------------------------------------


def test_a_chat_is_kept_for_five_minutes_and_twenty_messages(tmp_path: Path) -> None:
    """Somebody is away for a day; the last five minutes are there, and no more than twenty messages of them (4.7)."""
    rig = Rig(tmp_path)
    maker = rig.client("maker")
    assert maker.ask("create", session="chat")["ok"]
    assert maker.ask("subscribe", session="chat", topic="talk", ttl=300, max=20)["ok"]
    assert maker.ask("subscribe", session="chat", topic="price", ttl=300)["ok"]
    rig.tick(86_400 - 3_600)  # most of the day is silence, and the maker is gone long before its end
    talker = rig.client("talker")
    for second in range(86_400 - 3_600, 86_400, 10):
        talker.send(publishing("talk", b"talk %d" % second, 1, 1), publishing("price", b"price %d" % second, 1, 2))
        rig.settle()
        rig.tick(10)
    pda = rig.client("pda", user=(("session", "chat"),))
    found = []
    while packets := pda.taken(Publish):
        found += [packet.payload for packet in packets]
        pda.send(*(Puback(packet.packet_id) for packet in packets))
        rig.settle()
    talk, price = ([each for each in found if each.startswith(what)] for what in (b"talk", b"price"))
    assert talk == [b"talk %d" % second for second in range(86_400 - 200, 86_400, 10)]
    assert price == [b"price %d" % second for second in range(86_400 - 290, 86_400, 10)]


def test_what_is_stored_shrinks_when_five_minutes_have_passed(tmp_path: Path) -> None:
    """One tick, and the disk is free (5.1.3)."""
    rig = Rig(tmp_path)
    maker = rig.client("maker")
    assert maker.ask("create", session="chat")["ok"]
    assert maker.ask("subscribe", session="chat", topic="talk", ttl=300)["ok"]
    maker.send(*(publishing("talk", b"%d" % number, 0) for number in range(100)))
    rig.settle()
    rig.tick(299)
    assert len(rig.state.held) == 100
    rig.tick(1)
    assert (len(rig.state.held), rig.state.held.size_bytes, rig.state.hold.pending_count("chat")) == (0, 0, 0)
    assert rig.client("pda", user=(("session", "chat"),)).payloads() == []
