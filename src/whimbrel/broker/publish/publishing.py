"""Publishing: the steps of a publication, from its packet to its subscribers (MQTT 5, 3.3 and 4.3).

1. *unlock* (``publication_keys``): read its security keys and those of its connection;
2. *match* (``routes``): find the subscribers for its topic, content and keys;
3. *admit* (``admission``): accept it, or refuse it with a reason;
4. *number*: give it a seq and write it to the log (``commit_queue``);
5. *route*: at once, or after an fsync if ``Admission.must_sync`` requires it: deliver it to the recipients of its
  topic's plan (``plans``), pass it to the hold for all others, retain it, and acknowledge it.

Runs of simple publications (``runs``) take the same steps together, without those that cannot affect them.
Rule: messages to the broker itself (requests, reports, policies) leave this path before they are admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.deliver.plans import DeliveryPlan, Plans, is_plain
from whimbrel.broker.publish.admission import Admission, waiting_bytes
from whimbrel.broker.publish.answers import PublicationAnswers
from whimbrel.broker.publish.moves import Moves
from whimbrel.broker.publish.offers import Offer
from whimbrel.broker.publish.publication_keys import unlocked_by
from whimbrel.broker.publish.runs import PublicationRuns
from whimbrel.broker.publish.stalled import Stalled
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.places.near_routes import NO_SUBSCRIBERS, NearFound
from whimbrel.broker.state.routes import Found
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.notices import CLIENTS, OWN, POLICY, REPORT, SESSIONS
from whimbrel.broker.wire.own_properties import IN_PUBLISH, PREFIX
from whimbrel.broker.wire.placing import IN_TOPIC, read_placing
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.sessions import PIECE
from whimbrel.language.allowance import Allowance, OutOfAllowanceError
from whimbrel.match.events.bodies import Bodies
from whimbrel.model.codecs import attributes_of
from whimbrel.model.keys import OPEN, Secured
from whimbrel.model.notification import EXACTLY_ONCE
from whimbrel.mqtt.codes import PacketType, ReasonCode
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import NO_PROPERTIES, Property, decode_properties
from whimbrel.node.places.placing import Placing
from whimbrel.node.publication import KeptNotification
from whimbrel.node.wills import LeftWill

__all__ = ["PublishHandler"]

_PUBREC = b"\x50\x02"
_MAX_ONE_BY_ONE = 40
"""Publications of one client that are matched one by one in a turn of the event loop."""
_KEYS = f"{SESSIONS}keys"
_SPLITTING = frozenset({_KEYS, REPORT})

_Answer = Callable[[bool], None]
"""Function that acknowledges a publication; the argument is whether it had a subscriber."""
_Taker = Callable[[Link, LiveClient, Publish, int], None]
"""Function that handles a message to the broker itself, such as a request."""


class _Accepted:
    """A publication with a seq that is passed on now or later; *answer* acknowledges it to its publisher."""

    __slots__ = ("answer", "message", "offer")

    def __init__(self, message: KeptNotification, offer: Offer, answer: _Answer | None) -> None:
        self.message, self.offer, self.answer = message, offer, answer


class PublishHandler:
    """Takes all steps of a publication; without plans, every publication goes through the hold.

    *pump_ready* sends waiting deliveries. It is called before any QoS 0 copy is sent: such a copy may be written at
    once, and would overtake an earlier QoS 0 copy with a receipt, which waits for the end of the turn [MQTT-4.6.0-6].
    """

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        long_work: LongWork,
        admission: Admission,
        pump_ready: Callable[[int], None],
        *,
        has_plans: bool = True,
    ) -> None:
        self._config, self._commits, self._state, self._long_work = config, commits, state, long_work
        self._sender, self.counters = sender, state.volatile.counters
        self.admission, self._pump_ready = admission, pump_ready
        most_queued = config.limits.send_buffer_bytes
        self._plans = Plans(state, admission.topic_refusal, most_queued=most_queued) if has_plans else None
        self._runs = (
            None
            if self._plans is None
            else PublicationRuns(
                admission, commits, state, sender, authorizer, self._plans, pump_ready, self._passing_on_again
            )
        )
        self.answers = PublicationAnswers(commits, state, sender)
        self.stalled = Stalled(admission, sender, self.handle)
        self.moves = Moves(commits, state, admission, authorizer)
        self.answer: _Taker | None = None
        self.answer_operator: _Taker | None = None
        """Handlers of requests about sessions, and of requests about clients."""
        self.report: _Taker | None = None
        self.policy: _Taker | None = None
        """Handlers of device reports, and of policies and their choice by devices."""
        self.note_full: Callable[[int], None] = lambda _now: None
        """Function that makes QoS 0 messages wait for clients whose send buffers are full."""

    def handle(self, link: Link, client: LiveClient, packets: Sequence[Publish], now: int) -> None:
        """Handle consecutive publications of one client."""
        if link.stalled is not None and self.stalled.holds(link, packets):
            return
        now = self._commits.now(now)
        runs, routes = self._runs_for(link), self._state.routes
        if runs is not None and not routes.has_content:
            taken = runs.take(link, client, packets, None, now)
            if taken == len(packets):
                return
            packets = packets[taken:]
        allowance = routes.allowance() if routes.has_content else None
        while packets and link.closing is None:
            if packets[0].topic == REPORT and (taken := self.moves.handle(link, client, packets, now)):
                packets = packets[taken:]
                continue
            end = _run(packets)
            try:
                self._taken_in(link, client, packets[:end], now, allowance)
            except OutOfAllowanceError:  # no packet was handled yet
                self._long_work.begin(link, self._taking_in(link, client, packets, allowance or routes.allowance()))
                return
            packets = packets[end:]
            if link.stalled is not None and self.stalled.holds(link, packets):
                return

    def _taking_in(self, link: Link, client: LiveClient, packets: Sequence[Publish], allowance: Allowance) -> Pieces:
        """Handle publications that need long matching one by one; yield when the time *allowance* is used up."""
        for done, packet in enumerate(packets, start=1):
            if done % min(_MAX_ONE_BY_ONE, self._state.routes.at_once) == 0:
                yield
                allowance.renew()
            take_in = partial(self._taken_in, link, client, [packet])
            while client.link is link and link.closing is None:
                try:
                    take_in(self._commits.last_at, allowance)
                    if link.stalled is not None and self.stalled.holds(link, packets[done:]):
                        return
                    break
                except OutOfAllowanceError:
                    yield
                    allowance.renew()

    def _runs_for(self, link: Link) -> PublicationRuns | None:
        """Return the handler of runs, or None if the link's connection has keys or the disk cannot store any."""
        admission = self.admission
        is_open = not (admission.is_refusing or admission.is_short or link.keyring.publications.hashes)
        return self._runs if is_open else None

    def _find_subscribers(self, topic: str, handles: Sequence[int], secured: Secured) -> Found:
        """Return the subscribers of a publication without a place, from the topic's plan if possible."""
        plan = None if handles or secured is not OPEN or self._plans is None else self._plans.get(topic)
        return self._state.routes.subscribers(topic, handles, secured) if plan is None else plan.found

    def _taken_in(
        self,
        link: Link,
        client: LiveClient,
        packets: Sequence[Publish],
        now: int,
        allowance: Allowance | None,
    ) -> None:
        """Handle publications; raise ``OutOfAllowanceError`` before the first one if matching takes too long."""
        given, was_busy, has_keys = packets, link.is_busy, bool(link.keyring.publications.hashes)
        secured: list[Secured | str] = [OPEN] * len(packets)
        placings, foreign = dict[int, Placing](), 0
        if has_keys or any(map(_may_speak_to_us, packets)):
            packets = list(packets)
            for at, locked in enumerate(packets):
                packet, secured[at] = unlocked_by(locked, link.keyring, is_ours=link.is_ours)
                if not isinstance(secured[at], str):
                    packet, placing, count = self.admission.parse_placing(packet, is_ours=link.is_ours)
                    foreign += count
                    if isinstance(placing, str):
                        secured[at] = placing
                    elif placing is not None:
                        placings[at] = placing
                packets[at] = packet
        opened = [OPEN if isinstance(each, str) else each for each in secured]
        routes = self._state.routes
        # The matches stay valid: a change that a request among these packets makes is applied only after an fsync.
        handles, near = self._match(packets, opened, placings, now, allowance)
        self.counters.foreign_places += foreign
        at, runs = 0, self._runs_for(link) if routes.has_content else None
        while at < len(packets) and link.closing is None:
            if runs is not None:
                at += runs.take(link, client, packets[at:], handles[at:], now)
                if at == len(packets):
                    break
            topic, placing = packets[at].topic, placings.get(at) if placings else None
            if placing is None or placing.place is None:
                found = self._find_subscribers(topic, handles[at], opened[at])
            else:
                found = routes.subscribers_at(topic, handles[at], near[at], opened[at], placing, now)
            self._handle_one(link, client, packets[at], secured[at], placing, found, now)
            if link.stalled is not None and self.stalled.holds(link, given[at:]):
                break
            at += 1
            if link.is_busy and not was_busy:  # a long policy is being parsed; the packets behind it wait
                link.behind += given[at:]
                break
            if self._sender.full:
                self.note_full(now)

    def _match(
        self,
        packets: Sequence[Publish],
        secured: Sequence[Secured],
        placings: Mapping[int, Placing],
        now: int,
        allowance: Allowance | None,
    ) -> tuple[Sequence[Sequence[int]], Mapping[int, NearFound]]:
        """Return, for each publication of the time *now*, the matching subscriptions with a content filter.

        They are the matcher's indices (handles). The second result has, by the index of each publication with a place,
        the matching subscriptions with ``near``. ``OutOfAllowanceError`` means that another attempt with the same
        *allowance* is needed.
        """
        routes = self._state.routes
        near = {at: NO_SUBSCRIBERS for at, placing in placings.items() if placing.place is not None} if placings else {}
        if not routes.has_content and not (near and routes.near):
            return [()] * len(packets), near
        if len(packets) > routes.at_once:
            raise OutOfAllowanceError
        subjects, texts, *_, properties = zip(*packets, strict=True)
        given = {
            at: attributes_of(text, each.user, content_type=each.text(Property.CONTENT_TYPE))
            for at, (text, each) in enumerate(zip(texts, properties, strict=True))
            if each is not NO_PROPERTIES
        }
        ask, is_open = routes.near.wanting, all(each is OPEN for each in secured)
        asked = subjects, Bodies(texts, given), None if is_open else secured

        def match() -> tuple[Sequence[Sequence[int]], Mapping[int, NearFound]]:
            handles = routes.by_content(*asked) if routes.has_content else [()] * len(packets)
            return handles, {at: ask(subjects[at], given[at], secured[at], placings[at], now) for at in near}

        return (allowance or routes.allowance()).attempt(match) if routes.pattern_instructions else match()

    def _finding(self, accepted: _Accepted) -> Generator[None, None, Found]:
        """Find the subscribers of a publication, yielding while matching takes long."""
        packet, message, at = accepted.offer.packet, accepted.message, accepted.offer.at
        routes, secured, placing = self._state.routes, message.secured, message.placing
        match = partial(self._match, [packet], [secured], {} if placing is None else {0: placing}, at)
        allowance = routes.allowance()
        (handles,), near = yield from allowance.attempting(partial(match, allowance))
        if placing is None:
            return routes.subscribers(packet.topic, handles, secured)
        return routes.subscribers_at(packet.topic, handles, near.get(0, NO_SUBSCRIBERS), secured, placing, at)

    def _handle_one(
        self,
        link: Link,
        client: LiveClient,
        packet: Publish,
        secured: Secured | str,
        placing: Placing | None,
        found: Found,
        now: int,
    ) -> None:
        self._sender.counters.received += 1
        qos, identifier = packet.qos, packet.packet_id
        if qos:
            is_known = identifier in client.received or identifier in client.asked
            if qos == 2 and (is_known or identifier in client.receiving):
                if is_known:  # a duplicate of a publication that waits for fsync is answered after the fsync
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
        refusal = None if packet.topic.startswith(IN_TOPIC) else self.admission.refusal(link, client, packet, found)
        if refusal is not None:
            self.answers.refuse(link, client, packet, *refusal)
            return
        if isinstance(secured, str):  # a topic that still begins with $place/ did not parse
            self.answers.refuse(link, client, packet, ReasonCode.PAYLOAD_FORMAT_INVALID, secured)
            return
        if not qos:
            if not (self.admission.logs_unwanted or found or packet.retain or self._commits.waiting):
                self.counters.unwanted += 1  # without subscribers: it is not written to the log and gets no seq
                return
            answer = None
        elif qos == 1:
            answer = partial(self.answers.acknowledge, link, identifier)
        else:
            client.receiving.add(identifier)
            answer = partial(self.answers.confirm, link, client, identifier)
        offer = Offer(packet, client.id, now, secured, placing, packet_id=identifier if qos == EXACTLY_ONCE else 0)
        self._accept(offer, found, answer)

    def _taker(self, topic: str) -> _Taker | None:
        """Return the handler of messages to one of the broker's own topics, or None."""
        if topic.startswith(SESSIONS):
            return self.answer
        if topic.startswith(CLIENTS):
            return self.answer_operator
        return self.policy if topic.startswith(POLICY) else self.report if topic == REPORT else None

    def publish_will(self, left: LeftWill, now: int) -> None:
        """Publish the will of a client."""
        properties = decode_properties(left.will.properties, PacketType.PUBLISH)
        will = left.will
        packet = Publish(will.subject, will.body, will.qos, will.retain, False, 0, properties)
        placing = read_placing(packet.properties.user, is_ours=False).placing  # CONNECT was accepted with this place
        offer = Offer(packet, left.device, self._commits.now(now), left.secured, placing, will=left)
        self._accept(offer, None, None)

    # -- accepting ---------------------------------------------------------------------------------------------------

    def _accept(self, offer: Offer, found: Found | None, answer: _Answer | None) -> None:
        """Give a publication a seq, write it to the log, and pass it on when it is accepted.

        *found* are its subscribers; the subscribers of a will (None) are found when it is durable.
        """
        commits, state = self._commits, self._state
        if state.volatile.ready and not offer.packet.qos:
            self._pump_ready(offer.at)
        message = offer.with_seq(commits.node, commits.seq)
        commits.append_body(message.record, offer.at)
        accepted = _Accepted(message, offer, answer)
        if found is None:
            commits.enter_appended(message.seq, partial(self._finding_and_passing_on, accepted), is_owed=True)
            return
        plan = self._plan(message, found) if len(found) <= PIECE else None
        is_owed = self.admission.must_sync(message, found, plan, offer.packet_id)
        if is_owed or commits.waiting or len(found) > PIECE:
            state.memory.counted += waiting_bytes(found)
            apply = partial(self._pass_on_later, accepted, found, state.routes.epoch)
            commits.enter_appended(message.seq, apply, is_owed=is_owed)
        else:
            self._pass_on(accepted, found, plan)

    def _pass_on_later(self, accepted: _Accepted, found: Found, epoch: int) -> Pieces | None:
        self._state.memory.counted -= waiting_bytes(found)
        message = accepted.message
        if epoch != self._state.routes.epoch or message.placing is not None:
            # A subscription changed or a device moved meanwhile, by a fact with a lower seq: match again.
            return self._finding_and_passing_on(accepted)
        if len(found) > PIECE:
            return self._passing_on(accepted, found)
        self._pass_on(accepted, found, self._plan(message, found))
        return None

    def _finding_and_passing_on(self, accepted: _Accepted) -> Pieces:
        """Find the subscribers of a publication and pass it on, yielding while that takes long."""
        found = yield from self._finding(accepted)
        if len(found) > PIECE:
            yield from self._passing_on(accepted, found)
        else:
            self._pass_on(accepted, found, self._plan(accepted.message, found))

    def _passing_on_again(self, link: Link, client: LiveClient, message: KeptNotification, packet: Publish) -> Pieces:
        """Find the subscribers of a publication of QoS 1 that was taken with a run, and pass it on."""
        offer = Offer(packet, client.id, message.published_at, OPEN, None)
        return self._finding_and_passing_on(
            _Accepted(message, offer, partial(self.answers.acknowledge, link, packet.packet_id))
        )

    def _plan(self, message: KeptNotification, found: Found) -> DeliveryPlan | None:
        """Return the plan for a publication, or None if it must go through the hold."""
        return self._plans.of(message.subject, found) if self._plans is not None and is_plain(message) else None

    def _pass_on(self, accepted: _Accepted, found: Found, plan: DeliveryPlan | None) -> None:
        message, offer, is_wanted, accepted_at = accepted.message, accepted.offer, bool(found), self._commits.last_at
        if self._state.volatile.ready and not message.qos:
            self._pump_ready(accepted_at)
        received: Collection[str] = ()
        if plan is not None:
            found, received = plan.deliver(message, self._sender, accepted_at)
        commands = self._state.node.publish(
            message, found, packet_id=offer.packet_id, will_seq=offer.will_seq, received=received
        )
        if commands:
            self._state.perform(commands, accepted_at)
        self._end(accepted, accepted_at, is_wanted=is_wanted)

    def _passing_on(self, accepted: _Accepted, found: Found) -> Pieces:
        """Do the work of ``_pass_on`` in steps, yielding between them."""
        message, offer, is_wanted, accepted_at = accepted.message, accepted.offer, bool(found), self._commits.last_at
        if self._state.volatile.ready and not message.qos:
            self._pump_ready(accepted_at)
        plan = None
        if self._plans is not None and is_plain(message):
            plan = yield from self._plans.making(message.subject, found)
        received: Collection[str] = ()
        if plan is not None:
            found, received = yield from plan.passing_on(message, self._sender, accepted_at)
        commands = yield from self._state.node.publishing(
            message, found, packet_id=offer.packet_id, will_seq=offer.will_seq, received=received
        )
        yield from self._state.performing(commands, accepted_at)
        self._end(accepted, accepted_at, is_wanted=is_wanted)

    def _end(self, accepted: _Accepted, now: int, *, is_wanted: bool) -> None:
        """Send the copies of a publication that is to be acknowledged, and then acknowledge it."""
        if accepted.answer is None:
            return
        if self._state.volatile.ready:
            self._pump_ready(now)
        accepted.answer(is_wanted)


def _may_speak_to_us(packet: Publish) -> bool:
    """Return whether the topic or a user property of a publication may be meant for the broker."""
    user = packet.properties.user if packet.properties is not NO_PROPERTIES else ()
    is_meant = any(name in IN_PUBLISH or name.startswith(PREFIX) for name, _ in user)
    return is_meant or packet.topic.startswith(IN_TOPIC)


def _run(packets: Sequence[Publish]) -> int:
    """Return how many of *packets*, from the first on, can be matched together.

    Publications behind a request for keys need the new keys, and those behind a report are matched at the client's new
    place.
    """
    for at, packet in enumerate(packets, start=1):
        topic = packet.topic
        if topic in _SPLITTING:
            return at - (at > 1 and topic == REPORT)
    return len(packets)
