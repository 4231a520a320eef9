"""Encode notifications as PUBLISH packets, once for all clients that get the same bytes.

Rule: only one long stored notification has its encoding cached at a time; otherwise memory would hold two copies of
each.
"""

from __future__ import annotations

from whimbrel.broker.wire.own_properties import NUMBER
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.mounts import unmount_properties
from whimbrel.mqtt.packets import V5
from whimbrel.mqtt.primitives import encode_text, encode_varint
from whimbrel.node.publication import KeptNotification

__all__ = ["number_property", "packet_of"]

_EXPIRY, _ALIAS, _IDENTIFIER, _USER = b"\x02", b"\x23", b"\x0b", b"\x26"
_last_long: KeptNotification | None = None
"""The long stored notification whose encoding is cached and shared by its recipients."""


def packet_of(
    message: KeptNotification,
    version: int,
    qos: int,
    now: int,
    *,
    retain: bool = False,
    dup: bool = False,
    identifiers: tuple[int, ...] = (),
    alias: int = 0,
    is_alias_known: bool = False,
    own: bytes = b"",
    mount: str = "",
) -> bytes:
    """Return the PUBLISH packet of a message for one client.

    *mount* is the client's mount point (topic prefix), which is removed from the topic. *own* are the bytes of the
    broker's own properties, put before those of the publisher.
    """
    remaining = 0
    if version == V5 and message.expires_at is not None:
        remaining = max(1, -(-(message.expires_at - now) // US_PER_S))
    variant = (version, qos, retain, dup, identifiers, alias, is_alias_known, remaining, own, mount)
    encoded = message.encoded
    if encoded is not None and encoded[0] == variant:
        parts = encoded[1]
    else:
        properties = b""
        if version == V5:
            passed = unmount_properties(message.properties, mount) if mount else message.properties
            properties = _own_properties(remaining, alias, identifiers) + own + passed
        topic = b"" if is_alias_known else message.subject.removeprefix(mount).encode()
        parts = publish_parts(
            topic, message.payload, qos=qos, retain=retain, dup=dup, version=version, properties=properties
        )
        if not alias:  # one client's topic aliases mean nothing to another
            message.encoded = (variant, parts)
            if not message.has_own_payload:
                _forget_last_long(message)
    return parts[0] + message.packet_id + parts[1] if qos else parts[0]


def _forget_last_long(message: KeptNotification) -> None:
    """Drop the cached encoding of the last long stored notification, and remember *message* as the last."""
    global _last_long  # one cache of one packet for the process
    last, _last_long = _last_long, message
    if last is not None and last is not message:
        last.encoded = None


def number_property(node: str, seq: int) -> bytes:
    """Return the user property with a copy's notification id, ``node:seq``; empty for a message without a seq."""
    return _USER + encode_text(NUMBER) + encode_text(f"{node}:{seq}") if seq else b""


def _own_properties(remaining_s: int, alias: int, identifiers: tuple[int, ...]) -> bytes:
    found = b""
    if remaining_s:
        found += _EXPIRY + min(remaining_s, 0xFFFFFFFF).to_bytes(4)
    if alias:
        found += _ALIAS + alias.to_bytes(2)
    for identifier in identifiers:
        found += _IDENTIFIER + encode_varint(identifier)
    return found
