"""Subscriptions: handle SUBSCRIBE and UNSUBSCRIBE, and start retained messages and history (MQTT 5, 3.8 to 3.11)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.limits.work_budget import (
    PacketBudget,
    SessionSum,
    WorkBudget,
    filter_bytes,
    filter_cost,
    refuse_all,
    topic_cost,
)
from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.subscribe.history import History
from whimbrel.broker.subscribe.requested import Limits, Options, identity_of, options_of, subscription_of
from whimbrel.broker.subscribe.retained_messages import RetainedMessages
from whimbrel.broker.subscribe.shared_options import SharedOptions
from whimbrel.broker.waiting.commit_queue import Apply, CommitQueue, Pieces
from whimbrel.broker.waiting.long_work import PIECE, LongWork
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.notices import NEAR, OWN, POLICIES, TOLD, can_be_told
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.access import Right
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import asked_for, is_private, is_shared
from whimbrel.language.filters import filter_of
from whimbrel.model.clock import US_PER_S
from whimbrel.model.facts import InterestChanged
from whimbrel.model.near import Anywhere
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.mqtt.codes import ReasonCode, suback_return_code
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.topics import check_topic_filter, split_share
from whimbrel.node.memory import subscription_bytes
from whimbrel.node.places.fences import fence_name

__all__ = ["OWN_TOPICS", "SubscribeHandler"]

_LONGEST_REASON, _LONGEST_QUOTE = 1_000, 80
_MAX_REASONS = 20
_IF_NEW, _NEVER = 1, 2
_MAX_FENCES = 64
"""Most named areas (topics ``$whimbrel/near/<name>``) of a session."""
OWN_TOPICS = ("$whimbrel/", "$SYS/")
"""Topics about the client itself and about the broker, which a named session never holds."""


class SubscribeHandler:
    """Handles the subscriptions of clients."""

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        delivering: DeliveryHandler,
        long_work: LongWork,
        admission: Admission,
        gate: Gate,
    ) -> None:
        self.admission = admission
        places, shape = state.hold.places, state.decisions.shape
        self.history = History(
            commits, sender, gate, config.log, state.routes.allowance, places.sightings, shape.chosen
        )
        """Replays of the log for subscriptions with ``since``; the shell reads the log for them."""
        self._retains = config.mqtt.retain_available
        self.retained = RetainedMessages(commits, state, sender, delivering, long_work, gate)
        self._commits, self._state, self._sender, self._authorizer = commits, state, sender, authorizer
        self._long_work = long_work
        self._shared = SharedOptions(commits, state)
        limits = config.limits
        self._budget = WorkBudget(limits.packet_work, limits.session_work_per_second)
        self._bytes = SessionSum(
            state.subscribed_to,
            state.hold.subscriptions,
            filter_bytes,
            most=limits.filter_bytes_per_session,
            what="the bytes of the filters",
            setting="limits.filter_bytes_per_session",
        )
        self._patterns = SessionSum(
            state.subscribed_to,
            state.hold.subscriptions,
            self._instructions,
            most=limits.pattern_instructions_per_session,
            what="the instructions of the patterns",
            setting="limits.pattern_instructions_per_session",
        )
        self._most_instructions = limits.pattern_instructions
        self._most, self._most_held = config.limits.subscriptions_per_session, config.sessions.held
        self.limits = Limits(
            filter_bytes=config.limits.filter_bytes,
            topic_bytes=config.limits.topic_bytes,
            topic_levels=config.limits.topic_levels,
            maximum_qos=config.mqtt.maximum_qos,
            ttl_us=config.hold.ttl_s * US_PER_S,
            max_held=config.hold.max,
            max_held_by_default=config.hold.max,
        )
        # QoS 2 takes two exchanges; if another device could take a message that one has begun to receive, the packet id
        # would never be released.
        most_qos = min(config.mqtt.maximum_qos, AT_LEAST_ONCE)
        self._named_limits = replace(self.limits, max_held_by_default=config.sessions.max, maximum_qos=most_qos)
        self.let_confirm: Callable[[LiveClient, int], None] = lambda _client, _now: None
        """Function that switches on receipts for a client's QoS 0 deliveries, because its rights may refuse some."""

    def subscribe(self, link: Link, client: LiveClient, packet: Subscribe, now: int) -> None:
        """Handle a SUBSCRIBE; SUBACK follows when all its subscriptions are accepted."""
        if not self._are_filters(link, [request.topic_filter for request in packet.requests]):
            return
        self._commits.now(now)
        self._long_work.begin(link, self._subscribe(link, client, packet))

    def _subscribe(self, link: Link, client: LiveClient, packet: Subscribe) -> Iterator[None]:
        """Handle the requests of a SUBSCRIBE, yielding between them if they take long."""
        codes, reasons = list[int](), dict[str, None]()
        budget, done = self._budget.packet(client.session), 0
        try:
            options = options_of(packet.properties.user, self.limits, is_ours=link.is_ours)
            beside = filter_cost(options.filter)
        except ProtocolError as error:
            codes, reasons = [error.code] * len(packet.requests), {error.reason: None}
            self._sender.events.refuse_filter(link, self._commits.last_at, error, packet.requests[0].topic_filter)
            self._commits.then(partial(self._answer, link, packet.packet_id, codes, reasons))
            return
        for request in packet.requests:
            if done >= PIECE:
                yield
                done = 0
                if client.link is not link:
                    return
            done += topic_cost(request.topic_filter)
            now = self._commits.last_at
            try:
                budget.spend(topic_cost(request.topic_filter) + beside, now)
                done += beside
                session = _session(link, client, options, request.topic_filter)
                identifiers = packet.properties.identifiers
                subscription = self.asked_for(link, request, options, session, *identifiers[:1])
                done += self._spend(budget, options, subscription, now)
                subscription = yield from self.prepare(subscription)
                if client.link is not link:
                    return
                self.check(link, client, subscription, link.rights.get(session, frozenset()))
                if not options.modifies:
                    self._shared.check_unchanged(subscription)
                told = self._begin_history(link, client, subscription, options)
            except ProtocolError as error:
                codes.append(error.code)
                self._sender.events.refuse_filter(link, self._commits.last_at, error, request.topic_filter)
                if len(reasons) < _MAX_REASONS:
                    reasons[error.reason] = None
            else:
                codes.append(subscription.qos or 0)
                if told is None:
                    self.put(link, client, subscription, request.retain_handling, self._commits.last_at)
                elif told:
                    reasons[told] = None
        self._commits.then(partial(self._answer, link, packet.packet_id, codes, reasons))

    def _begin_history(
        self, link: Link, client: LiveClient, subscription: Subscription, options: Options
    ) -> str | None:
        """Start the history of a subscription with ``since``; return None if it has no ``since``.

        The text tells where the log begins, if *since* asks for older notifications. An existing subscription with this
        identity is removed first: the log contains what is held for it.
        """
        if options.since is None:
            return None
        if subscription.policy is not None or self._state.decisions.shape.chosen(client.id) is not None:
            reason = "since is not offered where a policy decides: what the log has would pass by it"
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason)
        begin, told = self.history.start_of(options.since, subscription, self._commits.last_at)
        now = self._commits.last_at
        self.remove(client, subscription.session, (subscription.subject_filter, subscription.name), now)
        if not link.confirms:  # so that each copy is encoded separately, with its notification's id
            link.confirms = True
            self.let_confirm(client, now)

        def put(before: Callable[[], Pieces] | None) -> None:
            self.put(link, client, subscription, _NEVER, self._commits.last_at, before=before)

        self.history.begin(link, client, subscription, *begin, put)
        return told

    def _are_filters(self, link: Link, topic_filters: Sequence[str]) -> bool:
        """Close a 3.1.1 connection with an invalid topic filter [MQTT-4.8.0-1]; version 5 gets a code for each."""
        if link.machine.version == V5:
            return True
        try:
            for topic_filter in topic_filters:
                check_topic_filter(topic_filter)
        except ProtocolError as error:
            self._sender.counters.protocol_errors += 1
            self._sender.events.refuse_filter(link, self._commits.last_at, error, topic_filter)
            self._sender.fail(link, error.code, error.reason)
            return False
        return True

    @staticmethod
    def _spend(budget: PacketBudget, options: Options, subscription: Subscription, now: int) -> int:
        """Count the cost of a content filter inside a topic filter, as in 3.1.1, and return that cost."""
        if subscription.parsed is options.filter:  # a filter of the packet, whose cost is counted already
            return 0
        cost = filter_cost(filter_of(subscription))
        budget.spend(cost, now)
        return cost

    def spend(self, client: LiveClient, subscription: Subscription, now: int) -> None:
        """Count the work of a subscription made by a request; raise ``ProtocolError`` if it is too much."""
        cost = topic_cost(subscription.subject_filter or "") + filter_cost(filter_of(subscription))
        self.spend_work(client, cost, now)

    def spend_work(self, client: LiveClient, cost: int, now: int) -> None:
        """Count the work of a request; raise ``ProtocolError`` if it is too much."""
        self._budget.packet(client.session).spend(cost, now)

    def begin(self, link: Link, work: Pieces) -> None:
        """Start work for a client that may take several turns of the event loop."""
        self._long_work.begin(link, work)

    def prepare(self, subscription: Subscription) -> Generator[None, None, Subscription]:
        """Prepare the content filter of *subscription* for the index, yielding after each step if it is long."""
        return self._state.routes.prepare(subscription)

    def asked_for(
        self,
        link: Link,
        request: SubscriptionRequest,
        options: Options,
        session: str,
        identifier: int | None = None,
    ) -> Subscription:
        """Return the subscription that a request asks for, or raise ``ProtocolError``."""
        limits = self.limits if is_private(session) else self._named_limits
        return subscription_of(request, options, session, identifier, limits, link.keyring.subscriptions)

    def _instructions(self, subscription: Subscription) -> int:
        """Return the instruction count of all patterns in a subscription, whether new or already in the hold.

        On one notification they take at most this many steps for each byte of the strings that they are matched
        against.
        """
        if subscription.parsed is None and subscription.filter_text is not None:
            identity = (subscription.subject_filter, subscription.name)
            return self._state.routes.instructions_of(subscription.session, identity)
        content = filter_of(subscription)
        return 0 if content is None else content.instructions

    def check(self, link: Link, client: LiveClient, subscription: Subscription, rights: frozenset[Right]) -> None:
        """Raise ``ProtocolError`` if a subscription may not be made with these *rights* in its session."""
        assert subscription.subject_filter is not None
        session = subscription.session
        if not is_private(session):
            self._check_named(subscription, rights, client.id)
        if self.admission.is_refusing:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "the broker cannot write to its disk")
        if not self.may_subscribe(link.user, client.id, subscription):
            raise ProtocolError(ReasonCode.UNSPECIFIED_ERROR, "this topic filter may not be subscribed to")
        _check_told(subscription)
        self._check_policy(subscription.policy)
        identity = (subscription.subject_filter, subscription.name)
        subscribed = self._state.subscribed_to.get(session, {})
        if identity not in subscribed and len(subscribed) >= self._most:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{self._most} subscriptions, no more are allowed")
        if identity not in subscribed:
            full = self._state.memory.refusal(subscription_bytes(subscription))
            if full is not None:
                raise ProtocolError(*full)
        self._check_fences(subscription, subscribed)
        self._bytes.check(subscription)
        grows = self._patterns.check(subscription)
        most = self._most_instructions
        if grows > 0 and most and self._state.routes.pattern_instructions + grows > most:
            raise refuse_all(most)

    @staticmethod
    def _check_fences(subscription: Subscription, subscribed: Mapping[Identity, int]) -> None:
        """Refuse one more named area than a session may have: each position report checks all areas of its session."""
        if fence_name(subscription) is None or (subscription.subject_filter, subscription.name) in subscribed:
            return
        if sum((wanted or "").startswith(NEAR) for wanted, _ in subscribed) >= _MAX_FENCES:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{_MAX_FENCES} named areas, no more are allowed")

    def _check_policy(self, name: str | None) -> None:
        """Refuse a subscription that names a missing policy, which would silently do nothing."""
        if name is not None and name not in self._state.decisions.shape.policies:
            reason = f"there is no policy {name[:_LONGEST_QUOTE]!r}; publish its text to {POLICIES}<name>"
            raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)

    def may_subscribe(self, user: str | None, client_id: str, subscription: Subscription) -> bool:
        """Return whether the rights of *user* allow the client *client_id* to make *subscription*."""
        wanted = subscription.subject_filter or "#"
        _, plain = split_share(wanted)
        if isinstance(subscription.near, Anywhere) and not self._authorizer.may_hear_anywhere(user, client_id, plain):
            return False
        return self._authorizer.may_subscribe(user, client_id, plain, is_shared=is_shared(wanted))

    def _check_named(self, subscription: Subscription, rights: frozenset[Right], device: str) -> None:
        session = subscription.session
        self.check_right(session, rights, device)
        if is_shared(subscription.subject_filter):
            reason = "a shared subscription in a named session"
            raise ProtocolError(ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, reason)
        if isinstance(subscription.near, Anywhere) and self._authorizer.has_rules:
            reason = "near=any in a named session, where the rights of one member would be those of all"
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason)
        if subscription.no_local:
            reason = "no local in a named session, where several devices receive"
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason)
        subscribed = self._state.subscribed_to.get(session, {})
        others = sum(subscribed.values()) - subscribed.get((subscription.subject_filter, subscription.name), 0)
        if others + (subscription.max_held or 0) > self._most_held:
            reason = f"max of all subscriptions together would be more than {self._most_held}"
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, reason)

    def check_right(self, session: str, rights: frozenset[Right], device: str) -> None:
        """Refuse to change a named session's subscriptions without the right to do so.

        The right does not count while the session is being deleted, or while another device changes its access.
        """
        is_ending = (
            session in self._state.volatile.deleting or self._state.volatile.changing.get(session, device) != device
        )
        if is_ending or Right.CHANGE_SUBSCRIPTIONS not in rights:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "the subscriptions of this session may not be changed")

    def put(
        self,
        link: Link,
        client: LiveClient,
        subscription: Subscription,
        retain_handling: int,
        now: int,
        *,
        before: Callable[[], Pieces] | None = None,
    ) -> None:
        """Add a checked subscription, or replace the one with its identity.

        *before*, if given, runs when the subscription is accepted, before it is applied.
        """
        self.history.cancel(link, subscription.session, (subscription.subject_filter, subscription.name))
        session = subscription.session
        identity = (subscription.subject_filter, subscription.name)
        subscribed = self._state.subscribed_to.setdefault(session, {})
        is_new = identity not in subscribed
        self._bytes.put(subscription)
        self._patterns.put(subscription)
        subscribed[identity] = subscription.max_held or 0
        if is_private(session) and not link.confirms:
            wanted = asked_for(subscription.subject_filter) or "#"
            if self._authorizer.may_be_refused(link.user, client.id, [wanted]):
                link.confirms = True
                self.let_confirm(client, now)
        fact = InterestChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=now,
            change=InterestChange.ADDED if is_new else InterestChange.MODIFIED,
            subscription=subscription,
            device=client.id,
        )
        is_owed = client.is_persistent or not is_private(session)
        apply: Apply = partial(self._state.apply, fact)
        self._commits.enter(fact, apply if before is None else partial(_applying, before, apply), is_owed=is_owed)
        self._shared.enter(subscription, identity)
        if self._retains and (retain_handling == 0 or (retain_handling == _IF_NEW and is_new)):
            self._commits.then(partial(self.retained.send, link, client, subscription, fact.seq, now))

    def _answer(self, link: Link, packet_id: int, codes: list[int], reasons: Iterable[str]) -> None:
        if link.closing is not None:
            return
        properties = NO_PROPERTIES
        if link.machine.version != V5:
            codes = [suback_return_code(code) for code in codes]
        elif reason := "; ".join(reasons)[:_LONGEST_REASON]:
            properties = Properties({Property.REASON_STRING: reason})
        self._sender.say(link, Suback(packet_id, tuple(codes), properties))

    def unsubscribe(self, link: Link, client: LiveClient, packet: Unsubscribe, now: int) -> None:
        """Handle an UNSUBSCRIBE; UNSUBACK follows when all its removals are accepted."""
        if not self._are_filters(link, packet.topic_filters):
            return
        self._commits.now(now)
        self._long_work.begin(link, self._unsubscribe(link, client, packet))

    def _unsubscribe(self, link: Link, client: LiveClient, packet: Unsubscribe) -> Iterator[None]:
        """Handle the topic filters of an UNSUBSCRIBE, yielding between them if they take long."""
        codes: list[int] = []
        budget, done = self._budget.packet(client.session), 0
        try:
            options = options_of(packet.properties.user, self.limits, is_ours=link.is_ours)
        except ProtocolError as error:
            codes = [error.code] * len(packet.topic_filters)
            self._commits.then(partial(self._answer_unsubscribe, link, packet.packet_id, codes))
            return
        for topic_filter in packet.topic_filters:
            if done >= PIECE:
                yield
                done = 0
                if client.link is not link:
                    return
            cost, now = _named_cost(topic_filter), self._commits.last_at
            done += cost
            try:
                budget.spend(cost, now)
                session = _session(link, client, options, topic_filter)
                if not is_private(session):
                    self.check_right(session, link.rights.get(session, frozenset()), client.id)
                identity = identity_of(topic_filter, options, self.limits)
            except ProtocolError as error:
                codes.append(error.code)
                continue
            is_there = self.remove(client, session, identity, now)
            codes.append(ReasonCode.SUCCESS if is_there else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._commits.then(partial(self._answer_unsubscribe, link, packet.packet_id, codes))

    def remove(self, client: LiveClient | None, session: str, identity: Identity, now: int) -> bool:
        """Remove a subscription for a client, or for the broker if *client* is None; return whether it existed."""
        is_cancelled = (
            client is not None and client.link is not None and (self.history.cancel(client.link, session, identity))
        )
        if self._state.subscribed_to.get(session, {}).pop(identity, None) is None:
            return is_cancelled
        self._bytes.remove(session, identity)
        self._patterns.remove(session, identity)
        subscription = Subscription(session=session, subject_filter=identity[0], name=identity[1])
        fact = InterestChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=now,
            change=InterestChange.REMOVED,
            subscription=subscription,
            device=None if client is None else client.id,
        )
        is_owed = client is None or client.is_persistent or not is_private(session)
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=is_owed)
        return True

    def _answer_unsubscribe(self, link: Link, packet_id: int, codes: list[int]) -> None:
        if link.closing is None:
            told = tuple(codes) if link.machine.version == V5 else ()
            self._sender.say(link, Unsuback(packet_id, told, NO_PROPERTIES))


def _applying(before: Callable[[], Pieces], apply: Apply) -> Pieces:
    """Run the procedure *before* in steps, yielding between them; then call *apply*, which applies a fact."""
    yield from before()
    apply()


def _check_told(subscription: Subscription) -> None:
    """Refuse a subscription to a topic of ours on which nothing is ever published."""
    wanted = subscription.subject_filter or ""
    is_fence = wanted.startswith(NEAR) and "+" not in wanted and "#" not in wanted
    if is_fence and fence_name(subscription) is None:
        found = "no near" if subscription.near is None else f"near={subscription.near}"
        reason = f"{wanted[:_LONGEST_QUOTE]!r} with {found}; it names the area near=lat,lon,R or a polygon"
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)
    _, plain = split_share(wanted)
    if plain.startswith(OWN) and (is_shared(wanted) or not can_be_told(plain)):
        allowed = f"under {OWN} a client can subscribe to {', '.join(TOLD)}"
        reason = f"nothing is published to {wanted[:_LONGEST_QUOTE]!r}; {allowed}"
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)


def _session(link: Link, client: LiveClient, options: Options, topic_filter: str) -> str:
    """Return the session that a SUBSCRIBE or UNSUBSCRIBE applies to (docs/reference/sessions.md, "Subscribing")."""
    chosen = link.home if options.session is None else options.session
    if not chosen or topic_filter.startswith(OWN_TOPICS):
        return client.session
    if chosen not in link.rights:
        raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "this session was not joined over this connection")
    return chosen


def _named_cost(topic_filter: str) -> int:
    """Return the work cost of parsing a topic filter of an UNSUBSCRIBE, which may contain a content filter."""
    return topic_cost(topic_filter) + (len(topic_filter) // 4 if topic_filter.startswith("$filter/") else 0)
