"""Geofences with paho-mqtt, MQTT 5 and 3.1.1, through a restart and through kill -9."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Event

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.stepped_clock import SteppedClock

from whimbrel.client import Client as OwnClient

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "geofences-over-mqtt.md"
BLOCKS = re.findall(r"```(?:python|text)\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
TIMEOUT_S = 20.0
HERE, CLOSE, FAR = "52.52,13.405", "52.521,13.405", "52.53,13.405"  # 111 m and 1,113 m from here
ANSWERS = "$whimbrel/session/answer"
LOCK = f"consumer:{hashlib.sha256(b'k').hexdigest()}"
"""What the private key k opens."""
V5, V311 = MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker for all tests here."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


class Phone:
    """paho-mqtt in the hands of an application that knows the forms of docs/how-to/geofences-over-mqtt.md."""

    def __init__(self, broker: BrokerProcess, name: str, version: MQTTProtocolVersion) -> None:
        self._version, self._heard = version, queue.Queue[MQTTMessage]()
        connected = Event()
        clean = False if version == V311 else None
        self._client = Client(CallbackAPIVersion.VERSION2, name, clean_session=clean, protocol=version)
        self._client.on_connect = lambda *_: connected.set()
        self._answers = queue.Queue[MQTTMessage]()
        self._client.on_message = lambda _client, _data, message: (
            self._answers if message.topic == ANSWERS else self._heard
        ).put(message)
        self._done = Event()
        self._client.on_subscribe = self._client.on_publish = lambda *_: self._done.set()
        lasting = None
        if version == V5:
            lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no type for it
            lasting.SessionExpiryInterval = 600
            self._client.connect("127.0.0.1", broker.port, clean_start=False, properties=lasting)
        else:
            self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        assert connected.wait(TIMEOUT_S)

    def close(self) -> None:
        """Go away; the session stays."""
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()  # paho leaves that to the garbage collector, which warns of open sockets

    def _told(self, packet: int, said: Sequence[tuple[str, str]]) -> Properties | None:
        if self._version != V5 or not said:
            return None
        properties = Properties(packet)  # type: ignore[no-untyped-call]  # paho has no type for it
        properties.UserProperty = list(said)
        return properties

    def subscribe(self, topic: str, near: str | None = None) -> None:
        """Subscribe, and wait for the answer."""
        said = [] if near is None else [("whimbrel.near", near)]
        if near is not None and self._version != V5:
            topic = f"$near/{near}/{topic}"
        self._done.clear()
        self._client.subscribe(topic, 1, properties=self._told(PacketTypes.SUBSCRIBE, said))
        assert self._done.wait(TIMEOUT_S)

    def publish(self, topic: str, body: str, place: str | None = None, radius: str | None = None) -> None:
        """Publish at QoS 1, and wait for the answer."""
        said = [(name, value) for name, value in (("place", place), ("radius", radius)) if value is not None]
        if said and self._version != V5:
            topic = f"$place/{','.join(value for _, value in said)}/{topic}"
        self._done.clear()
        self._client.publish(topic, body, 1, properties=self._told(PacketTypes.PUBLISH, said))
        assert self._done.wait(TIMEOUT_S)

    def move(self, place: str) -> None:
        """Say where it is."""
        self.publish("$whimbrel/report", json.dumps({"place": place}))

    def ask(self, verb: str, **members: object) -> None:
        """Make a request about sessions, in the form of its version, and wait for the answer."""
        properties = None
        if self._version == V5:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has no type for it
            properties.ResponseTopic = ANSWERS
        self._client.publish(f"$whimbrel/session/{verb}", json.dumps(members), 1, properties=properties)
        answer = json.loads(self._answers.get(timeout=TIMEOUT_S).payload)
        assert answer["ok"], answer

    def heard(self, count: int) -> list[str]:
        """Return the next *count* messages; the last is followed by none that was published before."""
        return [self._heard.get(timeout=TIMEOUT_S).payload.decode() for _ in range(count)]


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("version", [V5, V311])
def test_a_geofence_with_paho(tmp_path: Path, version: MQTTProtocolVersion, ending: str) -> None:
    """Enter, leave, both moving, held while away, and the same after a restart and after kill -9."""
    with BrokerProcess(tmp_path) as broker:
        car, light = Phone(broker, "car", version), Phone(broker, "light", version)
        car.subscribe("hazard/#")
        car.subscribe("taxi/#", "200")
        car.subscribe("$whimbrel/near/home", f"{HERE},150")
        light.publish("hazard/ice", "nowhere", HERE, "150")
        car.move(CLOSE)
        light.publish("hazard/ice", "inside", HERE, "150")
        light.publish("taxi/1", "near me", HERE)
        light.publish("taxi/2", "far away", FAR)
        car.move(FAR)
        light.publish("hazard/ice", "outside", HERE, "150")
        light.publish("taxi/2", "we both moved", FAR)
        light.publish("hazard/ice", "for all")
        entered, left = ('{"near":"home","change":"entered"}', '{"near":"home","change":"left"}')
        heard = car.heard(6)
        assert sorted(heard) == sorted([entered, "inside", "near me", left, "we both moved", "for all"])
        car.move(CLOSE)
        assert car.heard(1) == [entered]
        car.close()
        light.publish("hazard/ice", "while away", HERE, "150")
        light.close()
        if ending == "stop":
            broker.stop()
        else:
            broker.kill()
        broker.start()
        light = Phone(broker, "light", version)
        light.publish("hazard/ice", "after", HERE, "150")  # it is still where it said
        light.publish("taxi/3", "too far", FAR)
        car = Phone(broker, "car", version)
        light.publish("hazard/ice", "last", HERE, "150")
        assert car.heard(3) == ["while away", "after", "last"]
        car.close()
        light.close()


@pytest.mark.parametrize("version", [V5, V311])
def test_a_geofence_with_filter_keys_ttl_and_max(tmp_path: Path, version: MQTTProtocolVersion) -> None:
    """In a session whose phone is inside and whose laptop reports nothing; and then the phone falls silent."""
    clock = SteppedClock(tmp_path / "clock")
    with BrokerProcess(tmp_path, clock=clock) as broker:
        phone, laptop, light = (Phone(broker, name, version) for name in ("phone", "laptop", "light"))
        phone.ask("create", session="family")
        for member in (phone, laptop):
            member.ask("join", session="family", receipt="keep")
        wanted = {"near": "200", "filter": "depth > 3", "keys": ["consumer:private:k"], "max": 2, "ttl": 60}
        phone.ask("subscribe", session="family", topic="hazard/+", **wanted)
        phone.move(CLOSE)
        light.publish("hazard/ice", "not locked", HERE)
        light.ask("keys", add=[LOCK])
        light.publish("hazard/ice", '{"depth": 9, "n": 1}', HERE, "150")
        assert phone.heard(1) == laptop.heard(1) == ['{"depth": 9, "n": 1}']
        laptop.close()
        bodies = [f'{{"depth": {depth}, "n": {n}}}' for n, depth in enumerate((9, 1, 9, 9, 9), start=2)]
        for body, place in zip(bodies, (HERE, HERE, FAR, HERE, HERE), strict=True):
            light.publish("hazard/ice", body, place)
        assert phone.heard(3) == [bodies[0], bodies[3], bodies[4]]
        laptop = Phone(broker, "laptop", version)
        laptop.ask("join", session="family", receipt="keep")
        assert laptop.heard(2) == bodies[3:]
        laptop.close()
        light.publish("hazard/ice", '{"depth": 9, "n": 7}', HERE)
        assert phone.heard(1) == ['{"depth": 9, "n": 7}']
        clock.step(wall_s=61, monotonic_s=61)
        laptop = Phone(broker, "laptop", version)
        laptop.ask("join", session="family", receipt="keep")
        light.publish("hazard/ice", '{"depth": 9, "n": 8}', HERE)
        assert laptop.heard(1) == ['{"depth": 9, "n": 8}']  # the seventh had a minute
        clock.step(wall_s=61, monotonic_s=61)
        light.publish("hazard/ice", '{"depth": 9, "n": 9}', HERE)  # no device of the family said where it is for long
        phone.move(CLOSE)
        light.publish("hazard/ice", '{"depth": 9, "n": 10}', HERE)
        assert phone.heard(2) == ['{"depth": 9, "n": 8}', '{"depth": 9, "n": 10}']
        for each in (phone, laptop, light):
            each.close()


@pytest.mark.parametrize(("code", "printed"), [BLOCKS[0:2], BLOCKS[2:4]], ids=["5", "3.1.1"])
def test_the_how_to_does_what_it_says(broker: BrokerProcess, code: str, printed: str) -> None:
    """Without our client: what a reader copies has to work."""
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(code, str(HOW_TO), "exec"), {"HOST": "127.0.0.1", "PORT": broker.port})  # noqa: S102 # our own page
    assert sorted(out.getvalue().splitlines()) == sorted(printed.splitlines())


def test_our_own_client_says_the_same(broker: BrokerProcess) -> None:
    """Place and near are arguments there, in both versions."""

    async def heard(version: int) -> list[bytes]:
        async with (
            asyncio.timeout(TIMEOUT_S),
            OwnClient("127.0.0.1", broker.port, client_id=f"car{version}", version=version) as car,
            OwnClient("127.0.0.1", broker.port, client_id=f"light{version}", version=version) as light,
        ):
            await car.subscribe(f"own{version}", near="200")
            await car.report(place=CLOSE)
            for body, place, radius_m in ((b"0", HERE, 150.0), (b"1", FAR, None), (b"2", CLOSE, None)):
                await light.publish(f"own{version}", body, qos=1, place=place, radius_m=radius_m)
            messages = car.messages()
            return [(await anext(messages)).payload for _ in range(2)]

    assert [asyncio.run(heard(version)) for version in (5, 4)] == [[b"0", b"2"]] * 2


def _whimbrel(broker: BrokerProcess, *words: str) -> str:
    """Run a command, and return what it printed."""
    command = [sys.executable, "-m", "whimbrel", *words, "--port", str(broker.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=6 * TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_the_commands_say_the_same(broker: BrokerProcess) -> None:
    """What is retained for an area waits for a subscriber who says that it is there, so no command has to be quick."""
    for topic, place in (("cli/out", FAR), ("cli/in", HERE)):
        _whimbrel(broker, "publish", topic, "ice", "--place", place, "--radius", "150", "--retain", "--qos", "1")
    options = ("--near", "200", "--stale", "1m", "--place", CLOSE, "--count", "1", "--timeout", "60")
    assert _whimbrel(broker, "subscribe", "cli/+", *options) == "cli/in ice\n"
    _whimbrel(broker, "session", "create", "street")
    wanted = ("--near", f"{HERE},150", "--stale", "1m", "--json")
    found = json.loads(_whimbrel(broker, "session", "subscribe", "street", "hazard/#", *wanted))["subscription"]
    assert (found["near"], found["stale"]) == ("52.52,13.405,150.0", 60)
