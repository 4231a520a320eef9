"""Hand-overs: performs, in order, the commands that the hold (the message store of the sessions) gives.

The copy of a message for a device is put into its client's queue, from which ``DeliveryHandler`` sends it. A copy that
counts as delivered once it is written is written to the connection at once. No command changes
durable state: the hold has already changed it.
Rule: while a log is replayed the same commands are performed, except hand-overs: no queue is filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from whimbrel.broker.state.options_cache import OptionsCache
from whimbrel.broker.state.volatile_state import VolatileState
from whimbrel.broker.wire.clients import HELD, LIVE, LiveClient, Outgoing
from whimbrel.broker.wire.notices import changed_subscription, crossing_notice, is_told, listens, subscriptions_of
from whimbrel.hold.commands import HandOver, Identity, NotifyChange, NotifySubscriptions, Settle
from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import PIECE
from whimbrel.model.facts import Outcome
from whimbrel.node.parts import Arrived, Crossed, NodeCommand
from whimbrel.node.publication import KeptNotification

__all__ = ["HandOvers"]


class HandOvers:
    """Performs the commands of the hold: queues copies, counts final outcomes, and sends notices to clients."""

    def __init__(
        self,
        volatile: VolatileState,
        clients: Mapping[str, LiveClient],
        terms: OptionsCache,
        subscribed: Mapping[str, Iterable[Identity]],
    ) -> None:
        self._volatile, self._clients, self._terms, self._subscribed = volatile, clients, terms, subscribed

    def performing(self, commands: Sequence[NodeCommand], now: int, *, changer: str | None = None) -> Iterator[None]:
        """Perform commands as ``perform`` does, but yield after every ``PIECE`` of them."""
        for start in range(0, len(commands), PIECE):
            if start:
                yield
            self.perform(commands[start : start + PIECE], now, changer=changer)

    def perform(self, commands: Iterable[NodeCommand], now: int, *, changer: str | None = None) -> None:
        """Perform *commands*, which the hold or the node gave, at the time *now*.

        *changer* is the device that changed a subscription: the notices to other devices name it.
        """
        for command in commands:
            kind = type(command)
            if kind is HandOver:
                self._hand_over(command, now)  # type: ignore[arg-type]  # narrowed by its class
            elif kind is Settle:
                self._count(command)  # type: ignore[arg-type]
            elif kind is Crossed:
                self._tell_crossing(command, now)  # type: ignore[arg-type]
            elif kind is Arrived:
                if self._volatile.sender is not None:
                    self._volatile.arrived.append(tuple(command))  # type: ignore[arg-type]
            elif kind is NotifyChange or kind is NotifySubscriptions:
                self._tell_change(command, now, changer)  # type: ignore[arg-type]

    def _count(self, settled: Settle) -> None:
        counters = self._volatile.counters
        if settled.outcome is Outcome.EXPIRED:
            counters.expired += 1
        elif settled.outcome is Outcome.DISPLACED:
            counters.displaced += 1
        elif settled.outcome is Outcome.DROPPED:
            counters.dropped += 1

    # -- copies ------------------------------------------------------------------------------------------------------

    def _hand_over(self, command: HandOver, now: int) -> None:
        volatile = self._volatile
        client = None if volatile.sender is None else self._clients.get(command.device)
        if client is None:
            return
        if not command.is_copy:  # a copy already in flight counts for these sessions too
            for session, identities in command.sessions:
                client.count(command.seq, self._terms.get(session, identities, command.device))
            return
        message = command.kept
        if not isinstance(message, KeptNotification):  # a snapshot stored the copy, but not the notification
            return
        if command.is_own_receipt:
            self._hand_over_live(client, message, command, now)
            return
        get_terms = self._terms.get
        terms = tuple(get_terms(session, identities, command.device) for session, identities in command.sessions)
        identifiers: tuple[int, ...] = ()
        keeps_retain = False
        for each in terms:
            identifiers += each.identifiers
            keeps_retain = keeps_retain or each.keeps_retain
        retain = message.retain and keeps_retain
        via = HELD if command.is_held else LIVE
        out = Outgoing(message, command.qos, retain, command.is_again, identifiers, terms, via=via)
        if not command.qos and _is_private_alone(command):
            client.put_live(out)
        else:
            client.put(out)
        ready = volatile.ready
        if not ready or ready[-1] is not client:
            ready.append(client)

    def _hand_over_live(self, client: LiveClient, message: KeptNotification, command: HandOver, now: int) -> None:
        """Send a QoS 0 copy that counts as delivered once it is written, and so needs no delivery options.

        The log already has it as delivered. So it is written, unless the gate (which checks rights and expiry) refuses
        it, or the connection broke.
        """
        volatile, link = self._volatile, client.link
        assert volatile.sender is not None
        if link is None or not volatile.may_send(link, client, message, now):
            volatile.counters.dropped += 1
            return
        found = [self._terms.options(session, identities) for session, identities in command.sessions]
        identifiers = tuple(identifier for each, _ in found for identifier in each)
        retain = message.retain and any(keeps_retain for _, keeps_retain in found)
        if client.live:
            client.put_behind(message, identifiers, retain=retain)
        else:
            volatile.sender.live(link, message, identifiers, now, retain=retain)

    # -- news of sessions --------------------------------------------------------------------------------------------

    def _tell_change(self, command: NotifyChange | NotifySubscriptions, now: int, changer: str | None) -> None:
        """Notify a device of changed subscriptions of its named session, if it subscribes to such notices."""
        client = self._clients.get(command.device)
        if self._volatile.sender is None or client is None or client.link is None or is_private(command.session):
            return
        if not listens(self._subscribed.get(client.session, ())):
            return
        if isinstance(command, NotifySubscriptions):
            message = subscriptions_of(command.session, command.subscriptions)
        else:
            message = changed_subscription(command.session, command.change, command.subscription, changer)
        self.tell(client, message, now)

    def _tell_crossing(self, command: Crossed, now: int) -> None:
        """Notify a client that it entered or left an area that it named."""
        client = self._clients.get(command.device)
        if client is not None:
            self.tell(client, crossing_notice(command.name, is_inside=command.is_inside), now)

    def tell(self, client: LiveClient, message: KeptNotification, now: int) -> None:
        """Send a client a notice of the broker, if it subscribes to such notices in its private session."""
        sender, link = self._volatile.sender, client.link
        if sender is None or link is None or not self._volatile.may_send(link, client, message, now):
            return
        if is_told(message.subject, self._subscribed.get(client.session, ())):
            sender.news(link, message, (), now)


def _is_private_alone(command: HandOver) -> bool:
    """Return whether a copy is for private sessions only.

    Only then may a QoS 0 copy overtake copies of a higher QoS: a named session gets all messages in order.
    """
    return all(is_private(session) for session, _ in command.sessions)
