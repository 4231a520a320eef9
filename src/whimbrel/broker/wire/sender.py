"""The sender: encodes packets, and collects the bytes of each connection until the shell writes them at once."""

from __future__ import annotations

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.wire.clients import Link, Outgoing
from whimbrel.broker.wire.encoded import number_property, packet_of
from whimbrel.broker.wire.events import EventLines
from whimbrel.broker.wire.gate import has_room
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.mounts import has_name
from whimbrel.mqtt.packets import V5, Connack, Disconnect, Puback, Pubrec, Suback, Unsuback
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.server import Phase
from whimbrel.node.publication import KeptNotification

__all__ = ["Sender"]

_LONGEST_REASON = 1_000

_MAX_LATE = 1_000
"""Subjects whose missed deadlines are counted separately; those of further subjects are only in the total."""


class Sender:
    """Queues packets for connections, and lists the connections that are to be written or closed."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.late: dict[str, int] = {}
        """Copies that missed their deadline, per subject, for the first ``_MAX_LATE`` subjects."""
        self.events = EventLines()
        """Lines about clients for the process log."""
        self.dirty: list[Link] = []
        """Links that have something to write, or are to be closed."""
        self.leaving: list[Link] = []
        """Links that are to be closed, whose clients are not yet recorded as disconnected."""
        self.full: list[Link] = []
        """Links that were sent a QoS 0 copy although their buffer is full: further copies must wait."""

    def send(self, link: Link, data: bytes) -> None:
        """Queue *data* to be written to a connection."""
        link.room -= len(data)
        link.out.append(data)
        self.touch(link)

    def touch(self, link: Link) -> None:
        """Add a connection to those that the shell writes at the end of this turn of the event loop."""
        if not link.is_dirty:
            link.is_dirty = True
            self.dirty.append(link)

    def say(self, link: Link, packet: Connack | Puback | Pubrec | Suback | Unsuback) -> None:
        """Send an acknowledgement, without its properties if the client wants none (3.1.2.11.7) or they are too long.

        A client whose packet limit is too small even for that is disconnected: it would wait for the answer for ever.
        """
        machine = link.machine
        most, data = machine.max_packet_bytes, encode(packet, machine.version)
        wants_reasons = machine.wants_reasons or type(packet) is Connack
        if packet.properties and ((most and len(data) > most) or not wants_reasons):
            data = encode(packet._replace(properties=NO_PROPERTIES), machine.version)
        if most and len(data) > most:
            kind = type(packet).__name__.upper()
            reason = f"{kind} of {len(data)} bytes, the client takes packets of at most {most}"
            self.fail(link, ReasonCode.PACKET_TOO_LARGE, reason)
        else:
            self.send(link, data)

    def copy(
        self, link: Link, message: KeptNotification, identifiers: tuple[int, ...], now: int, *, retain: bool
    ) -> bool:
        """Send a QoS 0 copy; return False if it is longer than the client's packet limit.

        A copy that was sent may be recorded as delivered.
        """
        if not has_room(link) and not link.is_lagging:
            self.full.append(link)
        if link.is_plain:
            data: bytes | None = packet_of(
                message, link.machine.version, 0, now, retain=retain, identifiers=identifiers
            )
        else:
            data = self._fitted(link, message, 0, now, retain=retain, dup=False, identifiers=identifiers)
        if data is None:
            return False
        self.counters.sent += 1
        if message.deadline_at is not None:
            self._note_late(message, now)
        self.send(link, data)
        return True

    def live(
        self, link: Link, message: KeptNotification, identifiers: tuple[int, ...], now: int, *, retain: bool
    ) -> None:
        """Send a QoS 0 copy that was never queued, and add it to the count of messages sent to its client."""
        if self.copy(link, message, identifiers, now, retain=retain) and link.client is not None:
            link.client.sent += 1

    def news(self, link: Link, message: KeptNotification, identifiers: tuple[int, ...], now: int) -> None:
        """Send a QoS 0 copy that the log does not record, such as ``$SYS``; drop and count it if the buffer is full."""
        if has_room(link):
            self.live(link, message, identifiers, now, retain=False)
        elif link.closing is None:
            self.counters.dropped += 1

    def hand_over(self, link: Link, out: Outgoing, now: int) -> bool:
        """Send a QoS 1 or 2 copy; return False if it is longer than the client's packet limit."""
        if link.is_plain:
            data: bytes | None = packet_of(
                out.message,
                link.machine.version,
                out.qos,
                now,
                retain=out.retain,
                dup=out.dup,
                identifiers=out.identifiers,
            )
        else:
            data = self._fitted(
                link, out.message, out.qos, now, retain=out.retain, dup=out.dup, identifiers=out.identifiers
            )
        if data is None:
            return False
        self.counters.sent += 1
        if out.message.deadline_at is not None and not out.dup:
            self._note_late(out.message, now)
        self.send(link, data)
        return True

    def _note_late(self, message: KeptNotification, now: int) -> None:
        """Count a copy that is sent after its deadline; it is sent nevertheless, in its turn."""
        if message.deadline_at is None or now < message.deadline_at:
            return
        self.counters.missed_deadlines += 1
        if message.subject in self.late or len(self.late) < _MAX_LATE:
            self.late[message.subject] = self.late.get(message.subject, 0) + 1

    @staticmethod
    def _fitted(
        link: Link,
        message: KeptNotification,
        qos: int,
        now: int,
        *,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
    ) -> bytes | None:
        """Return a PUBLISH packet with the connection's topic alias, or None if it is too long (3.1.2.11.4).

        A subject outside the listener's mount point has no name for the client; the result is None then, too.
        """
        machine = link.machine
        if machine.mount and not has_name(message.subject, machine.mount):
            return None
        alias, is_known = 0, False
        most = machine.max_packet_bytes
        if machine.has_outbound_aliases:
            # An alias is used only in a packet that is sent, or the client would never learn it.
            if most and len(message.payload) + len(message.subject) * 4 + 1_024 > most:
                pass
            else:
                alias, is_known = machine.outbound_alias(message.subject)
        data = packet_of(
            message,
            machine.version,
            qos,
            now,
            retain=retain,
            dup=dup,
            identifiers=identifiers,
            alias=alias,
            is_alias_known=is_known,
            own=b"" if link.numbered_by is None else number_property(link.numbered_by, message.seq),
            mount=machine.mount,
        )
        return None if most and len(data) > most else data

    def refuse(self, link: Link, code: ReasonCode, reason: str) -> None:
        """Answer CONNECT with an error, and close the connection."""
        self.counters.refused_connections += 1
        properties = Properties({Property.REASON_STRING: reason}) if link.machine.version == V5 else NO_PROPERTIES
        self.say(link, Connack(session_present=False, code=code, properties=properties))
        self.close(link, reason)

    def fail(self, link: Link, code: ReasonCode, reason: str) -> None:
        """Close a connection; a connected MQTT 5 client is told the reason in a DISCONNECT first."""
        if link.closing is not None:
            return
        machine = link.machine
        if code not in CODES_IN[PacketType.DISCONNECT]:  # a code that only CONNACK may carry, for example
            code = ReasonCode.PROTOCOL_ERROR
        if machine.version == V5 and machine.phase is Phase.OPEN:
            properties = Properties({Property.REASON_STRING: reason[:_LONGEST_REASON]})
            data = encode(Disconnect(code, properties), V5)
            if machine.max_packet_bytes and len(data) > machine.max_packet_bytes:
                data = encode(Disconnect(code, NO_PROPERTIES), V5)
            self.send(link, data)
        self.close(link, reason)

    def close(self, link: Link, reason: str) -> None:
        """Close a connection once all bytes queued for it are written."""
        if link.closing is None:
            link.closing, link.room = reason, 0
            self.leaving.append(link)
            self.touch(link)
