"""Reports of a controller's facts to a broker, which may be unreachable.

Rule: the log comes first; a fact is durable before it is reported. Of the facts that wait for a broker
the last ``MAX_WAITING`` are kept; older ones stay in the log only, and ``dropped`` counts them.
Rule: facts are sent in their order, each after the broker accepted the one before. After a broken connection the last
one may be sent twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.rendezvous.controller import Note
from whimbrel.rendezvous.daemon.settings import BrokerSettings
from whimbrel.rendezvous.journal import publish_notes

if TYPE_CHECKING:
    from whimbrel.client import Client

__all__ = ["MAX_WAITING", "BrokerReport"]

MAX_WAITING = 10_000


class BrokerReport:
    """Sends facts to one broker."""

    def __init__(self, settings: BrokerSettings, *, client_id: str, told: Callable[[str], None]) -> None:
        self._settings, self._client_id, self._told = settings, client_id, told
        self._password = _password_in(settings)
        self._waiting: deque[Note] = deque()
        self._has_more = asyncio.Event()
        self.is_connected = False
        self.sent = 0
        self.dropped = 0

    def put(self, note: Note) -> None:
        """Queue *note* for sending."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(note)
        self._has_more.set()

    @property
    def waiting(self) -> int:
        """Number of facts that wait to be sent."""
        return len(self._waiting)

    async def run(self) -> None:
        """Send facts until cancelled; reconnect to a broker that cannot be reached."""
        from whimbrel.client import Backoff, ClientError  # sockets need not be loaded without a broker

        backoff, attempt, rng = Backoff(most_s=30.0), 0, random.Random()  # noqa: S311 # spreads retries, no secret
        while True:
            try:
                async with self._client() as client:
                    self.is_connected, attempt = True, 0
                    await self._send(client)
            except (ClientError, OSError) as error:
                if attempt == 0:
                    self._told(f"the broker at {self._settings.host}:{self._settings.port} is away: {error}")
            finally:
                self.is_connected = False
            await asyncio.sleep(backoff.wait_s(attempt, rng))
            attempt += 1

    def _client(self) -> Client:
        from whimbrel.client import Client

        settings = self._settings
        return Client(
            settings.host,
            settings.port,
            client_id=self._client_id,
            username=settings.user or None,
            password=self._password,
            first_retry_s=0,
        )

    async def _send(self, client: Client) -> None:
        while True:
            while self._waiting:
                note = self._waiting[0]
                await publish_notes(client, (note,), prefix=self._settings.prefix)
                if self._waiting and self._waiting[0] is note:  # it may have been dropped meanwhile
                    self._waiting.popleft()
                self.sent += 1
            self._has_more.clear()
            await self._has_more.wait()


def _password_in(settings: BrokerSettings) -> str | None:
    if not settings.password_file:
        return None
    lines = Path(settings.password_file).read_text(encoding="utf-8").splitlines()
    if len(lines) != 1:
        raise InvalidValueError("broker.password_file", Phrase(f"a file of {len(lines)} lines"), "one line")
    return lines[0]
