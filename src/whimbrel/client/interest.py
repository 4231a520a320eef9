"""Subscriptions of an application, and their encoding in each version of MQTT (docs/reference/mqtt.md).

Version 5 transmits a content filter and options as user properties. Version 3.1.1 has no place for options: a content
filter becomes ``$filter/<base64url of its text>/<topic filter>``, with ``$near/<near>/`` before it for a near; in a
named session it subscribes by a request, which can have all options (docs/reference/sessions.md).

Rule: a key never appears in a ``repr`` or an error.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from whimbrel.client.joining import PRIVATE
from whimbrel.client.messages import ID_PROPERTY
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.language.filters import parse
from whimbrel.model.near import parse_near, parse_stale_us
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Publish, SubscriptionRequest
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties
from whimbrel.mqtt.topics import check_topic_filter, split_share

__all__ = ["Interest", "Places"]

_IN_TOPIC, _NEAR = "$filter/", "$near/"
_HIGHEST = 268_435_455
"""The largest valid subscription identifier (MQTT 5, 3.8.2.1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """One checked subscription: a bad filter raises ``FilterError`` here, before anything is sent."""

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
    """Whether to accept notifications without matching keys; None: the broker's default."""
    policy: str | None = None
    near: str | None = None
    """Area of the wanted messages: ``lat,lon,R``, a polygon, ``R`` metres around the session, or ``any``."""
    stale_s: float | None = None
    """Most age of a reported place, in seconds; None: the broker's default."""
    modifies: bool = False
    """Whether to change a named session's subscription that has other options; a request always changes it."""
    since: str | None = None
    """Start in the broker's log, which is sent first: a duration back, or the id of the last known message."""

    def __post_init__(self) -> None:
        try:
            _, plain = split_share(self.topic_filter)
            check_topic_filter(plain)
        except ProtocolError as error:
            raise InvalidValueError("topic filter", self.topic_filter, "one of MQTT", error.reason) from error
        if self.qos not in {0, 1, 2}:
            raise InvalidValueError("QoS", self.qos, "0, 1 or 2")
        if self.filter_text is not None:
            parse(self.filter_text)
        if self.near is not None:
            parse_near(self.near)
        if self.stale_s is not None:
            parse_stale_us(f"{self.stale_s:.6f}")
        for what, number in (("ttl_s", self.ttl_s), ("max", self.max_held)):
            if number is not None and (not isinstance(number, int) or number < 0):
                raise InvalidValueError(what, number, "a whole number from 0 on")

    def key(self, version: int) -> tuple[str, str]:
        """Return the identity of the subscription at the broker: topic filter (in 3.1.1 with the filter) and name."""
        return self.wire_filter(version), self.name

    def request(self, version: int) -> SubscriptionRequest:
        """Return the entry of the subscription in SUBSCRIBE."""
        if version == V5:
            options = (self.qos, self.no_local, self.retain_as_published, self.retain_handling)
            return SubscriptionRequest(self.topic_filter, *options)
        return SubscriptionRequest(self.wire_filter(version), self.qos)

    def wire_filter(self, version: int) -> str:
        """Return the topic filter in the form of a packet."""
        if version == V5:
            return self.topic_filter
        wanted = self.topic_filter
        if self.filter_text is not None:
            encoded = base64.urlsafe_b64encode(self.filter_text.encode()).decode().rstrip("=")
            wanted = f"{_IN_TOPIC}{encoded}/{wanted}"
        return wanted if self.near is None else f"{_NEAR}{parse_near(self.near)}/{wanted}"

    def properties(self, version: int, *, home: str = PRIVATE) -> Properties:
        """Return the properties of SUBSCRIBE on a connection whose home is *home*.

        Options that 3.1.1 cannot transmit are refused, not dropped.
        """
        options = {"ttl": self.ttl_s, "max": self.max_held, "name": self.name or None, "policy": self.policy}
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        if self.stale_s is not None:
            given.append(("stale", f"{self.stale_s:.6f}"))
        given += [("key", key) for key in self.keys]
        if self.insecure is not None:
            given.append(("insecure", "yes" if self.insecure else "no"))
        if self.since is not None:
            given.append(("since", self.since))
        if version != V5:
            if given or self._has_packet_options():
                found = ", ".join(dict.fromkeys(name for name, _ in given)) or "the options of a SUBSCRIBE"
                allowed = "a topic filter, a QoS, a filter and a near"
                sentence = f"MQTT 3.1.1 cannot carry {found}: it allows {allowed}; use version=5"
                raise InvalidValueError("subscription in MQTT 3.1.1", found, allowed, sentence)
            return NO_PROPERTIES
        if self.modifies:
            given.append(("modify", "yes"))
        if self.filter_text is not None:
            given.insert(0, ("filter", self.filter_text))
        if self.near is not None:
            given.append(("near", self.near))
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
        """Return the members of a request to subscribe; options that it cannot transmit are refused, not dropped."""
        if self._has_packet_options():
            allowed = "a topic filter, a QoS, filter, ttl, max, name, keys, insecure, policy, near and stale"
            raise InvalidValueError("request to subscribe", Phrase("other options of MQTT 5"), allowed)
        options: dict[str, object] = {
            "filter": self.filter_text,
            "ttl": self.ttl_s,
            "max": self.max_held,
            "insecure": self.insecure,
        }
        options |= {"policy": self.policy, "near": self.near, "stale": self.stale_s}
        members: dict[str, object] = {name: value for name, value in options.items() if value is not None}
        if self.keys:
            members["keys"] = list(self.keys)
        return {**self.naming_members(), "qos": self.qos, **members}

    def naming_members(self) -> dict[str, object]:
        """Return the members that identify the subscription in a request."""
        return {"topic": self.topic_filter, **({"name": self.name} if self.name else {})}

    def _has_packet_options(self) -> bool:
        return any((self.no_local, self.retain_as_published, self.retain_handling, self.identifier, self.since))


class Places:
    """Positions in the broker's log, one per subscription with ``since``, so that a reconnect continues without a gap.

    Each such subscription has an identifier, which the broker adds to its copies: it is the only certain way to tell
    to which of several subscriptions a copy belongs.
    """

    def __init__(self) -> None:
        self._last: dict[int, str | None] = {}

    def begin(self, interest: Interest, others: Iterable[Interest]) -> Interest:
        """Start to track *interest* if it has ``since``; return it with a subscription identifier of its own."""
        if interest.since is None:
            return interest
        if interest.identifier is None:
            used = {each.identifier for each in others} | self._last.keys()
            identifier = next(number for number in range(_HIGHEST, 0, -1) if number not in used)
            interest = replace(interest, identifier=identifier)
        assert interest.identifier is not None
        self._last[interest.identifier] = None
        return interest

    def end(self, interest: Interest | None) -> None:
        """Stop tracking a subscription."""
        if interest is not None and interest.identifier is not None:
            self._last.pop(interest.identifier, None)

    def record_arrival(self, packet: Publish) -> None:
        """Record the position of a received message."""
        if not self._last:
            return
        for identifier in packet.properties.identifiers:
            if identifier in self._last:
                found = next((value for name, value in packet.properties.user if name == ID_PROPERTY), None)
                self._last[identifier] = found or self._last[identifier]

    def resume(self, interest: Interest) -> Interest:
        """Return *interest* with ``since`` set to the last message that was received."""
        last = None if interest.identifier is None else self._last.get(interest.identifier)
        return interest if interest.since is None or last is None else replace(interest, since=last)
