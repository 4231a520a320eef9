"""Connect and disconnect clients, with their sessions and wills (MQTT 5, 3.1, 3.2, 3.14, 4.1).

Rule: CONNECT changes state only when all facts before it are accepted, so that it sees the session's latest state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.client_ids import MountedIds
from whimbrel.broker.connect.session_moves import SessionMoves
from whimbrel.broker.connect.user_check import UserCheck
from whimbrel.broker.connect.welcome import Welcome
from whimbrel.broker.connect.will_handling import WillHandling
from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.requests.joining import NOT_ALLOWED, policy_of, wanted_by
from whimbrel.broker.requests.named_sessions import Sessions
from whimbrel.broker.requests.ownership import NOT_YOURS, Claim, Ownership
from whimbrel.broker.requests.policies import Policies
from whimbrel.broker.settings.config import MAX_CLIENT_ID_BYTES, Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.waiting.driver import ACCEPTED, NEXT, Append, Procedure
from whimbrel.broker.wire.clients import Joining, Link, LiveClient
from whimbrel.broker.wire.events import Event
from whimbrel.broker.wire.notices import SESSIONS
from whimbrel.broker.wire.own_properties import MARK
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.access import Right
from whimbrel.hold.private import asked_for, private_session
from whimbrel.model.clock import US_PER_S
from whimbrel.model.facts import Mode, PresenceChange, PresenceChanged, SessionChange, SessionChanged
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import InvalidConnectError, ProtocolError, UnsupportedVersionError
from whimbrel.mqtt.mounts import is_mounted
from whimbrel.mqtt.packets import V5, Connect, Disconnect
from whimbrel.mqtt.properties import Property
from whimbrel.mqtt.server import Phase
from whimbrel.node.memory import CLIENT_BYTES

__all__ = ["ConnectHandler"]

_ASSIGNED_BYTES = 25
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_QOS_2 = 2
_NOT_MOUNTED = "named sessions cannot be joined through a listener with a mount point"
_SILENT = ((), (MARK,))
"""User properties of a CONNECT that mentions no session, key or policy."""
_OLD_REFUSAL = b"\x20\x02\x00\x01"
"""A 3.1.1 CONNACK, "unacceptable protocol version"; clients of every version may understand this form."""


class _Fate(Enum):
    """Treatment of the will of a client that disconnects."""

    WITHDRAWN = "withdrawn"
    DUE = "due"
    """The will is published after its delay."""
    WAITS = "waits"
    """The will is left to the next broker process, since this one stops."""


class ConnectHandler:
    """Connects and disconnects clients.

    *opened* is called when the packets behind a CONNECT may be handled, *leaving* before a client is disconnected.
    """

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        delivering: DeliveryHandler,
        sessions: Sessions,
        wills: WillHandling,
        ownership: Ownership,
        policies: Policies,
        user_check: UserCheck,
        *,
        rng: random.Random,
        opened: Callable[[Link], None],
        leaving: Callable[[Link], None],
        ids: MountedIds,
    ) -> None:
        self._ids, self._moves = ids, SessionMoves(commits, state, ids, policies)
        self._config, self._commits, self._state, self._sender = config, commits, state, sender
        self._authorizer, self._delivering, self._wills = authorizer, delivering, wills
        self._sessions, self._ownership, self._policies = sessions, ownership, policies
        self._user_check, self._welcome = user_check, Welcome(config)
        self._rng, self._opened, self._leaving = rng, opened, leaving
        self._coming: set[str] = set()
        """Ids of clients whose CONNECT waits for the disk."""
        self._ending: set[str] = set()
        """Ids of clients whose session's end waits for the disk."""

    def take_over(self, died_at: int) -> None:
        """Record all clients that were connected when the previous broker died as disconnected at *died_at*."""
        for client in list(self._state.clients.values()):
            if client.disconnected_at is None:
                self._leave(client, client.expiry_us, died_at, _Fate.WAITS, is_known=False)

    def move_sessions(self, now: int) -> list[Notice]:
        """Move stored sessions to the mount points that they belong to; return notices of the moves."""
        self._moves.begin(now)
        self._wills.begin(now)
        return self._moves.notices

    # -- connect -----------------------------------------------------------------------------------------------------

    def connect(self, link: Link, connect: Connect, now: int) -> Procedure[None]:
        """Handle CONNECT: accept the client, or refuse it."""
        link.parked = connect
        try:
            self._check_limits(connect, link.listener.mount)
            link.user, now = yield from self._user_check.user_of(link, connect, now)
            link.joining, now = yield from self._sessions_of(link, connect, now)
            if link.closing is not None:
                return
            if connect.properties.user not in _SILENT:
                self._policies.check_known(policy_of(connect)[1])
            client_id, assigned = self._client_id_of(link, connect)
            yield from self._come(link, connect, client_id, assigned, now)
        except ProtocolError as error:
            if link.closing is None:
                self.refuse(link, error.code, error.reason)

    def _check_limits(self, connect: Connect, mount: str) -> None:
        if connect.properties.text(Property.AUTHENTICATION_METHOD) is not None:
            raise ProtocolError(ReasonCode.BAD_AUTHENTICATION_METHOD, "no authentication method is offered")
        most = self._config.limits.client_id_bytes
        if len(connect.client_id.encode()) > most:
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"at most {most} bytes are allowed")
        if len(mount.encode()) + max(len(connect.client_id.encode()), _ASSIGNED_BYTES) > MAX_CLIENT_ID_BYTES:
            reason = f"with its mount point, at most {MAX_CLIENT_ID_BYTES} bytes are allowed"
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, reason)

    def _sessions_of(self, link: Link, connect: Connect, now: int) -> Procedure[tuple[tuple[Joining, ...], int]]:
        """Return the named sessions that CONNECT asks to join, and the time when its rights to do so were verified."""
        by_name = self._config.sessions.username_is_session
        link.is_ours = MARK in connect.properties.user
        if not by_name and connect.properties.user in _SILENT:
            return (), now
        wanted, keyring = wanted_by(connect, username_is_session=by_name)
        link.set_keyring(keyring, self._state.memory)
        policy_of(connect)
        if not wanted:
            return (), now
        if link.listener.mount:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, _NOT_MOUNTED)
        if not self._authorizer.may_publish(link, connect.client_id, f"{SESSIONS}join"):
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
        joinings, now = yield from self._sessions.door.rights_in(link, wanted, now)
        if any(Right.JOIN not in joining.rights for joining in joinings):
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
        return tuple(joinings), now

    def _client_id_of(self, link: Link, connect: Connect) -> tuple[str, str | None]:
        """Return the full client identifier, which begins with the mount point, and the one that the broker assigned.

        The second is None if the client sent an identifier. Raise ``ProtocolError`` if the client is refused.
        """
        client_id, assigned, state = connect.client_id, None, self._state
        mount = link.listener.mount
        if mount + client_id not in state.clients:
            most = self._config.limits.private_sessions
            if len(state.clients) >= most:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{most} clients have sessions, no more are allowed")
            full = state.memory.refusal(CLIENT_BYTES)
            if full is not None:
                raise ProtocolError(*full)
        if not client_id:
            is_allowed = self._config.mqtt.allow_zero_length_client_id
            if not is_allowed or (connect.version != V5 and not connect.clean_start):
                raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a client identifier is needed")
            client_id = assigned = "auto-" + "".join(self._rng.choices(_ALPHABET, k=20))
            link.has_assigned_id = True
        elif not self._may_use(link, mount + client_id):
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, NOT_YOURS)
        client_id = mount + client_id
        refusal = None if connect.will is None else self._wills.refusal(link, client_id, connect.will)
        if refusal is not None:
            raise ProtocolError(*refusal)
        most = link.machine.max_packet_bytes
        if most and self._welcome.packet(link, connect, assigned, is_resumed=False) is None:
            reason = f"CONNACK is longer than the {most} bytes that the client takes"
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, reason)
        return client_id, assigned

    def _may_use(self, link: Link, client_id: str) -> bool:
        """Return whether a client may use a full identifier, according to its listener's mount point and its rights."""
        is_its_own = not self._ids.mounts or self._ids.mount_of(client_id) == link.listener.mount
        return is_its_own and (self._authorizer.is_silent_on_ids or self._authorizer.may_connect(link.user, client_id))

    def _come(self, link: Link, connect: Connect, client_id: str, assigned: str | None, now: int) -> Procedure[None]:
        """Begin or resume the client's session and join the named sessions, once all earlier facts are accepted."""
        yield ACCEPTED
        while self._is_changing(link, client_id):
            yield ACCEPTED
        if link.closing is not None:
            return
        now = self._commits.now(now)
        if self._ids.mounts:
            client_id = yield from self._from_before(link, connect, client_id, now)
            if not link.is_here():
                return
        if link.joining:
            self._sessions.check_joining(link, client_id)
        client, is_clean = self._state.clients.get(client_id), connect.clean_start
        if client is not None:
            claim = self._ownership.claim(client, link.user)
            if claim is Claim.REFUSED:
                raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, NOT_YOURS)
            is_clean = is_clean or claim is Claim.ENDS or not self._is_below(link.listener.mount, client)
            if client.link is not None:
                self._give_way(client, link, now, is_clean=is_clean)
            if is_clean and client_id not in self._ending:
                self._end(client, now)
        is_resumed = client is not None and not is_clean
        if connect.will is not None or client_id in self._state.wills.by_device:
            self._wills.come(link, client_id, connect.will, now, is_resumed=is_resumed)
        self._choose(link, connect, client_id, now)
        came = self._joined_fact(link, connect, client_id, now, is_resumed=is_resumed)
        named = self._sessions.joined_by(link, client_id, came.seq + 1, now) if link.joining else []
        self._coming.add(client_id)
        is_owed = self._welcome.expiry_us(connect) > 0 or client is not None or bool(named)
        yield Append((came, *named), is_owed=is_owed)
        yield from self._open(link, connect, came, assigned)
        for fact in named:
            yield NEXT
            yield from self._sessions.enter(fact)
        self._settle_in(link, client_id)

    def _is_changing(self, link: Link, client_id: str) -> bool:
        """Return whether CONNECT must wait: its client or a named session has a change that is not applied yet."""
        is_coming_or_going = client_id in self._coming or client_id in self._ending
        return is_coming_or_going or (bool(link.joining) and self._sessions.is_changing(link))

    def _from_before(self, link: Link, connect: Connect, client_id: str, now: int) -> Procedure[str]:
        """Return the client identifier to continue with.

        Usually it is *client_id*, which begins with the mount point. A session of this client may be stored without the
        mount point, by a version that did not mount client identifiers. If the client resumes such a session and it
        cannot move now (``can_move_now``), its identifier is returned. Otherwise the session is moved to the mount
        point, or ended.
        """
        mount = link.listener.mount
        if not mount:
            if self._moves.mark(client_id) is not None:
                raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, NOT_YOURS)
            return client_id
        while (before := self._moves.before(mount, connect.client_id)) is not None:
            if self._is_changing(link, before.id):
                yield ACCEPTED
                if link.closing is not None:
                    return client_id
                continue
            claim = self._ownership.claim(before, link.user)
            if claim is Claim.REFUSED:
                raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, NOT_YOURS)
            if connect.clean_start or claim is Claim.ENDS or not self._is_below(mount, before):
                self._end_before(before, link, now)
                return client_id
            if not self._moves.can_move_now(before):
                return before.id
            self._moves.move(before, mount, now)
        return client_id

    def _end_before(self, before: LiveClient, link: Link, now: int) -> None:
        """End a session that was stored without its mount point, as a clean start does."""
        if before.link is not None:
            self._give_way(before, link, now, is_clean=True)
        elif (left := self._state.will_of(before.id)) is not None:
            self._wills.publish(left, now)
        if before.id not in self._ending:
            self._end(before, now)

    def _is_below(self, mount: str, client: LiveClient) -> bool:
        """Return whether a client may resume its session at a mount point: all its subscriptions must be below it."""
        subscriptions = self._state.hold.subscriptions(client.session) if mount else ()
        return all(is_mounted(each.subject_filter or "", mount) for each in subscriptions)

    def _choose(self, link: Link, connect: Connect, client_id: str, now: int) -> None:
        """Record the policy that CONNECT chooses for the device; without a choice, the session keeps its policy."""
        is_said, name = policy_of(connect) if connect.properties.user not in _SILENT else (False, None)
        fact = self._policies.choice(link, client_id, name, now) if is_said else None
        if fact is not None:
            self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)
            self._state.note(fact)

    def _joined_fact(
        self, link: Link, connect: Connect, client_id: str, now: int, *, is_resumed: bool
    ) -> PresenceChanged:
        link.confirms = self._must_confirm(link, client_id, is_resumed=is_resumed)
        return PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=now,
            device=client_id,
            change=PresenceChange.JOINED,
            session=private_session(client_id),
            receipt=Mode.TAKE,
            session_expiry_us=self._welcome.expiry_us(connect),
            confirms=link.confirms,
            owner=link.user,
        )

    def _must_confirm(self, link: Link, client_id: str, *, is_resumed: bool) -> bool:
        """Return whether the log needs a receipt (delivered or dropped) of each QoS 0 delivery to this client.

        It does if a delivery may be longer than the client's packet limit, or may be refused by its rights.
        """
        if link.machine.max_packet_bytes or self._authorizer.is_open:
            return bool(link.machine.max_packet_bytes)
        subscriptions = self._state.hold.subscriptions(private_session(client_id)) if is_resumed else ()
        filters = [asked_for(subscription.subject_filter) or "#" for subscription in subscriptions]
        return self._authorizer.may_be_refused(link.user, client_id, filters)

    def review_receipts(self, link: Link, now: int) -> None:
        """Update whether QoS 0 deliveries to a client get receipts in the log, after the client's rights changed."""
        client = link.client
        if client is not None and client.link is link:
            must = link.numbered_by is not None or self._must_confirm(link, client.id, is_resumed=True)
            before, link.confirms = link.confirms, must
            if link.confirms is not before and not link.is_lagging:
                self.change_receipts(client, now, is_confirming=link.confirms)

    def _open(self, link: Link, connect: Connect, came: PresenceChanged, assigned: str | None) -> Pieces:
        """Apply the fact (log record) that a client connected; answer CONNECT if the connection still exists."""
        now, state = came.changed_at, self._state
        is_resumed = came.device in state.clients
        self._coming.discard(came.device)
        commands = yield from state.applying_presence(came)
        client = state.clients[came.device]
        client.sent_seq = 0
        if not is_resumed:  # nothing was sent before in a session that begins here
            client.reported_sent = client.sent
        if link.closing is not None:  # the link was closed during the wait for the disk
            yield from state.performing(commands, now)
            self._leave(client, client.expiry_us, now, _Fate.WITHDRAWN)
            return
        machine = link.machine
        link.client, client.link = client, link
        machine.phase = Phase.OPEN
        link.is_plain = not (machine.has_outbound_aliases or machine.max_packet_bytes or machine.mount)
        self._sender.counters.connections += 1
        link.keep_alive_us = self._welcome.keep_alive_s(connect) * US_PER_S
        welcome = self._welcome.packet(link, connect, assigned, is_resumed=is_resumed)
        assert welcome is not None, "CONNECT was refused for it"
        self._sender.send(link, welcome)
        version = "5" if connect.version == V5 else "3.1.1"
        self._sender.events.note(Event.CONNECTED, link, now, mqtt=version, resumed=is_resumed)
        client.put_again()
        self._delivering.resume(client, link)
        yield from state.performing(commands, now)

    def _settle_in(self, link: Link, client_id: str) -> None:
        """Send the client the notifications queued in its sessions, then handle the bytes that arrived meanwhile."""
        client = self._state.clients.get(client_id)
        if client is None or client.link is not link or link.closing is not None:
            return
        if link.joining:
            client.arrange()
        link.parked = None
        self._delivering.pump(client, self._commits.last_at)
        self._opened(link)

    def _give_way(self, client: LiveClient, newer: Link, now: int, *, is_clean: bool) -> None:
        """Disconnect the older connection of a client in favour of the newer (3.1.4, 0x8E)."""
        link = client.link
        assert link is not None
        self._sender.events.note(Event.TAKEN_OVER, link, now, by=newer.address)
        self._leave(client, client.expiry_us, now, _Fate.DUE, is_clean=is_clean)
        self._sender.fail(link, ReasonCode.SESSION_TAKEN_OVER, "another connection has this client identifier")

    def end_broken(self, link: Link, failure: ProtocolError) -> None:
        """Close a connection that sent invalid MQTT, with an answer that the client may be able to read."""
        self._sender.counters.protocol_errors += 1
        if isinstance(failure, UnsupportedVersionError) and link.client is None:
            self._sender.send(link, _OLD_REFUSAL)
        elif isinstance(failure, InvalidConnectError) and link.machine.phase is Phase.NEW:
            self.refuse(link, failure.code, failure.reason)
            return
        if link.client is None:
            self._sender.events.refuse(Event.CONNECTION_REFUSED, link, link.last_at, failure.code, failure.reason)
        self._sender.fail(link, failure.code, failure.reason)

    def refuse(self, link: Link, code: ReasonCode, reason: str) -> None:
        """Answer CONNECT with an error and log the refusal."""
        connect = link.parked if isinstance(link.parked, Connect) else None
        claimed = {} if connect is None else {"client": connect.client_id, "user": link.user or connect.username}
        self._sender.events.refuse(Event.CONNECTION_REFUSED, link, link.last_at, code, reason, **claimed)
        self._sender.refuse(link, code, reason)

    def change_receipts(self, client: LiveClient, now: int, *, is_confirming: bool) -> None:
        """Record whether QoS 0 deliveries of a client's private session have receipts in the log from now on."""
        fact = PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=client.id,
            change=PresenceChange.RECEIPTS,
            session=client.session,
            confirms=is_confirming,
        )
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)

    # -- disconnect --------------------------------------------------------------------------------------------------

    def disconnect(self, link: Link, client: LiveClient, packet: Disconnect, now: int) -> None:
        """Handle a client's DISCONNECT packet."""
        expiry_us = client.expiry_us
        asked_s = packet.properties.integer(Property.SESSION_EXPIRY_INTERVAL)
        if asked_s is not None:
            if asked_s and not expiry_us:
                reason = "a session expiry in DISCONNECT where CONNECT had none"
                self._sender.fail(link, ReasonCode.PROTOCOL_ERROR, reason)
                return
            expiry_us = min(asked_s, self._config.mqtt.session_expiry_s) * US_PER_S
        self._sender.close(link, "it said goodbye")
        fate = _Fate.DUE if packet.code == ReasonCode.DISCONNECT_WITH_WILL else _Fate.WITHDRAWN
        self._leave(client, expiry_us, now, fate)

    def on_connection_lost(self, client: LiveClient, now: int, *, is_draining: bool = False) -> None:
        """Record that a client's connection broke, or that the stopping broker disconnects it."""
        self._leave(client, client.expiry_us, now, _Fate.WAITS if is_draining else _Fate.DUE)

    def _leave(
        self,
        client: LiveClient,
        expiry_us: int,
        now: int,
        fate: _Fate,
        *,
        is_clean: bool = False,
        is_known: bool = True,
    ) -> None:
        """Record that a client is disconnected, and end a session without expiry, except on a clean start.

        On a clean start (*is_clean*) the caller ends the session. *is_known* is false if a previous broker process sent
        the client's messages: the seq of the last message sent is not known then.
        """
        now = self._commits.now(now)
        if client.link is not None:
            self._leaving(client.link)
            if client.link.closing is not None:
                self._sender.events.note(Event.DISCONNECTED, client.link, now, reason=client.link.closing)
        client.link = None
        if fate is _Fate.WITHDRAWN:
            self._wills.withdraw(client.id, now)  # before the disconnection: a crash in between must not leave a will
        fact = PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=now,
            device=client.id,
            change=PresenceChange.DISCONNECTED,
            session_expiry_us=expiry_us,
            sent_seq=client.sent_seq if is_known else None,
        )
        self._commits.enter(fact, partial(self._state.applying, fact), is_owed=False)
        if fate is _Fate.DUE:
            self._wills.on_connection_lost(client.id, expiry_us, now, is_clean=is_clean)
        if not expiry_us and not is_clean:
            self._end(client, now)

    def _end(self, client: LiveClient, now: int) -> None:
        """End a client's session: record its deletion."""
        fact = SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=client.session,
            change=SessionChange.DELETED,
            device=client.id,
        )
        self._ending.add(client.id)
        self._commits.enter(fact, partial(self._apply_end, fact), is_owed=False)
        self._state.note(fact)

    def _apply_end(self, fact: SessionChanged) -> Pieces:
        assert fact.device is not None
        self._ending.discard(fact.device)
        return self._state.applying(fact)

    def tick(self, now: int) -> None:
        """Publish the wills that are due, and end the sessions whose expiry has passed."""
        self._wills.tick(now, self._coming)
        for client in self._state.expired_clients(now):
            if client.id not in self._coming and client.id not in self._ending:
                self._end(client, now)
