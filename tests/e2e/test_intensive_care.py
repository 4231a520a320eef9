"""The paper's case study (section 5) from a monitor to a doctor, both paho-mqtt, through a broker: rules R1 to R4."""

from __future__ import annotations

import base64
import io
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import cbor2
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from PIL import Image
from tests.e2e.broker_process import BrokerProcess

POLICIES = Path(__file__).parents[2] / "examples" / "policies"
TIMEOUT_S = 20.0
DISPLAY = {"width": 240, "height": 320}


def electrocardiogram() -> bytes:
    """Return a JPEG of 640 × 480 that says where it was taken."""
    exif = Image.Exif()
    exif[0x010E] = "ward 4"
    out = io.BytesIO()
    Image.effect_noise((640, 480), 40).convert("RGB").save(out, "JPEG", quality=90, exif=exif)
    return out.getvalue()


ECG = electrocardiogram()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield one broker for all."""
    with BrokerProcess(tmp_path_factory.mktemp("ward")) as process:
        yield process


class Paho:
    """A client as paho's manual shows it; what it gets stands in ``got``."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.got: queue.Queue[bytes] = queue.Queue()
        self._subscribed, connected = Event(), Event()
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = self._receive
        self._client.on_connect = lambda *_: connected.set()
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        assert connected.wait(TIMEOUT_S)

    def _receive(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.got.put(bytes(message.payload))

    def subscribe(self, topic: str) -> None:
        """Subscribe and wait until that is granted."""
        self._client.subscribe(topic, 1)
        assert self._subscribed.wait(TIMEOUT_S)

    def say(self, topic: str, body: bytes, **properties: str) -> None:
        """Publish, and wait until that is accepted."""
        told = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has no type for it
        if properties:
            told.UserProperty = list(properties.items())
        self._client.publish(topic, body, 1, properties=told).wait_for_publish(TIMEOUT_S)

    def report(self, **told: object) -> None:
        """Say what a doctor's device is like."""
        self.say("$whimbrel/report", json.dumps({"display": DISPLAY, "responsible": ["p1"], **told}).encode())

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def as_cbor(**members: object) -> bytes:
    """Return a body in which the electrocardiogram is bytes."""
    return cbor2.dumps(members)


def as_json(**members: object) -> bytes:
    """Return a body in which it is base64."""
    shown = {
        name: base64.b64encode(each).decode() if isinstance(each, bytes) else each for name, each in members.items()
    }
    return json.dumps(shown).encode()


def read_cbor(body: bytes) -> dict[str, Any]:
    """Return the members of such a body."""
    found: dict[str, Any] = cbor2.loads(body)
    return found


def read_json(body: bytes) -> dict[str, Any]:
    """Return the members of such a body."""
    found: dict[str, Any] = json.loads(body)
    return {name: base64.b64decode(each) if name == "ecg" else each for name, each in found.items()}


def checked(picture: bytes) -> int:
    """Return how long a picture is that is no larger than the display and says nothing beside itself."""
    with Image.open(io.BytesIO(picture), formats=("JPEG",)) as image:
        image.load()
        assert image.size == (240, 180)
        assert not dict(image.getexif())
    return len(picture)


@pytest.mark.parametrize(("written", "read"), [(as_cbor, read_cbor), (as_json, read_json)], ids=["CBOR", "JSON"])
def test_the_rules_of_the_intensive_care_unit(
    broker: BrokerProcess, written: Callable[..., bytes], read: Callable[[bytes], dict[str, Any]]
) -> None:
    """Pulse and patient are numbers and text, and the picture beside them becomes smaller."""
    form = written.__name__
    doctor, monitor = Paho(broker, f"doctor-{form}"), Paho(broker, f"monitor-{form}")
    text = (POLICIES / "icu_members.policy").read_text().replace("5 * 60", "-1")  # five minutes are over at once
    doctor.say(f"$whimbrel/policy/{form}", text.encode())
    doctor.say("$whimbrel/policy", form.encode())
    doctor.subscribe(f"{form}/#")

    def heard(pulse: int, patient: str = "p1") -> dict[str, Any]:
        monitor.say(f"{form}/4", written(pulse=pulse, patientID=patient, bed=4, ecg=ECG))
        return read(doctor.got.get(timeout=TIMEOUT_S))

    doctor.report(battery=1.0)
    first = heard(80)
    assert {name: each for name, each in first.items() if name != "ecg"} == {"pulse": 80, "patientID": "p1", "bed": 4}
    sizes = [checked(first["ecg"])]  # R1
    doctor.report(battery=0.5)
    sizes.append(checked(heard(80)["ecg"]))  # R2: by the battery
    doctor.report(battery=1.0, received=0)
    sizes.append(checked(heard(80)["ecg"]))  # R3: by the link
    assert len(ECG) > sizes[0] > sizes[1] > sizes[2]
    monitor.say(f"{form}/4", written(pulse=80, patientID="p9", ecg=ECG))  # R4: a stranger, and no alarm
    assert heard(48, "p9")["pulse"] == 48
    doctor.report(battery=0.2)
    monitor.say(f"{form}/4", written(pulse=70, patientID="p1", ecg=ECG))  # R2: it starts the time
    monitor.say(f"{form}/4", written(pulse=71, patientID="p1", ecg=ECG))
    assert json.loads(doctor.got.get(timeout=TIMEOUT_S)) == {"pulse": 71}
    for each in (doctor, monitor):
        each.close()


def test_a_pulse_that_is_a_user_property_is_read_as_a_number(broker: BrokerProcess) -> None:
    """Beside a picture there is no other place for it, and there it is a string."""
    doctor, monitor = Paho(broker, "doctor"), Paho(broker, "monitor")
    doctor.say("$whimbrel/policy/icu", (POLICIES / "icu.policy").read_bytes())
    doctor.say("$whimbrel/policy", b"icu")
    doctor.subscribe("icu/#")
    doctor.report(battery=0.5)
    monitor.say("icu/4", ECG, pulse="80", patientID="p9")  # a stranger
    monitor.say("icu/4", ECG, patientID="p9")
    monitor.say("icu/4", ECG, pulse="48", patientID="p9")
    alarm = doctor.got.get(timeout=TIMEOUT_S)
    assert checked(alarm) < len(ECG)
    monitor.say("icu/5", ECG, pulse="80", patientID="p1")
    assert doctor.got.get(timeout=TIMEOUT_S) == alarm
    assert doctor.got.empty()
    for each in (doctor, monitor):
        each.close()
