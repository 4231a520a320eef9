"""Publishing: what clients publish, from the packet to everybody who wants it (MQTT 5, 3.3 and 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import repeat

from whimbrel.broker.clients import Client, Link
from whimbrel.broker.config import Config
from whimbrel.broker.journal import Journal, Pieces
from whimbrel.broker.lanes import Lane, Lanes, Others
from whimbrel.broker.long_work import LongWork
from whimbrel.broker.messages import Message
from whimbrel.broker.routes import OPEN, Found, Secured
from whimbrel.broker.sending import Sender
from whimbrel.broker.state import BrokerState
from whimbrel.broker.telling import OWN, REPORT, SESSIONS
from whimbrel.broker.unlocking import unlocked_by
from whimbrel.broker.visitors import Visitors
from whimbrel.broker.wills import LeftWill
from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import PIECE
from whimbrel.language.allowance import Allowance, OutOfAllowanceError
from whimbrel.log.compact import publication_body
from whimbrel.log.records import body_of
from whimbrel.match.events.bodies import Bodies
from whimbrel.model.codecs import attributes_of
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Puback, Pubcomp, Publish, Pubrec
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property, passed_on
from whimbrel.mqtt.topics import disallowed_in

__all__ = ["Publishing"]

_SECOND_US = 1_000_000
_RESERVED = ("$SYS/", OWN, "$share/", "$filter/")
_PUBACK, _PUBREC, _PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x70\x02"
_NO_SUBSCRIBERS = b"\x10"
_EXACTLY_ONCE = 2
_PASSING = 8
"""Of what may be held, one in so many bytes more is for what clients that keep up are about to receive."""
_KEYS = f"{SESSIONS}keys"

_Answer = Callable[[bool], None]
"""Called with whether anybody wanted it."""
_Taker = Callable[[Link, Client, Publish, int], None]
"""Whoever a publication is for that is the broker's own."""


class Publishing:
    """The way of a publication."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        state: BrokerState,
        sender: Sender,
        visitors: Visitors,
        long_work: LongWork,
    ) -> None:
        self._config, self._journal, self._state, self._long_work = config, journal, state, long_work
        self._sender, self._visitors, self.counters = sender, visitors, state.counters
        self._lanes = Lanes(state, self.refused_topic)
        self.is_refusing = False
        """The disk takes nothing: publications are refused until it does."""
        self.answer: _Taker | None = None
        """Who answers requests about sessions."""
        self.report: _Taker | None = None
        """Who takes reports of devices."""
        self.note_full: Callable[[int], None] = lambda _now: None
        """Who lets QoS 0 wait for clients that there is no room for."""
        self.pump_ready: Callable[[int], None] = lambda _now: None
        """Who sends what was handed over. Before anything of QoS 0 is: it may be written at once, and would overtake a
        copy of QoS 0 that has a receipt and waits for the end of the turn [MQTT-4.6.0-6]."""

    def received(self, link: Link, client: Client, packets: Sequence[Publish], now: int) -> None:
        """Take in publications that came one after the other."""
        now = self._journal.now(now)
        if self._is_open(link) and not self._state.routes.has_content and packets[0].qos < _EXACTLY_ONCE:
            packets = packets[self._passed_live(link, client, packets, repeat(()), now) :]
        allowance = self._state.routes.allowance()
        while packets and link.closing is None:  # what comes behind a request for keys has these keys
            end = next((at for at, packet in enumerate(packets, start=1) if packet.topic == _KEYS), len(packets))
            try:
                self._taken_in(link, client, packets[:end], now, allowance)
            except OutOfAllowanceError:  # nothing of these was taken in yet
                self._long_work.begin(link, self._taking_in(link, client, packets, allowance))
                return
            packets = packets[end:]

    def _taking_in(self, link: Link, client: Client, packets: Sequence[Publish], allowance: Allowance) -> Pieces:
        """Take in publications that ask many dear patterns one by one, yielding where a turn's *allowance* is spent."""
        for packet in packets:
            take_in = partial(self._taken_in, link, client, [packet])
            while client.link is link and link.closing is None:
                try:
                    take_in(self._journal.last_at, allowance)
                    break
                except OutOfAllowanceError:
                    yield
                    allowance.renew()

    def _is_open(self, link: Link) -> bool:
        """Tell whether what comes over a link may be passed on without looking at keys or the disk."""
        return not link.keyring.publications.hashes and not self.is_refusing

    def _taken_in(
        self,
        link: Link,
        client: Client,
        packets: Sequence[Publish],
        now: int,
        allowance: Allowance,
    ) -> None:
        """Take in publications, or raise ``OutOfAllowanceError`` before the first if the match takes too long."""
        has_keys = bool(link.keyring.publications.hashes)
        secured: list[Secured | str] = [OPEN] * len(packets)
        if has_keys or any(packet.properties.user for packet in packets):
            packets = list(packets)
            for at, packet in enumerate(packets):
                packets[at], secured[at] = unlocked_by(packet, link.keyring, is_ours=link.is_ours)
        opened = [OPEN if isinstance(each, str) else each for each in secured]
        routes = self._state.routes
        # They stay: what a request changes waits for the disk.
        handles = self._matched(packets, opened, allowance)
        at, is_quick = 0, self._is_open(link) and routes.has_content
        while at < len(packets) and link.closing is None:
            if is_quick and packets[at].qos < _EXACTLY_ONCE:
                at += self._passed_live(link, client, packets[at:], handles[at:], now)
                if at == len(packets):
                    break
            found = routes.everybody(packets[at].topic, handles[at], opened[at])
            self._received(link, client, packets[at], secured[at], found, now)
            at += 1
            if self._sender.full:
                self.note_full(now)

    def _passed_live(
        self, link: Link, client: Client, packets: Sequence[Publish], matched: Iterable[Sequence[int]], now: int
    ) -> int:
        """Pass on what the hold need not be asked about, from the first on; return how many that were.

        The same as the long way does to each of them, said once for all: most of what a broker does is this.
        """
        journal, lanes, publisher, sender = self._journal, self._lanes, client.id_bytes, self._sender
        append, waiting, ready, seq, passed = journal.append_body, journal.waiting, self._state.ready, journal.seq, 0
        most = 0  # until it is asked whether there is room for more
        may_publish, is_guarded = self._visitors.may_publish, not self._visitors.is_open
        others: Others | None = None
        for (topic, payload, qos, retain, _, identifier, properties), handles in zip(packets, matched, strict=False):
            if retain or properties is not NO_PROPERTIES or waiting:
                break
            if qos > most:
                if most or not self._has_room(link):
                    break
                most = min(_EXACTLY_ONCE - 1, self._config.mqtt.maximum_qos)
                if qos > most:
                    break
            lane = lanes.get(topic)
            if lane is None or lane.confirms or (qos and (handles or not lane or lane.is_long or lane.is_owed)):
                break
            if is_guarded and not may_publish(link, client.id, topic):
                break
            if handles:
                others = lanes.others(handles)
                if others is None:
                    break
            else:
                others = None
            if ready and not qos:
                self.pump_ready(now)
                seq = journal.seq
            body = publication_body(seq, now, publisher, lane.subject, payload, qos=qos)
            append(body, now)
            if qos:
                message = Message(
                    seq,
                    client.id,
                    topic,
                    payload,
                    qos=qos,
                    retain=False,
                    expires_at=None,
                    properties=b"",
                    body=body,
                )
                lane.pass_on(message, sender, ready, now)
                link.out.append(_PUBACK + identifier.to_bytes(2))
            else:
                lane.send(payload, sender, others)
            seq += 1
            passed += 1
        if passed:
            sender.counters.received += passed
            sender.touch(link)
            self._state.tick(now)
        return passed

    def _has_room(self, link: Link) -> bool:
        """Tell whether nothing that is kept, and nothing that is unanswered, forbids one more QoS 1 publication."""
        return self._held_refusal() is None and link.machine.may_begin

    def _held_refusal(self, *, makes_room: bool = False) -> tuple[ReasonCode, str] | None:
        """Return why nothing is accepted that may be held, if so; what ends a retained message *makes_room*."""
        most = self._config.limits.held_bytes
        if self._state.held_bytes > most + most // _PASSING:
            return ReasonCode.QUOTA_EXCEEDED, f"{most} bytes are held, no more are allowed"
        memory = self._state.memory
        return None if makes_room or memory.has_room() else memory.refusal()

    def _lasting_refusal(self, found: Found) -> tuple[ReasonCode, str] | None:
        """Return why nothing is accepted that waits for a session, if so; for clients that keep up there is more room.

        One client can fill what may be held with what nobody fetches; that must not stop those who are served at once.
        """
        most, state = self._config.limits.held_bytes, self._state
        if state.held_bytes > most:
            full: tuple[ReasonCode, str] | None = (
                ReasonCode.QUOTA_EXCEEDED,
                f"{most} bytes are held, no more are allowed",
            )
        else:
            full = state.memory.refusal(is_lasting=True)
        return None if full is None or state.keep_up(found) else full

    def _matched(
        self, packets: Sequence[Publish], secured: Sequence[Secured], allowance: Allowance
    ) -> Sequence[Sequence[int]]:
        """Return for each publication the handles of those who want it for its content as well.

        ``OutOfAllowanceError`` says that it takes another attempt with the same *allowance*.
        """
        routes = self._state.routes
        if not routes.has_content:
            return [()] * len(packets)
        subjects, texts, *_, properties = zip(*packets, strict=True)
        given = {
            at: attributes_of(text, each.user, content_type=each.text(Property.CONTENT_TYPE))
            for at, (text, each) in enumerate(zip(texts, properties, strict=True))
            if each is not NO_PROPERTIES
        }
        is_open = all(each is OPEN for each in secured)
        asked = subjects, Bodies(texts, given), None if is_open else secured
        if not routes.pattern_instructions:
            return routes.by_content(*asked)
        return allowance.attempt(lambda: routes.by_content(*asked))

    def _finding(self, packet: Publish, secured: Secured) -> Generator[None, None, Found]:
        """Find everybody who wants a publication, and may have it, yielding while that takes long."""
        routes = self._state.routes
        match = partial(self._matched, [packet], [secured])
        allowance = routes.allowance()
        (handles,) = yield from allowance.attempting(partial(match, allowance))
        return routes.everybody(packet.topic, handles, secured)

    def _received(
        self, link: Link, client: Client, packet: Publish, secured: Secured | str, found: Found, now: int
    ) -> None:
        self._sender.counters.received += 1
        qos, identifier = packet.qos, packet.packet_id
        if qos:
            is_known = identifier in client.received or identifier in client.asked
            if qos == 2 and (is_known or identifier in client.receiving):
                if is_known:  # else it is answered when the disk has it
                    self._sender.send(link, _PUBREC + identifier.to_bytes(2))
                return
            if not link.machine.publication_begins():
                most = self._config.limits.receive_maximum
                reason = f"more than {most} publications without an answer"
                self._sender.fail(link, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, reason)
                return
        if packet.topic.startswith(OWN) and (taker := self._taker(packet.topic)) is not None:
            taker(link, client, packet, now)
            return
        refusal = self._refusal(link, client, packet)
        if refusal is None and (qos or any(not is_private(session) for session, _ in found)):
            refusal = self._lasting_refusal(found)  # a named session holds QoS 0 too
        if refusal is not None:
            self.refuse(link, client, packet, *refusal)
            return
        if isinstance(secured, str):
            self.refuse(link, client, packet, ReasonCode.PAYLOAD_FORMAT_INVALID, secured)
            return
        expires_at = None
        if packet.properties:
            expiry_s = packet.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)
            if expiry_s is not None:
                expires_at = now + expiry_s * _SECOND_US
        if not qos:
            self._accept(packet, secured, found, client.id, expires_at, 0, None, now)
        elif qos == 1:
            answer = partial(self.acknowledge, link, identifier)
            self._accept(packet, secured, found, client.id, expires_at, 0, answer, now)
        else:
            client.receiving.add(identifier)
            answer = partial(self._confirm, link, client, identifier)
            self._accept(packet, secured, found, client.id, expires_at, identifier, answer, now)

    def _taker(self, topic: str) -> _Taker | None:
        """Return who takes what is published to a topic of the broker's own."""
        if topic.startswith(SESSIONS):
            return self.answer
        return self.report if topic == REPORT else None

    def publish_will(self, left: LeftWill, now: int, answer: _Answer) -> None:
        """Publish what a client left behind."""
        now = self._journal.now(now)
        packet, secured, expiry_us = left.packet(), left.secured, left.will.expiry_us
        expires_at = None if expiry_us is None else now + expiry_us
        self._accept(packet, secured, None, left.device, expires_at, 0, answer, now, will_seq=left.seq)

    # -- refusing ----------------------------------------------------------------------------------------------------

    def _refusal(self, link: Link, client: Client, packet: Publish) -> tuple[ReasonCode, str] | None:
        """Return why a publication is not accepted, if it is not."""
        return self.refused_topic(packet.topic) or self.refusal(link, client, packet)

    def refusal(self, link: Link, client: Client, packet: Publish) -> tuple[ReasonCode, str] | None:
        """Return why a publication is not accepted though its topic may be published to, if it is not."""
        limits, topic, state = self._config.limits, packet.topic, self._state
        if not self._visitors.may_publish(link, client.id, topic):
            return ReasonCode.NOT_AUTHORIZED, "this topic may not be published to"
        if packet.qos > self._config.mqtt.maximum_qos:
            return ReasonCode.QOS_NOT_SUPPORTED, f"at most QoS {self._config.mqtt.maximum_qos}"
        if self.is_refusing:
            return ReasonCode.QUOTA_EXCEEDED, "the disk takes nothing"
        if packet.qos:
            full = self._held_refusal(makes_room=packet.retain and not packet.payload)
            if full is not None:
                return full
        is_retained = packet.retain and packet.payload and topic not in state.retained
        if is_retained and len(state.retained) >= limits.retained_messages:
            return ReasonCode.QUOTA_EXCEEDED, f"{limits.retained_messages} topics are retained, no more are allowed"
        if packet.retain and packet.payload:
            grows = state.retained.growth(topic, len(packet.payload))
            if grows > 0 and state.retained.size_bytes + grows > limits.retained_bytes:
                return ReasonCode.QUOTA_EXCEEDED, f"{limits.retained_bytes} bytes are retained, no more are allowed"
            if grows > 0 and (full := state.memory.refusal(grows, is_lasting=True)) is not None:
                return full
        if packet.properties and len(packet.properties.user) > limits.user_properties:
            return ReasonCode.QUOTA_EXCEEDED, f"at most {limits.user_properties} user properties"
        return self.refused_response(packet.properties) if packet.properties else None

    def refused_response(self, properties: Properties) -> tuple[ReasonCode, str] | None:
        """Return why a publication or a will is not accepted for its response topic, if so: others publish to it."""
        disallowed = disallowed_in(properties.text(Property.RESPONSE_TOPIC) or "")
        if disallowed is None:
            return None
        return (
            ReasonCode.TOPIC_NAME_INVALID,
            f"a response topic with {disallowed}; control and non-characters are refused",
        )

    def refused_topic(self, topic: str) -> tuple[ReasonCode, str] | None:
        """Return why nobody may publish to *topic*, if so."""
        limits = self._config.limits
        if topic[0] == "$" and topic.startswith(_RESERVED):
            return ReasonCode.NOT_AUTHORIZED, f"{topic.split('/', 1)[0]} is the broker's own"
        if len(topic.encode()) > limits.topic_bytes or topic.count("/") >= limits.topic_levels:
            return ReasonCode.TOPIC_NAME_INVALID, f"at most {limits.topic_bytes} bytes, {limits.topic_levels} levels"
        disallowed = disallowed_in(topic)
        if disallowed is not None:
            return ReasonCode.TOPIC_NAME_INVALID, f"a topic with {disallowed}; control and non-characters are refused"
        return None

    def refuse(self, link: Link, client: Client, packet: Publish, code: ReasonCode, reason: str) -> None:
        """Answer a publication that is not accepted; 3.1.1 has no words for it."""
        self._sender.counters.refused += 1
        if not packet.qos:
            return
        identifier = packet.packet_id
        if code is ReasonCode.QOS_NOT_SUPPORTED:
            self._sender.fail(link, code, reason)  # CONNACK said so (3.2.2.3.4)
        elif link.machine.version == V5:
            link.machine.publication_ends()
            kind = Puback if packet.qos == 1 else Pubrec
            self._sender.say(link, kind(identifier, code, Properties({Property.REASON_STRING: reason})))
        elif code is ReasonCode.QUOTA_EXCEEDED:
            self._sender.close(link, reason)  # an acknowledgement would be a lie, and silence would stop the client
        elif packet.qos == 1:
            link.machine.publication_ends()
            self._sender.send(link, _PUBACK + identifier.to_bytes(2))
        else:
            client.received.add(identifier)
            self._sender.send(link, _PUBREC + identifier.to_bytes(2))

    # -- accepting ---------------------------------------------------------------------------------------------------

    def _accept(
        self,
        packet: Publish,
        secured: Secured,
        found: Found | None,
        publisher: str,
        expires_at: int | None,
        packet_id: int,
        answer: _Answer | None,
        now: int,
        *,
        will_seq: int | None = None,
    ) -> None:
        """Give a publication its number, write it down, and pass it on when it is accepted.

        Who wants it was *found*; of a will it is asked when it is durable.
        """
        journal, state, topic, payload = self._journal, self._state, packet.topic, packet.payload
        if state.ready and not packet.qos:
            self.pump_ready(now)
        qos, retain, seq = packet.qos, packet.retain, journal.seq
        properties = packet.properties
        onward = passed_on(properties) if properties else b""
        is_more = properties and (properties.user or properties.text(Property.CONTENT_TYPE))
        if is_more or secured is not OPEN or will_seq is not None:
            body = self._full_body(packet, secured, seq, publisher, expires_at, packet_id, onward, now, will_seq)
        else:
            body = publication_body(
                seq,
                now,
                publisher.encode(),
                topic.encode(),
                payload,
                qos=qos,
                retain=retain,
                expires_at=expires_at,
                packet_id=packet_id or None,
                properties=onward,
            )
        journal.append_body(body, now)
        message = Message(
            seq,
            publisher,
            topic,
            payload,
            qos=qos,
            retain=retain,
            expires_at=expires_at,
            properties=onward,
            body=body,
            secured=secured,
        )
        if found is None:
            apply_will = partial(self._finding_and_passing_on, message, packet, packet_id, answer, now)
            journal.entered(seq, apply_will, is_owed=True)
            return
        lane = self._lane(message, found) if len(found) <= PIECE else None
        is_owed = qos > 0 and self._is_owed(message, found, lane, packet_id)
        if is_owed or journal.waiting or len(found) > PIECE:
            apply = partial(self._pass_on_later, message, packet, found, state.routes.epoch, packet_id, answer, now)
            journal.entered(seq, apply, is_owed=is_owed)
        else:
            self._pass_on(message, found, lane, packet_id, answer, now)

    def _is_owed(self, message: Message, found: Found, lane: Lane | None, packet_id: int) -> bool:
        """Tell whether somebody could ask for a QoS 1 or 2 publication after a crash."""
        if message.retain:
            return True
        if packet_id and self._state.clients[message.publisher or ""].is_persistent:
            return True
        return self._state.is_owed(found) if lane is None else lane.is_owed

    def _full_body(
        self,
        packet: Publish,
        secured: Secured,
        seq: int,
        publisher: str,
        expires_at: int | None,
        packet_id: int,
        onward: bytes,
        now: int,
        will_seq: int | None,
    ) -> bytes:
        """Return the record of a publication that is a will, or whose attributes are not those of its body alone."""
        content_type = packet.properties.text(Property.CONTENT_TYPE)
        fact = Notification(
            node=self._journal.node,
            seq=seq,
            published_at=now,
            subject=packet.topic,
            publisher=publisher,
            attributes=attributes_of(packet.payload, packet.properties.user, content_type=content_type),
            body=packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            expires_at=expires_at,
            properties=onward,
            packet_id=packet_id or None,
            keys=secured.keys,
            deliver_insecure=secured.deliver_insecure,
            will_seq=will_seq,
        )
        return body_of(fact)[0]

    def _pass_on_later(
        self,
        message: Message,
        packet: Publish,
        found: Found,
        epoch: int,
        packet_id: int,
        answer: _Answer | None,
        now: int,
    ) -> Pieces | None:
        if epoch != self._state.routes.epoch:  # a subscription changed meanwhile, and its number is lower
            return self._finding_and_passing_on(message, packet, packet_id, answer, now)
        if len(found) > PIECE:
            return self._passing_on(message, found, packet_id, answer, now)
        self._pass_on(message, found, self._lane(message, found), packet_id, answer, now)
        return None

    def _finding_and_passing_on(
        self, message: Message, packet: Publish, packet_id: int, answer: _Answer | None, now: int
    ) -> Pieces:
        """Find who wants a publication and pass it on, yielding while that takes long."""
        found = yield from self._finding(packet, message.secured)
        if len(found) > PIECE:
            yield from self._passing_on(message, found, packet_id, answer, now)
        else:
            self._pass_on(message, found, self._lane(message, found), packet_id, answer, now)

    def _lane(self, message: Message, found: Found) -> Lane | None:
        """Return the lane of a publication that may take one."""
        return self._lanes.of(message.subject, found) if _is_plain(message) else None

    def _pass_on(
        self, message: Message, found: Found, lane: Lane | None, packet_id: int, answer: _Answer | None, now: int
    ) -> None:
        is_wanted, accepted_at = bool(found), self._journal.last_at
        if self._state.ready and not message.qos:
            self.pump_ready(accepted_at)
        if lane is not None:
            found = lane.pass_on(message, self._sender, self._state.ready, accepted_at)
        self._state.apply_publication(message, found, packet_id, now, now=accepted_at)
        if answer is not None:
            answer(is_wanted)

    def _passing_on(self, message: Message, found: Found, packet_id: int, answer: _Answer | None, now: int) -> Pieces:
        """Do what ``_pass_on`` does in pieces, yielding after each."""
        is_wanted, accepted_at = bool(found), self._journal.last_at
        if self._state.ready and not message.qos:
            self.pump_ready(accepted_at)
        lane = None
        if _is_plain(message):
            lane = yield from self._lanes.making(message.subject, found)
        if lane is not None:
            found = yield from lane.passing_on(message, self._sender, self._state.ready, accepted_at)
        yield from self._state.applying_publication(message, found, packet_id, now, now=accepted_at)
        if answer is not None:
            answer(is_wanted)

    # -- answering ---------------------------------------------------------------------------------------------------

    def acknowledge(self, link: Link, identifier: int, is_wanted: bool) -> None:  # noqa: FBT001 # an answer's only word
        """Answer a QoS 1 publication that was accepted."""
        machine = link.machine
        machine.publication_ends()
        if link.closing is not None:
            return
        if is_wanted or machine.version != V5:
            self._sender.send(link, _PUBACK + identifier.to_bytes(2))
        else:
            self._sender.send(link, b"\x40\x03" + identifier.to_bytes(2) + _NO_SUBSCRIBERS)

    def _confirm(self, link: Link, client: Client, identifier: int, is_wanted: bool) -> None:  # noqa: FBT001 # see above
        client.receiving.discard(identifier)
        if client.link is not link:
            return
        if is_wanted or link.machine.version != V5:
            self._sender.send(link, _PUBREC + identifier.to_bytes(2))
        else:
            self._sender.send(link, b"\x50\x03" + identifier.to_bytes(2) + _NO_SUBSCRIBERS)

    def released(self, link: Link, client: Client, identifier: int, now: int) -> None:
        """Take in that a publisher knows its QoS 2 publication to be accepted: its identifier is free again.

        It is free for certain only when that is written: an identifier that came back from a crash would swallow the
        next publication under it.
        """
        if identifier in client.asked:
            client.asked.discard(identifier)
            link.machine.publication_ends()
            self._sender.send(link, _PUBCOMP + identifier.to_bytes(2))
            return
        if identifier not in client.received:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            not_found = encode(Pubcomp(identifier, code, NO_PROPERTIES), V5)
            is_v5 = link.machine.version == V5
            self._sender.send(link, not_found if is_v5 else _PUBCOMP + identifier.to_bytes(2))
            return
        fact = PresenceChanged(
            node=self._journal.node,
            seq=self._journal.seq,
            changed_at=self._journal.now(now),
            device=client.id,
            change=PresenceChange.RELEASED,
            packet_id=identifier,
        )
        self._journal.enter(fact, partial(self._complete, link, fact, identifier), is_owed=client.is_persistent)

    def _complete(self, link: Link, fact: PresenceChanged, identifier: int) -> None:
        self._state.replay(fact)
        link.machine.publication_ends()
        if link.closing is None:
            self._sender.send(link, _PUBCOMP + identifier.to_bytes(2))


def _is_plain(message: Message) -> bool:
    """Tell whether a publication may take a lane, if those who want it may."""
    return message.secured is OPEN and message.expires_at is None
