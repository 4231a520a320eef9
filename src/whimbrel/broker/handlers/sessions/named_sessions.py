"""Sessions: named sessions as clients make, join, change and delete them (Elvin proxy, 4; docs/reference/sessions.md).

CONNECT joins through ``Connecting``; everything else is a request, an object of JSON published to
``$whimbrel/session/<verb>`` and answered to whoever asked.
Rule: a request is looked at when everything before it is accepted, and while no other change of the same session waits
for the disk. It is answered when what it asked for is durable.
Rule: what a request may do is found out first (``joining``), and found out anew if the session's access has changed
by the time that it is done.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.blocking_tasks import Asker, BlockingTasks
from whimbrel.broker.access.keyring import for_subscription, read_keys
from whimbrel.broker.access.publication_keys import check_unlocked
from whimbrel.broker.config import Config
from whimbrel.broker.handlers.delivering import Delivering
from whimbrel.broker.handlers.sessions.joining import NOT_ALLOWED, Doorkeeper, Wanted
from whimbrel.broker.handlers.sessions.requests import VERBS, Request, id_of, read_request
from whimbrel.broker.handlers.subscriptions.interests import OWN_TOPICS, Interests
from whimbrel.broker.handlers.subscriptions.requested import Options, check_filter, identity_of
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.commit_queue import CommitQueue, Pieces
from whimbrel.broker.state.memory import NAMED_SESSION_BYTES
from whimbrel.broker.state.routes import is_long
from whimbrel.broker.wire.clients import Client, Joining, Link
from whimbrel.broker.wire.messages import Message
from whimbrel.broker.wire.notices import ANSWERS, SESSIONS, put_out, subscription_tree
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import InvalidValueError
from whimbrel.hold.access import MIN_SALT_BYTES, AccessControlList, Cost, Passwords, Right, read_access
from whimbrel.hold.private import is_private
from whimbrel.match.matcher import ReadInterest
from whimbrel.model.facts import Mode, PresenceChange, PresenceChanged, SessionChange, SessionChanged
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Puback, Publish, Pubrec, SubscriptionRequest
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property, passed_on

__all__ = ["Sessions"]

_SECOND_US = 1_000_000
_RELEASE = SESSIONS + "release"
_AT_LEAST_ONCE = 1
_MOST_LISTED = 1_000
_RETAINED_TOO, _NOTHING_RETAINED = 0, 2
"""Retain handling, as SUBSCRIBE says it (MQTT 5, 3.8.3.1)."""
_NEEDED: Mapping[str, Right] = {
    "join": Right.JOIN,
    "show": Right.JOIN,
    "leave": Right.CHANGE_SUBSCRIPTIONS,  # for another device; for oneself none is needed
    "subscribe": Right.CHANGE_SUBSCRIPTIONS,
    "unsubscribe": Right.CHANGE_SUBSCRIPTIONS,
    "access": Right.CHANGE_ACCESS,
    "delete": Right.DELETE,
}


class _Asked(NamedTuple):
    """Who asked what."""

    link: Link
    client: Client
    packet: Publish
    request: Request
    read: ReadInterest | None = None
    """What was read of a subscription whose filter is long."""

    @property
    def is_here(self) -> bool:
        """Whether whoever asked is still there to be answered."""
        return self.link.closing is None and self.client.link is self.link


class Sessions:
    """The named sessions of a broker, as clients see them."""

    def __init__(
        self,
        config: Config,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        interests: Interests,
        delivering: Delivering,
        blocking_tasks: BlockingTasks,
        *,
        rng: random.Random,
    ) -> None:
        self._settings, self._commits, self._state, self._sender = config.sessions, commits, state, sender
        self._authorizer, self._interests, self._delivering, self._blocking_tasks = (
            authorizer,
            interests,
            delivering,
            blocking_tasks,
        )
        self._rng = rng
        self._cost = config.access.password_cost
        self.door = Doorkeeper(state, authorizer, blocking_tasks, rng=rng, cost=self._cost, write=self._write_raised)
        self._entering: set[tuple[str, str]] = set()
        """Sessions and devices whose joining does."""
        self._verbs: Mapping[str, Callable[[_Asked, Joining, int], None]] = {
            "join": self._join,
            "leave": self._leave,
            "delete": self._delete,
            "show": self._show,
            "access": self._set_access,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
        }

    # -- joining with CONNECT ----------------------------------------------------------------------------------------

    def refusal(self, link: Link, device: str) -> tuple[ReasonCode, str] | None:
        """Return why a device may not join what its CONNECT asks for after all, if so."""
        for joining in link.joining:
            if not self.door.is_as_it_was(joining):
                return ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED
            if self._is_full(joining.session, device):
                return ReasonCode.QUOTA_EXCEEDED, f"a session has at most {self._settings.devices} devices"
        if len(link.joining) > self._settings.joined:
            return ReasonCode.QUOTA_EXCEEDED, f"a device is in at most {self._settings.joined} sessions at once"
        return None

    def enter(self, link: Link, device: str, now: int) -> None:
        """Write down that a device joins what its CONNECT asks for."""
        for joining in link.joining:
            fact = self._presence(device, joining.session, now, mode=joining.mode)
            link.rights[joining.session] = joining.rights
            self._entering.add((joining.session, device))
            self._commits.enter(fact, partial(self._entered, fact), is_owed=True)

    def _entered(self, fact: PresenceChanged) -> Pieces:
        self._entering.discard((fact.session or "", fact.device))
        return self._state.applying(fact)

    def is_changing(self, link: Link) -> bool:
        """Tell whether the access of a session that a CONNECT asks for waits for the disk."""
        return any(joining.session in self._state.changing for joining in link.joining)

    def _is_full(self, session: str, device: str) -> bool:
        hold = self._state.hold
        if hold.is_member(session, device) or (session, device) in self._entering:
            return False
        devices = set(hold.members(session)) | {entering for where, entering in self._entering if where == session}
        return len(devices) >= self._settings.devices

    def _presence(self, device: str, session: str, now: int, *, mode: Mode | None) -> PresenceChanged:
        return PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=device,
            change=PresenceChange.LEFT if mode is None else PresenceChange.JOINED,
            session=session,
            receipt=mode,
            # What one device takes is taken from the others: that it was sent is written down at every QoS.
            confirms=None if mode is None else True,
        )

    # -- requests ----------------------------------------------------------------------------------------------------

    def received(self, link: Link, client: Client, packet: Publish, now: int) -> None:
        """Take in a request; at QoS 1 and 2 its publication has begun."""
        verb = packet.topic.removeprefix(SESSIONS)
        if packet.qos > _AT_LEAST_ONCE:
            client.receiving.add(packet.packet_id)
        try:
            if verb in VERBS and not self._may_ask(link, client, packet.topic):
                raise ProtocolError(ReasonCode.NOT_AUTHORIZED, "this may not be asked")
            if self._interests.admission.is_refusing:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "the disk takes nothing")
            check_unlocked(packet, link.keyring, is_ours=link.is_ours)
            request = read_request(verb, packet.payload)
        except ProtocolError as error:
            asked = _Asked(link, client, packet, Request(verb=verb, id=id_of(packet.payload)))
            self._refuse(asked, error.code, error.reason)
            return
        asked = _Asked(link, client, packet, request)
        if request.verb == "keys":  # at once: they are those of what comes behind it, which may not wait for the disk
            self._set_keys(asked)
        elif request.verb == "subscribe" and is_long(request.filter):
            self._interests.begin(link, self._reading(asked, now))
        else:
            self._commits.then(partial(self._begin, asked, now))

    def _may_ask(self, link: Link, client: Client, topic: str) -> bool:
        """Tell whether a client may make a request; one that concerns the sessions of others needs more than others."""
        if topic == _RELEASE:
            return self._authorizer.may_operate(link, client.id, topic)
        return self._authorizer.may_publish(link, client.id, topic)

    def _begin(self, asked: _Asked, now: int) -> None:
        """Look at a request, everything before which is accepted."""
        request = asked.request
        session = request.session
        if not asked.is_here:
            return
        if session in self._state.changing or session in self._state.deleting:
            self._commits.then(partial(self._begin, asked, now))
        elif request.verb == "create":
            self._create(asked, now)
        elif request.verb == "list":
            self._list(asked)
        elif request.verb == "release":
            self._release(asked, now)
        elif request.password is None and session in asked.link.rights:
            joining = Joining(session, request.receipt, asked.link.rights[session], self._state.hold.access(session))
            self._do(asked, joining, now)
        elif request.verb == "leave" and request.device in {None, asked.client.id}:
            # Whoever has joined before may leave without joining again.
            self._leave(asked, Joining(session, request.receipt, frozenset(), None), now)
        else:
            wanted = Wanted(session=session, password=request.password, mode=request.receipt)
            refuse = partial(self._turn_away, asked)
            self.door.rights_in(asked.link, [wanted], now, partial(self._judged, asked), refuse)

    def _turn_away(self, asked: _Asked, code: ReasonCode, reason: str) -> None:
        if code is ReasonCode.SERVER_BUSY:  # which only CONNACK can say
            code = ReasonCode.QUOTA_EXCEEDED
        self._refuse(asked, code, reason)

    def _judged(self, asked: _Asked, joinings: list[Joining], now: int) -> None:
        self._commits.then(partial(self._do, asked, joinings[0], now))

    def _do(self, asked: _Asked, joining: Joining, now: int) -> None:
        """Do what is asked with the rights that were found; if they may have changed meanwhile, begin anew."""
        verb = asked.request.verb
        if not asked.is_here:
            return
        is_own = verb == "leave" and asked.request.device in {None, asked.client.id}
        if not joining.rights or (not is_own and _NEEDED[verb] not in joining.rights):
            self._refuse(asked, ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
        elif joining.session in self._state.changing or not self.door.is_as_it_was(joining):
            self._commits.then(partial(self._begin, asked, now))
        else:
            self._verbs[verb](asked, joining, now)

    # -- making ------------------------------------------------------------------------------------------------------

    def _create(self, asked: _Asked, now: int) -> None:
        request, hold = asked.request, self._state.hold
        if hold.has(request.session):
            self._refuse(asked, ReasonCode.NOT_AUTHORIZED, "a session of this name cannot be created")
        elif hold.named_count + sum(not hold.has(each) for each in self._state.changing) >= self._settings.count:
            reason = f"{self._settings.count} sessions, no more are allowed"
            self._refuse(asked, ReasonCode.QUOTA_EXCEEDED, reason)
        elif (full := self._state.memory.refusal(NAMED_SESSION_BYTES)) is not None:
            self._refuse(asked, *full)
        elif request.passwords is not None:
            self._hash(asked, partial(self._create_with, asked))
        elif request.list is not None:
            self._create_with(asked, request.list.to_text(), now)
        elif asked.link.user is not None:
            self._create_with(asked, AccessControlList(owner=asked.link.user).to_text(), now)
        else:
            self._create_with(asked, None, now)

    def _hash(self, asked: _Asked, then: Callable[[str | None, int], None]) -> None:
        """Have the passwords of a request hashed, which takes long."""
        words = asked.request.passwords or {}
        salt = self._rng.randbytes(MIN_SALT_BYTES)
        too_many = partial(self._turn_away, asked, ReasonCode.QUOTA_EXCEEDED, "too many wrong passwords")
        if self._blocking_tasks.is_full(asked.link.address):
            self._refuse(asked, ReasonCode.QUOTA_EXCEEDED, "too many wait for their passwords")
        else:
            ask = partial(_hashed, salt, self._cost, dict(words))
            asker = Asker(asked.link.address, f"client {asked.client.id}")
            self._blocking_tasks.put(asker, ask, partial(self._hashed, asked, then), too_many)

    def _hashed(
        self, asked: _Asked, then: Callable[[str | None, int], None], answer: str | InvalidValueError, now: int
    ) -> None:
        if isinstance(answer, InvalidValueError):
            self._refuse(asked, ReasonCode.PAYLOAD_FORMAT_INVALID, str(answer))
        else:
            self._commits.then(partial(then, answer, now))

    def _create_with(self, asked: _Asked, access: str | None, now: int) -> None:
        session = asked.request.session
        if not asked.is_here:
            return
        if session in self._state.changing or session in self._state.deleting or self._state.hold.has(session):
            self._commits.then(partial(self._begin, asked, now))  # somebody was faster
            return
        self._state.changing[session] = asked.client.id
        self._enter_change(asked, SessionChange.CREATED, access, self._changed, now)

    def _enter_change(
        self,
        asked: _Asked,
        change: SessionChange,
        access: str | None,
        apply: Callable[[_Asked, SessionChanged], Pieces | None],
        now: int,
    ) -> None:
        fact = SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=asked.request.session,
            change=change,
            access=access,
            device=asked.client.id,
        )
        self._commits.enter(fact, partial(apply, asked, fact), is_owed=True)

    def _changed(self, asked: _Asked, fact: SessionChanged) -> None:
        self._state.changing.pop(fact.session, None)
        self._state.apply(fact)
        self._answer(asked, {"session": fact.session})

    def _set_access(self, asked: _Asked, joining: Joining, now: int) -> None:
        request = asked.request
        if request.passwords is not None:
            self._hash(asked, partial(self._set_access_to, asked, joining))
        else:
            access = None if request.list is None else request.list.to_text()
            self._set_access_to(asked, joining, access, now)

    def _set_access_to(self, asked: _Asked, joining: Joining, access: str | None, now: int) -> None:
        if not asked.is_here:
            return
        if joining.session in self._state.changing or not self.door.is_as_it_was(joining):
            self._commits.then(partial(self._begin, asked, now))
            return
        self._state.changing[joining.session] = asked.client.id
        self._enter_change(asked, SessionChange.ACCESS, access, self._access_changed, now)

    def _write_raised(self, session: str, access: str, now: int) -> None:
        """Write down that the same passwords have hashes that cost more; nobody waits for it."""
        fact = SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=session,
            change=SessionChange.ACCESS,
            access=access,
        )
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)

    def _access_changed(self, asked: _Asked, fact: SessionChanged) -> None:
        """Put everybody else out: they joined with what is not valid any more."""
        self._changed(asked, fact)
        for device, (is_present, _) in self._state.hold.members(fact.session).items():
            if is_present and device != asked.client.id:
                self._disown(device, fact.session)  # at once: what they ask while the disk is waited for is too late
                self._enter_leaving(device, fact.session, asked.client.id, None, fact.changed_at)

    def _delete(self, asked: _Asked, joining: Joining, now: int) -> None:
        self._state.deleting.add(joining.session)
        self._enter_change(asked, SessionChange.DELETED, None, self._deleted, now)

    def _deleted(self, asked: _Asked, fact: SessionChanged) -> Pieces:
        session = fact.session
        self._state.deleting.discard(session)
        present = [device for device, (is_present, _) in self._state.hold.members(session).items() if is_present]
        yield from self._state.applying(fact)
        for device in present:
            self._gone(device, session, asked.client.id, is_deleted=True, now=fact.changed_at)
        self._answer(asked, {"session": session})

    # -- coming and going --------------------------------------------------------------------------------------------

    def _join(self, asked: _Asked, joining: Joining, now: int) -> None:
        session, rights = joining.session, asked.link.rights
        if self._is_full(session, asked.client.id):
            reason = f"a session has at most {self._settings.devices} devices"
            self._refuse(asked, ReasonCode.QUOTA_EXCEEDED, reason)
        elif session not in rights and len(rights) >= self._settings.joined:
            reason = f"a device is in at most {self._settings.joined} sessions at once"
            self._refuse(asked, ReasonCode.QUOTA_EXCEEDED, reason)
        else:
            rights[session] = joining.rights
            self._entering.add((session, asked.client.id))
            fact = self._presence(asked.client.id, session, now, mode=joining.mode)
            self._commits.enter(fact, partial(self._joined, asked, joining, fact), is_owed=True)

    def _joined(self, asked: _Asked, joining: Joining, fact: PresenceChanged) -> Pieces:
        """Answer before what was held follows, in the order that it was accepted."""
        session = joining.session
        self._entering.discard((session, fact.device))
        asked.link.rights[session] = joining.rights  # it may have been put out while the disk was waited for
        commands = yield from self._state.applying_presence(fact)
        subscriptions = [subscription_tree(each) for each in self._state.hold.subscriptions(session)]
        self._answer(asked, {"session": session, "subscriptions": subscriptions})
        yield from self._state.performing(commands, fact.changed_at)
        asked.client.arrange()
        self._delivering.pump(asked.client, fact.changed_at)

    def _leave(self, asked: _Asked, joining: Joining, now: int) -> None:
        device = asked.request.device or asked.client.id
        if not self._state.hold.is_member(joining.session, device):
            is_own = device == asked.client.id  # who has nothing to do with the session learns nothing of it
            reason = NOT_ALLOWED if is_own else f"{device[:40]!r} is no device of this session"
            self._refuse(asked, ReasonCode.NOT_AUTHORIZED, reason)
        else:
            self._enter_leaving(device, joining.session, asked.client.id, asked, now)

    def _enter_leaving(self, device: str, session: str, by: str, asked: _Asked | None, now: int) -> None:
        fact = self._presence(device, session, now, mode=None)
        self._commits.enter(fact, partial(self._left, fact, by, asked), is_owed=True)

    def _left(self, fact: PresenceChanged, by: str, asked: _Asked | None) -> Pieces:
        session = fact.session or ""
        yield from self._state.applying(fact)
        self._gone(fact.device, session, by, is_deleted=False, now=fact.changed_at)
        if asked is not None:
            self._answer(asked, {"session": session})

    def _gone(self, device: str, session: str, by: str, *, is_deleted: bool, now: int) -> None:
        """Let a connection have no part in a session any more, and tell it if somebody else did that."""
        client = self._disown(device, session)
        if client is not None:
            if device != by:
                self._state.tell(client, put_out(session, by, is_deleted=is_deleted), now)
            self._delivering.pump(client, now)

    def _disown(self, device: str, session: str) -> Client | None:
        """Let a device have no rights in a session any more; return it if it is connected."""
        client = self._state.clients.get(device)
        if client is None or client.link is None:
            return None
        client.link.rights.pop(session, None)
        return client

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def _reading(self, asked: _Asked, now: int) -> Pieces:
        """Read a long filter of a subscription that is asked for, yielding after each step; then look at the request.

        Only what the work costs is judged before; rights may change meanwhile.
        """
        try:
            subscription = self._wanted(asked)
            self._interests.spend(asked.client, subscription, self._commits.now(now))
        except ProtocolError as error:
            self._refuse(asked, error.code, error.reason)
            return
        except InvalidValueError as error:
            self._refuse(asked, ReasonCode.PAYLOAD_FORMAT_INVALID, str(error))
            return
        read = yield from self._interests.reading(subscription)
        self._commits.then(partial(self._begin, asked._replace(read=read), now))

    def _wanted(self, asked: _Asked) -> Subscription:
        """Return the subscription that a request asks for, or raise ``ProtocolError`` or ``InvalidValueError``."""
        request = asked.request
        if request.topic.startswith(OWN_TOPICS):
            reason = f"{request.topic.split('/', 1)[0]} is told to devices, and no session holds it"
            raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)
        if request.filter is not None:
            check_filter(request.filter, self._interests.limits)
        options = Options(
            filter_text=request.filter,
            ttl_us=None if request.ttl is None else request.ttl * _SECOND_US,
            max_held=request.max,
            name=request.name,
            keys=for_subscription(request.keys),
            is_insecure=request.insecure,
            policy=request.policy,
        )
        wanted = SubscriptionRequest(request.topic, request.qos)
        return self._interests.asked_for(asked.link, wanted, options, request.session)

    def _subscribe(self, asked: _Asked, joining: Joining, now: int) -> None:
        try:
            subscription = self._wanted(asked)
            if asked.read is None:
                self._interests.spend(asked.client, subscription, self._commits.now(now))
            self._interests.check(asked.link, asked.client, subscription, joining.rights)
        except ProtocolError as error:
            self._refuse(asked, error.code, error.reason)
            return
        except InvalidValueError as error:
            self._refuse(asked, ReasonCode.PAYLOAD_FORMAT_INVALID, str(error))
            return
        is_here = joining.session in asked.link.rights  # else what is retained would come to somebody who is not
        handling = _RETAINED_TOO if is_here else _NOTHING_RETAINED
        self._interests.put(asked.link, asked.client, subscription, handling, self._commits.now(now), asked.read)
        told = {"session": joining.session, "subscription": subscription_tree(subscription)}
        self._commits.then(partial(self._answer, asked, told))

    def _unsubscribe(self, asked: _Asked, joining: Joining, now: int) -> None:
        request = asked.request
        try:
            identity = identity_of(request.topic, Options(name=request.name), self._interests.limits)
        except ProtocolError as error:
            self._refuse(asked, error.code, error.reason)
            return
        if self._interests.remove(asked.client, joining.session, identity, self._commits.now(now)):
            self._commits.then(partial(self._answer, asked, {"session": joining.session}))
        else:
            self._refuse(asked, ReasonCode.TOPIC_FILTER_INVALID, "there is no such subscription")

    def _set_keys(self, asked: _Asked) -> None:
        request, link = asked.request, asked.link
        try:
            link.keyring = link.keyring.without(read_keys(request.remove)) | read_keys(request.add)
        except InvalidValueError as error:
            self._refuse(asked, ReasonCode.PAYLOAD_FORMAT_INVALID, str(error))
        else:
            self._answer(asked, {})

    # -- operating ---------------------------------------------------------------------------------------------------

    def _release(self, asked: _Asked, now: int) -> None:
        """Let a private session have no owner, so that another user may have its client identifier."""
        client = self._state.clients.get(asked.request.client)
        if client is None:
            self._refuse(asked, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "no session has this client identifier")
            return
        fact = SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=client.session,
            change=SessionChange.ACCESS,
            device=asked.client.id,
        )
        self._commits.enter(fact, partial(self._released, asked, client, fact), is_owed=True)

    def _released(self, asked: _Asked, client: Client, fact: SessionChanged) -> None:
        owner = client.owner
        self._state.apply(fact)
        self._answer(asked, {"client": client.id, "owner": owner})
        if client.link is not None:
            self._sender.fail(client.link, ReasonCode.ADMINISTRATIVE_ACTION, "an operator released this session")

    # -- looking -----------------------------------------------------------------------------------------------------

    def _list(self, asked: _Asked) -> None:
        device, user, hold = asked.client.id, asked.link.user, self._state.hold
        found = [
            {
                "session": session,
                "joined": session in asked.link.rights,
                "devices": len(hold.members(session)),
                "subscriptions": len(hold.subscriptions(session)),
                "held": hold.pending_count(session),
            }
            for session in hold.sessions()
            if not is_private(session)
            and (hold.is_member(session, device) or (user is not None and _owner(hold.access(session)) == user))
        ]
        self._answer(asked, {"sessions": found[:_MOST_LISTED]})

    def _show(self, asked: _Asked, joining: Joining, now: int) -> None:
        del now
        session, hold = joining.session, self._state.hold
        devices = [
            {"device": device, "present": is_present, "receipt": (Mode.TAKE if takes else Mode.KEEP).value}
            for device, (is_present, takes) in hold.members(session).items()
        ]
        told = {
            "session": session,
            "subscriptions": [subscription_tree(each) for each in hold.subscriptions(session)],
            "devices": devices,
            "held": hold.pending_count(session),
        }
        self._answer(asked, told)

    # -- answering ---------------------------------------------------------------------------------------------------

    def _answer(self, asked: _Asked, members: Mapping[str, object]) -> None:
        if asked.is_here:
            self._acknowledge(asked, ReasonCode.SUCCESS, "")
            self._say(asked, {"ok": True, **members})

    def _refuse(self, asked: _Asked, code: ReasonCode, reason: str) -> None:
        if asked.is_here:
            self._acknowledge(asked, code, reason)
            self._say(asked, {"ok": False, "code": int(code), "reason": reason})

    def _say(self, asked: _Asked, members: Mapping[str, object]) -> None:
        """Send the answer to whoever asked, if they said where to."""
        link, properties, topic = asked.link, asked.packet.properties, ANSWERS
        onward = b""
        if link.machine.version == V5:
            wanted = properties.text(Property.RESPONSE_TOPIC)
            if not wanted:
                return
            topic, told = wanted, {Property.CONTENT_TYPE: "application/json"}
            correlation = properties.binary(Property.CORRELATION_DATA)
            onward = passed_on(
                Properties(told if correlation is None else {**told, Property.CORRELATION_DATA: correlation})
            )
        tree = {"request": asked.request.verb, "id": asked.request.id, **members}
        body = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        message = Message.live(topic, body, properties=onward)
        self._sender.live(link, message, (), self._commits.last_at, retain=False)

    def _acknowledge(self, asked: _Asked, code: ReasonCode, reason: str) -> None:
        """End the publication that the request came with; 3.1.1 has no words for a refusal."""
        link, client, packet = asked.link, asked.client, asked.packet
        if not packet.qos:
            return
        kind, identifier = (Puback if packet.qos == _AT_LEAST_ONCE else Pubrec), packet.packet_id
        is_v5 = link.machine.version == V5
        place = PacketType.PUBACK if packet.qos == _AT_LEAST_ONCE else PacketType.PUBREC
        if not is_v5:
            code = ReasonCode.SUCCESS
        elif code not in CODES_IN[place]:
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        client.receiving.discard(identifier)
        if packet.qos == _AT_LEAST_ONCE or code.is_error:
            link.machine.publication_ends()
        else:
            client.asked.add(identifier)
        told = Properties({Property.REASON_STRING: reason}) if is_v5 and reason else NO_PROPERTIES
        self._sender.say(link, kind(identifier, code, told))


def _hashed(salt: bytes, cost: Cost, words: dict[str, str]) -> str | InvalidValueError:
    """Return the access that passwords make, or why they make none; in any thread."""
    try:
        user, admin, owner = (words.get(level) for level in ("user", "admin", "owner"))
        return Passwords.create(salt=salt, user=user, admin=admin, owner=owner, cost=cost).to_text()
    except InvalidValueError as error:
        return error


@lru_cache(maxsize=65_536)  # whoever lists sessions asks of all there are
def _owner(access: str | None) -> str | None:
    found = None if access is None else read_access(access)
    return found.owner if isinstance(found, AccessControlList) else None
