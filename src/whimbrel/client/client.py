"""The client: an application's connection to a broker, with automatic reconnect.

Rule: the protocol is in ``mqtt.client``; this module has the socket, the clock and the waiting.
Rule: one task (``_run``) reads, and makes new connections. A caller that publishes or subscribes waits for a future
that this task resolves; there are no locks.
Rule: while the queue of messages is full nothing is read, unless a caller waits for an answer of the broker: the answer
is behind the messages, and an application that publishes while it handles a message would wait for ever.
Rule: callers use a connection only after the client has rejoined all its named sessions.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import TracebackType
from typing import Self

from whimbrel.client.answers import Members, subscription_of
from whimbrel.client.backoff import Backoff
from whimbrel.client.changes import ChangeQueues
from whimbrel.client.device.policies import Policies, check_policy
from whimbrel.client.device.reporting import Reporting
from whimbrel.client.errors import (
    CannotConnectError,
    ClientClosedError,
    ClientError,
    ConnectRefusedError,
    DismissedError,
    MalformedAnswerError,
    PublishLostError,
    PublishRefusedError,
    RequestLostError,
    SessionRefusedError,
    SubscriptionRefusedError,
    is_temporary,
)
from whimbrel.client.inbox import Inbox
from whimbrel.client.interest import Interest, Places
from whimbrel.client.joining import PRIVATE, Join, Joins, checked_keys
from whimbrel.client.link import READ_BYTES, BrokenLinkError, Endpoint, Link, Tls, why
from whimbrel.client.messages import Message, Payload, payload_of, publication
from whimbrel.client.operating.clients import Clients
from whimbrel.client.outbox import Outbox
from whimbrel.client.requests import TOPICS, Request, Requests
from whimbrel.client.sessions import CHANGES, Sessions
from whimbrel.errors import InvalidValueError
from whimbrel.model.device import DeviceState
from whimbrel.mqtt.client import (
    Accepted,
    Arrived,
    ClientLimits,
    ClientSession,
    Delivery,
    Event,
    OutcomeUnknown,
    PublishCompleted,
    Refused,
    ServerDisconnected,
    ServerLimits,
    SubscribeAnswered,
)
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connect, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["Client"]

_FOR_EVER_S = 2**32 - 1
_REPORT = "$whimbrel/report"
_FIRST_WAITS = Backoff(first_s=0.1, most_s=0.5)
_NAMED = "a session keeps messages for its devices by name"
_ONCE = frozenset({"create", "delete", "access"})
"""Requests that must not be sent twice."""


class Client:
    """A client of an MQTT broker.

    >>> async def report() -> None:
    ...     async with Client("127.0.0.1", 1883, client_id="thermometer") as client:
    ...         await client.publish("ward/3/bed/4", {"temperature": 39.2}, qos=1)

    Entering connects, and raises ``CannotConnectError`` or ``ConnectRefusedError`` if that fails. After a lost
    connection the client reconnects with the waits of *reconnect* (None: not at all) and renews subscriptions that the
    broker has forgotten; waiting calls continue to wait, use ``asyncio.timeout`` to bound them. If the broker dismisses
    the client for good, waiting calls and ``messages`` raise.

    *version* is 5, or 4 for MQTT 3.1.1. *session_expiry_s* is the time for which the broker keeps the session of an
    absent client (5 only); *clean_start* discards an earlier session, and is the default without *session_expiry_s*.
    *told* is called with a sentence when the connection is lost or restored, or a background task was refused.

    *join* are named sessions, by ``Join`` or by name: every connection joins all of them before it is used, and the
    first is the home, the default session of ``subscribe``. *keys* are the keys of every connection. ``sessions`` has
    further operations. A client that joins needs a *client_id*: a session holds messages for its devices by name, and a
    device without a name could never fetch them.

    *tls* is a ``Tls``, or a context of your own. *first_retry_s* is the time for which entering retries if the broker
    cannot be reached yet, or is not ready.

    *policy* is the policy that decides about deliveries to this device (5 only); ``policies`` has further operations.
    *reports* are the settings of automatic reports; the default with a policy is the battery every 30 seconds.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 1883,
        *,
        client_id: str = "",
        version: int = V5,
        username: str | None = None,
        password: str | bytes | None = None,
        session_expiry_s: int = 0,
        clean_start: bool | None = None,
        keep_alive_s: int = 60,
        will: Will | None = None,
        tls: Tls | ssl.SSLContext | None = None,
        limits: ClientLimits | None = None,
        queue_messages: int = 1_024,
        connect_timeout_s: float = 10.0,
        first_retry_s: float = 0.0,
        reconnect: Backoff | None = Backoff(),  # noqa: B008 # a frozen value
        rng: random.Random | None = None,
        told: Callable[[str], None] | None = None,
        join: Sequence[Join | str] = (),
        keys: Sequence[str] = (),
        policy: str | None = None,
        reports: Reporting | None = None,
    ) -> None:
        if policy is not None and version != V5:
            raise InvalidValueError("policy", policy, "none in MQTT 3.1.1, where policies.choose() chooses one")
        if version not in {V311, V5}:
            raise InvalidValueError("version", version, f"{V5}, or {V311} for MQTT 3.1.1")
        if session_expiry_s and version != V5:
            raise InvalidValueError(
                "session_expiry_s", session_expiry_s, "none in MQTT 3.1.1; clean_start=False keeps a session"
            )
        if queue_messages < 1:
            raise InvalidValueError("queue_messages", queue_messages, "at least 1")
        if join and not client_id:
            raise InvalidValueError("client_id", client_id, "a name", f"Client(join=…) needs a client_id: {_NAMED}")
        self._dialling = Endpoint(
            host=host,
            port=port,
            tls=tls.context() if isinstance(tls, Tls) else tls,
            timeout_s=connect_timeout_s,
            server_name=tls.server_name if isinstance(tls, Tls) else None,
        )
        self._first_retry_s = first_retry_s
        self._limits = limits or ClientLimits()
        self._reconnect = reconnect
        self._rng = rng or random.Random()  # noqa: S311 # waits and identifiers, no secrets
        self._told = told or (lambda _: None)
        properties = NO_PROPERTIES
        if session_expiry_s:
            properties = Properties({Property.SESSION_EXPIRY_INTERVAL: min(session_expiry_s, _FOR_EVER_S)})
        self._connect = Connect(
            client_id=client_id,
            clean_start=not session_expiry_s if clean_start is None else clean_start,
            keep_alive_s=keep_alive_s,
            version=version,
            username=username,
            password=password.encode() if isinstance(password, str) else password,
            will=will,
            properties=properties,
        )
        self._session = ClientSession(version, first_id=self._rng.randrange(1, 65_536))
        self._interests: dict[tuple[str, str], Interest] = {}
        """Subscriptions of the private session; those of a named session belong to it, and others may change them."""
        self._places = Places()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._failure: ClientError | None = None
        self._settled = asyncio.Event()
        """Set when there is a link that has joined all sessions, or the client has ended."""
        self._has_entered = False
        self._room = asyncio.Event()
        self._inbox = Inbox(self._confirm, self._room.set, bound=queue_messages)
        self._received = self._reported = 0
        """Number of received messages, and number of them that were reported."""
        self._asking: dict[int, asyncio.Future[SubscribeAnswered]] = {}
        self._outbox = Outbox(self._session, self._perform)
        self._joins = Joins(join, keys)
        self._policy = None if policy is None else check_policy(policy)
        self._reporting = Reporting() if reports is None and policy is not None else reports
        self._requests = Requests(self._session)
        self._changes = ChangeQueues(self._hear_changes, self._room.set, bound=queue_messages)
        self.sessions = Sessions(self._joins, self._requests, self._ask, self._changes, lambda: self.terms.client_id)
        """The named sessions of the broker."""
        self.clients = Clients(self._ask)
        """The clients of the broker, for operators."""
        self.policies = Policies(partial(self.publish, qos=1), self._ask)
        """The policies of the broker."""

    # -- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        link = await self._first_dial()
        self._adopt(link)
        self._task = asyncio.create_task(self._run(link), name="whimbrel client")
        try:
            await self._await_link()
        except BaseException:
            await self.close()
            raise
        self._has_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._inbox.acknowledge()  # a block that ends without an error has handled its last message
        await self.close()

    async def close(self) -> None:
        """Send DISCONNECT and end; callers that wait for the client get ``ClientClosedError``."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        link, self._link = self._link, None
        self._end(None)
        if link is not None:
            await link.leave()

    def _end(self, failure: ClientError | None) -> None:
        """Record the end of the client, and wake all waiting callers."""
        if self._is_over:
            return
        self._is_over, self._failure = True, failure
        self._break_off(failure or ClientClosedError())
        self._outbox.end(failure or ClientClosedError())
        self._requests.end(failure or ClientClosedError())
        self._changes.end(failure)
        self._inbox.end(failure)
        self._settled.set()

    @property
    def terms(self) -> ServerLimits:
        """The limits and parameters agreed with the broker, e.g. the assigned client identifier."""
        if self._link is None:
            raise self._failure or self._closed_error()
        return self._link.connection.terms

    @property
    def is_connected(self) -> bool:
        """Whether the client has a connection now."""
        return self._link is not None

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        expiry_s: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        user: Sequence[tuple[str, str]] = (),
        keys: Sequence[str] = (),
        insecure: bool | None = None,
        place: str | None = None,
        radius_m: float | None = None,
        deadline_s: float | None = None,
    ) -> ReasonCode:
        """Publish, and return the broker's code: success, or that there are no subscribers.

        At QoS 1 and 2 the call returns when the broker has accepted the publication. Cancelling the call, as by a
        timeout, does not withdraw the publication. At QoS 0 it returns when the publication was passed to the socket,
        which does not guarantee delivery. *keys* are added to those of the connection; *insecure* allows delivery to
        subscriptions without matching keys (5 only).

        *place* is the place of publication, ``lat,lon`` in degrees; with *radius_m* only sessions within this distance
        of it receive the publication. A copy that is sent later than *deadline_s* is counted as late (5 only).
        """
        packet = publication(
            topic, payload, version=self._connect.version, qos=qos, retain=retain, expiry_s=expiry_s,
            content_type=content_type, response_topic=response_topic, correlation_data=correlation_data, user=user,
            keys=keys, insecure=insecure, place=place, radius_m=radius_m, deadline_s=deadline_s,
        )  # fmt: skip
        if not qos:
            link = await self._await_link()
            code = link.connection.publish_once(packet)
            if code.is_error:
                raise PublishRefusedError(topic, code)
            await link.flush_and_wait()
            return code
        return await self._outbox.publish(packet, self._link_now)

    async def report(
        self,
        *,
        battery: float | None = None,
        display: tuple[int, int] | None = None,
        place: str | None = None,
        members: Mapping[str, object] | None = None,
        qos: int = 1,
    ) -> ReasonCode:
        """Report to the broker the state of this device, and the number of messages received since its last report.

        *battery* is the charge, 0 to 1, *display* width and height in pixels, *place* ``lat,lon`` in degrees; None is
        unknown. A report of a place alone only moves the device: it is short, and has no number of received messages.
        *members* are other variables that a policy of this device reads. A report is a fact of the broker's log and is
        not published.
        """
        is_move = place is not None and battery is None and display is None and not members
        count = 0 if is_move else self._received - self._reported
        said: dict[str, object] = {**(members or {}), "battery": battery, "place": place}
        if not is_move:
            said["received"] = count
        if display is not None:
            said["display"] = {"width": display[0], "height": display[1]}
        body = payload_of({name: value for name, value in said.items() if value is not None})
        DeviceState.from_report(body, device="this", now=0)  # raises for a report that the broker would refuse
        self._reported += count
        try:
            return await self.publish(_REPORT, body, qos=qos)
        except (PublishRefusedError, PublishLostError):
            self._reported -= count
            raise

    async def _report_regularly(self, reporting: Reporting) -> None:
        """Report at the interval of *reporting* while the connection lasts; stop if the broker refuses a report."""
        while True:
            try:
                await self.report(
                    battery=reporting.battery(),
                    display=reporting.display,
                    place=reporting.place() if callable(reporting.place) else reporting.place,
                    members=reporting.members,
                )
            except PublishRefusedError as error:
                self._told(str(error))
                return
            except PublishLostError:
                pass
            await asyncio.sleep(reporting.every_s)

    def _link_now(self) -> Link | None:
        """Return the connection, or None, for a caller about to publish; reading resumes for its answer."""
        self._check_open()
        self._room.set()
        return self._link

    # -- subscribing -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topic_filter: str,
        qos: int = 1,
        *,
        filter: str | None = None,  # noqa: A002 # the word of the wire and of the command line
        ttl_s: int | None = None,
        max: int | None = None,  # noqa: A002
        name: str = "",
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
        session: str | None = None,
        keys: Sequence[str] = (),
        insecure: bool | None = None,
        policy: str | None = None,
        near: str | None = None,
        stale_s: float | None = None,
        since: str | int | None = None,
        modify: bool = False,
    ) -> int:
        """Subscribe, and return the granted QoS.

        *filter* selects by content, e.g. ``temperature > 38.5``. While the client is absent the broker holds messages
        for it, at most *max* of them and each for *ttl_s*. Subscriptions to one topic filter differ by *name*.
        *session* is a joined session, or empty for the client's private one; None: the home. *insecure* accepts
        messages without keys that match *keys* and those of the connection. *policy* is the policy that decides about
        deliveries for this subscription, if the device has chosen none.

        *near* is the area of the wanted messages: ``lat,lon,R`` in a circle of R metres, ``lat,lon;lat,lon;…`` in a
        polygon, ``R`` within R metres of the session, ``any`` also those for areas elsewhere. A place that a device of
        the session reported counts for *stale_s*, default 120 seconds.

        A named session's subscription with the same topic filter and name belongs to all its devices. If it has other
        options, the broker refuses (0x83), unless *modify* allows it to change.

        With *since* the broker first sends messages of its log: of a number of seconds, of a duration such as ``"15m"``
        or ``"7d"``, or those after a ``Message.id``. All copies then have their id, and after a lost connection the
        subscription continues behind the last received message, so that each comes once. Only in MQTT 5, and in the
        client's private session.

        MQTT 3.1.1 has *filter* and *near* only, except in a named session. In the private session the client renews a
        granted subscription whenever the broker has forgotten it; in a named session it belongs to the session.
        """
        interest = Interest(
            topic_filter=topic_filter, qos=qos, filter_text=filter, ttl_s=ttl_s, max_held=max, name=name,
            no_local=no_local, retain_as_published=retain_as_published, retain_handling=retain_handling,
            identifier=identifier, session=self._joins.session_for(topic_filter, session), keys=checked_keys(keys),
            insecure=insecure, policy=None if policy is None else check_policy(policy),
            near=near, stale_s=stale_s, since=None if since is None else str(since), modifies=modify,
        )  # fmt: skip
        interest = self._places.begin(interest, self._interests.values())
        version = self._connect.version
        if self._is_by_request(interest):
            return _read_granted_qos(await self._ask_about(interest, "subscribe", interest.members()))
        interest.properties(version)  # raises for options that are invalid without asking the broker
        while True:
            link = await self._await_link()
            try:
                granted = await self._send_subscribe(link, interest)
            except BrokenLinkError:
                continue
            except SubscriptionRefusedError:
                self._places.end(interest)
                raise
            if interest.session == PRIVATE:
                self._interests[interest.key(version)] = interest
            return granted

    async def _send_subscribe(self, link: Link, interest: Interest) -> int:
        version, interest = self._connect.version, self._places.resume(interest)
        properties = interest.properties(version, home=link.home)
        identifier = link.connection.subscribe((interest.request(version),), properties)
        answer = await self._answer(link, identifier)
        code = answer.codes[0]
        if code >= ReasonCode.UNSPECIFIED_ERROR:
            raise SubscriptionRefusedError(interest.topic_filter, code, answer.reason)
        if interest.since is not None and answer.reason:
            self._told(answer.reason)  # the log does not reach back far enough
        return code

    async def unsubscribe(
        self,
        topic_filter: str,
        *,
        filter: str | None = None,  # noqa: A002
        name: str = "",
        session: str | None = None,
    ) -> bool:
        """Remove a subscription; return whether it existed (always true in MQTT 3.1.1, which cannot tell).

        It is identified by topic filter and *name*; in the private session of MQTT 3.1.1, by topic filter and *filter*.
        *session* is as in ``subscribe``; in a named session the subscription is removed for all members.
        """
        version = self._connect.version
        where = self._joins.session_for(topic_filter, session)
        interest = Interest(topic_filter=topic_filter, filter_text=filter, name=name, session=where)
        if self._is_by_request(interest):
            await self._ask_about(interest, "unsubscribe", interest.naming_members())
            return True
        if where == PRIVATE:
            self._places.end(self._interests.pop(interest.key(version), None))
        while True:
            link = await self._await_link()
            properties = interest.naming(version, home=link.home)
            identifier = link.connection.unsubscribe((interest.wire_filter(version),), properties)
            try:
                answer = await self._answer(link, identifier)
            except BrokenLinkError:
                continue
            code = answer.codes[0] if answer.codes else ReasonCode.SUCCESS
            if code >= ReasonCode.UNSPECIFIED_ERROR:
                raise SubscriptionRefusedError(topic_filter, code, answer.reason)
            return code == ReasonCode.SUCCESS

    def _is_by_request(self, interest: Interest) -> bool:
        """Return whether *interest* needs a request: SUBSCRIBE of 3.1.1 cannot name a session."""
        return interest.session != PRIVATE and self._connect.version != V5

    async def _ask_about(self, interest: Interest, verb: str, members: Members) -> Members:
        try:
            return await self._ask(Request(verb, interest.session, {"session": interest.session, **members}))
        except SessionRefusedError as error:
            raise SubscriptionRefusedError(interest.topic_filter, error.code, error.reason) from error

    async def _hear_changes(self) -> None:
        await self.subscribe(CHANGES, 0)

    async def _ask(self, request: Request) -> Members:
        """Make a request; retry after a lost connection, unless it must not be done twice."""
        while True:
            link = await self._await_link()
            self._room.set()
            try:
                return await self._requests.ask(link, request, self._perform)
            except BrokenLinkError:
                if request.verb in _ONCE:
                    raise RequestLostError(request.session, request.verb) from None

    async def _answer(self, link: Link, identifier: int) -> SubscribeAnswered:
        future: asyncio.Future[SubscribeAnswered] = asyncio.get_running_loop().create_future()
        self._asking[identifier] = future
        self._room.set()
        try:
            await link.flush_and_wait()
            return await future
        finally:
            if self._asking.get(identifier) is future:
                del self._asking[identifier]

    # -- messages ----------------------------------------------------------------------------------------------------

    def messages(self) -> AsyncIterator[Message]:
        """Iterate over the messages of all subscriptions, in the order of arrival.

        A QoS 1 or 2 message is acknowledged when the iteration requests the next, or when ``async with`` ends without
        an error: then the application has handled it. If the application dies before, the broker delivers it again to a
        session that it keeps. The iteration ends when the client is closed. It is for one task at a time; after a loop
        was left, another can continue it.
        """
        if self._task is None and not self._is_over:
            raise self._closed_error()  # nothing would ever come
        return self._inbox

    def _confirm(self, delivery: Delivery) -> None:
        """Acknowledge *delivery*, which the application has handled."""
        if self._link is None:
            self._session.mark_handled(delivery)
        else:
            self._link.connection.acknowledge(delivery)
            self._link.flush()

    # -- the connection ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_over or self._task is None:
            raise self._failure or self._closed_error()

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(is_new=self._task is None and not self._is_over)

    async def _await_link(self) -> Link:
        """Return the connection; wait until there is one that has joined all sessions."""
        while True:
            self._check_open()
            if self._link is not None and self._settled.is_set():
                return self._link
            await self._settled.wait()

    async def _first_dial(self) -> Link:
        """Connect for the first time; retry temporary failures for *first_retry_s*."""
        clock, attempt = asyncio.get_running_loop().time, 0
        until = clock() + self._first_retry_s
        while True:
            try:
                return await self._dial()
            except (CannotConnectError, ConnectRefusedError) as error:
                wait_s = _FIRST_WAITS.wait_s(attempt, self._rng)
                is_final = isinstance(error, ConnectRefusedError) and not is_temporary(error.code)
                if is_final or clock() + wait_s > until:
                    raise
            await asyncio.sleep(wait_s)
            attempt += 1

    async def _dial(self) -> Link:
        """Connect, with the sessions, keys and policy of the client in CONNECT."""
        version = self._connect.version
        connect, given = self._connect, self._joins.in_connect(version)
        if self._policy is not None:
            given = (*given, ("policy", self._policy))
        if given:
            connect = connect._replace(properties=Properties(dict(connect.properties.once()), user=given))
        home = self._joins.home_of_connection(version)
        return await self._dialling.dial(self._session, connect, self._limits, home=home)

    def _adopt(self, link: Link) -> None:
        self._link = link
        if self._connect.version == V5:
            # Later connections resume the session. An assigned identifier is ours as long as the session lasts.
            client_id = link.connection.terms.client_id
            self._connect = self._connect._replace(clean_start=False, client_id=client_id)

    async def _run(self, link: Link) -> None:
        """Read from the broker; reconnect with back-off whenever the connection is lost."""
        attempt, clock = 0, asyncio.get_running_loop().time
        try:
            while True:
                reason = await self._serve(link)
                self._drop(link)
                if self._reconnect is None:
                    raise self._dialling.unreachable(reason)
                if clock() - link.opened_at > self._reconnect.bound_s(attempt):
                    attempt = 0  # the connection lasted: this broker does not accept clients only to drop them
                link, attempt = await self._again(f"connection lost: {reason}", attempt, self._reconnect)
        except ClientError as error:
            self._drop(link)
            self._end(error)
        except Exception:  # a defect, ours or in *told*: no caller may wait for a failed client
            self._drop(link)
            self._end(None)
            raise

    async def _again(self, reason: str, attempt: int, reconnect: Backoff) -> tuple[Link, int]:
        while True:
            wait_s = reconnect.wait_s(attempt, self._rng)
            self._told(f"{reason}; trying again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            attempt += 1
            try:
                link = await self._dial()
            except CannotConnectError as error:
                reason = str(error)
                continue
            except ConnectRefusedError as error:
                if not is_temporary(error.code):
                    raise
                reason = str(error)
                continue
            self._told("connected again")
            self._adopt(link)
            return link, attempt

    def _drop(self, link: Link) -> None:
        """Clean up after the loss of *link*: close it, and wake the callers that wait for an answer on it."""
        self._link = None
        if not self._is_over:
            self._settled.clear()
        link.writer.close()
        self._break_off(BrokenLinkError())
        self._requests.withdraw_all()

    def _break_off(self, error: ClientError) -> None:
        """Wake with *error* the callers that wait for an answer to SUBSCRIBE or UNSUBSCRIBE."""
        for future in self._asking.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved, so that asyncio logs nothing if the caller is gone
        self._asking.clear()

    async def _serve(self, link: Link) -> str:
        """Read, ping, report and renew until the connection ends; return the reason."""
        answers = self._requests.ask_first(link, starmap(Request, self._joins.by_request(self._connect.version)))
        tasks = [asyncio.create_task(self._keep_alive(link))]
        if self._reporting is not None:
            tasks.append(asyncio.create_task(self._report_regularly(self._reporting)))
        renewing = None
        if not answers:
            self._settled.set()
        if answers or self._to_renew(link):
            renewing = asyncio.create_task(self._renew(link, answers))
            tasks.append(renewing)
        try:
            reason = await self._read(link)
            if renewing is not None and renewing.done() and not renewing.cancelled():
                renewing.result()  # raises if the cause was a permanent refusal
            return reason
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self, link: Link) -> str:
        connection, reader, clock = link.connection, link.reader, asyncio.get_running_loop().time
        events = link.first_events
        while True:
            link.flush()
            self._perform(events)
            if connection.failure is not None:
                return str(connection.failure)
            if events and isinstance(events[-1], ServerDisconnected):
                dismissed = DismissedError(*events[-1])
                if not is_temporary(dismissed.code):
                    raise dismissed
                return str(dismissed)
            if self._is_full():
                connection.stop_listening()
                while self._is_full():
                    self._room.clear()
                    await self._room.wait()
                connection.listen(now=clock())
            try:
                data = await reader.read(READ_BYTES)
            except OSError as error:
                return why(error)
            if not data:
                return str(connection.failure or "closed by the broker")
            events = connection.receive(data, now=clock())

    def _is_full(self) -> bool:
        is_awaited = self._outbox.is_waiting or self._asking or self._requests.is_waiting
        return (self._inbox.is_full or self._changes.is_full) and not is_awaited

    async def _keep_alive(self, link: Link) -> None:
        connection, clock = link.connection, asyncio.get_running_loop().time
        while (ping_due_at := connection.ping_due_at) is not None:
            dead_at = connection.dead_at
            due_at = ping_due_at if dead_at is None else min(ping_due_at, dead_at)
            await asyncio.sleep(max(0.0, due_at - clock()))
            connection.timer(now=clock())
            link.flush()
            if connection.failure is not None:
                link.abort()

    def _to_renew(self, link: Link) -> list[Interest]:
        """Return the subscriptions to renew on a new connection: all if the session was lost, else with ``since``."""
        found = self._interests.values()
        return [each for each in found if not link.is_session_present or each.since is not None]

    async def _renew(self, link: Link, answers: Sequence[asyncio.Future[Members]]) -> None:
        """Wait until all sessions are joined, then renew subscriptions; abort the link if that fails."""
        timeout_s = self._dialling.timeout_s
        try:
            async with asyncio.timeout(timeout_s if answers else None):
                for answer in answers:
                    await answer
            link.release()
            self._settled.set()
            for interest in self._to_renew(link):
                await self._send_subscribe(link, interest)
        except TimeoutError:
            link.abort()
            silence = self._dialling.unreachable(f"no answer to the request to join in {timeout_s:g} s")
            if not self._has_entered:
                raise silence from None
            self._told(str(silence))
        except (SubscriptionRefusedError, SessionRefusedError) as error:
            link.abort()
            if not (is_temporary(error.code) and self._has_entered):
                raise
            self._told(str(error))

    def _perform(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Arrived(delivery):
                    self._received += 1
                    self._places.record_arrival(delivery.packet)
                    if delivery.packet.topic.startswith(TOPICS):
                        self._hear(delivery)
                    else:
                        self._inbox.put(delivery)
                case PublishCompleted(packet_id, code, reason):
                    self._outbox.on_answer(packet_id, code, reason)
                    self._requests.on_acknowledgement(packet_id, code, reason)
                case OutcomeUnknown(packet_id):
                    self._outbox.on_answer(packet_id, None)
                case SubscribeAnswered(packet_id):
                    future = self._asking.pop(packet_id, None)
                    if future is not None and not future.done():
                        future.set_result(event)
                case Accepted() | Refused() | ServerDisconnected():
                    pass  # handled by the task that dials or reads

    def _hear(self, delivery: Delivery) -> None:
        """Handle a publication about sessions, which is not for the application's queue."""
        self._confirm(delivery)
        try:
            self.sessions.on_message(delivery.packet)
        except MalformedAnswerError as error:
            self._told(str(error))


def _read_granted_qos(answer: Members) -> int:
    """Return the granted QoS in the answer to a request to subscribe."""
    return subscription_of(answer.get("subscription")).qos or 0
