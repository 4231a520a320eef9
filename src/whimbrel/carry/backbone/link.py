"""The connection to the broker: it reconnects until it succeeds, and passes messages to subscriptions.

Rule: while the broker is away the daemon continues. Messages are not queued meanwhile: after a reconnection the caller
publishes its newest state again.
Rule: files and credentials are checked once, before the daemon starts. What becomes wrong later is logged and tried
again, because the daemon is useful without a broker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from whimbrel.client import (
    Backoff,
    CannotConnectError,
    Client,
    ClientError,
    ConnectRefusedError,
    Message,
    ReasonCode,
    SubscriptionRefusedError,
)
from whimbrel.client.errors import is_temporary
from whimbrel.errors import WhimbrelError

__all__ = ["BrokerLink", "Subscribed"]

_log = structlog.get_logger("whimbrel")
_PAUSE_S = 5.0
_PUBLISH_S = 10.0
_CHECK_S = 5.0
"""Time limit of the check before the start; a broker that has not answered by then is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A subscription of the link; with *since* messages carry their ids, and none is missed during a disconnection."""

    topic_filter: str
    take: Callable[[Message], None]
    """Callback for each message; a ``WhimbrelError`` that it raises is logged, and the message counts as refused."""
    since: Callable[[], str] | None = None


class BrokerLink:
    """The client that *make* returns, with *subscriptions*."""

    def __init__(self, make: Callable[[Backoff], Client], subscriptions: Sequence[Subscribed]) -> None:
        self._make, self._subscriptions = make, subscriptions
        self._client: Client | None = None
        self.connections = 0
        """Number of connections so far, by which a caller notices a new one."""
        self.refused = 0
        """Number of messages that a subscription refused."""
        self.trouble: str | None = None
        """The error that ended the last attempt to connect; None since the last connection."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None and self._client.is_connected

    async def check(self) -> None:
        """Connect once, and raise the error if the broker will never accept this client; the broker may be away."""
        try:
            async with asyncio.timeout(_CHECK_S), self._make(Backoff(most_s=10.0)) as client:
                for each in self._subscriptions:
                    await client.subscribe(each.topic_filter, qos=1, no_local=True)
        except (ClientError, OSError) as error:
            if _is_final(error):
                raise

    async def run(self) -> None:
        """Connect, subscribe and pass messages on, until cancelled."""
        while True:
            try:
                async with self._make(Backoff(most_s=10.0)) as client:
                    for each in self._subscriptions:
                        since = None if each.since is None else each.since()
                        await client.subscribe(each.topic_filter, qos=1, no_local=True, since=since)
                    self._client = client
                    self.connections += 1
                    self.trouble = None
                    _log.info("connected to the broker")
                    async for message in client.messages():
                        self._take(message)
            except (WhimbrelError, OSError) as error:
                self.trouble = str(error)
                _log.warning("no connection to the broker", reason=self.trouble)
            finally:
                self._client = None
            await asyncio.sleep(_PAUSE_S)

    def _take(self, message: Message) -> None:
        for each in self._subscriptions:
            if _matches(each.topic_filter, message.topic):
                try:
                    each.take(message)
                except WhimbrelError as error:
                    self.refused += 1
                    _log.warning("message refused", topic=message.topic, reason=str(error))
                return

    async def publish(
        self, topic: str, body: bytes, *, qos: int = 1, retain: bool = True, user: Sequence[tuple[str, str]] = ()
    ) -> bool:
        """Publish, and return whether the broker has acknowledged the message."""
        if self._client is None or not self._client.is_connected:
            return False
        try:
            async with asyncio.timeout(_PUBLISH_S):
                await self._client.publish(topic, body, qos=qos, retain=retain, user=user)
        except (ClientError, OSError, TimeoutError) as error:
            _log.warning("not published", topic=topic, reason=str(error))
            return False
        return True


def _is_final(error: Exception) -> bool:
    """Return whether *error* would come again: wrong credentials, missing rights, or an untrusted certificate."""
    match error:
        case ConnectRefusedError():
            return not is_temporary(error.code)
        case SubscriptionRefusedError():  # our broker says "unspecified error" if the right is missing
            return error.code == ReasonCode.UNSPECIFIED_ERROR or not is_temporary(error.code)
        case CannotConnectError():
            return isinstance(error.__cause__, ssl.SSLCertVerificationError)
    return False


def _matches(topic_filter: str, topic: str) -> bool:
    """Return whether *topic* is below *topic_filter*, which ends in ``/#`` or has no wildcard."""
    if topic_filter.endswith("/#"):
        prefix = topic_filter[:-2]
        return topic == prefix or topic.startswith(f"{prefix}/")
    return topic == topic_filter
