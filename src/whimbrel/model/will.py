"""A will: the notification that a device leaves with the broker, to be published when its connection breaks.

MQTT 5, 3.1.2.5. The broker writes it into its log with the CONNECT, so that it survives a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.model.bounds import INT64_MAX, flag, name, whole
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.notification import MAX_BODY_BYTES, MAX_QOS, MAX_SUBJECT_BYTES

__all__ = ["LastWill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWill:
    """The notification to publish in a device's name, and the delay after its connection broke."""

    subject: str
    body: bytes = field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    delay_us: int = 0
    expiry_us: int | None = None
    """Time until expiry, from publication on; ``None``: never."""
    keys: KeyHashes = NO_KEYS
    deliver_insecure: bool = True
    properties: bytes = field(default=b"", repr=False)
    """The MQTT 5 properties that travel with the will, encoded as in MQTT; empty if there are none."""

    def __post_init__(self) -> None:
        name("subject", self.subject, max_bytes=MAX_SUBJECT_BYTES)
        if type(self.body) is not bytes or len(self.body) > MAX_BODY_BYTES:
            raise InvalidValueError("body", description_of(self.body), f"at most {MAX_BODY_BYTES} bytes")
        if type(self.properties) is not bytes or len(self.properties) > MAX_BODY_BYTES:
            raise InvalidValueError("properties", description_of(self.properties), f"at most {MAX_BODY_BYTES} bytes")
        whole("qos", self.qos, 0, MAX_QOS)
        whole("delay_us", self.delay_us, 0, INT64_MAX)
        if self.expiry_us is not None:
            whole("expiry_us", self.expiry_us, 0, INT64_MAX)
        flag("retain", self.retain)
        flag("deliver_insecure", self.deliver_insecure)
