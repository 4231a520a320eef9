"""The Python interface of applications to a node on this machine (the paper's figure 3a).

An application lists the topics of the system and its own, publishes, and subscribes. The node listens on a Unix socket
in its data folder. A request is one line of JSON, ``{"do": "publish", …}``, and so is the answer, ``{"ok": true, …}``.
After a request ``follow`` the node writes one line per sample.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whimbrel.errors import InvalidInputError, InvalidValueError, WhimbrelError
from whimbrel.multicast.socket_paths import short_path

__all__ = ["DOOR", "MAX_LINE_BYTES", "Campus", "CampusRequestError", "CampusSample", "NoNodeError", "Topic"]

DOOR = "campus.sock"
"""File name of the socket in a data folder."""
MAX_LINE_BYTES = 1 << 20
_MAX_FOLLOWED = 64


class NoNodeError(WhimbrelError):
    """No node answers. Reaction: start one, or name the folder of one that runs."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"no campus node answers in {self.folder}: {self.reason}; --data names the data folder of one that runs"


class CampusRequestError(InvalidInputError):
    """A node refused a request. Reaction: change the request."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of the system; *subscribers* and *copies* (L) are None until control data from a way-server has them."""

    id: int
    name: str
    subscribers: int | None = None
    copies: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampusSample:
    """A sample as the application gets it."""

    topic: str
    id: str
    """``<time of publication>.<address of the publisher>``; the same on every node and on the broker."""
    published_at: int
    """Microseconds UTC by the clock of the campus."""
    publisher: str
    body: bytes
    expires_at: int | None = None
    is_unsynchronised: bool = False
    copies: int | None = field(default=None, compare=False)
    """Copies on all nodes together (L), of a sample that ``publish`` returned; one stays at the publisher."""
    subscribers: int | None = field(default=None, compare=False)
    """Subscribers in the plan that *copies* comes from; None: there is no plan, and it is a setting of the node."""

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode(errors="replace")


class Campus:
    """Connection to the node whose data folder is *folder*; use it in an ``async with`` block."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None

    async def topics(self) -> list[Topic]:
        """Return the topics of the system."""
        answer = await self._ask({"do": "topics"})
        return [Topic(**each) for each in answer["topics"]]

    async def mine(self) -> list[str]:
        """Return the topics to which this node subscribes."""
        return list((await self._ask({"do": "mine"}))["topics"])

    async def publish(self, topic: str, body: bytes | str, *, ttl_s: float | None = None) -> CampusSample:
        """Publish *body* on *topic*; it expires after *ttl_s*. The sample is on the disk when the call returns."""
        data = body.encode() if isinstance(body, str) else body
        request = {"do": "publish", "topic": topic, "body": base64.b64encode(data).decode(), "ttl_s": ttl_s}
        answer = await self._ask(request)
        return _sample_of({**answer["sample"], "copies": answer["copies"], "subscribers": answer["subscribers"]})

    async def subscribe(self, topic: str) -> None:
        """Subscribe this node to *topic*, also after a restart; ``samples`` yields its samples."""
        await self._ask({"do": "subscribe", "topic": topic})

    async def unsubscribe(self, topic: str) -> None:
        """End this node's subscription to *topic*."""
        await self._ask({"do": "unsubscribe", "topic": topic})

    async def status(self) -> dict[str, Any]:
        """Return the status of the node, as ``whimbrel campus status --json`` prints it."""
        return dict((await self._ask({"do": "status"}))["status"])

    @asynccontextmanager
    async def samples(self, *topics: str) -> AsyncIterator[AsyncIterator[CampusSample]]:
        """Subscribe to *topics*; yield the newest sample of each that the node has, then each new sample."""
        if not 0 < len(topics) <= _MAX_FOLLOWED:
            raise InvalidValueError("topics to follow", len(topics), f"1 to {_MAX_FOLLOWED}")
        reader, writer = await self._connect()
        try:
            await self._request(reader, writer, {"do": "follow", "topics": list(topics)})
            yield _read_samples(reader)
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            with short_path(self._folder / DOOR) as path:
                return await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise NoNodeError(self._folder, error.strerror or str(error)) from None

    async def _ask(self, request: Mapping[str, object]) -> Mapping[str, Any]:
        if self._reader is None or self._writer is None:
            raise NoNodeError(self._folder, "it is used outside its block")
        async with self._asking:
            return await self._request(self._reader, self._writer, request)

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Mapping[str, object]
    ) -> Mapping[str, Any]:
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        except (OSError, ValueError) as error:
            raise NoNodeError(self._folder, str(error)) from None
        if not line:
            raise NoNodeError(self._folder, "it closed the connection")
        answer = json.loads(line)
        if answer.get("ok") is not True:
            raise CampusRequestError(str(answer.get("reason")))
        return dict(answer)


async def _read_samples(reader: asyncio.StreamReader) -> AsyncIterator[CampusSample]:
    while line := await reader.readline():
        yield _sample_of(json.loads(line))


def _sample_of(said: Mapping[str, Any]) -> CampusSample:
    return CampusSample(**{**said, "body": base64.b64decode(said["body"])})
