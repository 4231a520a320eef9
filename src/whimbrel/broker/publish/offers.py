"""Offers: publications that were admitted and do not have a seq yet."""

from __future__ import annotations

from whimbrel.log.compact import publication_body
from whimbrel.log.records import body_of
from whimbrel.model.clock import US_PER_S
from whimbrel.model.codecs import attributes_of
from whimbrel.model.keys import OPEN, Secured
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import NO_PROPERTIES, Property, passed_on
from whimbrel.node.places.placing import Placing
from whimbrel.node.publication import KeptNotification
from whimbrel.node.wills import LeftWill

__all__ = ["Offer"]


class Offer:
    """A publication of the client *publisher* at the time *at* that has no seq yet.

    *packet_id* is set only at QoS 2, and *will* only if this publication is a will.
    """

    __slots__ = ("_placing", "_publisher", "_secured", "_will", "at", "packet", "packet_id")

    def __init__(
        self,
        packet: Publish,
        publisher: str,
        at: int,
        secured: Secured,
        placing: Placing | None,
        *,
        packet_id: int = 0,
        will: LeftWill | None = None,
    ) -> None:
        self.packet, self.packet_id, self.at = packet, packet_id, at
        self._publisher, self._secured, self._placing, self._will = publisher, secured, placing, will

    @property
    def will_seq(self) -> int | None:
        """The seq of the will that this publication publishes; None if it publishes no will."""
        return None if self._will is None else self._will.seq

    def _expires_at(self) -> int | None:
        if self._will is not None:
            expiry_us = self._will.will.expiry_us
            return None if expiry_us is None else self.at + expiry_us
        expiry_s = self.packet.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)
        return None if expiry_s is None else self.at + expiry_s * US_PER_S

    def with_seq(self, node: str, seq: int) -> KeptNotification:
        """Return the notification with its seq and its encoded log record."""
        topic, payload, qos, retain, _, _, properties = self.packet
        placing = self._placing
        expires_at = deadline_at = None
        onward, is_more = b"", False
        if properties is not NO_PROPERTIES or self._will is not None:
            expires_at, onward = self._expires_at(), passed_on(properties) if properties else b""
            is_more = bool(properties.user or properties.text(Property.CONTENT_TYPE))
        if placing is not None:
            if placing.deadline_us is not None:
                deadline_at = self.at + placing.deadline_us
            if placing.place is None:
                placing = None  # it only has a deadline
        if is_more or self._secured is not OPEN or self._will is not None:
            record = self._full_record(node, seq, expires_at, onward, placing, deadline_at)
        else:
            record = publication_body(
                seq,
                self.at,
                self._publisher.encode(),
                topic.encode(),
                payload,
                qos=qos,
                retain=retain,
                expires_at=expires_at,
                packet_id=self.packet_id or None,
                properties=onward,
            )
        return KeptNotification(
            seq,
            self._publisher,
            topic,
            payload,
            qos=qos,
            retain=retain,
            expires_at=expires_at,
            properties=onward,
            record=record,
            published_at=self.at,
            secured=self._secured,
            placing=placing,
            deadline_at=deadline_at,
        )

    def _full_record(
        self,
        node: str,
        seq: int,
        expires_at: int | None,
        properties: bytes,
        placing: Placing | None,
        deadline_at: int | None,
    ) -> bytes:
        """Return the log record of a will, or of a publication whose attributes are not those of its body alone."""
        packet = self.packet
        content_type = packet.properties.text(Property.CONTENT_TYPE)
        fact = Notification(
            node=node,
            seq=seq,
            published_at=self.at,
            subject=packet.topic,
            publisher=self._publisher,
            attributes=attributes_of(packet.payload, packet.properties.user, content_type=content_type),
            body=packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            place=None if placing is None else placing.place,
            radius_m=None if placing is None else placing.radius_m,
            expires_at=expires_at,
            deadline_at=deadline_at,
            properties=properties,
            packet_id=self.packet_id or None,
            keys=self._secured.keys,
            deliver_insecure=self._secured.deliver_insecure,
            will_seq=self.will_seq,
        )
        return body_of(fact)[0]
