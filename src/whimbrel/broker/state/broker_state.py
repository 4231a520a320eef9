"""State: everything a broker knows that a restart has to know again, as a fold over its log.

The live broker and a restart apply facts through the same methods. The hold is the heart; around it stands what only
MQTT has: retained messages, packet identifiers of QoS 2, how long sessions outlive their connections.
Rule: nothing here answers a client; what the hold hands over is put where the client's connection finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

import cbor2

from whimbrel.broker.access.publication_keys import OPEN
from whimbrel.broker.counters import Counters
from whimbrel.broker.state.decisions import DECISION_KINDS, Decisions
from whimbrel.broker.state.memory import CLIENT_BYTES, NAMED_SESSION_BYTES
from whimbrel.broker.state.retained import Retained
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.broker.state.wills import Wills
from whimbrel.broker.wire.clients import HELD, LIVE, Client, Outgoing, Terms
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.messages import LONG, Message, packet_id_of, secured_of
from whimbrel.broker.wire.notices import changed_subscription, is_told, listens, subscriptions_of
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import InvalidValueError
from whimbrel.hold.commands import Command, Forget, HandOver, Identity, Settle, Store, Tell, TellAll
from whimbrel.hold.private import client_of, is_private, is_shared
from whimbrel.hold.rows import Key
from whimbrel.hold.sessions import PIECE, RETAINED, Hold
from whimbrel.log.compact import receipt_prefix
from whimbrel.log.records import BODY, body_of, row_from
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Outcome,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChanged,
    time_of,
)
from whimbrel.model.notification import Notification
from whimbrel.model.rows import fact_of
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity

__all__ = ["BrokerState"]

_EXACTLY_ONCE = 2
_MANY = 250
_MOST_TERMS = 10_000
_OWN_KINDS = DECISION_KINDS | {"notification", "retained", "client", "will"}


class BrokerState:
    """Clients, sessions, subscriptions, retained messages and what is held."""

    def __init__(self, node: str, *, hold: Hold | None = None, routes: Routes | None = None) -> None:
        self.node = node
        self.hold = Hold(node) if hold is None else hold
        self.routes = Routes() if routes is None else routes
        self.memory = self.routes.memory
        """What all of this takes."""
        self.memory.hold = self.hold.tally
        self.retained = Retained(self.memory)
        self.clients: dict[str, Client] = {}
        self.messages: dict[int, Message] = {}
        """What the hold holds."""
        self.held_bytes = 0
        self.decisions = Decisions(node, self.memory)
        self.counters = Counters()
        self.sender: Sender | None = None
        """None while a log is replayed: nobody is connected."""
        self.ready: list[Client] = []
        """Clients that something was handed over to."""
        self.gate: Gate | None = None
        """None as long."""
        self.wills = Wills(self._touch_will, self.memory)
        self.hold.changes()  # from now on it notes what changes
        self.changing: dict[str, str] = {}
        """Named sessions whose making or new access waits for the disk, and the device that asked for it."""
        self.deleting: set[str] = set()
        """Named sessions whose end waits for the disk."""
        self.subscribed: dict[str, dict[Identity, int]] = {}
        """What sessions subscribe to, or will once the disk has it, and how many each asks to be held."""
        self._terms: dict[str, dict[tuple[str, tuple[Identity, ...]], Terms]] = {}
        """By session, device and subscriptions."""
        self._terms_known = 0
        self._touched: set[Key] = set()
        self._current: Message | None = None
        self._changer: str | None = None
        """Who changed a subscription, while the others are told of it."""

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Apply a fact, of this broker or of a log."""
        for _ in self.applying(fact):
            pass

    def applying(self, fact: Fact) -> Iterator[None]:
        """Apply a fact in pieces, yielding after each; until the last, the state is that of no number."""
        if isinstance(fact, Notification):
            message = Message.of(fact, body_of(fact)[0])
            self.apply_publication(message, self._match(message, fact), fact.packet_id or 0, fact.published_at)
            if fact.will_seq is not None:
                self.wills.published(fact.publisher, fact.will_seq)
        elif isinstance(fact, PresenceChanged):
            commands = yield from self.applying_presence(fact)
            yield from self.performing(commands, fact.changed_at)
        elif isinstance(fact, InterestChanged):
            self.apply_interest(fact)
        elif isinstance(fact, SessionChanged):
            commands = yield from self._applying_session(fact)
            yield from self.performing(commands, fact.changed_at)
        elif isinstance(fact, Receipt):
            if fact.notification.node == self.node:
                self._apply_receipt(fact)
        elif isinstance(fact, WillChanged):
            self.wills.apply(fact)
            self.perform(self.hold.apply(fact), fact.changed_at)
        else:
            self.take(fact)
            self.perform(self.hold.apply(fact), time_of(fact))

    def take(self, fact: Reported | PolicyChanged | Decided) -> None:
        """Let policies know of a fact, as soon as it is appended."""
        is_held = isinstance(fact, Decided) and fact.notification.seq in self.messages
        self.decisions.take(fact, is_held=is_held)
        if isinstance(fact, PolicyChanged):
            self.routes.forget()  # who may be served without the hold was worked out for the other case

    def _match(self, message: Message, notification: Notification) -> Found:
        secured = secured_of(notification)
        if not self.routes.has_content and secured is OPEN:
            return self.routes.by_subject(message.subject)
        handles = self.routes.by_content([message.subject], [notification.attributes], [secured])[0]
        return self.routes.everybody(message.subject, handles, secured)

    def apply_publication(
        self,
        message: Message,
        found: Found,
        packet_id: int,
        at: int,
        *,
        now: int | None = None,
        received: Collection[str] = (),
    ) -> None:
        """Take in a publication of the time *at* that is accepted *now*, and who wants it.

        Devices that have *received* it were served beside the hold (``lanes``).
        """
        self._receive(message, packet_id)
        commands = self.hold.published(
            message.seq,
            at,
            message.expires_at,
            found,
            qos=message.qos,
            publisher=message.publisher,
            received=received,
        )
        if commands:
            self._current = message
            self.perform(commands, at if now is None else now)
            self._current = None
        if message.retain:
            self._retain(message)

    def applying_publication(
        self, message: Message, found: Found, packet_id: int, at: int, *, now: int, received: Collection[str]
    ) -> Iterator[None]:
        """Do what ``apply_publication`` does in pieces, yielding after each."""
        self._receive(message, packet_id)
        commands = yield from self.hold.publishing(
            message.seq,
            at,
            message.expires_at,
            found,
            qos=message.qos,
            publisher=message.publisher,
            received=received,
        )
        yield from self.performing(commands, now, of=message)
        if message.retain:
            self._retain(message)

    def _receive(self, message: Message, packet_id: int) -> None:
        """Note the packet identifier of a publication of QoS 2, which may come again."""
        publisher = self.clients.get(message.publisher or "") if packet_id else None
        if publisher is not None:
            publisher.received.add(packet_id)
            self._touched.add(("client", publisher.id))

    def _retain(self, message: Message) -> None:
        self._touched.add(("retained", message.subject))
        if message.payload:
            self.retained.put(message)
        else:
            self.retained.remove(message.subject)

    def applying_presence(self, fact: PresenceChanged) -> Generator[None, None, list[Command]]:
        """Take in what a device did, in pieces; return what is to be done about it."""
        change = fact.change
        self._touched.add(("client", fact.device))
        if fact.session is not None and not is_private(fact.session):
            self.routes.forget()  # who is in a named session has one copy for all its sessions
        if change is PresenceChange.JOINED and fact.session is not None and is_private(fact.session):
            client = self.clients.get(fact.device)
            if client is None:
                client = self.clients[fact.device] = Client(fact.device, fact.session)
                self.memory.counted += CLIENT_BYTES
            client.expiry_us = fact.session_expiry_us or 0
            client.disconnected_at = None
            self.wills.present(fact)
            self._let_confirm(client, is_confirming=bool(fact.confirms))
            client.owner = fact.owner
            client.is_unclaimed = fact.owner is None and fact.confirms is None  # from before both were written down
        client = self.clients.get(fact.device)
        if client is not None:
            if change is PresenceChange.LEFT:
                client.withdraw(fact.session or "")
            if change is PresenceChange.DISCONNECTED:
                self.wills.present(fact)
                client.land()
                client.disconnected_at = fact.changed_at
                if fact.session_expiry_us is not None:
                    client.expiry_us = fact.session_expiry_us
            elif change is PresenceChange.RECEIPTS:
                self._let_confirm(client, is_confirming=bool(fact.confirms))
            elif change is PresenceChange.RELEASED:
                client.received.discard(fact.packet_id or 0)
            elif change is PresenceChange.COMPLETED:
                client.releasing.discard(fact.packet_id or 0)
        return (yield from self.hold.applying(fact))

    def _let_confirm(self, client: Client, *, is_confirming: bool) -> None:
        """Let the QoS 0 hand-overs of a client's private session have receipts, or none."""
        if client.confirms is not is_confirming:
            client.confirms = is_confirming
            self.routes.forget()  # who may be served without the hold was worked out for the other case

    def apply_interest(self, fact: InterestChanged) -> None:
        """Take in a change of a subscription."""
        subscription = fact.subscription
        identity = (subscription.subject_filter, subscription.name)
        commands = self.hold.apply(fact)
        if fact.change is InterestChange.REMOVED:
            self.routes.remove(subscription.session, identity)
            self.subscribed.get(subscription.session, {}).pop(identity, None)
        else:
            self.routes.put(subscription)
            self.subscribed.setdefault(subscription.session, {})[identity] = subscription.max_held or 0
        self._forget_terms(subscription.session)
        self._changer = fact.device
        self.perform(commands, fact.changed_at)
        self._changer = None

    def _applying_session(self, fact: SessionChanged) -> Generator[None, None, list[Command]]:
        """Take in what became of a session, in pieces; return what is to be done about it."""
        before = self.hold.named_count
        commands = yield from self._applying_to_session(fact)
        self.memory.counted += (self.hold.named_count - before) * NAMED_SESSION_BYTES
        return commands

    def _applying_to_session(self, fact: SessionChanged) -> Generator[None, None, list[Command]]:
        if fact.change is SessionChange.ACCESS and is_private(fact.session):
            released = self.clients.get(client_of(fact.session) or "")
            if released is not None:
                released.owner, released.is_unclaimed = None, True
                self._touched.add(("client", released.id))
        if fact.change is SessionChange.DELETED:
            for subscription in self.hold.subscriptions(fact.session):
                self.routes.remove(fact.session, (subscription.subject_filter, subscription.name))
            self._forget_terms(fact.session)
            self.subscribed.pop(fact.session, None)
            if not is_private(fact.session):
                for device in self.hold.members(fact.session):
                    if (member := self.clients.get(device)) is not None:
                        member.withdraw(fact.session)
            elif fact.device is not None:
                self.decisions.end(fact.device, fact.seq)
                gone = self.clients.pop(fact.device, None)
                if gone is not None:
                    self.memory.counted -= CLIENT_BYTES
                    gone.land()
                    gone.received.clear()
                    gone.releasing.clear()
                self._touched.add(("client", fact.device))
        return (yield from self.hold.applying(fact))

    def settle(self, at: int, session: str, device: str, seq: int, outcome: Outcome) -> None:
        """Take in what became of a hand-over that the client's flights know of already."""
        self.perform(self.hold.confirmed(at, session, device, seq, outcome), at)

    def _apply_receipt(self, fact: Receipt) -> None:
        """Take in what became of a hand-over, before a restart."""
        seq = fact.notification.seq
        self.decisions.received(fact.device, seq)
        client = self.clients.get(fact.device)
        if client is not None and fact.outcome is Outcome.DELIVERED:
            out = None if fact.via == RETAINED else self._unqueued(client, seq)
            if (self._granted(fact) if out is None else out.qos) == _EXACTLY_ONCE:
                self.releasing(client, packet_id_of(seq))
        self.perform(self.hold.apply(fact), fact.handed_at)

    def releasing(self, client: Client, identifier: int) -> None:
        """Note that a QoS 2 hand-over was received, and is to be released until it is completed."""
        client.releasing.add(identifier)
        self._touched.add(("client", client.id))

    def _granted(self, fact: Receipt) -> int:
        """Return the QoS of a hand-over that the view knows of, and the queue does not."""
        message = self.messages.get(fact.notification.seq)
        sent = _EXACTLY_ONCE if fact.via == RETAINED else 0 if message is None else message.qos
        granted = [
            subscription.qos or 0
            for each in fact.subscriptions
            if (subscription := self.hold.subscription(fact.session, (each.subject_filter, each.name))) is not None
        ]
        # Where a retained message was sent at less than its subscription allows, a PUBREL more does no harm.
        return min(sent, max(granted, default=sent))

    @staticmethod
    def _unqueued(client: Client, seq: int) -> Outgoing | None:
        """Take what was handed over before a restart out of the queue, where it stands near the beginning."""
        for at, out in enumerate(client.queue):
            if out.message.seq == seq:
                del client.queue[at]
                client.queued_bytes -= len(out.message.body)
                return out
        return None

    def tick(self, now: int) -> None:
        """Let time pass."""
        self.perform(self.hold.tick(now), now)

    # -- commands ----------------------------------------------------------------------------------------------------

    def performing(self, commands: Sequence[Command], now: int, *, of: Message | None = None) -> Iterator[None]:
        """Do what the hold says, *of* a publication perhaps, in pieces, yielding after each."""
        for start in range(0, len(commands), PIECE):
            if start:
                yield
            self._current = of
            self.perform(commands[start : start + PIECE], now)
            self._current = None

    def perform(self, commands: Iterable[Command], now: int) -> None:
        """Do what the hold says."""
        for command in commands:
            kind = type(command)
            if kind is HandOver:
                self._hand_over(command, now)  # type: ignore[arg-type]  # narrowed by its class
            elif kind is Settle:
                self._count(command)  # type: ignore[arg-type]
            elif kind is Store:
                message = self._current
                assert message is not None
                if len(message.body) > LONG:
                    message.keep()
                self.messages[message.seq] = message
                size = message.size
                self.held_bytes += size
                self.memory.counted += size
                self._touched.add(("notification", message.seq))
            elif kind is Forget:
                gone = self.messages.pop(command.seq, None)  # type: ignore[union-attr]
                if gone is not None:
                    self.decisions.forget(gone.seq)
                    size = gone.size
                    self.held_bytes -= size
                    self.memory.counted -= size
                    self._touched.add(("notification", gone.seq))
            elif kind is Tell or kind is TellAll:
                self._tell(command, now)  # type: ignore[arg-type]

    def _tell(self, command: Tell | TellAll, now: int) -> None:
        """Tell a device of its session, if it wants to hear of it."""
        client = self.clients.get(command.device)
        if self.sender is None or client is None or client.link is None or is_private(command.session):
            return
        if not listens(self.subscribed.get(client.session, ())):
            return
        if isinstance(command, TellAll):
            message = subscriptions_of(command.session, command.subscriptions)
        else:
            message = changed_subscription(command.session, command.change, command.subscription, self._changer)
        self.tell(client, message, now)

    def tell(self, client: Client, message: Message, now: int) -> None:
        """Send a client what only it is told, if it subscribes to that in its private session."""
        link = client.link
        if self.sender is None or link is None or not self._may_send(client, message, now):
            return
        if is_told(message.subject, self.subscribed.get(client.session, ())):
            self.sender.news(link, message, (), now)

    def _count(self, settled: Settle) -> None:
        if settled.outcome is Outcome.EXPIRED:
            self.counters.expired += 1
        elif settled.outcome is Outcome.DISPLACED:
            self.counters.displaced += 1
        elif settled.outcome is Outcome.DROPPED:
            self.counters.dropped += 1

    def _hand_over(self, command: HandOver, now: int) -> None:
        client = self.clients.get(command.device)
        if client is None:
            return
        if not command.is_copy:  # the copy that is on its way counts here too
            for session, identities in command.sessions:
                client.count(command.seq, self.terms(session, identities, command.device))
            return
        current = self._current
        message = current if current is not None and current.seq == command.seq else self.messages.get(command.seq)
        if message is None:
            return
        if command.is_own_receipt:
            self._hand_over_live(client, message, command, now)
            return
        if (
            not command.qos and self.sender is None
        ):  # while a log is replayed, nothing of QoS 0 is ever sent from a queue
            return
        terms = tuple(self.terms(session, identities, command.device) for session, identities in command.sessions)
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
        if not self.ready or self.ready[-1] is not client:
            self.ready.append(client)

    def _hand_over_live(self, client: Client, message: Message, command: HandOver, now: int) -> None:
        """Send a QoS 0 copy that is its own receipt, and so needs no terms.

        The account has it as delivered: nothing but a connection that just broke may keep it from being written.
        """
        link = client.link
        if self.sender is None:
            return
        if link is None or not self._may_send(client, message, now):
            self.counters.dropped += 1
            return
        found = [self._options(session, identities) for session, identities in command.sessions]
        identifiers = tuple(identifier for each, _ in found for identifier in each)
        retain = message.retain and any(keeps_retain for _, keeps_retain in found)
        if client.live:
            client.put_behind(message, identifiers, retain=retain)
        else:
            self.sender.live(link, message, identifiers, now, retain=retain)

    def _may_send(self, client: Client, message: Message, now: int) -> bool:
        assert client.link is not None
        return self.gate is None or self.gate.refusal(client.link, client.id, message, now) is None

    def terms(self, session: str, identities: tuple[Identity, ...], device: str) -> Terms:
        """Return what the subscriptions say about handing over."""
        of_session = self._terms.get(session)
        found = None if of_session is None else of_session.get((device, identities))
        if found is None:
            if self._terms_known >= max(
                _MOST_TERMS, 2 * len(self.clients)
            ):  # content filters combine in more ways than can be remembered
                self._terms.clear()
                self._terms_known = 0
            found = Terms(
                session,
                identities,
                *self._options(session, identities),
                receipt_prefix(session, device, [SubscriptionIdentity(*identity) for identity in identities]),
                self.granted(session, identities),
                all(self._asks_for_copies(session, identity) for identity in identities),
                tuple(self._policy(session, identity) for identity in identities),
            )
            self._terms.setdefault(session, {})[device, identities] = found
            self._terms_known += 1
        return found

    def _forget_terms(self, session: str) -> None:
        """Forget what a session's subscriptions said: they are others now."""
        self._terms_known -= len(self._terms.pop(session, ()))

    def _options(self, session: str, identities: tuple[Identity, ...]) -> tuple[tuple[int, ...], bool]:
        """Return the identifiers of subscriptions, and whether any wants retain as it was published."""
        identifiers: tuple[int, ...] = ()
        keeps_retain = False
        for identity in identities:
            subscription = self.hold.subscription(session, identity)
            if subscription is not None:
                if subscription.identifier is not None:
                    identifiers += (subscription.identifier,)
                keeps_retain = keeps_retain or subscription.retain_as_published
        return identifiers, keeps_retain

    def _asks_for_copies(self, session: str, identity: Identity) -> bool:
        found = self.hold.subscription(session, identity)
        is_less = found is None or found.qos is None or found.no_local or found.max_held == 0
        return not is_less and found.policy is None and not is_shared(identity[0])  # type: ignore[union-attr]  # it is there

    def _policy(self, session: str, identity: Identity) -> str | None:
        found = self.hold.subscription(session, identity)
        return None if found is None else found.policy

    # -- questions ---------------------------------------------------------------------------------------------------

    def is_owed(self, found: Found) -> bool:
        """Tell whether any of these sessions could ask for a QoS 1 or 2 publication after a crash."""
        for session, identities in found:
            client = self.clients.get(client_of(session) or "")
            if client is None or (client.is_persistent and self.granted(session, identities)):
                return True
        return False

    def keep_up(self, found: Found) -> bool:
        """Tell whether all of these sessions are of one client each, which is here and has taken what came before."""
        for session, _ in found:
            client = self.clients.get(client_of(session) or "")
            if client is None or client.link is None or client.link.is_lagging or client.queue or client.live:
                return False
        return True

    def granted(self, session: str, identities: Iterable[Identity]) -> int:
        """Return the highest QoS that some subscriptions of a private session were granted."""
        found = (self.hold.subscription(session, identity) for identity in identities)
        return max((_granted(subscription) for subscription in found), default=0)

    def lapsed(self, now: int) -> list[Client]:
        """Return the clients whose sessions have outlived their connections long enough."""
        return [
            client
            for client in self.clients.values()
            if client.link is None
            and client.disconnected_at is not None
            and client.disconnected_at + client.expiry_us <= now
        ]

    # -- the view ----------------------------------------------------------------------------------------------------

    @property
    def has_many_changes(self) -> bool:
        """Whether ``changes`` would take longer than clients like to wait."""
        return len(self._touched) + self.hold.changed > _MANY

    def some_changes(self) -> tuple[dict[Key, bytes], set[Key]]:
        """Return some of what ``changes`` would; see ``Hold.some_changes``."""
        put, drop = self.hold.some_changes(_MANY)
        touched = {self._touched.pop() for _ in range(min(_MANY, len(self._touched)))}
        self._write(touched, put, drop)
        return put, drop

    def touch_all(self) -> None:
        """Let ``changes`` return everything there is: the view has lost track of what changed."""
        self.hold.touch_all()
        self.decisions.touch_all()
        self._touched = {("client", name) for name in self.clients}
        self._touched.update(("notification", seq) for seq in self.messages)
        self._touched.update(("retained", subject) for subject in self.retained.subjects())
        self._touched.update(("will", device) for device in self.wills.devices())

    def _touch_will(self, device: str) -> None:
        self._touched.add(("will", device))

    def discard_changes(self) -> None:
        """Forget what has changed: the view is to be told everything, later."""
        self.hold.discard_changes()
        self.decisions.discard_changes()
        self._touched.clear()

    def changes(self) -> tuple[dict[Key, bytes], set[Key]]:
        """Return the rows to put and to drop since the last call."""
        put, drop = self.hold.changes()
        touched, self._touched = self._touched, set()
        self._write(touched, put, drop)
        for key, value in self.decisions.changes():
            if value is None:
                drop.add(key)
            else:
                put[key] = value
        return put, drop

    def _write(self, touched: set[Key], put: dict[Key, bytes], drop: set[Key]) -> None:
        for key in touched:
            value = self._row(key)
            if value is None:
                drop.add(key)
            else:
                put[key] = value

    def _row(self, key: Key) -> bytes | None:
        kind, whose = key
        if kind == "notification":
            message = self.messages.get(whose)  # type: ignore[arg-type]  # the key of a notification is its seq
            return None if message is None else message.body
        if kind == "retained":
            retained = self.retained.get(str(whose))
            return None if retained is None else retained.body
        if kind == "will":
            return self.wills.row(str(whose))
        client = self.clients.get(str(whose))
        if client is None:
            return None
        return cbor2.dumps(
            [
                client.session,
                client.expiry_us,
                client.disconnected_at,
                sorted(client.received),
                sorted(client.releasing),
                client.owner,
                client.is_unclaimed,
            ]
        )

    @classmethod
    def restore(cls, node: str, rows: Iterable[tuple[Key, bytes]], *, routes: Routes | None = None) -> BrokerState:
        """Return the state that a view has the rows of."""
        own: list[tuple[Key, bytes]] = []

        def of_the_hold() -> Iterator[tuple[Key, bytes]]:
            for key, value in rows:
                if key[0] in _OWN_KINDS:
                    own.append((key, value))
                else:
                    yield key, value

        state = cls(node, hold=Hold.restore(node, of_the_hold()), routes=routes)
        state.memory.counted += state.hold.named_count * NAMED_SESSION_BYTES
        for key, value in own:
            if key[0] in DECISION_KINDS:
                state.decisions.restore_row(key, value)
            else:
                state._restore_row(str(key[0]), key[1], value)
        for session in state.hold.sessions():
            for subscription in state.hold.subscriptions(session):
                state.routes.put(subscription)
                identity = (subscription.subject_filter, subscription.name)
                state.subscribed.setdefault(session, {})[identity] = subscription.max_held or 0
        return state

    def _restore_row(self, kind: str, whose: str | int | None, value: bytes) -> None:
        if kind == "client":
            client = self.clients[str(whose)] = Client(str(whose), "")
            self.memory.counted += CLIENT_BYTES
            client.session, client.expiry_us, client.disconnected_at, received, releasing, *more = cbor2.loads(value)
            client.received, client.releasing = set(received), set(releasing)
            client.owner, client.is_unclaimed = more or (None, True)  # views from before have no owners
            return
        if kind == "will":
            self.wills.restore(self.node, str(whose), value)
            return
        message = _message(self.node, value)
        if kind == "retained":
            self.retained.put(message)
        else:
            message.keep()
            self.messages[message.seq] = message
            self.held_bytes += message.size
            self.memory.counted += message.size


def _is_private_alone(command: HandOver) -> bool:
    """Tell whether a copy counts for a private session only; in a named one everything comes in its order."""
    return all(is_private(session) for session, _ in command.sessions)


def _granted(subscription: Subscription | None) -> int:
    return _EXACTLY_ONCE if subscription is None or subscription.qos is None else subscription.qos


def _message(node: str, body: bytes) -> Message:
    seq, number = BODY.unpack_from(body)
    fact = fact_of(*row_from(node, seq, number, body[BODY.size :]))
    if not isinstance(fact, Notification):
        raise InvalidValueError("row of a view", type(fact).__name__, "a notification")
    return Message.of(fact, body)
