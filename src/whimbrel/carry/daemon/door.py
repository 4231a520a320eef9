"""The door of a node: the Unix socket for requests of applications on this machine (``carry.application``).

Rule: at most ``_MAX_WAITING`` samples are queued for a slow application; then the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.daemon.journal import address_name, sample_name
from whimbrel.carry.daemon.request_socket import RequestSocket
from whimbrel.carry.hello import Sample
from whimbrel.errors import InvalidValueError, description_of
from whimbrel.model.bounds import real
from whimbrel.model.clock import microseconds

__all__ = ["Door"]

_MAX_WAITING = 256
_MAX_TTL_S = 10 * 365 * 86_400


class Door(RequestSocket):
    """Answers the requests of applications to *daemon*; *status* returns the status of the node."""

    def __init__(self, folder: Path, daemon: CampusDaemon, status: Callable[[], Mapping[str, object]]) -> None:
        super().__init__(folder)
        self._daemon, self._status = daemon, status

    async def act(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """Perform the request of an application; return the members of the answer."""
        participant = self._daemon.participant
        match request.get("do"):
            case "topics":
                plans = {topic: participant.topics.plan_of(topic) for topic, _ in participant.topics.all}
                listed = [
                    {
                        "id": topic,
                        "name": name,
                        "subscribers": None if (plan := plans[topic]) is None else plan.subscribers,
                        "copies": None if plan is None else plan.copies,
                    }
                    for topic, name in participant.topics.all
                ]
                return {"topics": listed}
            case "mine":
                return {"topics": participant.subscriptions}
            case "publish":
                return await self._publish(request)
            case "subscribe":
                await self._daemon.subscribe(_text(request, "topic"))
            case "unsubscribe":
                await self._daemon.unsubscribe(_text(request, "topic"))
            case "follow":
                for topic in _read_followed(request) or []:
                    await self._daemon.subscribe(topic)
            case "status":
                return {"status": dict(self._status())}
            case other:
                allowed = "topics, mine, publish, subscribe, unsubscribe, follow or status"
                raise InvalidValueError("do", other, allowed)
        return {}

    async def _publish(self, request: Mapping[str, object]) -> Mapping[str, object]:
        try:
            body = base64.b64decode(_text(request, "body"), validate=True)
        except binascii.Error:
            raise InvalidValueError("body", request.get("body"), "base64") from None
        ttl = request.get("ttl_s")
        ttl_us = None if ttl is None else microseconds(real("ttl_s", ttl, 0.001, _MAX_TTL_S))
        sample = await self._daemon.publish(_text(request, "topic"), body, ttl_us=ttl_us)
        participant = self._daemon.participant
        plan = participant.topics.plan_of(sample.topic)
        return {
            "sample": self._describe(sample),
            "copies": participant.copies_of(sample.topic),
            "subscribers": None if plan is None else plan.subscribers,
        }

    async def follow(
        self, request: Mapping[str, object], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send each sample of the topics in *request*, until the application closes the connection."""
        topics = _read_followed(request)
        if topics is None:
            return False
        names = self._daemon.participant.topics
        queue: asyncio.Queue[Sample] = asyncio.Queue()

        def listen(sample: Sample) -> None:
            if names.name_of(sample.topic) in topics:
                if queue.qsize() >= _MAX_WAITING:
                    queue.get_nowait()
                    self._daemon.participant.counts["samples dropped at the door"] += 1
                queue.put_nowait(sample)

        for topic in topics:
            known = self._daemon.participant.carrier.retrieved(names.id_of(topic))
            if known is not None:
                queue.put_nowait(known)
        self._daemon.listeners.append(listen)
        ended = asyncio.ensure_future(reader.read(1))
        try:
            while not ended.done():
                waiting = asyncio.ensure_future(queue.get())
                await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    writer.write(json.dumps(self._describe(waiting.result()), ensure_ascii=False).encode() + b"\n")
                    await writer.drain()
                waiting.cancel()
        finally:
            ended.cancel()
            self._daemon.listeners.remove(listen)
        return True

    def _describe(self, sample: Sample) -> dict[str, object]:
        return {
            "topic": self._daemon.participant.topics.name_of(sample.topic),
            "id": sample_name(sample.id),
            "published_at": sample.published_at,
            "publisher": address_name(sample.publisher),
            "body": base64.b64encode(sample.body).decode(),
            "expires_at": sample.expires_at,
            "is_unsynchronised": sample.is_unsynchronised,
        }


def _text(request: Mapping[str, object], name: str) -> str:
    found = request.get(name)
    if not isinstance(found, str):
        raise InvalidValueError(name, description_of(found), "text")
    return found


def _read_followed(request: Mapping[str, object]) -> list[str] | None:
    if request.get("do") != "follow":
        return None
    found = request.get("topics")
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidValueError("topics", description_of(found), "a list of names")
    return found
