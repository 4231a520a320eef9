"""Absent devices: remove from a named session the devices that joined it and have not returned for a long time.

A disconnected device stays a member, so that the session knows what the device has received. A device that never
returns (a replaced phone, a program that joins under a new client identifier with every run) would count against
``sessions.devices`` for ever. Removing it does not reduce the session's queue: if the device joins again, it gets the
queued notifications.
Rule: a device leaves by a fact of the log, so that every fold of the log agrees.
Rule: time in which the broker was down does not count as absence. Only the last stop is subtracted, since earlier ones
are recorded nowhere. No device is removed before the broker has run for an hour, or for the allowed absence if that is
shorter: long enough for clients to reconnect, short enough for a broker that restarts every night.
Rule: each turn of the event loop checks only some sessions, so that it is short however many there are.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.private import is_private
from whimbrel.model.clock import US_PER_S

__all__ = ["AbsentDevices"]

_AT_ONCE = 256
"""Most sessions that are checked in one turn."""
_LOOKS = 10
"""Number of times that all sessions are checked within the time that a device may be away."""
_LONGEST_REST_US = 3_600 * US_PER_S
_GRACE_US = 3_600 * US_PER_S
"""Longest time in microseconds that a broker runs before it removes devices that were away at its start."""


class AbsentDevices:
    """Removes devices that are away from a named session for *expiry_s* or longer (0: never).

    The last time that the broker was down is not counted. *put_out* removes one device from a session.
    """

    def __init__(self, state: BrokerState, expiry_s: int, put_out: Callable[[str, str, int], None]) -> None:
        self._state, self._expiry_us, self._put_out = state, expiry_s * US_PER_S, put_out
        self._rest_us = min(self._expiry_us // _LOOKS, _LONGEST_REST_US)
        self._next_at = self._started_at = self._down_us = 0
        self._to_look_at: list[str] = []

    def begin(self, died_at: int, now: int) -> None:
        """Set the start of the broker, *now*, and the time *died_at* at which the previous broker process died."""
        self._started_at, self._down_us = now, max(now - died_at, 0)
        self._next_at = now + min(self._expiry_us, _GRACE_US)

    def tick(self, now: int) -> None:
        """Check some sessions; do nothing between two rounds of checks."""
        if not self._expiry_us or (not self._to_look_at and now < self._next_at):
            return
        if not self._to_look_at:
            self._next_at = now + self._rest_us
            self._to_look_at = list(self._state.hold.sessions())
        for session in self._to_look_at[-_AT_ONCE:]:
            if not is_private(session):
                for device, away_at in self._state.hold.absent(session):
                    down_us = self._down_us if away_at <= self._started_at else 0
                    if away_at + down_us + self._expiry_us <= now:
                        self._put_out(device, session, now)
        del self._to_look_at[-_AT_ONCE:]
