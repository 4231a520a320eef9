"""Absent devices: those that joined a named session and have not come back for long leave it.

A device stays a member while it is away, so that the session knows what it has received. One that never comes back (a
phone that was replaced, a program that joined under a new client identifier with every run) would count against
``sessions.devices`` for ever. What the session holds is no less for it: a device that joins again is given that.
Rule: a device leaves by a fact of the log, so that every fold of the log agrees.
Rule: a device is given back the time in which the broker was down, and could not come: that of the last stop, since
earlier ones are recorded nowhere. None leaves before the broker has run for an hour, or for as long as it may be away:
long enough for clients to connect again, and short enough for a broker that is restarted every night.
Rule: sessions are looked at some at a time, so that a turn is short however many there are.
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.private import is_private
from whimbrel.model.clock import US_PER_S

__all__ = ["AbsentDevices"]

_AT_ONCE = 256
"""How many sessions are looked at in a turn."""
_LOOKS = 10
"""How often all of them are looked at while a device is away."""
_LONGEST_REST_US = 3_600 * US_PER_S
_GRACE_US = 3_600 * US_PER_S
"""How long a broker runs, at most, before it lets devices leave that were away before it started."""


class AbsentDevices:
    """Lets devices leave that are away for longer than *expiry_s*; *put_out* makes one leave a session."""

    def __init__(self, state: BrokerState, expiry_s: int, put_out: Callable[[str, str, int], None]) -> None:
        self._state, self._expiry_us, self._put_out = state, expiry_s * US_PER_S, put_out
        self._rest_us = min(self._expiry_us // _LOOKS, _LONGEST_REST_US)
        self._next_at = self._started_at = self._down_us = 0
        self._to_look_at: list[str] = []

    def begin(self, died_at: int, now: int) -> None:
        """Take in that the broker starts *now*, and that the one before it died at *died_at*."""
        self._started_at, self._down_us = now, max(now - died_at, 0)
        self._next_at = now + min(self._expiry_us, _GRACE_US)

    def tick(self, now: int) -> None:
        """Look at some sessions, if it is time."""
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
