"""Interests: SUBSCRIBE and UNSUBSCRIBE, and the retained messages that come of them (MQTT 5, 3.8 to 3.11)."""

from __future__ import annotations

from functools import partial

from whimbrel.broker.clients import RETAINED, Client, Link, Outgoing
from whimbrel.broker.config import Config
from whimbrel.broker.delivering import Delivering
from whimbrel.broker.journal import Journal
from whimbrel.broker.sending import Sender
from whimbrel.broker.state import BrokerState
from whimbrel.broker.subscribing import Limits, identity_of, options_of, subscription_of
from whimbrel.broker.visitors import Visitors
from whimbrel.hold.private import is_shared
from whimbrel.language.filters import Filter
from whimbrel.model.facts import InterestChanged
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.mqtt.codes import ReasonCode, suback_return_code
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Suback, Subscribe, Unsuback, Unsubscribe
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.topics import split_share

__all__ = ["Interests"]

_SECOND_US = 1_000_000
_LONGEST_REASON = 1_000
_IF_NEW = 1


class Interests:
    """What clients subscribe to."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        state: BrokerState,
        sender: Sender,
        visitors: Visitors,
        delivering: Delivering,
    ) -> None:
        self._journal, self._state, self._sender, self._visitors = journal, state, sender, visitors
        self._delivering = delivering
        self._most = config.limits.subscriptions_per_session
        self._limits = Limits(
            filter_bytes=config.limits.filter_bytes,
            topic_bytes=config.limits.topic_bytes,
            topic_levels=config.limits.topic_levels,
            maximum_qos=config.mqtt.maximum_qos,
            ttl_us=config.hold.ttl_s * _SECOND_US,
            max_held=config.hold.max,
        )
        self.is_refusing = False
        """The disk takes nothing."""

    def subscribe(self, link: Link, client: Client, packet: Subscribe, now: int) -> None:
        """Take in a SUBSCRIBE; it is answered when all of it is accepted."""
        now = self._journal.now(now)
        codes: list[int] = []
        reasons: list[str] = []
        for request in packet.requests:
            try:
                options = options_of(packet.properties.user, self._limits)
                identifiers = packet.properties.identifiers
                identifier = identifiers[0] if identifiers else None
                subscription = subscription_of(request, options, client.session, identifier, self._limits)
                self._check(link, client, subscription)
            except ProtocolError as error:
                codes.append(error.code)
                reasons.append(error.reason)
            else:
                codes.append(subscription.qos or 0)
                self._put(link, client, subscription, request.retain_handling, now)
        self._journal.then(partial(self._answer, link, packet.packet_id, codes, reasons))

    def _check(self, link: Link, client: Client, subscription: Subscription) -> None:
        """Refuse a subscription that may not be made."""
        assert subscription.subject_filter is not None
        if self.is_refusing:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "the disk takes nothing")
        _, plain = split_share(subscription.subject_filter)
        if not self._visitors.may_subscribe(link, client.id, plain):
            raise ProtocolError(ReasonCode.UNSPECIFIED_ERROR, "this topic filter may not be subscribed to")
        identity = (subscription.subject_filter, subscription.name)
        if identity not in client.subscribed and len(client.subscribed) >= self._most:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{self._most} subscriptions, no more are allowed")

    def _put(self, link: Link, client: Client, subscription: Subscription, retain_handling: int, now: int) -> None:
        identity = (subscription.subject_filter, subscription.name)
        is_new = identity not in client.subscribed
        client.subscribed.add(identity)
        fact = InterestChanged(
            node=self._journal.node,
            seq=self._journal.seq,
            changed_at=now,
            change=InterestChange.ADDED if is_new else InterestChange.MODIFIED,
            subscription=subscription,
            device=client.id,
        )
        self._journal.enter(fact, partial(self._state.apply_interest, fact), is_owed=client.is_persistent)
        if retain_handling == 0 or (retain_handling == _IF_NEW and is_new):
            self._journal.then(partial(self._send_retained, link, client, subscription, now))

    def _send_retained(self, link: Link, client: Client, subscription: Subscription, now: int) -> None:
        """Send what is retained (3.3.1.3); for a share nothing is (4.8.2)."""
        wanted = subscription.subject_filter
        if wanted is None or client.link is not link or is_shared(wanted):
            return
        identifiers = () if subscription.identifier is None else (subscription.identifier,)
        identity = (wanted, subscription.name)
        terms = (self._state.terms(client.session, (identity,), client.id),)
        asked = None if subscription.filter_text is None else Filter(subscription.filter_text)
        for message in self._state.retained.matching(wanted):
            if message.expires_at is not None and message.expires_at <= now:
                continue
            if not self._visitors.may_receive(link, client.id, message.subject):
                continue
            if asked is not None and not asked.matches(message.attributes()):
                continue
            qos = min(message.qos, subscription.qos or 0)
            if qos:
                client.put(Outgoing(message, qos, True, False, identifiers, terms, is_held=False, via=RETAINED))
            else:
                self._sender.copy(link, message, identifiers, now, retain=True)
        self._delivering.pump(client, now)

    def _answer(self, link: Link, packet_id: int, codes: list[int], reasons: list[str]) -> None:
        if link.closing is not None:
            return
        properties = NO_PROPERTIES
        if link.machine.version != V5:
            codes = [suback_return_code(code) for code in codes]
        elif reasons:
            properties = Properties({Property.REASON_STRING: "; ".join(reasons)[:_LONGEST_REASON]})
        self._sender.say(link, Suback(packet_id, tuple(codes), properties))

    def unsubscribe(self, link: Link, client: Client, packet: Unsubscribe, now: int) -> None:
        """Take in an UNSUBSCRIBE."""
        now = self._journal.now(now)
        codes: list[int] = []
        for topic_filter in packet.topic_filters:
            try:
                options = options_of(packet.properties.user, self._limits)
                identity = identity_of(topic_filter, options, self._limits)
            except ProtocolError as error:
                codes.append(error.code)
                continue
            if identity not in client.subscribed:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            codes.append(ReasonCode.SUCCESS)
            client.subscribed.discard(identity)
            self._remove(
                client, Subscription(session=client.session, subject_filter=identity[0], name=identity[1]), now
            )
        self._journal.then(partial(self._unsubscribed, link, packet.packet_id, codes))

    def _remove(self, client: Client, subscription: Subscription, now: int) -> None:
        fact = InterestChanged(
            node=self._journal.node,
            seq=self._journal.seq,
            changed_at=now,
            change=InterestChange.REMOVED,
            subscription=subscription,
            device=client.id,
        )
        self._journal.enter(fact, partial(self._state.apply_interest, fact), is_owed=client.is_persistent)

    def _unsubscribed(self, link: Link, packet_id: int, codes: list[int]) -> None:
        if link.closing is None:
            told = tuple(codes) if link.machine.version == V5 else ()
            self._sender.say(link, Unsuback(packet_id, told, NO_PROPERTIES))
