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
from collections.abc import Iterator
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
    ) -> None:
        is_v5 = version == MQTTProtocolVersion.MQTTv5
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.is_resumed = False
        self._connected, self._subscribed, self._gone = Event(), Event(), Event()
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=None if is_v5 else not is_lasting,
            protocol=version,
            reconnect_on_failure=False,
        )
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _client, _data, message: self.messages.put(message)
        self._client.on_disconnect = self._on_disconnect
        if will is not None:
            self._client.will_set(will, b"lost", qos=1)
        properties: Properties | None = None
        if is_v5 and is_lasting:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no type for it
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

    def subscribe(self, topic: str) -> None:
        """Subscribe with QoS 2, and wait for SUBACK."""
        self._subscribed.clear()
        self._client.subscribe(topic, 2)
        assert self._subscribed.wait(TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish, and wait until it is acknowledged."""
        published = self._client.publish(topic, payload, qos, retain)
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
