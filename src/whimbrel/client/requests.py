"""Requests of a client to a broker, by publications (named sessions, policies, clients), and their answers.

Rule: the member ``id`` correlates request and answer, in both versions of MQTT.
Rule: a request belongs to the link on which it was sent. If the link is lost it is withdrawn, since the MQTT session
would send it again: the caller decides whether it may be made twice.
Rule: a request is a secret, since it may have a password: it never appears in an error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

from whimbrel.client.answers import Members, members_of
from whimbrel.client.errors import MalformedAnswerError, SessionRefusedError
from whimbrel.client.link import BrokenLinkError, Link
from whimbrel.client.messages import publication
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.mqtt.client import ClientSession, Event
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Publish

__all__ = ["ANSWERS", "TOPICS", "Request", "Requests"]

TOPICS = "$whimbrel/session/"
"""Topic prefix of requests about sessions, of their answers and of notices of changes."""
ANSWERS = f"{TOPICS}answer"
"""Topic of answers: fixed in 3.1.1, and our response topic in version 5."""
_MAX_BYTES = 65_536
_GRACE_S = 1.0
"""Seconds to wait for the answer after the negative acknowledgement of a request."""


class Request(NamedTuple):
    """A request; *session* is the session that a ``SessionRefusedError`` names."""

    verb: str
    session: str
    members: Members
    topic: str | None = None
    """Topic to publish to; None: the topic of requests about sessions, with the verb."""


class _Waiting(NamedTuple):
    """A caller that waits for an answer, as a future."""

    session: str
    future: asyncio.Future[Members]


class Requests:
    """The unanswered requests of one client."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._packets: dict[int, int] = {}
        """Numbers of the requests by the packet identifier of their unacknowledged publication."""

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._waiting)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, link: Link, request: Request, perform: Callable[[list[Event]], None]) -> Members:
        """Send a request on *link* and return the answer; a refusal raises ``SessionRefusedError``."""
        number = next(self._numbers)
        packet = self._packet(number, request, qos=1)
        future = self._wait(number, request.session)
        identifier, events = link.connection.publish(packet)
        self._packets[identifier] = number
        perform(events)
        try:
            await link.flush_and_wait()
            return await future
        finally:
            self._waiting.pop(number, None)

    def ask_first(self, link: Link, requests: Iterable[Request]) -> list[asyncio.Future[Members]]:
        """Send requests before anything else on *link*, even before retransmissions; return futures of the answers.

        A retransmitted publication must not overtake the keys that protect it. The caller releases the link after the
        answers.
        """
        futures: list[asyncio.Future[Members]] = []
        for request in requests:
            number = next(self._numbers)
            packet = self._packet(number, request, qos=0)  # QoS 1 would have to wait for the receive maximum
            futures.append(self._wait(number, request.session))
            link.say_first(encode(packet, self._session.version))
        return futures

    def _wait(self, number: int, session: str) -> asyncio.Future[Members]:
        future: asyncio.Future[Members] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Waiting(session, future)
        return future

    def _packet(self, number: int, request: Request, *, qos: int) -> Publish:
        version = self._session.version
        try:
            body = json.dumps({"id": number, **request.members}, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError):
            raise InvalidValueError(
                request.verb, Phrase("a value that JSON does not have"), "text, numbers, lists and objects"
            ) from None
        if len(body) > _MAX_BYTES:
            raise InvalidValueError(request.verb, Phrase(f"{len(body)} bytes"), f"at most {_MAX_BYTES} bytes of JSON")
        response_topic = ANSWERS if version == V5 else None
        topic = TOPICS + request.verb if request.topic is None else request.topic
        return publication(topic, body, version=version, qos=qos, response_topic=response_topic)

    # -- being answered ----------------------------------------------------------------------------------------------

    def on_answer(self, payload: bytes) -> None:
        """Pass an answer to the caller that waits for it."""
        members = members_of(payload)
        number = members.get("id")
        waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
        if waiting is None or waiting.future.done():
            return  # the caller has gone
        match members:
            case {"ok": True}:
                waiting.future.set_result(members)
            case {"ok": False, "code": int() as code, **rest}:
                reason = rest.get("reason")
                refusal = SessionRefusedError(waiting.session, code, reason if isinstance(reason, str) else None)
                _fail(waiting, refusal)
            case _:
                _fail(waiting, MalformedAnswerError("ok", "true, or false with a code"))

    def on_acknowledgement(self, packet_id: int, code: ReasonCode, reason: str | None) -> None:
        """Handle the acknowledgement of a packet; after a refusal, fail the request without an answer."""
        number = self._packets.pop(packet_id, None)
        if number is not None and code.is_error:
            # The answer has more details than the acknowledgement, and comes after it; not every broker sends one.
            asyncio.get_running_loop().call_later(_GRACE_S, self._refuse, number, code, reason)

    def _refuse(self, number: int, code: ReasonCode, reason: str | None) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            _fail(waiting, SessionRefusedError(waiting.session, code, reason))

    def withdraw_all(self) -> None:
        """Withdraw all requests after the link was lost, and wake their callers."""
        for packet_id in self._packets:
            self._session.outbound.pop(packet_id, None)
        self._packets.clear()
        self.end(BrokenLinkError())

    def end(self, failure: Exception) -> None:
        """Wake all waiting callers with *failure*."""
        for waiting in self._waiting.values():
            _fail(waiting, failure)
        self._waiting.clear()


def _fail(waiting: _Waiting, failure: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(failure)
        waiting.future.exception()  # retrieved, so that asyncio logs nothing if the caller is gone
