"""Mount points: a topic prefix for some clients, which these clients never see.

Rule: the prefix is added to topics from the client and removed from topics to it; everything else (rights, the log,
other clients) sees whole topics. So ``lamp`` from a client at the mount point ``home/7/`` is ``home/7/lamp``.
Rule: the prefix is added to all topics of a packet: of a publication, of a will and of a response, and to every topic
filter. That includes the broker's own topics, such as ``$SYS/…``, so these clients cannot reach them.
"""

from __future__ import annotations

from whimbrel.mqtt.codes import PacketType, ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Connect, Packet, Publish, Subscribe, Unsubscribe, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property, decode_properties, passed_on

__all__ = ["has_name", "is_mounted", "mount_filter", "mount_packet", "unmount_properties"]

_MAX_BYTES = 65_535
_SHARE = "$share/"
_BEFORE_FILTERS = ("$near/", "$filter/", _SHARE)
"""Prefixes that may precede a topic filter, in this order; each is followed by one level."""
_BEFORE_TOPICS = "$place/"


def mount_packet(packet: Packet, mount: str) -> Packet:
    """Return *packet*, received from a client at *mount*, with whole topics."""
    if type(packet) is Publish:
        return packet._replace(
            topic=_mount_topic(packet.topic, mount), properties=_mount_response(packet.properties, mount)
        )
    if type(packet) is Subscribe:
        requests = (each._replace(topic_filter=mount_filter(each.topic_filter, mount)) for each in packet.requests)
        return packet._replace(requests=tuple(requests))
    if type(packet) is Unsubscribe:
        return packet._replace(topic_filters=tuple(mount_filter(each, mount) for each in packet.topic_filters))
    if type(packet) is Connect and packet.will is not None:
        return packet._replace(will=_mount_will(packet.will, mount))
    return packet


def mount_filter(topic_filter: str, mount: str) -> str:
    """Return the whole topic filter of a client at *mount*; prefixes such as ``$share/name/`` stay in front.

    >>> mount_filter("$share/workers/lamp/#", "home/7/")
    '$share/workers/home/7/lamp/#'
    """
    before, rest = "", topic_filter
    for prefix in _BEFORE_FILTERS:
        if rest.startswith(prefix):
            word, slash, behind = rest[len(prefix) :].partition("/")
            before, rest = before + prefix + word + slash, behind
            if not slash:
                return topic_filter  # unchanged: it is refused later
    return before + mount + rest if rest else topic_filter


def is_mounted(topic_filter: str, mount: str) -> bool:
    """Return whether all topics that a whole filter (or a shared one) matches are below *mount*."""
    if topic_filter.startswith(_SHARE):
        topic_filter = topic_filter[len(_SHARE) :].partition("/")[2]
    return topic_filter.startswith(mount)  # a mount point has no wildcards


def has_name(topic: str, mount: str) -> bool:
    """Return whether a whole topic is visible at *mount*; neither ``home/7`` nor ``home/7/`` is at ``home/7/``."""
    return len(topic) > len(mount) and topic.startswith(mount)


def unmount_properties(properties: bytes, mount: str) -> bytes:
    """Return the properties of a publication as a client at *mount* sees them.

    A response topic that is not below the mount point is left out: the client could not publish to it.
    """
    if not properties:
        return properties
    found = decode_properties(properties, PacketType.PUBLISH)
    topic = found.text(Property.RESPONSE_TOPIC)
    if topic is None:
        return properties
    return passed_on(_with_response(found, topic[len(mount) :] if has_name(topic, mount) else None))


def _mount_topic(topic: str, mount: str) -> str:
    """Return the whole topic; if it is longer than the limits allow, it is refused later, like any other."""
    if topic.startswith(_BEFORE_TOPICS):
        where, slash, plain = topic[len(_BEFORE_TOPICS) :].partition("/")
        return _BEFORE_TOPICS + where + slash + mount + plain if plain else topic  # without one it is refused
    return mount + topic if topic else topic


def _mount_response(properties: Properties, mount: str) -> Properties:
    topic = None if properties is NO_PROPERTIES else properties.text(Property.RESPONSE_TOPIC)
    if topic is None:
        return properties
    whole = _mount_topic(topic, mount)
    if len(whole.encode()) > _MAX_BYTES:
        reason = (
            f"a response topic of {len(whole.encode())} bytes with its mount point; at most {_MAX_BYTES} are allowed"
        )
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, reason)
    return _with_response(properties, whole)


def _mount_will(will: Will, mount: str) -> Will:
    return will._replace(topic=_mount_topic(will.topic, mount), properties=_mount_response(will.properties, mount))


def _with_response(properties: Properties, topic: str | None) -> Properties:
    values: dict[Property, object] = dict(properties.once())
    values.pop(Property.RESPONSE_TOPIC)
    if topic is not None:
        values[Property.RESPONSE_TOPIC] = topic
    return Properties(values, user=properties.user, identifiers=properties.identifiers)
