"""Operators' requests about the clients of a broker: list, show and disconnect.

The right to each request is ``operate`` on its topic in the broker's rights file; a refusal is ``SessionRefusedError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from whimbrel.client.answers import Members
from whimbrel.client.errors import MalformedAnswerError
from whimbrel.client.requests import Request

__all__ = ["ClientSummary", "Clients"]

_TOPIC = "$whimbrel/clients/"
_PAGE = 500


class ClientSummary(NamedTuple):
    """One client that a broker knows."""

    client: str
    user: str | None
    """The verified user who owns its session."""
    connected: bool
    address: str | None
    subscriptions: int
    held: int
    """Number of notifications held for it."""


class Clients:
    """The clients of the broker that a client is connected to; available as ``client.clients``."""

    def __init__(self, ask: Callable[[Request], Awaitable[Members]]) -> None:
        self._ask = ask

    async def list(self, *, connected: bool = False) -> AsyncIterator[ClientSummary]:
        """Yield all clients, or only the connected ones, sorted by identifier; they are requested in pages."""
        after: str | None = ""
        while after is not None:
            asked = {"after": after, "most": _PAGE, "connected": connected}
            answer = await self._ask(Request("list", "", asked, _TOPIC + "list"))
            match answer:
                case {"clients": [*found], "next": (str() | None) as following, **_rest}:
                    for each in found:
                        yield _summary(each)
                case _:
                    raise MalformedAnswerError("clients", "an array, and where the next begins")
            if following is not None and following <= after:
                raise MalformedAnswerError("next", "an identifier behind the last")
            after = following

    async def show(self, client_id: str) -> Members:
        """Return the members of the broker's answer about a client."""
        answer = await self._ask(Request("show", "", {"client": client_id}, _TOPIC + "show"))
        return {name: value for name, value in answer.items() if name not in {"id", "ok", "request"}}

    async def disconnect(self, client_id: str) -> bool:
        """Close the connection of a client, whose session stays; return whether it was connected."""
        answer = await self._ask(Request("disconnect", "", {"client": client_id}, _TOPIC + "disconnect"))
        return answer.get("disconnected") is True


def _summary(value: object) -> ClientSummary:
    match value:
        case {
            "client": str() as client,
            "user": (str() | None) as user,
            "connected": bool() as connected,
            "address": (str() | None) as address,
            "subscriptions": int() as subscriptions,
            "held": int() as held,
            **_rest,
        }:
            return ClientSummary(client, user, connected, address, subscriptions, held)
    raise MalformedAnswerError("clients", "client, user, connected, address, subscriptions and held")
