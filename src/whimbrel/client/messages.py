"""Messages that an application publishes and receives, converted to and from PUBLISH packets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from whimbrel.client.joining import checked_keys
from whimbrel.errors import InvalidValueError, MalformedBodyError, description_of
from whimbrel.model.bounds import real
from whimbrel.model.near import MAX_NEAR_M
from whimbrel.model.place import Place
from whimbrel.mqtt.packets import V5, Publish
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["ID_PROPERTY", "Message", "Payload", "message_of", "payload_of", "publication"]

_BROKERS_OWN = ("key", "insecure")
"""User properties that the broker interprets if a client declares that it knows Whimbrel, as ours does."""

_MAX_DEADLINE_S = 7 * 86_400

ID_PROPERTY = "whimbrel.id"
"""The user property with the notification id of a copy."""

Payload: TypeAlias = bytes | str | float | Mapping[str, object] | Sequence[object] | None
"""Bytes unchanged, text as UTF-8, and everything else as JSON: mappings, lists, numbers, True, False and None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received publication."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES

    @property
    def text(self) -> str:
        """The payload as text; raises ``MalformedBodyError`` if it is not UTF-8."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise MalformedBodyError("text", "not UTF-8", offset=error.start) from error

    def json(self) -> Any:  # noqa: ANN401 # any JSON value
        """Return the payload parsed as JSON, or raise ``MalformedBodyError``."""
        try:
            return json.loads(self.text)
        except json.JSONDecodeError as error:
            raise MalformedBodyError("JSON", error.msg, error.lineno, error.colno) from error
        except RecursionError as error:
            raise MalformedBodyError("JSON", "nested too deeply") from error

    @property
    def id(self) -> str | None:
        """Notification id, ``node:seq``, on copies for a subscription with ``since``; else None."""
        return next((value for name, value in self.properties.user if name == ID_PROPERTY), None)

    @property
    def user(self) -> tuple[tuple[str, str], ...]:
        """The user properties."""
        return self.properties.user


def message_of(packet: Publish) -> Message:
    """Return *packet* as a message for the application."""
    return Message(
        topic=packet.topic, payload=packet.payload, qos=packet.qos, retain=packet.retain, dup=packet.dup,
        properties=packet.properties,
    )  # fmt: skip


def payload_of(payload: Payload) -> bytes:
    """Return the bytes of *payload*."""
    if isinstance(payload, bytes):
        return payload
    try:
        if isinstance(payload, str):
            return payload.encode()
        if isinstance(payload, bytearray | memoryview):
            return bytes(payload)
        tree = dict(payload) if isinstance(payload, Mapping) else payload
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        allowed = "bytes, text without lone surrogates, or what JSON has: numbers, lists, mappings"
        sentence = f"this payload cannot be sent ({error}): allowed are {allowed}"
        raise InvalidValueError("payload", description_of(payload), allowed, sentence) from error


def _add_place(
    topic: str, place: str | None, radius_m: float | None, deadline_s: float | None, *, version: int
) -> tuple[str, list[tuple[str, str]]]:
    """Return the topic and the user properties that carry place, radius and deadline of a publication."""
    if place is None:
        if radius_m is not None:
            raise InvalidValueError("radius_m", radius_m, "none without a place")
        said = []
    else:
        said = [("place", str(Place.parse(place)))]
    if radius_m is not None:
        said.append(("radius", f"{real('radius_m', radius_m, 0, MAX_NEAR_M):.9g}"))
    if version != V5:
        if deadline_s is not None:
            sentence = "MQTT 3.1.1 cannot carry deadline_s; use version=5"
            raise InvalidValueError("publication in MQTT 3.1.1", "deadline_s", "place and radius_m", sentence)
        return (f"$place/{','.join(value for _, value in said)}/{topic}" if said else topic), []
    if deadline_s is not None:
        said.append(("deadline", f"{real('deadline_s', deadline_s, 0, _MAX_DEADLINE_S):.6f}"))
    return topic, said


def publication(
    topic: str,
    payload: Payload,
    *,
    version: int,
    qos: int = 0,
    retain: bool = False,
    expiry_s: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user: Sequence[tuple[str, str]] = (),
    keys: Sequence[str] = (),
    insecure: bool | None = None,
    place: str | None = None,
    radius_m: float | None = None,
    deadline_s: float | None = None,
) -> Publish:
    """Return the PUBLISH packet; options that 3.1.1 cannot transmit are refused, not dropped."""
    topic, placed = _add_place(topic, place, radius_m, deadline_s, version=version)
    values = {
        Property.MESSAGE_EXPIRY_INTERVAL: expiry_s,
        Property.CONTENT_TYPE: content_type,
        Property.RESPONSE_TOPIC: response_topic,
        Property.CORRELATION_DATA: correlation_data,
    }
    given = {which: value for which, value in values.items() if value is not None}
    for name, _ in user:
        if name in _BROKERS_OWN:
            allowed = "a name other than key and insecure; keys for the broker are given as keys and insecure"
            raise InvalidValueError("name of a user property", name, allowed)
    protection = [("key", key) for key in checked_keys(keys)]
    if insecure is not None:
        protection.append(("insecure", "yes" if insecure else "no"))
    if (given or user or protection) and version != V5:
        found = ", ".join(
            [which.name.lower() for which in given]
            + ["user properties"] * bool(user)
            + list(dict.fromkeys(name for name, _ in protection))
        )
        sentence = f"MQTT 3.1.1 cannot carry {found}; use version=5"
        raise InvalidValueError("publication in MQTT 3.1.1", found, "none of the properties of MQTT 5", sentence)
    if qos not in {0, 1, 2}:
        raise InvalidValueError("QoS", qos, "0, 1 or 2")
    pairs = (*user, *placed, *protection)
    properties = Properties(given, user=pairs) if given or pairs else NO_PROPERTIES
    return Publish(topic, payload_of(payload), qos, retain, properties=properties)
