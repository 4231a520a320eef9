"""Requests: what a client asks of a broker about named sessions, and the answers it waits for.

Rule: request and answer find each other by the member ``id``, in both versions of MQTT.
Rule: a request belongs to the link it was sent on. If the link is lost it is withdrawn, or the MQTT session would send
it again: whether it may be made twice is for the caller to say.
Rule: a request is a secret, for it may have a password: it stands in no error.
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
"""What topics of requests and of all that is told about sessions begin with."""
ANSWERS = f"{TOPICS}answer"
"""Where answers come to: the topic of 3.1.1, and the response topic that we give in version 5."""
_MAX_BYTES = 65_536
_GRACE_S = 1.0
"""How long an answer may come behind the acknowledgement of a request that was refused."""


class Request(NamedTuple):
    """Something to be asked; *session* is what a refusal speaks of."""

    verb: str
    session: str
    members: Members
    topic: str | None = None
    """Where it is published to; None: the topic of requests about sessions, with the verb."""


class _Waiting(NamedTuple):
    """A caller that waits for an answer."""

    session: str
    future: asyncio.Future[Members]


class Requests:
    """The requests of one client that have no answer yet."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._packets: dict[int, int] = {}
        """The number of the request, by the identifier of a packet that is not acknowledged."""

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._waiting)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, link: Link, request: Request, perform: Callable[[list[Event]], None]) -> Members:
        """Ask on *link*, and return the answer; a refusal is a ``SessionRefusedError``."""
        number = next(self._numbers)
        packet = self._packet(number, request, qos=1)
        future = self._wait(number, request.session)
        identifier, events = link.connection.publish(packet)
        self._packets[identifier] = number
        perform(events)
        try:
            await link.sent()
            return await future
        finally:
            self._waiting.pop(number, None)

    def ask_first(self, link: Link, requests: Iterable[Request]) -> list[asyncio.Future[Members]]:
        """Ask before anything else is sent on *link*, even what the session sends again; return the answers to come.

        A publication that is sent again must not overtake the keys that protect it. The receiver of the answers
        releases the link.
        """
        futures: list[asyncio.Future[Members]] = []
        for request in requests:
            number = next(self._numbers)
            packet = self._packet(number, request, qos=0)  # it would wait for its turn at QoS 1
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

    def answered(self, payload: bytes) -> None:
        """Take in an answer."""
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

    def acknowledged(self, packet_id: int, code: ReasonCode, reason: str | None) -> None:
        """Take in that a packet is acknowledged; one that was refused is perhaps not answered otherwise."""
        number = self._packets.pop(packet_id, None)
        if number is not None and code.is_error:
            # The answer says more than the acknowledgement, and comes behind it; not every broker has one.
            asyncio.get_running_loop().call_later(_GRACE_S, self._refuse, number, code, reason)

    def _refuse(self, number: int, code: ReasonCode, reason: str | None) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            _fail(waiting, SessionRefusedError(waiting.session, code, reason))

    def lost(self) -> None:
        """Take in that the link is lost."""
        for packet_id in self._packets:
            self._session.outbound.pop(packet_id, None)
        self._packets.clear()
        self.end(BrokenLinkError())

    def end(self, failure: Exception) -> None:
        """Wake all callers that wait."""
        for waiting in self._waiting.values():
            _fail(waiting, failure)
        self._waiting.clear()


def _fail(waiting: _Waiting, failure: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(failure)
        waiting.future.exception()  # the caller may be gone, which is no mistake
