"""Policies: what a client puts into a broker, and which of them its device chooses (docs/reference/policies.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from whimbrel.client.answers import Members
from whimbrel.client.errors import MalformedAnswerError
from whimbrel.client.requests import Request
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import name as bounded_name
from whimbrel.mqtt.codes import ReasonCode

__all__ = ["Policies", "PolicySummary", "check_policy"]

_TOPIC = "$whimbrel/policy"


class PolicySummary(NamedTuple):
    """A policy that a broker has; its version is the number of the fact that put it."""

    name: str
    version: int
    owner: str | None
    """The user whose it is; None if no user was verified."""
    is_suspended: bool
    """It failed too often in a row: its devices get everything as it is, until it is put anew."""
    devices: int
    """How many have chosen it."""
    text: str | None = None
    """None in a list."""


def check_policy(name: str) -> str:
    """Return *name* if a policy may have it, or raise ``InvalidValueError``."""
    bounded_name("policy", name, max_bytes=255)
    if name[0] in "${" or not name.isprintable() or set(name) & set("/+#"):
        raise InvalidValueError("policy", name, "text without /, +, # and what cannot be printed, not $ or { at first")
    return name


class Policies:
    """The policies of the broker that a client is connected to."""

    def __init__(
        self,
        publish: Callable[[str, bytes], Awaitable[ReasonCode]],
        ask: Callable[[Request], Awaitable[Members]],
    ) -> None:
        self._publish, self._ask = publish, ask

    async def put(self, name: str, text: str) -> None:
        """Put a policy, or a new version of it; ``PublishRefusedError`` has code and position of what is wrong.

        MQTT 3.1.1 has no words for a refusal: check the text before (``whimbrel policy check``).
        """
        if not text:
            raise InvalidValueError("text", text, "a policy; remove() removes one")
        await self._publish(f"{_TOPIC}/{check_policy(name)}", text.encode())

    async def remove(self, name: str) -> None:
        """Remove a policy; devices that chose it get everything as it is."""
        await self._publish(f"{_TOPIC}/{check_policy(name)}", b"")

    async def choose(self, name: str | None) -> None:
        """Let a policy decide what this device gets, or none, until its session ends."""
        await self._asked(None if name is None else check_policy(name), "choose")

    async def list(self) -> list[PolicySummary]:
        """Return all policies of the broker, by name, without their texts; it asks for a page at a time."""
        listed: list[PolicySummary] = []
        asked: dict[str, object] = {"list": True}
        while True:
            answer = await self._ask(Request("list", "", asked, _TOPIC))
            found, following = answer.get("policies"), answer.get("next")
            if not isinstance(found, list):
                raise MalformedAnswerError("policies", "an array")
            listed += map(_summary, found)
            if following is None:
                return listed
            if not isinstance(following, str) or following <= str(asked.get("after", "")):
                raise MalformedAnswerError("next", "a name behind the last")
            asked = {"list": True, "after": following}

    async def show(self, name: str) -> PolicySummary:
        """Return a policy with its text; ``SessionRefusedError`` if there is none."""
        return _summary(await self._asked(check_policy(name), "show"))

    async def _asked(self, value: object, verb: str) -> Members:
        return await self._ask(Request(verb, "", {verb: value}, _TOPIC))


def _summary(value: object) -> PolicySummary:
    match value:
        case {
            "policy": str() as name,
            "version": int() as version,
            "owner": str() | None as owner,
            "suspended": bool() as is_suspended,
            "devices": int() as devices,
            **rest,
        }:
            text = rest.get("text")
            return PolicySummary(name, version, owner, is_suspended, devices, text if isinstance(text, str) else None)
    raise MalformedAnswerError("policies", "name, version, owner, suspended and devices")
