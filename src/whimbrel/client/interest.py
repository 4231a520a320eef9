"""Interests: what an application wants to hear of, and how each version of MQTT says it (docs/reference/mqtt.md).

Version 5 says a content filter and its options as user properties. Version 3.1.1 has no place for options, and says a
content filter as ``$filter/<base64url of its text>/<topic filter>``; in a named session it subscribes by a request,
which has them all (docs/reference/sessions.md).

Rule: a key stands in no ``repr`` and in no error.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from whimbrel.client.joining import PRIVATE
from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import parse
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, SubscriptionRequest
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties
from whimbrel.mqtt.topics import check_topic_filter, split_share

__all__ = ["Interest"]

_IN_TOPIC = "$filter/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """One subscription, checked: a bad filter is a ``FilterError`` here, before anything is sent."""

    topic_filter: str
    qos: int = 1
    filter_text: str | None = None
    ttl_s: int | None = None
    max_held: int | None = None
    name: str = ""
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    session: str = PRIVATE
    keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool | None = None
    """Whether notifications are accepted whose keys do not match; None: the broker's default."""
    policy: str | None = None

    def __post_init__(self) -> None:
        try:
            _, plain = split_share(self.topic_filter)
            check_topic_filter(plain)
        except ProtocolError as error:
            raise InvalidValueError("topic filter", self.topic_filter, error.reason) from error
        if self.filter_text is not None:
            parse(self.filter_text)
        for what, number in (("ttl_s", self.ttl_s), ("max", self.max_held)):
            if number is not None and (not isinstance(number, int) or number < 0):
                raise InvalidValueError(what, number, "a whole number from 0 on")

    def key(self, version: int) -> tuple[str, str]:
        """Return what the broker knows the subscription by: topic filter and name; in 3.1.1 the filter names it."""
        return self.wire_filter(version), self.name

    def request(self, version: int) -> SubscriptionRequest:
        """Return what stands in SUBSCRIBE."""
        if version == V5:
            options = (self.qos, self.no_local, self.retain_as_published, self.retain_handling)
            return SubscriptionRequest(self.topic_filter, *options)
        return SubscriptionRequest(self.wire_filter(version), self.qos)

    def wire_filter(self, version: int) -> str:
        """Return the topic filter as it stands in a packet."""
        if version == V5 or self.filter_text is None:
            return self.topic_filter
        encoded = base64.urlsafe_b64encode(self.filter_text.encode()).decode().rstrip("=")
        return f"{_IN_TOPIC}{encoded}/{self.topic_filter}"

    def properties(self, version: int, *, home: str = PRIVATE) -> Properties:
        """Return the properties of SUBSCRIBE on a connection whose home is *home*.

        What 3.1.1 has no place for is refused rather than dropped.
        """
        options = {"ttl": self.ttl_s, "max": self.max_held, "name": self.name or None, "policy": self.policy}
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("key", key) for key in self.keys]
        if self.insecure is not None:
            given.append(("insecure", "yes" if self.insecure else "no"))
        if version != V5:
            if given or self._has_packet_options():
                found = ", ".join(dict.fromkeys(name for name, _ in given)) or "options"
                raise InvalidValueError("subscription in MQTT 3.1.1", found, "a topic filter, a QoS and a filter")
            return NO_PROPERTIES
        if self.filter_text is not None:
            given.insert(0, ("filter", self.filter_text))
        if self.session != home:
            given.append(("session", self.session))
        return Properties(user=tuple(given), identifiers=() if self.identifier is None else (self.identifier,))

    def naming(self, version: int, *, home: str = PRIVATE) -> Properties:
        """Return the properties of UNSUBSCRIBE on a connection whose home is *home*."""
        given = [("name", self.name)] if self.name else []
        if self.session != home:
            given.append(("session", self.session))
        return Properties(user=tuple(given)) if version == V5 and given else NO_PROPERTIES

    def members(self) -> dict[str, object]:
        """Return the members of a request that subscribes; what it has no place for is refused rather than dropped."""
        if self._has_packet_options():
            allowed = "a topic filter, a QoS, filter, ttl, max, name, keys, insecure and policy"
            raise InvalidValueError("request to subscribe", "options", allowed)
        options = {"filter": self.filter_text, "ttl": self.ttl_s, "max": self.max_held, "insecure": self.insecure}
        options["policy"] = self.policy
        members: dict[str, object] = {name: value for name, value in options.items() if value is not None}
        if self.keys:
            members["keys"] = list(self.keys)
        return {**self.naming_members(), "qos": self.qos, **members}

    def naming_members(self) -> dict[str, object]:
        """Return what a request names the subscription by."""
        return {"topic": self.topic_filter, **({"name": self.name} if self.name else {})}

    def _has_packet_options(self) -> bool:
        return any((self.no_local, self.retain_as_published, self.retain_handling, self.identifier))
