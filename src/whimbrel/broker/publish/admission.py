"""Admission: decides whether a publication is accepted, and whether it must be durable before it is acknowledged.

Rule: both are decided only here. The callers are ``PublishHandler``, for everything that is published; among it
``PublicationRuns``, for runs of simple publications (it checks topic, length, room and rights; the rest of ``refusal``
concerns only retained publications and those with properties); ``WillHandling``, for the will in a CONNECT;
``Reports``, for device reports; and ``SubscribeHandler``, ``Sessions`` and ``Broker``, for whether the disk accepts
anything.
"""

from __future__ import annotations

from typing import TypeAlias

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.deliver.plans import DeliveryPlan
from whimbrel.broker.limits.memory import PENDING_BYTES, NoRoom
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Found
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.notices import OWN
from whimbrel.broker.wire.placing import IN_TOPIC, in_properties, read_placing
from whimbrel.errors import InvalidValueError
from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import PIECE
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Publish, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.topics import disallowed_in
from whimbrel.node.places.placing import Placing
from whimbrel.node.places.retained_areas import MAX_AREAS, MAX_IN_CELL, MAX_WIDE, is_wide
from whimbrel.node.publication import KeptNotification

__all__ = ["Admission", "Refusal", "waiting_bytes"]

Refusal: TypeAlias = tuple[ReasonCode, str]
_RESERVED = ("$SYS/", OWN, "$share/", "$filter/", "$near/", IN_TOPIC)
_NO_DISK = NoRoom("the broker cannot write to its disk")
_LITTLE_DISK = NoRoom("the disk of the broker is nearly full; publications are accepted when there is room")
_NOT_RETAINED = ReasonCode.RETAIN_NOT_SUPPORTED, "messages are not retained here"
_PASSING = 8
"""Extra share of the bytes that may be held (one eighth), for messages that connected clients are about to receive."""


class Admission:
    """Decides whether publications are accepted; *state* has the memory that is in use."""

    def __init__(self, config: Config, state: BrokerState, authorizer: Authorizer) -> None:
        self._limits, self._state, self._authorizer = config.limits, state, authorizer
        self.maximum_qos, self.logs_unwanted = config.mqtt.maximum_qos, config.log.unwanted
        self._retains = config.mqtt.retain_available
        self.most_bytes = config.limits.message_bytes or config.limits.packet_bytes
        """Longest body of a publication, in bytes."""
        self._allowed_topic = ""
        """Cache of the last topic that was allowed, because most publishers repeat one topic."""
        self.is_refusing = False
        """Whether nothing new is accepted, because the log cannot be written."""
        self.is_short = False
        """Whether the disk is nearly full: publications are refused, but small changes such as CONNECT are accepted."""

    @property
    def takes_publications(self) -> bool:
        """Whether the disk has room for publications."""
        return not (self.is_refusing or self.is_short)

    # -- may it be accepted ------------------------------------------------------------------------------------------

    def refusal(self, link: Link, client: LiveClient, packet: Publish, found: Found) -> Refusal | None:
        """Return why a publication for the sessions *found* is refused, or None."""
        refusal = self.topic_refusal(packet.topic) or self.report_refusal(link, client, packet)
        if refusal is None and (packet.qos or any(not is_private(session) for session, _ in found)):
            return self.waiting_refusal(found)  # a named session queues QoS 0 too
        return refusal

    def report_refusal(self, link: Link, client: LiveClient, packet: Publish) -> Refusal | None:
        """Return why a publication is refused, or None; topic name and room in sessions are checked elsewhere."""
        limits, topic, state = self._limits, packet.topic, self._state
        if not self._authorizer.is_open and not self._authorizer.may_publish(link, client.id, topic):
            return ReasonCode.NOT_AUTHORIZED, "this topic may not be published to"
        if packet.qos > self.maximum_qos:
            return ReasonCode.QOS_NOT_SUPPORTED, f"at most QoS {self.maximum_qos}"
        if len(packet.payload) > self.most_bytes:
            return self._too_long(packet.payload)
        if packet.retain and not self._retains:
            return _NOT_RETAINED
        if not self.takes_publications:
            return ReasonCode.QUOTA_EXCEEDED, _NO_DISK if self.is_refusing else _LITTLE_DISK
        if packet.qos:
            full = self.room_refusal(makes_room=packet.retain and not packet.payload)
            if full is not None:
                return full
        is_retained = packet.retain and packet.payload and topic not in state.retained
        if is_retained and len(state.retained) >= limits.retained_messages:
            return ReasonCode.QUOTA_EXCEEDED, f"{limits.retained_messages} topics are retained, no more are allowed"
        if packet.retain and packet.payload and (full := self._area_refusal(packet)) is not None:
            return full
        if packet.retain and packet.payload:
            grows = state.retained.growth(topic, len(packet.payload))
            if grows > 0 and state.retained.size_bytes + grows > limits.retained_bytes:
                return ReasonCode.QUOTA_EXCEEDED, f"{limits.retained_bytes} bytes are retained, no more are allowed"
            if grows > 0 and (full := state.memory.refusal(grows, is_lasting=True)) is not None:
                return full
        properties = packet.properties
        if properties is NO_PROPERTIES:
            return None
        if len(properties.user) > limits.user_properties:
            return ReasonCode.QUOTA_EXCEEDED, f"at most {limits.user_properties} user properties"
        return _response_refusal(properties)

    def _area_refusal(self, packet: Publish) -> Refusal | None:
        """Return why a message with an area may not be retained, or None; the number of such messages is limited.

        Each position report searches their areas.
        """
        areas, user = self._state.areas, packet.properties.user
        placing = read_placing(user, is_ours=False).placing if user else None
        area = None if placing is None else placing.area
        if area is None:
            return None
        if len(areas) >= MAX_AREAS:
            return ReasonCode.QUOTA_EXCEEDED, f"{MAX_AREAS} messages are retained with an area, no more are allowed"
        if is_wide(area) and areas.wide_count >= MAX_WIDE:
            allowed = f"{MAX_WIDE} messages are retained with an area of more than 5 km, no more are allowed"
            return ReasonCode.QUOTA_EXCEEDED, allowed
        if areas.crowd(area) >= MAX_IN_CELL:
            allowed = f"{MAX_IN_CELL} messages are retained with areas around here, no more are allowed"
            return ReasonCode.QUOTA_EXCEEDED, allowed
        return None

    def parse_placing(self, packet: Publish, *, is_ours: bool) -> tuple[Publish, Placing | str | None, int]:
        """Parse a publication's placing: its place, area and deadline.

        A place in the topic is moved to the user properties. Return three values: the publication; its placing, or the
        reason why it is refused; and the number of properties, such as ``place=Kitchen``, that do not parse and so
        belong to the application (``placing``). That number is counted once the publication is accepted. *is_ours*: the
        connection's CONNECT carried ``whimbrel=1``.
        """
        try:
            if packet.topic.startswith(IN_TOPIC):
                topic, said = in_properties(packet.topic)
                properties = packet.properties.with_user((*packet.properties.user, *said))
                packet = packet._replace(topic=topic, properties=properties)
            placing, foreign = read_placing(packet.properties.user, is_ours=is_ours)
        except InvalidValueError as error:
            return packet, f"the place of a publication: {error}", 0
        return packet, placing, foreign

    def will_refusal(self, link: Link, client_id: str, will: Will) -> Refusal | None:
        """Return why CONNECT is refused because of its will, or None; the will's keys are checked elsewhere."""
        refusal = self.topic_refusal(will.topic) or _response_refusal(will.properties)
        if refusal is not None:
            return refusal
        if not self._authorizer.may_publish(link, client_id, will.topic):
            return ReasonCode.NOT_AUTHORIZED, "the will's topic may not be published to"
        if will.qos > self.maximum_qos:
            return ReasonCode.QOS_NOT_SUPPORTED, f"the will's QoS is {will.qos}"
        if will.retain and not self._retains:
            return _NOT_RETAINED
        if len(will.payload) > self.most_bytes:
            return ReasonCode.PACKET_TOO_LARGE, self._too_long(will.payload)[1]
        state, most = self._state, self._limits.held_bytes
        if state.held.size_bytes + state.wills.bytes > most:
            return ReasonCode.QUOTA_EXCEEDED, f"{most} bytes are held, wills among them; no more are"
        return state.memory.refusal(len(will.payload), is_lasting=True)

    def _too_long(self, payload: bytes) -> Refusal:
        reason = f"a body of {len(payload)} bytes, at most {self.most_bytes} are allowed"
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason  # PUBACK has none for it (3.4.2.1)

    def topic_refusal(self, topic: str) -> Refusal | None:
        """Return why publishing to *topic* is refused, or None."""
        limits = self._limits
        if topic == self._allowed_topic:
            return None
        if topic[0] == "$" and topic.startswith(_RESERVED):
            return ReasonCode.NOT_AUTHORIZED, f"{topic.split('/', 1)[0]} is the broker's own"
        if len(topic.encode()) > limits.topic_bytes or topic.count("/") >= limits.topic_levels:
            return ReasonCode.TOPIC_NAME_INVALID, f"at most {limits.topic_bytes} bytes, {limits.topic_levels} levels"
        disallowed = disallowed_in(topic)
        if disallowed is not None:
            return ReasonCode.TOPIC_NAME_INVALID, f"a topic with {disallowed}; control and non-characters are refused"
        self._allowed_topic = topic
        return None

    def room_refusal(self, *, makes_room: bool = False) -> Refusal | None:
        """Return why publications that may be held are refused, or None.

        *makes_room* means that the publication removes a retained message: then full memory is no reason.
        """
        most = self._limits.held_bytes
        if self._state.held.size_bytes > most + most // _PASSING:
            return self._held_refusal()
        memory = self._state.memory
        return None if makes_room or memory.has_room() else memory.refusal()

    def waiting_refusal(self, found: Found) -> Refusal | None:
        """Return why no publication for the sessions *found* is accepted, or None.

        More memory is allowed if the clients of all these sessions keep up. Otherwise one client could fill the memory
        with messages that no device fetches, and so stop the clients that keep up.
        """
        state = self._state
        is_full = state.held.size_bytes > self._limits.held_bytes
        full = self._held_refusal() if is_full else state.memory.refusal(waiting_bytes(found), is_lasting=True)
        return None if full is None or state.keep_up(found) else full

    def _held_refusal(self) -> Refusal:
        return ReasonCode.QUOTA_EXCEEDED, NoRoom(f"{self._limits.held_bytes} bytes are held, no more are allowed")

    def lasting_refusal(self) -> Refusal | None:
        """Return why notifications that stay stored until a device fetches them are refused, or None."""
        if not self.takes_publications:
            return ReasonCode.QUOTA_EXCEEDED, _NO_DISK if self.is_refusing else _LITTLE_DISK
        is_full = self._state.held.size_bytes > self._limits.held_bytes
        return self._held_refusal() if is_full else self._state.memory.refusal(is_lasting=True)

    # -- must it be durable ------------------------------------------------------------------------------------------

    def must_sync(self, message: KeptNotification, found: Found, plan: DeliveryPlan | None, packet_id: int) -> bool:
        """Return whether a publication must be fsynced before its ack: a session could need it after a crash."""
        if not message.qos:
            return False
        if message.retain:
            return True
        state = self._state
        if packet_id and state.clients[message.publisher or ""].is_persistent:
            return True
        return state.is_owed(found) if plan is None else plan.must_sync()


def waiting_bytes(found: Found) -> int:
    """Return the memory to reserve for a publication that is to be held for many sessions; for few sessions 0.

    It is reserved from acceptance on. Otherwise several publications that wait for one fsync would each count on the
    same room.
    """
    return len(found) * PENDING_BYTES if len(found) > PIECE else 0


def _response_refusal(properties: Properties) -> Refusal | None:
    """Return why a publication or will is refused for its response topic, or None.

    The topic is checked because receivers of the message will publish to it.
    """
    topic = properties.text(Property.RESPONSE_TOPIC)
    if topic is None:
        return None
    disallowed = disallowed_in(topic)
    if disallowed is None:
        return None
    return ReasonCode.TOPIC_NAME_INVALID, f"a response topic with {disallowed}; control and non-characters are refused"
