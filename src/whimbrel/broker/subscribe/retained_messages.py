"""Send retained messages to new subscribers, over several turns of the event loop if there are many (3.3.1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.limits.memory import RETAINED_COPY_BYTES
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import is_long
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.waiting.long_work import PIECE, LongWork
from whimbrel.broker.wire.clients import Link, LiveClient, Outgoing
from whimbrel.broker.wire.gate import Gate, has_room
from whimbrel.broker.wire.notices import SESSIONS, subscriptions_of, subscriptions_topic
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.private import is_shared
from whimbrel.hold.sessions import RETAINED
from whimbrel.match.select import Selection
from whimbrel.match.topics import matches
from whimbrel.model.subscription import Subscription
from whimbrel.node.publication import KeptNotification

__all__ = ["RetainedMessages"]


class RetainedMessages:
    """Sends retained messages to subscribers."""

    def __init__(
        self,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        delivering: DeliveryHandler,
        long_work: LongWork,
        gate: Gate,
    ) -> None:
        self._commits, self._state, self._sender = commits, state, sender
        self._delivering, self._long_work, self._gate = delivering, long_work, gate

    def send(self, link: Link, client: LiveClient, subscription: Subscription, asked_seq: int, now: int) -> None:
        """Send the messages that were retained when a subscription was made (3.3.1.3); a share gets none (4.8.2)."""
        wanted = subscription.subject_filter
        if wanted is None or client.link is not link or is_shared(wanted):
            return
        if wanted.startswith(SESSIONS):
            self._tell_of_sessions(link, client, wanted, now)
        link.retained[subscription.session, wanted, subscription.name] = asked_seq
        work = self._pieces(link, client, subscription, wanted, asked_seq)
        self._long_work.begin(link, work, holds_packets=False)

    def send_arrived(self) -> None:
        """Send the messages retained for an area to the devices of sessions that have entered it."""
        arrived, self._state.volatile.arrived = self._state.volatile.arrived, []
        for session, message in arrived:
            for device, (is_present, _) in self._state.hold.members(session).items():
                client = self._state.clients.get(device)
                if is_present and client is not None and client.link is not None:
                    work = self._arriving(client.link, client, session, message)
                    self._long_work.begin(client.link, work, holds_packets=False)

    def _arriving(self, link: Link, client: LiveClient, session: str, message: KeptNotification) -> Iterator[None]:
        """Send a retained message once to a session, for the first of its subscriptions that matches the message.

        Yield before each content filter, since parsing it takes time.
        """
        allowance = self._state.routes.allowance()
        for subscription in self._state.hold.subscriptions(session):
            wanted, now = subscription.subject_filter, self._commits.last_at
            selection = self._selection(subscription)
            if wanted is None or is_shared(wanted) or not selection.admits_subject(message.subject):
                continue
            if not self._state.is_retained(message) or client.link is not link:
                return
            if subscription.filter_text is not None:
                yield  # parsing the filter takes a turn of its own
            if not (yield from allowance.attempting(partial(_admits, selection, message, now))):
                continue
            if not self._may_send(link, client, message, now):
                return
            terms = (self._state.terms.get(session, ((wanted, subscription.name),), client.id),)
            identifiers = () if subscription.identifier is None else (subscription.identifier,)
            qos = min(message.qos, subscription.qos or 0)
            out = Outgoing(message, qos, True, False, identifiers, terms, is_held=False, via=RETAINED)
            client.extend_retained([out])
            self._delivering.pump(client, now)
            return

    def _pieces(
        self,
        link: Link,
        client: LiveClient,
        subscription: Subscription,
        wanted: str,
        asked_seq: int,
    ) -> Iterator[None]:
        """Send the retained messages for a subscription in steps; end if the client subscribes to the same again."""
        identifiers = () if subscription.identifier is None else (subscription.identifier,)
        identity = (wanted, subscription.name)
        terms = (self._state.terms.get(subscription.session, (identity,), client.id),)
        selection, is_read = self._selection(subscription), not is_long(subscription.filter_text)
        client.put_retained([], terms)
        waiting: list[Outgoing] = []
        allowance = self._state.routes.allowance()
        for done, message in enumerate((yield from self._state.retained_for(wanted).finding(wanted)), start=1):
            now = self._commits.last_at
            if done % PIECE == 0:
                if not self._extend(link, client, waiting):
                    return
                waiting.clear()
                self._delivering.pump(client, now)
                yield
                allowance.renew()
                if not self._is_asked_for(link, client, subscription, asked_seq):
                    return
            if message.seq > asked_seq or not self._state.is_retained(message):
                continue  # newer messages reach the subscription live
            if not self._may_send(link, client, message, now):
                continue
            if not is_read:
                is_read = True
                yield  # parsing the filter takes a turn of its own
            if subscription.filter_text is None:
                is_wanted = _admits(selection, message, now)
            else:
                is_wanted = yield from allowance.attempting(partial(_admits, selection, message, now))
                if not self._is_asked_for(link, client, subscription, asked_seq):
                    return
            if not is_wanted:
                continue
            qos = min(message.qos, subscription.qos or 0)
            out = Outgoing(message, qos, True, False, identifiers, terms, is_held=False, via=RETAINED)
            if qos or not has_room(link) or self._delivering.shaping.is_for(client, out):
                waiting.append(out)  # at QoS 0 too it may wait for buffer space, because it is stored anyway
            else:
                self._sender.live(link, message, identifiers, now, retain=True)
        if not self._extend(link, client, waiting):
            return
        key = (subscription.session, wanted, subscription.name)
        if link.retained.get(key) == asked_seq:
            del link.retained[key]
        self._delivering.pump(client, self._commits.last_at)

    def _selection(self, subscription: Subscription) -> Selection:
        return Selection(subscription, partial(self._state.hold.places.sightings, subscription.session))

    def _extend(self, link: Link, client: LiveClient, waiting: list[Outgoing]) -> bool:
        """Queue retained messages for a client; if memory is full, close its connection and return False."""
        full = self._state.memory.refusal(RETAINED_COPY_BYTES * len(waiting)) if waiting else None
        if full is not None:
            self._sender.fail(link, *full)
            return False
        client.extend_retained(waiting)
        return True

    def _may_send(self, link: Link, client: LiveClient, message: KeptNotification, now: int) -> bool:
        """Return whether a retained message may be sent, by its expiry and the rights of its receiver and publisher."""
        if self._gate.refusal(link, client.id, message, now) is not None:
            return False
        return self._gate.may_stay(message, self._state.retained.sources.get(message.subject))

    def _is_asked_for(self, link: Link, client: LiveClient, subscription: Subscription, asked_seq: int) -> bool:
        """Return whether a connection still waits for the retained messages of its *subscription*."""
        session, wanted, name = subscription.session, subscription.subject_filter, subscription.name
        is_latest = client.link is link and link.retained.get((session, wanted or "", name)) == asked_seq
        return is_latest and (wanted, name) in self._state.subscribed_to.get(session, ())

    def _tell_of_sessions(self, link: Link, client: LiveClient, wanted: str, now: int) -> None:
        """Send the subscription lists of the sessions joined over this connection, as if they were retained."""
        for session in link.rights:
            if matches(wanted, subscriptions_topic(session)):
                message = subscriptions_of(session, self._state.hold.subscriptions(session))
                self._state.tell(client, message, now)


def _admits(selection: Selection, message: KeptNotification, now: int) -> bool:
    """Return whether a subscription whose topic filter matches *message* also matches its content, keys and place."""
    keys, deliver_insecure = message.secured
    place, area = (None, None) if message.placing is None else (message.placing.place, message.placing.area)
    return selection.admits(
        message.attributes, keys=keys, deliver_insecure=deliver_insecure, place=place, area=area, now=now
    )
