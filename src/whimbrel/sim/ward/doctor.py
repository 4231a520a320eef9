"""A doctor's device without a socket: takes bytes from the broker, returns bytes for it, and drains a battery.

The same code runs on a manual clock beside the broker's core, and over a socket in real time.
Rule: it reads no clock. Its caller passes the time by draining the battery.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import cbor2

from whimbrel.errors import WhimbrelError
from whimbrel.model.device import Display
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.packets import V5, Connack, Connect, Packet, Puback, Publish, Suback, Subscribe, SubscriptionRequest
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.shape.bodies import image_size
from whimbrel.sim.ward.energy import Battery
from whimbrel.sim.ward.intensive_care import PICTURE, SUBJECT, Doctor

__all__ = ["DoctorDevice", "RefusedError", "encode_opening", "encode_report"]

_POLICY, _REPORT = "$whimbrel/policy", "$whimbrel/report"
_KNOWS_WHIMBREL = (("whimbrel", "1"),)


class RefusedError(WhimbrelError):
    """The broker refused a packet that a device needs. Reaction: read the reason; the experiment cannot run."""

    def __init__(self, device: str, packet: str) -> None:
        super().__init__(device, packet)
        self.device, self.packet = device, packet

    def __str__(self) -> str:
        return f"{self.device}: the broker answered {self.packet}"


def encode_opening(
    doctor: Doctor,
    policy: str | None,
    qos: int,
    *,
    clean_start: bool = True,
    expiry_s: int = 0,
    also: Sequence[str] = (),
) -> bytes:
    """Encode CONNECT, the policy and its choice, and the subscription to readings and to the topics *also*."""
    properties = Properties({Property.SESSION_EXPIRY_INTERVAL: expiry_s} if expiry_s else {}, user=_KNOWS_WHIMBREL)
    packets: list[Packet] = [Connect(doctor.name, clean_start=clean_start, properties=properties)]
    if policy is not None:
        name = f"of-{doctor.name}"
        packets += [
            Publish(f"{_POLICY}/{name}", policy.encode(), 1, packet_id=1),
            Publish(_POLICY, name.encode(), 1, packet_id=2),
        ]
    wanted = (SubscriptionRequest(f"{SUBJECT}/#", qos), *(SubscriptionRequest(topic, 0) for topic in also))
    packets.append(Subscribe(3, wanted))
    return b"".join(encode(packet, V5) for packet in packets)


def encode_report(doctor: Doctor, *, battery: float, received: int, packet_id: int = 0) -> bytes:
    """Encode a report of the device: charge, display, received messages, own patients; QoS 1 with a *packet_id*."""
    told = {
        "battery": round(battery, 4),
        "display": {"width": doctor.display.width_px, "height": doctor.display.height_px},
        "received": received,
        "responsible": list(doctor.patients),
    }
    return encode(Publish(_REPORT, json.dumps(told).encode(), 1 if packet_id else 0, packet_id=packet_id), V5)


class DoctorDevice:
    """One device, with the policy that its doctor has put, if any.

    The energy that a packet costs does not depend on the chunks in which it arrives.
    """

    def __init__(self, doctor: Doctor, *, battery: Battery, policy: str | None = None, qos: int = 0) -> None:
        self.doctor, self.battery = doctor, battery
        self._policy, self._qos = policy, qos
        self._decoder = Decoder(version=V5)
        self._answers = 0
        self._wanted = 2 if policy is None else 4
        self._unreported = 0
        self.counts: Counter[str] = Counter()
        """Messages, bytes on the wire, pictures, decoded pixels, and reports."""
        self.sizes: list[int] = []
        """Bytes of each message's body."""
        self.topics: list[str] = []
        """Topic of each message."""

    def begin(self) -> bytes:
        """Return the first bytes to send: CONNECT, the policy and its choice, and the subscription."""
        return encode_opening(self.doctor, self._policy, self._qos)

    @property
    def is_ready(self) -> bool:
        """Whether the broker has answered everything of ``begin``."""
        return self._answers == self._wanted

    def receive(self, data: bytes) -> bytes:
        """Handle bytes from the broker, in chunks of any size; return the answer."""
        return b"".join(self._answer(packet) for packet in self._decoder.receive(data))

    def _answer(self, packet: Packet) -> bytes:
        size = len(encode(packet, V5))
        self.battery.receive(size)
        self.counts["bytes"] += size
        if isinstance(packet, Publish):
            self._take(packet)
            return encode(Puback(packet.packet_id), V5) if packet.qos else b""
        code = getattr(packet, "code", 0)
        codes = packet.codes if isinstance(packet, Suback) else (code,)
        if not isinstance(packet, Connack | Puback | Suback) or any(int(each) >= 0x80 for each in codes):
            raise RefusedError(self.doctor.name, str(packet))
        self._answers += 1
        return b""

    def _take(self, message: Publish) -> None:
        self.counts["messages"] += 1
        self._unreported += 1
        self.sizes.append(len(message.payload))
        self.topics.append(message.topic)
        for picture in _pictures(message.payload):
            size = image_size(picture)
            shown = _shown_px(size.width, size.height, self.doctor.display)
            self.battery.draw(size.pixels, shown)
            self.counts["pictures"] += 1
            self.counts["pixels"] += size.pixels

    def report(self) -> bytes:
        """Return a report of the device: charge, display, messages received since the last report, and patients."""
        data = encode_report(self.doctor, battery=self.battery.share, received=self._unreported)
        self._unreported = 0
        self.battery.report(len(data))
        self.counts["reports"] += 1
        return data


def _pictures(body: bytes) -> Iterator[bytes]:
    """Yield the picture in a reading; a body that a policy reduced to the pulse is JSON and has no picture."""
    if body.startswith(b"{"):
        return
    picture = cbor2.loads(body).get(PICTURE)
    if isinstance(picture, bytes):
        yield picture


def _shown_px(width_px: int, height_px: int, display: Display) -> int:
    """Return the pixels that a display uses for a picture: the whole picture, scaled down to fit."""
    share = min(1.0, display.width_px / width_px, display.height_px / height_px)
    return int(width_px * share) * int(height_px * share)
