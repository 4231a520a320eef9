"""The client: an application's connection to a broker, made again whenever it is lost.

Rule: what to send and what it means is decided in ``mqtt.client``; here are the socket, the clock and the waiting.
Rule: one task (``_run``) reads, and makes new connections. Whoever publishes or subscribes waits for a future that this
task resolves; nothing is locked.
Rule: while the queue of messages is full nothing is read, unless somebody waits for an answer of the broker: the answer
stands behind the messages, and an application that publishes while it handles a message would wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from whimbrel.client.backoff import Backoff
from whimbrel.client.errors import (
    CannotConnectError,
    ClientClosedError,
    ClientError,
    ConnectRefusedError,
    DismissedError,
    PublishLostError,
    PublishRefusedError,
    SubscriptionRefusedError,
    is_temporary,
)
from whimbrel.client.interest import Interest
from whimbrel.client.messages import Message, Payload, message_of, publication
from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.client import (
    Accepted,
    Answered,
    Arrived,
    ClientConnection,
    ClientLimits,
    ClientSession,
    Delivery,
    Dismissed,
    Event,
    Lost,
    Published,
    Refused,
    Terms,
)
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connect, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["Client"]

_T = TypeVar("_T")

_READ_BYTES = 65_536
_MAX_UNANSWERED = 1_024
"""Publications that wait for their answer at a time; further ones wait for their turn."""
_GOODBYE_S = 2.0
_FOR_EVER_S = 2**32 - 1


class _Link(NamedTuple):
    """A connection, and what carries its bytes."""

    connection: ClientConnection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    opened_at: float
    first_events: list[Event]
    """What came with CONNACK."""
    is_session_present: bool


class _BrokenLinkError(ClientError):
    """A connection ended; the client makes another, and nobody outside sees this."""


class _Answer(NamedTuple):
    """The last answer to a publication; *code* is None if the broker lost the session."""

    code: ReasonCode | None
    reason: str | None


class Client:
    """A client of an MQTT broker.

    >>> async def report() -> None:
    ...     async with Client("127.0.0.1", 1883, client_id="thermometer") as client:
    ...         await client.publish("ward/3/bed/4", {"temperature": 39.2}, qos=1)

    Entering connects, and raises ``CannotConnectError`` or ``ConnectRefusedError`` if that fails. A connection that is
    lost later is made again with *reconnect*'s waits (None: not at all), subscriptions are renewed if the broker has
    forgotten them, and calls that wait go on waiting; use ``asyncio.timeout`` to bound them. If the broker sends the
    client away for good, they and ``messages`` raise.

    *version* is 5, or 4 for MQTT 3.1.1. *session_expiry_s* is how long the broker keeps the session of a client that is
    away (5 only); *clean_start* forgets an earlier one, and is the default where no session is to be kept. *told* is
    called with a sentence whenever the connection is lost or made again.
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
        tls: ssl.SSLContext | None = None,
        limits: ClientLimits | None = None,
        queue_messages: int = 1_024,
        connect_timeout_s: float = 10.0,
        reconnect: Backoff | None = Backoff(),  # noqa: B008 # a frozen value
        rng: random.Random | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        if version not in {V311, V5}:
            raise InvalidValueError("version", version, f"{V5}, or {V311} for MQTT 3.1.1")
        if session_expiry_s and version != V5:
            raise InvalidValueError(
                "session_expiry_s", session_expiry_s, "none in MQTT 3.1.1; clean_start=False keeps a session"
            )
        if queue_messages < 1:
            raise InvalidValueError("queue_messages", queue_messages, "at least 1")
        self._host, self._port, self._tls = host, port, tls
        self._limits = limits or ClientLimits()
        self._queue_messages, self._connect_timeout_s, self._reconnect = queue_messages, connect_timeout_s, reconnect
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
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._failure: ClientError | None = None
        self._settled = asyncio.Event()
        """There is a link, or there never will be."""
        self._queue: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._in_hand: Delivery | None = None
        self._iterator: AsyncIterator[Message] = _Messages(self)
        self._publishing: dict[int, asyncio.Future[_Answer]] = {}
        self._asking: dict[int, asyncio.Future[Answered]] = {}
        self._turns = asyncio.Semaphore(_MAX_UNANSWERED)

    # -- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        link = await self._dial()
        self._adopt(link)
        self._task = asyncio.create_task(self._run(link), name="whimbrel client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._acknowledge()  # whoever leaves without an error has handled what it took
        await self.close()

    async def close(self) -> None:
        """Say goodbye to the broker and end; whoever waits for the client gets ``ClientClosedError``."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        link, self._link = self._link, None
        self._end(None)
        if link is not None:
            await self._leave(link)

    async def _leave(self, link: _Link) -> None:
        """Say DISCONNECT, and read until the broker closes: unread bytes could make the system drop what we said."""
        link.connection.disconnect()
        self._flush(link)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await link.writer.drain()
                while await link.reader.read(_READ_BYTES):
                    pass
        await _hang_up(link.writer)

    def _end(self, failure: ClientError | None) -> None:
        """Let nobody wait any longer."""
        if self._is_over:
            return
        self._is_over, self._failure = True, failure
        waiting: list[asyncio.Future[_Answer] | asyncio.Future[Answered]] = [*self._publishing.values()]
        waiting += self._asking.values()
        for future in waiting:
            if not future.done():
                future.set_exception(failure or ClientClosedError())
                future.exception()  # whoever waited may be gone, which is no mistake
        self._settled.set()
        self._arrived.set()

    @property
    def terms(self) -> Terms:
        """What was agreed with the broker, e.g. the client identifier it assigned."""
        if self._link is None:
            raise self._failure or ClientClosedError()
        return self._link.connection.terms

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
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
    ) -> ReasonCode:
        """Publish, and return the broker's code: success, or that nobody subscribes to it.

        At QoS 1 and 2 the call returns when the broker has accepted the publication. A call that is cancelled, as by a
        timeout, does not take it back. At QoS 0 it returns when the publication is on its way, which is no promise.
        """
        packet = publication(
            topic, payload, version=self._connect.version, qos=qos, retain=retain, expiry_s=expiry_s,
            content_type=content_type, response_topic=response_topic, correlation_data=correlation_data, user=user,
        )  # fmt: skip
        if not qos:
            link = await self._linked()
            code = link.connection.publish_once(packet)
            if code.is_error:
                raise PublishRefusedError(topic, code)
            await self._sent(link)
            return code
        async with self._turns:
            self._check_open()
            link_now = self._link
            future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
            if link_now is None:
                identifier, events = self._session.publish(packet), list[Event]()
            else:
                identifier, events = link_now.connection.publish(packet)
            self._publishing[identifier] = future
            self._room.set()
            self._perform(events)
            try:
                if link_now is not None:
                    await self._sent(link_now)
                code_or_none, reason = await future
            finally:
                if self._publishing.get(identifier) is future:
                    del self._publishing[identifier]
        if code_or_none is None:
            raise PublishLostError(topic)
        if code_or_none.is_error:
            raise PublishRefusedError(topic, code_or_none, reason)
        return code_or_none

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
    ) -> int:
        """Subscribe, and return the QoS that was granted.

        *filter* selects by content, e.g. ``temperature > 38.5``. While the client is away the broker keeps messages for
        it, at most *max* of them and each for *ttl_s*. Subscriptions of one topic filter differ by *name*. MQTT 3.1.1
        has *filter* only. A subscription that was granted is renewed whenever the broker has forgotten it.
        """
        interest = Interest(
            topic_filter=topic_filter, qos=qos, filter_text=filter, ttl_s=ttl_s, max_held=max, name=name,
            no_local=no_local, retain_as_published=retain_as_published, retain_handling=retain_handling,
            identifier=identifier,
        )  # fmt: skip
        version = self._connect.version
        interest.properties(version)  # raises what can be known before there is a connection
        while True:
            link = await self._linked()
            try:
                granted = await self._subscribed(link, interest)
            except _BrokenLinkError:
                continue
            self._interests[interest.key(version)] = interest
            return granted

    async def _subscribed(self, link: _Link, interest: Interest) -> int:
        version = self._connect.version
        identifier = link.connection.subscribe((interest.request(version),), interest.properties(version))
        answer = await self._answer(link, identifier)
        code = answer.codes[0]
        if code >= ReasonCode.UNSPECIFIED_ERROR:
            raise SubscriptionRefusedError(interest.topic_filter, code, answer.reason)
        return code

    async def unsubscribe(
        self,
        topic_filter: str,
        *,
        filter: str | None = None,  # noqa: A002
        name: str = "",
    ) -> bool:
        """Give up a subscription; tell whether there was one, as far as the version says so.

        In MQTT 5 it is known by topic filter and *name*, in 3.1.1 by topic filter and *filter*.
        """
        version = self._connect.version
        interest = Interest(topic_filter=topic_filter, filter_text=filter, name=name)
        self._interests.pop(interest.key(version), None)
        while True:
            link = await self._linked()
            identifier = link.connection.unsubscribe((interest.wire_filter(version),), interest.naming(version))
            try:
                answer = await self._answer(link, identifier)
            except _BrokenLinkError:
                continue
            code = answer.codes[0] if answer.codes else ReasonCode.SUCCESS
            if code >= ReasonCode.UNSPECIFIED_ERROR:
                raise SubscriptionRefusedError(topic_filter, code, answer.reason)
            return code == ReasonCode.SUCCESS

    async def _answer(self, link: _Link, identifier: int) -> Answered:
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._asking[identifier] = future
        self._room.set()
        try:
            await self._sent(link)
            return await future
        finally:
            if self._asking.get(identifier) is future:
                del self._asking[identifier]

    # -- messages ----------------------------------------------------------------------------------------------------

    def messages(self) -> AsyncIterator[Message]:
        """Iterate over the messages of all subscriptions, in the order in which they came.

        A QoS 1 or 2 message is acknowledged when the iteration asks for the next, or when ``async with`` is left
        without an error: then the application has handled it. If the application dies before, the broker delivers it
        again to a session that it keeps. The iteration ends when the client is closed. It is for one task at a time;
        one that was left can be taken up again.
        """
        return self._iterator

    async def _next(self) -> Message:
        self._acknowledge()
        while not self._queue or (self._is_over and self._failure is None):
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._in_hand = delivery = self._queue.popleft()
        self._room.set()
        return message_of(delivery.packet)

    def _acknowledge(self) -> None:
        delivery, self._in_hand = self._in_hand, None
        if delivery is None or delivery.inbound is None:
            return
        if self._link is None:
            self._session.handled(delivery)
        else:
            self._link.connection.acknowledge(delivery)
            self._flush(self._link)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_over or self._task is None:
            raise self._failure or ClientClosedError()

    async def _linked(self) -> _Link:
        """Return the connection; wait until there is one."""
        while True:
            self._check_open()
            if self._link is not None:
                return self._link
            await self._settled.wait()

    def _flush(self, link: _Link) -> None:
        data = link.connection.take(now=asyncio.get_running_loop().time())
        if data and not link.writer.is_closing():  # if it is, whoever reads will see
            link.writer.write(data)

    async def _sent(self, link: _Link) -> None:
        """Send, and wait while the broker reads too slowly. That a link is broken is seen by whoever reads it."""
        self._flush(link)
        with suppress(ConnectionError):
            await link.writer.drain()

    async def _dial(self) -> _Link:
        """Connect."""
        clock = asyncio.get_running_loop().time
        writer = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                connection = ClientConnection(self._session, self._connect, self._limits, now=clock())
                writer.write(connection.take(now=clock()))
                events: list[Event] = []
                while not events:
                    data = await reader.read(_READ_BYTES)
                    if not data:
                        raise self._unreachable("the connection was closed before CONNECT was answered")
                    events = connection.receive(data, now=clock())
                    if connection.failure is not None and not events:
                        raise self._unreachable(str(connection.failure))
            first, *events = events
            if isinstance(first, Refused):
                raise ConnectRefusedError(*first)
            assert isinstance(first, Accepted), "nothing else is taken for an answer"
            return _Link(connection, reader, writer, clock(), events, first.is_session_present)
        except BaseException as error:
            if writer is not None:
                writer.close()
            if isinstance(error, TimeoutError):
                raise self._unreachable(f"no answer in {self._connect_timeout_s:g} s") from error
            if isinstance(error, OSError):
                raise self._unreachable(_why(error)) from error
            raise

    def _unreachable(self, why: str) -> CannotConnectError:
        return CannotConnectError(self._host, self._port, why)

    def _adopt(self, link: _Link) -> None:
        self._link = link
        if self._connect.version == V5:
            # From now on the session is to go on. An identifier that was assigned is ours as long as it does.
            client_id = link.connection.terms.client_id
            self._connect = self._connect._replace(clean_start=False, client_id=client_id)
        self._settled.set()

    async def _run(self, link: _Link) -> None:
        """Read until the connection is lost, make another, and so on."""
        attempt, clock = 0, asyncio.get_running_loop().time
        try:
            while True:
                why = await self._serve(link)
                self._drop(link)
                if self._reconnect is None:
                    raise self._unreachable(why)
                if clock() - link.opened_at > self._reconnect.bound_s(attempt):
                    attempt = 0  # it was no broker that lets clients in only to throw them out
                link, attempt = await self._again(f"connection lost: {why}", attempt, self._reconnect)
        except ClientError as error:
            self._drop(link)
            self._end(error)

    async def _again(self, why: str, attempt: int, reconnect: Backoff) -> tuple[_Link, int]:
        while True:
            wait_s = reconnect.wait_s(attempt, self._rng)
            self._told(f"{why}; trying again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            attempt += 1
            try:
                link = await self._dial()
            except CannotConnectError as error:
                why = str(error)
                continue
            except ConnectRefusedError as error:
                if not is_temporary(error.code):
                    raise
                why = str(error)
                continue
            self._told("connected again")
            self._adopt(link)
            return link, attempt

    def _drop(self, link: _Link) -> None:
        """Take in that *link* is lost."""
        self._link = None
        if not self._is_over:
            self._settled.clear()
        link.writer.close()
        for future in self._asking.values():
            if not future.done():
                future.set_exception(_BrokenLinkError())
                future.exception()
        self._asking.clear()

    async def _serve(self, link: _Link) -> str:
        """Read and ping; return why the connection ended."""
        tasks = [asyncio.create_task(self._keep_alive(link))]
        renewing = None
        if not link.is_session_present and self._interests:
            renewing = asyncio.create_task(self._renew(link))
            tasks.append(renewing)
        try:
            why = await self._read(link)
            if renewing is not None and renewing.done() and not renewing.cancelled():
                renewing.result()  # a refusal for good is why
            return why
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self, link: _Link) -> str:
        connection, reader, clock = link.connection, link.reader, asyncio.get_running_loop().time
        events = link.first_events
        while True:
            self._flush(link)
            self._perform(events)
            if connection.failure is not None:
                return str(connection.failure)
            if events and isinstance(events[-1], Dismissed):
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
                data = await reader.read(_READ_BYTES)
            except OSError as error:
                return _why(error)
            if not data:
                return str(connection.failure or "closed by the broker")
            events = connection.receive(data, now=clock())

    def _is_full(self) -> bool:
        return len(self._queue) >= self._queue_messages and not self._publishing and not self._asking

    async def _keep_alive(self, link: _Link) -> None:
        connection, clock = link.connection, asyncio.get_running_loop().time
        while (ping_due_at := connection.ping_due_at) is not None:
            dead_at = connection.dead_at
            due_at = ping_due_at if dead_at is None else min(ping_due_at, dead_at)
            await asyncio.sleep(max(0.0, due_at - clock()))
            connection.timer(now=clock())
            self._flush(link)
            if connection.failure is not None:
                link.writer.transport.abort()  # whoever reads learns it from this

    async def _renew(self, link: _Link) -> None:
        """Subscribe again to everything, for the broker has forgotten it; if that fails, the link is given up."""
        try:
            for interest in list(self._interests.values()):
                await self._subscribed(link, interest)
        except SubscriptionRefusedError as error:
            link.writer.transport.abort()
            if not is_temporary(error.code):
                raise
            self._told(str(error))

    def _perform(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Arrived(delivery):
                    self._queue.append(delivery)
                    self._arrived.set()
                case Published(packet_id, code, reason):
                    _resolve(self._publishing, packet_id, _Answer(code, reason))
                case Lost(packet_id):
                    _resolve(self._publishing, packet_id, _Answer(None, None))
                case Answered(packet_id):
                    _resolve(self._asking, packet_id, event)
                case Accepted() | Refused() | Dismissed():
                    pass  # whoever dials or reads looks at them


def _resolve(waiting: dict[int, asyncio.Future[_T]], packet_id: int, answer: _T) -> None:
    future = waiting.pop(packet_id, None)
    if future is not None and not future.done():
        future.set_result(answer)


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()  # asyncio's own text is "Connect call failed"
    return error.strerror or str(error)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            await writer.wait_closed()


class _Messages(AsyncIterator[Message]):
    """The messages of a client; a generator could not be taken up again after a loop was left."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __anext__(self) -> Message:
        return await self._client._next()  # noqa: SLF001 # the two are one
