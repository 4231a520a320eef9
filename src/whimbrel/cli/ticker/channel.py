"""The channel: the tickertape's connection to a broker, through a named session that holds messages, with its groups.

Rule: a group is a subscription of the session, so it stays when we disconnect, and other devices of the session have
it.
Rule: a message is acknowledged when the next one is requested, so a device that fails before gets it again.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from whimbrel.cli.ticker.message import FIRST_GROUP, TOPICS, TickerMessage, group_of, is_group, read_message, topic_of
from whimbrel.client import Client, Message, ReasonCode, Receipt, SessionRefusedError, SessionSubscription
from whimbrel.mqtt.properties import Property

__all__ = ["Channel", "Wanted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Settings for opening the session."""

    session: str
    password: str | None = field(default=None, repr=False)
    receipt: Receipt = "take"
    groups: Sequence[str] = ()
    """Groups to subscribe to; none: the session's groups, or ``chat`` if it has none."""
    left: Sequence[str] = ()
    """Groups to unsubscribe from."""
    filter_text: str | None = None
    ttl_s: int = 300
    max_held: int = 20


class Channel:
    """The tickertape's groups, on a *client* that ``async with`` connects; *user* is the name in messages sent."""

    def __init__(self, client: Client, user: str, *, minutes: int, is_v5: bool = True) -> None:
        self._client, self._user, self._minutes, self._is_v5 = client, user, minutes, is_v5

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def open(self, wanted: Wanted) -> list[str]:
        """Join the session, which is created if missing, and return its groups.

        Other devices may have made other subscriptions in it. Their messages arrive, but such a topic is not a group.
        """
        sessions, name = self._client.sessions, wanted.session
        had = {group_of(each.topic_filter) for each in await self._join(wanted) if each.topic_filter.startswith(TOPICS)}
        for group in had & set(wanted.left):
            await sessions.unsubscribe(name, topic_of(group))
            had.remove(group)
        named = wanted.groups or ([] if had else [FIRST_GROUP])
        for group in named:
            await sessions.subscribe(
                name, topic_of(group), filter=wanted.filter_text, ttl_s=wanted.ttl_s, max=wanted.max_held
            )
        return list(dict.fromkeys([*named, *sorted(filter(is_group, had))]))

    async def _join(self, wanted: Wanted) -> tuple[SessionSubscription, ...]:
        sessions, name = self._client.sessions, wanted.session
        try:  # create it first: joining a missing session counts as guessing a password
            await sessions.create(name, owner=wanted.password)
        except SessionRefusedError as refused:
            if refused.code != ReasonCode.NOT_AUTHORIZED:
                raise
        return await sessions.join(name, password=wanted.password, receipt=wanted.receipt)

    async def send(self, group: str, text: str) -> None:
        """Send *text* to *group*; the broker drops the message when it expires, wherever it is held."""
        message = TickerMessage(
            group=group, user=self._user, text=text, timeout_minutes=self._minutes, message_id=uuid.uuid4().hex
        )
        expiry_s = self._minutes * 60 if self._is_v5 else None
        await self._client.publish(topic_of(group), message.attributes(), qos=1, expiry_s=expiry_s)

    async def messages(self) -> AsyncIterator[TickerMessage]:
        """Yield messages as they arrive, for ever."""
        async for message in self._client.messages():
            yield _read(message)

    async def read_held(self) -> AsyncIterator[TickerMessage]:
        """Yield the messages that were held for us, then end.

        Held messages come in the order in which they were accepted, and new messages follow. So a marker that we send
        to ourselves follows all held ones. The marker has a topic outside all groups, and a private subscription.
        """
        mark = f"{TOPICS}once/{uuid.uuid4().hex}"
        await self._client.subscribe(mark, session="")
        await self._client.publish(mark, qos=1)
        async for message in self._client.messages():
            if message.topic == mark:
                return
            yield _read(message)


def _read(message: Message) -> TickerMessage:
    life_s = message.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)
    return read_message(message.topic, message.payload, life_s=life_s)
