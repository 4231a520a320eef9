"""Places: up to where a client has the log, for each subscription with ``since``; so a lost connection costs nothing.

Each such subscription has an identifier, which the broker puts on its copies: only so is it certain which of several
subscriptions a copy is of, and a place is of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from whimbrel.client.interest import Interest
from whimbrel.client.messages import ID_PROPERTY
from whimbrel.mqtt.packets import Publish

__all__ = ["Places"]

_HIGHEST = 268_435_455
"""The largest subscription identifier there is (MQTT 5, 3.8.2.1.2)."""


class Places:
    """The last message of each subscription with ``since``, by the subscription's identifier."""

    def __init__(self) -> None:
        self._last: dict[int, str | None] = {}

    def begin(self, interest: Interest, others: Iterable[Interest]) -> Interest:
        """Return *interest* with an identifier of its own, if it needs one; from now on its place is known."""
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
        """Forget a subscription."""
        if interest is not None and interest.identifier is not None:
            self._last.pop(interest.identifier, None)

    def arrived(self, packet: Publish) -> None:
        """Take in a message."""
        if not self._last:
            return
        for identifier in packet.properties.identifiers:
            if identifier in self._last:
                found = next((value for name, value in packet.properties.user if name == ID_PROPERTY), None)
                self._last[identifier] = found or self._last[identifier]

    def resumed(self, interest: Interest) -> Interest:
        """Return *interest* as it goes on where it was."""
        last = None if interest.identifier is None else self._last.get(interest.identifier)
        return interest if interest.since is None or last is None else replace(interest, since=last)
