"""A patient's monitor without a socket: returns the bytes that it sends to a broker."""

from __future__ import annotations

from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connect, Publish
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.ward.intensive_care import CONTENT_TYPE, Reading

__all__ = ["Monitor", "encode_reading"]


class Monitor:
    """A publisher that ignores the broker's answers."""

    def receive(self, data: bytes) -> bytes:
        """Ignore *data*; return nothing to send."""
        del data
        return b""

    def begin(self) -> bytes:
        """Return the CONNECT packet."""
        return encode(Connect("monitor"), V5)


def encode_reading(reading: Reading, *, packet_id: int = 0) -> bytes:
    """Return the PUBLISH packet of *reading*; at QoS 1 if *packet_id* is given."""
    properties = Properties({Property.CONTENT_TYPE: CONTENT_TYPE})
    qos = 1 if packet_id else 0
    return encode(Publish(reading.topic, reading.body, qos, packet_id=packet_id, properties=properties), V5)
