"""Named sessions: handle clients' requests to create, join, change and delete them (Elvin proxy, 4).

CONNECT joins sessions through ``ConnectHandler``. Everything else is a request, an object of JSON published to
``$whimbrel/session/<verb>`` and answered to the requesting client (docs/reference/sessions.md).
Rule: a request is handled when all facts before it are accepted and no other change of its session waits for the disk.
It is answered when its effect is durable.
Rule: the client's rights are determined first (``joining``), and again if the session's access has changed before the
request is carried out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.keyring import for_subscription, read_keys
from whimbrel.broker.access.passwords import MIN_SALT_BYTES, Cost
from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.publish.publication_keys import check_unlocked
from whimbrel.broker.requests.absent_devices import AbsentDevices
from whimbrel.broker.requests.answers import Answers, Asked
from whimbrel.broker.requests.joining import NOT_ALLOWED, JoinAuthorizer, Wanted, hash_passwords
from whimbrel.broker.requests.listing import Listing
from whimbrel.broker.requests.session_requests import VERBS, Request, id_of, read_request
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import is_long
from whimbrel.broker.subscribe.interests import OWN_TOPICS, SubscribeHandler
from whimbrel.broker.subscribe.requested import Options, identity_of, near_of, read_filter, stale_of
from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, RequesterId
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.waiting.driver import ACCEPTED, Append, Driver, Procedure, SlicedWork, answer_to
from whimbrel.broker.wire.clients import Joining, Link, LiveClient
from whimbrel.broker.wire.notices import SESSIONS, put_out, subscription_tree
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import InvalidValueError
from whimbrel.hold.access import AccessControlList, Right
from whimbrel.language.filters import Filter, filter_of
from whimbrel.model.clock import US_PER_S
from whimbrel.model.facts import Mode, PresenceChange, PresenceChanged, SessionChange, SessionChanged
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Publish, SubscriptionRequest
from whimbrel.node.memory import NAMED_SESSION_BYTES

__all__ = ["Sessions"]

_RELEASE = SESSIONS + "release"
_RETAINED_TOO, _NOTHING_RETAINED = 0, 2
"""Retain handling values of SUBSCRIBE (MQTT 5, 3.8.3.1)."""
_NEEDED: Mapping[str, Right] = {
    "join": Right.JOIN,
    "show": Right.JOIN,
    "leave": Right.CHANGE_SUBSCRIPTIONS,  # needed for another device; a device itself may always leave
    "subscribe": Right.CHANGE_SUBSCRIPTIONS,
    "unsubscribe": Right.CHANGE_SUBSCRIPTIONS,
    "access": Right.CHANGE_ACCESS,
    "delete": Right.DELETE,
}
_EXISTS = "it exists already, or you may not create it; try `session show`"


class _SessionChangedError(Exception):
    """The session changed while rights in it were determined; they must be determined again."""


class Sessions:
    """Handles the requests and CONNECTs of clients that concern named sessions."""

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        interests: SubscribeHandler,
        delivering: DeliveryHandler,
        blocking_tasks: BlockingTasks,
        driver: Driver,
        *,
        rng: random.Random,
    ) -> None:
        self._settings, self._commits, self._state, self._sender = config.sessions, commits, state, sender
        self._authorizer, self._interests, self._delivering = authorizer, interests, delivering
        self._driver, self._answers, self._rng = driver, Answers(commits, sender), rng
        self._listing = Listing(state, self._answers, interests.spend_work)
        self._cost = Cost.of_memory(config.access.password_hash_mib)
        write = self._write_raised
        self.door = JoinAuthorizer(state, authorizer, blocking_tasks, rng=rng, cost=self._cost, write=write)
        self._entering: set[tuple[str, str]] = set()
        """Pairs of session and device whose joining waits for the disk."""
        self.absent = AbsentDevices(state, config.sessions.device_expiry_s, self._expire)

    # -- joining with CONNECT ----------------------------------------------------------------------------------------

    def check_joining(self, link: Link, device: str) -> None:
        """Raise ``ProtocolError`` if the device may no longer join the sessions that its CONNECT asks for."""
        for joining in link.joining:
            if not self.door.is_as_it_was(joining):
                raise ProtocolError(ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
            self._check_devices(joining.session, device)
        if len(link.joining) > self._settings.joined:
            raise self._joined_too_many()

    def may_stay(self, link: Link, device: str) -> bool:
        """Return whether a connected device's rights still let it be in the sessions that it has joined, if any."""
        return not (link.joining or link.rights) or self._authorizer.may_publish(link, device, f"{SESSIONS}join")

    def joined_by(self, link: Link, device: str, seq: int, now: int) -> list[PresenceChanged]:
        """Return log records, with seqs from *seq* on: the device joins each session that its CONNECT names."""
        for joining in link.joining:
            link.rights[joining.session] = joining.rights
            self._entering.add((joining.session, device))
        return [
            replace(self._presence(device, joining.session, now, mode=joining.mode), seq=seq + place)
            for place, joining in enumerate(link.joining)
        ]

    def enter(self, fact: PresenceChanged) -> Pieces:
        """Apply the fact (log record) that a device joined a session."""
        self._entering.discard((fact.session or "", fact.device))
        return self._state.applying(fact)

    def is_changing(self, link: Link) -> bool:
        """Return whether a CONNECT names a session whose change of access is not applied yet."""
        return any(joining.session in self._state.volatile.changing for joining in link.joining)

    def _check_devices(self, session: str, device: str) -> None:
        hold, most = self._state.hold, self._settings.devices
        if hold.is_member(session, device) or (session, device) in self._entering:
            return
        devices = set(hold.members(session)) | {entering for where, entering in self._entering if where == session}
        if len(devices) >= most:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"a session has at most {most} devices")

    def _joined_too_many(self) -> ProtocolError:
        reason = f"a device is in at most {self._settings.joined} sessions at once"
        return ProtocolError(ReasonCode.QUOTA_EXCEEDED, reason)

    def _presence(self, device: str, session: str, now: int, *, mode: Mode | None) -> PresenceChanged:
        client = self._state.clients.get(device) if mode is None else None
        return PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=device,
            change=PresenceChange.LEFT if mode is None else PresenceChange.JOINED,
            session=session,
            receipt=mode,
            sent_seq=None if client is None or client.link is None else client.last_sent(session),
            # A notification that one device takes is gone for the others, so sending it has a receipt at every QoS.
            confirms=None if mode is None else True,
        )

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, link: Link, client: LiveClient, packet: Publish, now: int) -> None:
        """Handle a request; at QoS 1 and 2 its PUBLISH already counts against the receive maximum."""
        verb = packet.topic.removeprefix(SESSIONS)
        if packet.qos > AT_LEAST_ONCE:
            client.receiving.add(packet.packet_id)
        try:
            if verb in VERBS and not self._may_ask(link, client, packet.topic):
                right = "operate" if packet.topic == _RELEASE else "publish"
                raise ProtocolError(ReasonCode.NOT_AUTHORIZED, f"this needs the right {right} for {packet.topic}")
            if self._interests.admission.is_refusing:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "the broker cannot write to its disk")
            check_unlocked(packet, link.keyring, is_ours=link.is_ours)
            request = read_request(verb, packet.payload)
        except ProtocolError as error:
            asked = Asked(link, client, packet, Request(verb=verb, id=id_of(packet.payload)))
            self._answers.refuse(asked, error.code, error.reason)
        else:
            self._driver.start(self._answer(Asked(link, client, packet, request), now))

    def _may_ask(self, link: Link, client: LiveClient, topic: str) -> bool:
        """Return whether a client may make a request; to release a client's session it needs the right ``operate``."""
        if topic == _RELEASE:
            return self._authorizer.may_operate(link, client.id, topic)
        return self._authorizer.may_publish(link, client.id, topic)

    def _answer(self, asked: Asked, now: int) -> Procedure[None]:
        """Carry out a request, or refuse it."""
        try:
            if asked.request.verb == "keys":  # at once: later packets use these keys and may not wait for the disk
                self._set_keys(asked)
                return
            content = yield from self._prepare(asked, now)
            is_done = False
            while not is_done:
                with suppress(_SessionChangedError):
                    yield from self._attempt(asked, content, now)
                    is_done = True
        except ProtocolError as error:
            self._answers.refuse(asked, error.code, error.reason)
        except InvalidValueError as error:
            self._answers.refuse(asked, ReasonCode.PAYLOAD_FORMAT_INVALID, str(error))

    def _attempt(self, asked: Asked, content: Filter | None, now: int) -> Procedure[None]:
        """Carry out a request when all earlier facts are accepted; raise ``_SessionChangedError`` to try it again."""
        request, session = asked.request, asked.request.session
        yield ACCEPTED
        while session in self._state.volatile.changing or session in self._state.volatile.deleting:
            yield ACCEPTED
        if not asked.is_here:
            return
        match request.verb:
            case "create":
                yield from self._create(asked, now)
            case "list":
                yield from self._listing.list(asked, now)
            case "release":
                yield from self._release(asked, now)
            case "leave" if request.device in {None, asked.client.id}:
                yield from self._leave(asked, now)  # a device that joined earlier may leave without joining again
            case _:
                yield from self._act_in(asked, content, now)

    def _act_in(self, asked: Asked, content: Filter | None, now: int) -> Procedure[None]:
        """Carry out a request that needs a right in the session."""
        request = asked.request
        joining, now = yield from self._joining_of(asked, now)
        if not asked.is_here:
            return
        if _NEEDED[request.verb] not in joining.rights:
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
        self._check_unchanged(joining)
        match request.verb:
            case "join":
                yield from self._join(asked, joining, now)
            case "leave":
                yield from self._leave(asked, now)
            case "show":
                yield from self._listing.show(asked, now)
            case "access":
                yield from self._set_access(asked, joining, now)
            case "delete":
                yield from self._delete(asked, now)
            case "subscribe":
                yield from self._subscribe(asked, joining, content, now)
            case "unsubscribe":
                yield from self._unsubscribe(asked, now)

    def _joining_of(self, asked: Asked, now: int) -> Procedure[tuple[Joining, int]]:
        """Return the client's rights in the session: those it joined with, or those that its password gives it now."""
        request, session = asked.request, asked.request.session
        rights = asked.link.rights.get(session)
        if request.password is None and rights is not None:
            return Joining(session, request.receipt, rights, self._state.hold.access(session)), now
        wanted = Wanted(session=session, password=request.password, mode=request.receipt)
        (joining,), now = yield from self.door.rights_in(asked.link, [wanted], now)
        yield ACCEPTED
        return joining, now

    def _check_unchanged(self, joining: Joining) -> None:
        """Raise ``_SessionChangedError`` if a session has changed since rights in it were determined."""
        if joining.session in self._state.volatile.changing or not self.door.is_as_it_was(joining):
            raise _SessionChangedError

    # -- create and change access ------------------------------------------------------------------------------------

    def _create(self, asked: Asked, now: int) -> Procedure[None]:
        session, state = asked.request.session, self._state
        if state.hold.has(session):
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, _EXISTS)
        most = self._settings.count
        if state.hold.named_count + sum(not state.hold.has(each) for each in state.volatile.changing) >= most:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{most} sessions, no more are allowed")
        full = state.memory.refusal(NAMED_SESSION_BYTES)
        if full is not None:
            raise ProtocolError(*full)
        owner = None if asked.link.user is None else AccessControlList(owner=asked.link.user).to_text()
        access, now = yield from self._access_of(asked, owner, now)
        if not asked.is_here:
            return
        if session in state.volatile.changing or session in state.volatile.deleting or state.hold.has(session):
            raise _SessionChangedError  # another client has created the session meanwhile
        state.volatile.changing[session] = asked.client.id
        yield from self._change(asked, SessionChange.CREATED, access, now)

    def _access_of(self, asked: Asked, otherwise: str | None, now: int) -> Procedure[tuple[str | None, int]]:
        """Return the access that a request asks for, and the time when it was ready: hashing passwords takes long."""
        access, now = yield from self._access_asked(asked, otherwise, now)
        full = self._state.memory.refusal(len(access or ""))
        if full is not None:
            raise ProtocolError(*full)
        return access, now

    def _access_asked(self, asked: Asked, otherwise: str | None, now: int) -> Procedure[tuple[str | None, int]]:
        request, link = asked.request, asked.link
        if request.list is not None:
            return request.list.to_text(), now
        if request.passwords is None:
            return otherwise, now
        ask = partial(hash_passwords, self._rng.randbytes(MIN_SALT_BYTES), self._cost, dict(request.passwords))
        asker = RequesterId(link.address, f"client {asked.client.id}")
        access, now = yield from answer_to(link, asker, ask, "too many wrong passwords")
        if isinstance(access, InvalidValueError):
            raise access
        yield ACCEPTED
        return access, now

    def _change(self, asked: Asked, change: SessionChange, access: str | None, now: int) -> Procedure[SessionChanged]:
        """Record a change of a session's access, apply it and answer."""
        fact = self._session_fact(asked.request.session, change, now, access=access, device=asked.client.id)
        yield Append((fact,), is_owed=True)
        self._state.volatile.changing.pop(fact.session, None)
        self._state.apply(fact)
        self._answers.answer(asked, {"session": fact.session})
        return fact

    def _session_fact(
        self, session: str, change: SessionChange, now: int, *, access: str | None = None, device: str | None = None
    ) -> SessionChanged:
        return SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=session,
            change=change,
            access=access,
            device=device,
        )

    def _set_access(self, asked: Asked, joining: Joining, now: int) -> Procedure[None]:
        """Change a session's access, and make the other members leave: their rights came from the old access."""
        session = joining.session
        access, now = yield from self._access_of(asked, None, now)
        if not asked.is_here:
            return
        self._check_unchanged(joining)
        self._state.volatile.changing[session] = asked.client.id
        fact = yield from self._change(asked, SessionChange.ACCESS, access, now)
        for device, (is_present, _) in self._state.hold.members(session).items():
            if is_present and device != asked.client.id:
                self._disown(device, session)  # at once: their requests during the wait for the disk are too late
                self._driver.start(self._put_out(device, session, asked.client.id, fact.changed_at))

    def _write_raised(self, session: str, access: str, now: int) -> None:
        """Record a session's access with costlier hashes of the same passwords; no client waits for this."""
        fact = self._session_fact(session, SessionChange.ACCESS, now, access=access)
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)

    def _delete(self, asked: Asked, now: int) -> Procedure[None]:
        session, state = asked.request.session, self._state
        state.volatile.deleting.add(session)
        fact = self._session_fact(session, SessionChange.DELETED, now, device=asked.client.id)
        yield Append((fact,), is_owed=True)
        state.volatile.deleting.discard(session)
        present = [device for device, (is_present, _) in state.hold.members(session).items() if is_present]
        yield from state.applying(fact)
        for device in present:
            self._detach(device, session, asked.client.id, is_deleted=True, now=fact.changed_at)
        self._answers.answer(asked, {"session": session})

    # -- join and leave ----------------------------------------------------------------------------------------------

    def _join(self, asked: Asked, joining: Joining, now: int) -> Procedure[None]:
        session, rights, device = joining.session, asked.link.rights, asked.client.id
        self._check_devices(session, device)
        if session not in rights and len(rights) >= self._settings.joined:
            raise self._joined_too_many()
        self._listing.spend_on(asked, now)
        rights[session] = joining.rights
        self._entering.add((session, device))
        fact = self._presence(device, session, now, mode=joining.mode)
        yield Append((fact,), is_owed=True)
        self._entering.discard((session, device))
        rights[session] = joining.rights  # it may have been removed while the disk was waited for
        commands = yield from self._state.applying_presence(fact)
        # The answer comes before the queued notifications, which follow in the order of their seqs.
        self._answers.answer(asked, (yield from self._listing.first_page(session)))
        yield from self._state.performing(commands, fact.changed_at)
        asked.client.arrange()
        self._delivering.pump(asked.client, fact.changed_at)

    def _leave(self, asked: Asked, now: int) -> Procedure[None]:
        session, device = asked.request.session, asked.request.device or asked.client.id
        if not self._state.hold.is_member(session, device):
            is_own = device == asked.client.id  # an outsider learns nothing about the session
            reason = NOT_ALLOWED if is_own else f"{device[:40]!r} is no device of this session"
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, reason)
        yield from self._put_out(device, session, asked.client.id, now)
        self._answers.answer(asked, {"session": session})

    def _put_out(self, device: str, session: str, by: str, now: int) -> Procedure[None]:
        """Record that a device leaves a session, of its own accord or removed by the device *by*."""
        fact = self._presence(device, session, now, mode=None)
        yield Append((fact,), is_owed=True)
        yield from self._state.applying(fact)
        self._detach(device, session, by, is_deleted=False, now=fact.changed_at)

    def _expire(self, device: str, session: str, now: int) -> None:
        """Make a device leave that has been away too long."""
        if (session, device) not in self._entering:
            self._driver.start(self._put_out(device, session, device, now))

    def _detach(self, device: str, session: str, by: str, *, is_deleted: bool, now: int) -> None:
        """Remove a device's rights in a session; notify its client if another device (*by*) caused that."""
        client = self._disown(device, session)
        if client is not None:
            if device != by:
                self._state.tell(client, put_out(session, by, is_deleted=is_deleted), now)
            self._delivering.pump(client, now)

    def _disown(self, device: str, session: str) -> LiveClient | None:
        """Remove all rights of a device in a session; return its client if connected."""
        client = self._state.clients.get(device)
        if client is None or client.link is None:
            return None
        client.link.rights.pop(session, None)
        return client

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _prepare(self, asked: Asked, now: int) -> Procedure[Filter | None]:
        """Parse a request's content filter, and prepare a long one for the index in steps.

        Only the cost of the work is checked before; rights may change meanwhile.
        """
        if asked.request.verb != "subscribe" or not is_long(asked.request.filter):
            return None
        subscription = self._subscription(asked)
        self._interests.spend(asked.client, subscription, self._commits.now(now))
        prepared: Subscription = yield SlicedWork(asked.link, self._interests.prepare(subscription))
        return filter_of(prepared)

    def _subscription(self, asked: Asked, content: Filter | None = None) -> Subscription:
        """Return the subscription that a request asks for, or raise ``ProtocolError`` or ``InvalidValueError``.

        *content* is its filter, if that was parsed before.
        """
        request = asked.request
        if request.topic.startswith(OWN_TOPICS):
            reason = f"{request.topic.split('/', 1)[0]} is told to devices, and no session holds it"
            raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)
        if content is None and request.filter is not None:
            content = read_filter(request.filter, self._interests.limits)
        options = Options(
            filter=content,
            ttl_us=None if request.ttl is None else request.ttl * US_PER_S,
            max_held=request.max,
            name=request.name,
            keys=for_subscription(request.keys),
            is_insecure=request.insecure,
            policy=request.policy,
            near=None if request.near is None else near_of(request.near),
            stale_us=None if request.stale is None else stale_of(request.stale),
        )
        wanted = SubscriptionRequest(request.topic, request.qos)
        return self._interests.asked_for(asked.link, wanted, options, request.session)

    def _subscribe(self, asked: Asked, joining: Joining, content: Filter | None, now: int) -> Procedure[None]:
        subscription, client = self._subscription(asked, content), asked.client
        if content is None:
            self._interests.spend(client, subscription, self._commits.now(now))
        self._interests.check(asked.link, client, subscription, joining.rights)
        is_here = joining.session in asked.link.rights  # else an outsider would get retained messages
        handling = _RETAINED_TOO if is_here else _NOTHING_RETAINED
        self._interests.put(asked.link, client, subscription, handling, self._commits.now(now))
        yield ACCEPTED
        told = {"session": joining.session, "subscription": subscription_tree(subscription)}
        self._answers.answer(asked, told)

    def _unsubscribe(self, asked: Asked, now: int) -> Procedure[None]:
        request = asked.request
        identity = identity_of(request.topic, Options(name=request.name), self._interests.limits)
        if not self._interests.remove(asked.client, request.session, identity, self._commits.now(now)):
            raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "there is no such subscription")
        yield ACCEPTED
        self._answers.answer(asked, {"session": request.session})

    def _set_keys(self, asked: Asked) -> None:
        request, link = asked.request, asked.link
        keyring = link.keyring.without(read_keys(request.remove)) | read_keys(request.add)
        link.set_keyring(keyring, self._state.memory)
        self._answers.answer(asked, {})

    # -- operators ---------------------------------------------------------------------------------------------------

    def _release(self, asked: Asked, now: int) -> Procedure[None]:
        """Remove the owner of a private session, so that another user may use its client identifier."""
        client = self._state.clients.get(asked.request.client)
        if client is None:
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "no session has this client identifier")
        access = self._state.hold.access(client.session)  # an access text that marks a mount point stays
        fact = self._session_fact(client.session, SessionChange.ACCESS, now, access=access, device=asked.client.id)
        yield Append((fact,), is_owed=True)
        owner = client.owner
        self._state.apply(fact)
        self._answers.answer(asked, {"client": client.id, "owner": owner})
        if client.link is not None:
            self._sender.fail(client.link, ReasonCode.ADMINISTRATIVE_ACTION, "an operator released this session")
