"""Policies of a broker: put, removed and listed by a client, and chosen for its device (docs/reference/policies.md)."""

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
    """A policy of a broker; its version is the seq of the fact that put it."""

    name: str
    version: int
    owner: str | None
    """The user who owns it; None if no user was verified."""
    is_suspended: bool
    """Whether it failed too often in a row for any device and publisher. Until a new version is put, it then withholds
    for these two, unless its text calls ``sendWhenSuspended()``."""
    devices: int
    """Number of devices that have chosen it."""
    text: str | None = None
    """The policy's text; None in a list."""


def check_policy(name: str) -> str:
    """Return *name* if it is a valid name of a policy, or raise ``InvalidValueError``."""
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
        """Put a policy, or a new version of it; ``PublishRefusedError`` has code and position of the error.

        MQTT 3.1.1 cannot transmit a refusal: check the text before (``whimbrel policy check``).
        """
        if not text:
            raise InvalidValueError("text", text, "a policy; remove() removes one")
        await self._publish(f"{_TOPIC}/{check_policy(name)}", text.encode())

    async def remove(self, name: str) -> None:
        """Remove a policy; for devices that chose it, the policies of their subscriptions decide, if there are any."""
        await self._publish(f"{_TOPIC}/{check_policy(name)}", b"")

    async def choose(self, name: str | None) -> None:
        """Choose the policy that decides about deliveries to this device until its session ends; None for no policy."""
        await self._request(None if name is None else check_policy(name), "choose")

    async def list(self) -> list[PolicySummary]:
        """Return all policies of the broker, sorted by name, without their texts; they are requested in pages."""
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
        """Return a policy with its text; raise ``SessionRefusedError`` if it does not exist."""
        return _summary(await self._request(check_policy(name), "show"))

    async def _request(self, value: object, verb: str) -> Members:
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
