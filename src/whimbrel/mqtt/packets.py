"""Packets of MQTT as immutable values.

Rule: one class serves both versions. What 3.1.1 does not have (properties, most reason codes) is left at its default
by the decoder and not written by the encoder.
Rule: these are named tuples, not data classes: a broker builds one per packet, and they are quicker to build.
Rule: so packets of different classes can be equal, and a PINGREQ is an empty tuple: test the class, not the truth.
Rule: a packet is not checked when it is built; the decoder checks received packets, the encoder those to send.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties

__all__ = [
    "V5",
    "V311",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Puback",
    "PubackRun",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "SubscriptionRequest",
    "Unsuback",
    "Unsubscribe",
    "Will",
]

V311, V5 = 4, 5
"""Protocol versions, as the level in CONNECT."""


class Will(NamedTuple):
    """Message that the server publishes when the client is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(NamedTuple):
    """Request of a client to open a session. *clean_start* is called clean session in 3.1.1."""

    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 0
    version: int = V5
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES


class Connack(NamedTuple):
    """The server's answer to CONNECT; decoded from 3.1.1, *code* is its return code, 0 to 5."""

    session_present: bool = False
    code: ReasonCode | int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Publish(NamedTuple):
    """A message; *packet_id* is 0 at QoS 0, and *topic* may be empty in 5.0 where a topic alias stands for it."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class Puback(NamedTuple):
    """QoS 1: the receiver accepted or refused the message."""

    packet_id: int
    code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class PubackRun(NamedTuple):
    """Several PUBACKs that follow each other, all with success and without properties."""

    packet_ids: tuple[int, ...]


class Pubrec(NamedTuple):
    """QoS 2, second step: the message was received, or refused."""

    packet_id: int
    code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubrel(NamedTuple):
    """QoS 2, third step: the sender has forgotten the message."""

    packet_id: int
    code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class Pubcomp(NamedTuple):
    """QoS 2, last step: the receiver has forgotten the packet identifier."""

    packet_id: int
    code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


class SubscriptionRequest(NamedTuple):
    """One topic filter of a SUBSCRIBE and its options; 3.1.1 has only the QoS."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(NamedTuple):
    """Request of a client for messages."""

    packet_id: int
    requests: tuple[SubscriptionRequest, ...]
    properties: Properties = NO_PROPERTIES


class Suback(NamedTuple):
    """The answer to SUBSCRIBE, with a code for each request."""

    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(NamedTuple):
    """Request of a client to end subscriptions."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class Unsuback(NamedTuple):
    """The answer to UNSUBSCRIBE, with a code for each topic filter; without codes in 3.1.1."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


class Pingreq(NamedTuple):
    """Keep-alive request of a client."""


class Pingresp(NamedTuple):
    """The server's answer to PINGREQ."""


class Disconnect(NamedTuple):
    """The last packet of a connection; in 3.1.1 only from the client, and without a code."""

    code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


class Auth(NamedTuple):
    """One step of enhanced authentication (5.0 only)."""

    code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | PubackRun
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
