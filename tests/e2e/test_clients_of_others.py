"""Clients that others wrote: what people have on their devices already speaks to our broker.

paho-mqtt and aiomqtt over TCP, and MQTT.js (the npm package ``mqtt``) over WebSocket. The last is tried where
WHIMBREL_NODE_MODULES names the ``node_modules`` that it is installed in.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import aiomqtt
import pytest
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tests.e2e.broker_process import BrokerProcess

TIMEOUT_S = 20.0
VERSIONS = [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]
EVERY_QOS = [(b"0", 0), (b"1", 1), (b"2", 2)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker for TCP and WebSocket that all tests use, except those that kill one."""
    with BrokerProcess(tmp_path_factory.mktemp("others"), "--ws-port", "0") as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic, and a name, that no other test uses."""
    return str(request.node.name)


# -- paho-mqtt ---------------------------------------------------------------------------------------------------------


def _properties(place: int, user: Sequence[tuple[str, str]]) -> Properties | None:
    """Return the user properties of a packet; 3.1.1 has none."""
    if not user:
        return None
    properties = Properties(place)  # type: ignore[no-untyped-call]  # paho has no type for it
    properties.UserProperty = list(user)
    return properties


class Paho:
    """paho-mqtt as its manual says to use it: a thread of its own, and functions that it calls."""

    def __init__(
        self,
        broker: BrokerProcess,
        name: str,
        version: MQTTProtocolVersion,
        *,
        is_lasting: bool = False,
        will: str | None = None,
        user: Sequence[tuple[str, str]] = (),
    ) -> None:
        is_v5 = version == MQTTProtocolVersion.MQTTv5
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.is_resumed = False
        self.granted: list[int] = []
        """The codes of the last SUBACK."""
        self._connected, self._subscribed, self._gone = Event(), Event(), Event()
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=None if is_v5 else not is_lasting,
            protocol=version,
            reconnect_on_failure=False,
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = lambda _client, _data, message: self.messages.put(message)
        self._client.on_disconnect = self._on_disconnect
        if will is not None:
            self._client.will_set(will, b"lost", qos=1, properties=_properties(PacketTypes.WILLMESSAGE, user))
        properties = _properties(PacketTypes.CONNECT, user)
        if is_v5 and is_lasting:
            properties = properties or Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3_600
        clean_start: dict[str, Any] = {"clean_start": not is_lasting} if is_v5 else {}
        self._client.connect("127.0.0.1", broker.port, properties=properties, **clean_start)
        self._client.loop_start()
        assert self._connected.wait(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # paho leaves that to the garbage collector, which warns of open sockets

    def _on_connect(
        self, _client: Client, _data: object, flags: ConnectFlags, code: ReasonCode, _properties: Properties | None
    ) -> None:
        assert not code.is_failure, code
        self.is_resumed = flags.session_present
        self._connected.set()

    def _on_disconnect(
        self, _client: Client, _data: object, _flags: DisconnectFlags, _code: ReasonCode, _properties: Properties | None
    ) -> None:
        self._gone.set()

    def _on_subscribe(
        self, _client: Client, _data: object, _number: int, codes: list[ReasonCode], _properties: Properties | None
    ) -> None:
        self.granted = [code.value for code in codes]
        self._subscribed.set()

    def subscribe(self, topic: str, user: Sequence[tuple[str, str]] = ()) -> None:
        """Subscribe with QoS 2, and wait for SUBACK."""
        self._subscribed.clear()
        self._client.subscribe(topic, 2, properties=_properties(PacketTypes.SUBSCRIBE, user))
        assert self._subscribed.wait(TIMEOUT_S)

    def unsubscribe(self, topic: str, user: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Unsubscribe, and return the codes of UNSUBACK."""
        codes: queue.Queue[list[ReasonCode]] = queue.Queue()
        self._client.on_unsubscribe = lambda _client, _data, _number, found, _properties: codes.put(found)
        self._client.unsubscribe(topic, properties=_properties(PacketTypes.UNSUBSCRIBE, user))
        return [code.value for code in codes.get(timeout=TIMEOUT_S)]

    def publish(
        self, topic: str, payload: bytes, qos: int, *, retain: bool = False, user: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Publish, and wait until it is acknowledged."""
        published = self._client.publish(topic, payload, qos, retain, _properties(PacketTypes.PUBLISH, user))
        published.wait_for_publish(TIMEOUT_S)
        assert published.is_published()

    def received(self, number: int) -> list[tuple[bytes, int]]:
        """Return payload and QoS of the next *number* of messages."""
        messages = [self.messages.get(timeout=TIMEOUT_S) for _ in range(number)]
        return [(bytes(message.payload), message.qos) for message in messages]

    def lose_connection(self) -> None:
        """End the connection under paho's feet."""
        connection = self._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        assert self._gone.wait(TIMEOUT_S)


@pytest.mark.parametrize("version", VERSIONS)
def test_paho_publishes_and_receives_at_every_qos(
    broker: BrokerProcess, topic: str, version: MQTTProtocolVersion
) -> None:
    """The client that most Python programs have is served."""
    with Paho(broker, topic, version) as client:
        client.subscribe(topic)
        for payload, qos in EVERY_QOS:
            client.publish(topic, payload, qos)
        assert client.received(3) == EVERY_QOS


@pytest.mark.parametrize("version", VERSIONS)
def test_paho_finds_what_was_retained(broker: BrokerProcess, topic: str, version: MQTTProtocolVersion) -> None:
    """The last word on a topic is there for whoever comes later."""
    with Paho(broker, f"{topic}-a", version) as publisher:
        publisher.publish(topic, b"kept", 1, retain=True)
    with Paho(broker, f"{topic}-b", version) as late:
        late.subscribe(topic)
        message = late.messages.get(timeout=TIMEOUT_S)
    assert (message.payload, message.qos, message.retain) == (b"kept", 1, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_will_of_a_lost_paho_is_told(broker: BrokerProcess, topic: str, version: MQTTProtocolVersion) -> None:
    """Others learn that a device is gone."""
    with Paho(broker, f"{topic}-a", version) as watcher, Paho(broker, f"{topic}-b", version, will=topic) as lost:
        watcher.subscribe(topic)
        lost.lose_connection()
        assert watcher.received(1) == [(b"lost", 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_session_of_paho_outlives_a_killed_broker(tmp_path: Path, topic: str, version: MQTTProtocolVersion) -> None:
    """What was acknowledged is held for an absent client, whatever happens to the broker."""
    with BrokerProcess(tmp_path) as broker:
        with Paho(broker, f"{topic}-a", version, is_lasting=True) as away:
            away.subscribe(topic)
        with Paho(broker, f"{topic}-b", version) as publisher:
            for payload, qos in EVERY_QOS[1:]:
                publisher.publish(topic, payload, qos)
            broker.kill()
        broker.start()
        with Paho(broker, f"{topic}-a", version, is_lasting=True) as away:
            assert away.is_resumed
            assert away.received(2) == EVERY_QOS[1:]


OURS = ["key", "session", "password", "receipt", "filter", "ttl", "max", "name", "policy", "near", "insecure"]
LATER = ["since", "place", "radius", "deadline"]
OF_THE_APPLICATION = [(name, value) for name in (*OURS, *LATER, "a/+/#", "whimbrel") for value in ("!(", "")]


def test_user_properties_of_any_name_of_paho_travel_untouched(broker: BrokerProcess, topic: str) -> None:
    """A program that never heard of Whimbrel has names of its own, in every packet that may have them."""
    user, version = OF_THE_APPLICATION, MQTTProtocolVersion.MQTTv5
    will = f"{topic}/will"
    with Paho(broker, f"{topic}-a", version, user=user) as client:
        client.subscribe(f"{topic}/#", user)
        assert client.granted == [2]
        for payload, qos in EVERY_QOS:
            client.publish(topic, payload, qos, user=user)
        with Paho(broker, f"{topic}-b", version, will=will, user=user) as lost:
            lost.lose_connection()
        found = [client.messages.get(timeout=TIMEOUT_S) for _ in range(4)]
        assert client.unsubscribe(f"{topic}/#", user) == [0]
    assert [message.topic for message in found] == [topic] * 3 + [will]
    assert all(message.properties is not None for message in found)
    assert [getattr(message.properties, "UserProperty", None) for message in found] == [user] * 4


def test_paho_uses_what_whimbrel_offers_by_prefixed_names(broker: BrokerProcess, topic: str) -> None:
    """And its own properties stay its own beside them."""
    with Paho(broker, topic, MQTTProtocolVersion.MQTTv5) as client:
        client.subscribe(topic, [("whimbrel.filter", "n > 1"), ("filter", "!(")])
        assert client.granted == [2]
        for payload in (b'{"n": 1}', b'{"n": 2}'):
            client.publish(topic, payload, 1, user=[("filter", "!(")])
        assert client.received(1) == [(b'{"n": 2}', 1)]
        client.subscribe(topic, [("whimbrel.filter", "!(")])
        assert client.granted == [0x8F]


# -- aiomqtt -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_aiomqtt_publishes_and_receives_at_every_qos(
    broker: BrokerProcess, topic: str, version: aiomqtt.ProtocolVersion
) -> None:
    """The client of programs with asyncio is served."""

    async def received() -> list[tuple[object, int]]:
        found: list[tuple[object, int]] = []
        async with (
            asyncio.timeout(TIMEOUT_S),
            aiomqtt.Client("127.0.0.1", broker.port, identifier=topic, protocol=version) as client,
        ):
            await client.subscribe(topic, qos=2)
            for payload, qos in EVERY_QOS:
                await client.publish(topic, payload, qos=qos)
            async for message in client.messages:
                found.append((message.payload, message.qos))
                if len(found) == len(EVERY_QOS):
                    return found
        return found

    assert asyncio.run(received()) == EVERY_QOS


# -- MQTT.js over WebSocket --------------------------------------------------------------------------------------------

# Subscribes, publishes once with each QoS, prints what came as JSON, and ends.
SCRIPT = """
const [port, topic, protocolVersion] = process.argv.slice(1);
const options = { clientId: topic, protocolVersion: Number(protocolVersion), reconnectPeriod: 0 };
const client = require("mqtt").connect(`ws://127.0.0.1:${port}/mqtt`, options);
const found = [];
client.on("error", (error) => { console.error(error); process.exit(1); });
client.on("message", (_topic, payload, packet) => {
  found.push([payload.toString(), packet.qos]);
  // Later: the answer to this message is sent after this function, and nothing may follow DISCONNECT.
  if (found.length === 3) setImmediate(() => client.end(false, () => console.log(JSON.stringify(found))));
});
client.on("connect", async () => {
  await client.subscribeAsync(topic, { qos: 2 });
  for (const qos of [0, 1, 2]) await client.publishAsync(topic, String(qos), { qos });
});
"""


# The same with user properties of any name; prints the code of SUBACK and the properties that came.
SCRIPT_WITH_PROPERTIES = """
const [port, topic, names] = process.argv.slice(1);
const userProperties = Object.fromEntries(JSON.parse(names).map((name) => [name, "!("]));
const properties = { userProperties };
const will = { topic: `${topic}/will`, payload: "lost", qos: 1, properties };
const options = { clientId: topic, protocolVersion: 5, reconnectPeriod: 0, properties, will };
const client = require("mqtt").connect(`ws://127.0.0.1:${port}/mqtt`, options);
client.on("error", (error) => { console.error(error); process.exit(1); });
client.on("message", (_topic, payload, packet) => {
  const found = { ...packet.properties.userProperties };
  setImmediate(() => client.end(false, () => console.log(JSON.stringify(found))));
});
client.on("connect", async () => {
  await client.subscribeAsync(topic, { qos: 2, properties });
  await client.publishAsync(topic, "1", { qos: 1, properties });
});
"""


@pytest.fixture(scope="module")
def node_environment() -> dict[str, str]:
    """Return the environment in which node finds MQTT.js, or skip."""
    modules = os.environ.get("WHIMBREL_NODE_MODULES", "")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    environment = {**os.environ, "NODE_PATH": modules}
    command = ["node", "-e", "require('mqtt')"]
    if subprocess.run(command, env=environment, capture_output=True, check=False).returncode:
        pytest.skip("the npm package mqtt is not there; WHIMBREL_NODE_MODULES names the node_modules that has it")
    return environment


@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_is_served_over_websocket(
    broker: BrokerProcess, topic: str, node_environment: dict[str, str], version: int
) -> None:
    """The client of web pages, which have nothing but WebSocket, is served."""
    command = ["node", "-e", SCRIPT, str(broker.ports["ws"]), topic, str(version)]
    done = subprocess.run(command, env=node_environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["0", 0], ["1", 1], ["2", 2]]


def test_user_properties_of_any_name_of_mqtt_js_travel_untouched(
    broker: BrokerProcess, topic: str, node_environment: dict[str, str]
) -> None:
    """In CONNECT, its will, SUBSCRIBE and PUBLISH; a refused SUBSCRIBE would end the script with an error."""
    names = list(dict(OF_THE_APPLICATION))
    command = ["node", "-e", SCRIPT_WITH_PROPERTIES, str(broker.ports["ws"]), topic, json.dumps(names)]
    done = subprocess.run(command, env=node_environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(names, "!(")
