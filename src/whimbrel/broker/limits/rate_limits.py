"""Rate limits: the messages and bytes per second that a client, and all clients of a user together, may send.

Each limit is a token bucket.
Rule: nothing is dropped and no client is notified. Bytes beyond the limit are buffered, and the shell stops reading
from the connection, so TCP's own back-pressure slows the client.
Rule: at any time, at most the rate times the elapsed time plus the burst has been admitted, in bytes as in PUBLISH
packets.
Rule: the waiting clients of one user take turns, and each turn is a small part of the user's tokens (round robin), so
no client starves.
Rule: ``now`` is an argument, in microseconds of a monotonic clock; nothing here reads a clock.
Rule: a client cannot evade a limit by reconnecting: its buckets are remembered until they are full again.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import NamedTuple

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.limits.receive_buffer import ReceiveBuffer
from whimbrel.broker.settings.config import LimitSettings
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.clock import US_PER_S

__all__ = ["Meter", "RateLimits", "Rates", "Slowed", "TokenBucket"]

_SLOWED = "the client sends more than {} allows; it is read from as slowly as that, and nothing is dropped"
_WAITS = 10
"""A waiting client goes on when its bucket has the tokens of 1/10 second, so that it is not woken for every byte."""
_TURNS = 50
"""If several clients of a user wait, each takes the tokens of 1/50 second in its turn."""
_EPISODE_US = 60 * US_PER_S
"""Time after which a client that is slowed down again is reported and counted again."""
_REMEMBERED = 10_000


class Rates(NamedTuple):
    """Limits per second on PUBLISH packets and on bytes; 0 means no limit."""

    messages: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.messages or self.bytes)


class Slowed(NamedTuple):
    """Notice for the process's log that a client is slowed down from now on."""

    client: str
    user: str | None
    setting: str
    """The setting of the rate that the client, or its user, exceeds."""

    def notice(self) -> Notice:
        """Return the notice for the operator's log that the client is slowed down."""
        return Notice(_SLOWED.format(self.setting), self.client, self.user)


class TokenBucket:
    """Token bucket: *rate* tokens are added per second, up to those of *burst_us* microseconds; rate 0: no limit."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: int, burst_us: int) -> None:
        self._rate = rate
        self._most = max(rate * burst_us, US_PER_S)
        self._level = self._most
        """Tokens in the bucket, in millionths, so that nothing is rounded; negative if more were taken than it had."""
        self._at: int | None = None

    def tokens_left(self, now: int) -> int:
        """Return the number of whole tokens in the bucket at the time *now*; below 1 if it is used up."""
        if not self._rate:
            return INT64_MAX
        if self._at is not None and now > self._at:
            self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now if self._at is None else max(self._at, now)
        return self._level // US_PER_S

    def take(self, number: int) -> None:
        """Remove *number* tokens; the level may become negative, and is then a debt."""
        if self._rate:
            self._level -= number * US_PER_S

    def wait_us(self, now: int) -> int:
        """Return the microseconds until a waiting client may go on; 0 if the bucket has a token now.

        A waiting client goes on when the bucket has the tokens of a tenth of a second (``_WAITS``).
        """
        if self.tokens_left(now) > 0:
            return 0
        wanted = min(self._most, max(1, self._rate // _WAITS) * US_PER_S)
        return -(-(wanted - self._level) // self._rate)

    @property
    def turn(self) -> int:
        """Most tokens that one of several clients of a user takes before the next client's turn."""
        return max(1, self._rate // _TURNS) if self._rate else INT64_MAX

    def is_full(self, now: int) -> bool:
        """Return whether the bucket is full, so that nothing about it needs to be remembered."""
        self.tokens_left(now)
        return not self._rate or self._level >= self._most


class _Share:
    """Token buckets of a client or of a user; for a user, also the queue of its clients that wait for tokens."""

    __slots__ = ("_whose", "blocked_at", "bytes", "connected", "is_scheduled", "messages", "waiting")

    def __init__(self, whose: str, rates: Rates, burst_us: int) -> None:
        self._whose = whose
        self.messages, self.bytes = TokenBucket(rates.messages, burst_us), TokenBucket(rates.bytes, burst_us)
        self.connected = 0
        """Number of connections that use these buckets."""
        self.waiting: deque[Meter] = deque()
        """Connections of the user that wait for tokens, in the order of their turns."""
        self.is_scheduled = False
        """Whether the user has an entry in the schedule of ``RateLimits``."""
        self.blocked_at: int | None = None
        """The last time that a connection had to wait for these buckets."""

    def take(self, messages: int, size: int) -> None:
        self.messages.take(messages)
        self.bytes.take(size)

    def wait_us(self, now: int) -> int:
        return max(self.messages.wait_us(now), self.bytes.wait_us(now))

    def setting(self, now: int) -> str:
        """Return the name of the setting whose rate is exceeded."""
        what = "messages" if self.messages.wait_us(now) else "bytes"
        return f"limits.{self._whose}_{what}_per_second"

    def is_idle(self, now: int) -> bool:
        """Return whether the buckets can be forgotten: they are unused and full, and caused no notice lately."""
        is_old = self.blocked_at is None or now - self.blocked_at > _EPISODE_US
        return not self.connected and is_old and self.messages.is_full(now) and self.bytes.is_full(now)


class Meter:
    """Rate meter of one connection: its receive buffer, and the token buckets that it uses."""

    __slots__ = ("client", "inflow", "is_closed", "is_waiting", "link", "own", "shared", "turn", "user")

    def __init__(self, link: object, client: str, user: str | None, own: _Share, shared: _Share | None) -> None:
        self.link, self.client, self.user = link, client, user
        self.own, self.shared = own, shared
        """``own``: token buckets of the client. ``shared``: those of all clients of its user, None if not limited."""
        self.inflow = ReceiveBuffer()
        self.is_waiting = False
        """Whether the connection waits for tokens; meanwhile the shell must not read from it."""
        self.is_closed = False
        self.turn: tuple[int, int] | None = None
        """Messages and bytes that were left in the connection's turn when the user's tokens were used up, or None."""


class RateLimits:
    """Rate limits of all clients and users; *burst_us* is the burst: the time whose tokens may be used at once."""

    def __init__(self, per_client: Rates, per_user: Rates, burst_us: int, counters: Counters) -> None:
        self._per_client, self._per_user, self._burst_us = per_client, per_user, burst_us
        self.are_any = bool(per_client or per_user)
        """Whether any rate is limited."""
        self._counters = counters
        self._clients: dict[str, _Share] = {}
        self._users: dict[str, _Share] = {}
        self._due: list[tuple[int, int, Meter | _Share]] = []
        """Schedule (heap): connections that wait for their own tokens and users with waiting clients, by due time."""
        self._numbers = count()
        """Counter that makes the entries of ``_due`` distinct, so that meters are never compared."""
        self._now, self._most_known = 0, _REMEMBERED
        self._new: list[Meter] = []
        """New connections with bytes behind their CONNECT that were not metered yet."""
        self.slowed = 0
        """Number of connections that must not be read from now."""
        self.news: list[Slowed] = []
        """Notices about slowed clients; the shell logs them and clears the list."""

    @classmethod
    def of(cls, limits: LimitSettings, counters: Counters) -> RateLimits:
        """Return rate limits with the rates that the configuration sets."""
        per_client = Rates(limits.client_messages_per_second, limits.client_bytes_per_second)
        per_user = Rates(limits.user_messages_per_second, limits.user_bytes_per_second)
        return cls(per_client, per_user, int(limits.rate_burst_s * US_PER_S), counters)

    def __len__(self) -> int:
        """Return the number of clients and users whose buckets are remembered."""
        return len(self._clients) + len(self._users)

    def next_at(self, now: int) -> int | None:
        """Return the time at which ``turn`` is to be called next, or None if nothing is scheduled."""
        if self._new:
            return now
        return self._due[0][0] if self._due else None

    def open(self, link: object, client: str, user: str | None, data: bytes) -> Meter:
        """Return a meter for a connection whose CONNECT was answered; *data* are the bytes behind the CONNECT."""
        own = self._share(self._clients, "client", client, self._per_client)
        shared = None
        if user is not None and self._per_user:
            shared = self._share(self._users, "user", user, self._per_user)
        meter = Meter(link, client, user, own, shared)
        if data:
            meter.inflow.put(data)
            self._new.append(meter)
        return meter

    def close(self, meter: Meter) -> None:
        """Forget a closed connection and the bytes in its buffer."""
        if meter.is_closed:
            return
        meter.is_closed, meter.link, meter.inflow = True, None, ReceiveBuffer()
        self._set_waiting(meter, is_waiting=False)
        meter.own.connected -= 1
        if meter.shared is not None:
            meter.shared.connected -= 1
            if meter in meter.shared.waiting:
                meter.shared.waiting.remove(meter)

    def receive(self, meter: Meter, data: bytes, now: int) -> bytes:
        """Add bytes read from a connection; return those that may be handled now. ``turn`` returns the others later."""
        self._now = now
        meter.inflow.put(data)
        return b"" if meter.is_waiting else self._admit(meter, now)

    def turn(self, now: int) -> list[tuple[Meter, bytes]]:
        """Return the buffered bytes that may be handled now, per connection.

        The shell may read again from every connection that does not wait any more (``Meter.is_waiting``).
        """
        self._now = now
        passed: list[tuple[Meter, bytes]] = []
        fresh, self._new = self._new, []
        passed += ((meter, self._admit(meter, now)) for meter in fresh if not meter.is_closed and not meter.is_waiting)
        while self._due and self._due[0][0] <= now:
            _, _, whose = heapq.heappop(self._due)
            if isinstance(whose, _Share):
                whose.is_scheduled = False
                self._take_turns(whose, passed, now)
            elif not whose.is_closed:
                self._set_waiting(whose, is_waiting=False)
                passed.append((whose, self._admit(whose, now)))
        return passed

    # -- one connection ----------------------------------------------------------------------------------------------

    def _admit(self, meter: Meter, now: int) -> bytes:
        """Return the buffered bytes of a connection that may be handled now; if it has more, it begins to wait."""
        if meter.shared is not None and meter.shared.waiting and meter.inflow.has_more:
            self._wait_for_user(meter, meter.shared, now)  # it queues behind the user's connections that wait already
            return b""
        data, _ = self._take(meter, INT64_MAX, INT64_MAX, now)
        if meter.inflow.has_more:
            self._wait(meter, now)
        return data

    def _take(self, meter: Meter, messages: int, size: int, now: int) -> tuple[bytes, int]:
        """Take bytes from a connection's buffer and the tokens for them; return the bytes and the number of messages.

        At most *messages* PUBLISH packets and *size* bytes are taken, and not more than the tokens allow.
        """
        shares = (meter.own,) if meter.shared is None else (meter.own, meter.shared)
        messages = min(messages, *(share.messages.tokens_left(now) for share in shares))
        size = min(size, *(share.bytes.tokens_left(now) for share in shares))
        data, used = meter.inflow.take(max(0, messages), max(0, size))
        for share in shares:
            share.take(used, len(data))
        return data, used

    def _wait(self, meter: Meter, now: int) -> None:
        """Suspend a connection until it has the missing tokens: first for its own, then for those of its user."""
        own_us = meter.own.wait_us(now)
        if own_us or meter.shared is None:
            self._begin(meter, meter.own, now)
            heapq.heappush(self._due, (now + own_us, next(self._numbers), meter))
        else:
            self._wait_for_user(meter, meter.shared, now)

    def _wait_for_user(self, meter: Meter, users: _Share, now: int) -> None:
        self._begin(meter, users, now)
        users.waiting.append(meter)
        self._schedule(users, now)

    def _begin(self, meter: Meter, share: _Share, now: int) -> None:
        if not meter.is_waiting:
            self._counters.rate_pauses += 1
        self._set_waiting(meter, is_waiting=True)
        own = meter.own
        if own.blocked_at is None or now - own.blocked_at > _EPISODE_US:
            self._counters.slowed_clients += 1
            self.news.append(Slowed(meter.client, meter.user, share.setting(now)))
        own.blocked_at = share.blocked_at = now

    def _set_waiting(self, meter: Meter, *, is_waiting: bool) -> None:
        self.slowed += is_waiting - meter.is_waiting
        meter.is_waiting = is_waiting

    # -- the connections of a user -----------------------------------------------------------------------------------

    def _schedule(self, users: _Share, now: int) -> None:
        if not users.is_scheduled:
            users.is_scheduled = True
            heapq.heappush(self._due, (now + users.wait_us(now), next(self._numbers), users))

    def _take_turns(self, users: _Share, passed: list[tuple[Meter, bytes]], now: int) -> None:
        """Give the waiting connections of a user their turns until the user's tokens are used up."""
        waiting = users.waiting
        while waiting and not users.wait_us(now):
            meter = waiting.popleft()
            messages, size = meter.turn or (users.messages.turn, users.bytes.turn)
            data, used = self._take(meter, messages, size, now)
            passed.append((meter, data))
            messages, size, meter.turn = messages - used, size - len(data), None
            if not meter.inflow.has_more:
                self._set_waiting(meter, is_waiting=False)
            elif own_us := meter.own.wait_us(now):
                heapq.heappush(self._due, (now + own_us, next(self._numbers), meter))
            elif messages > 0 and size > 0:  # the user's tokens were used up: the turn continues with the next tokens
                meter.turn = messages, size
                waiting.appendleft(meter)
            else:
                waiting.append(meter)
        if waiting:
            self._schedule(users, now)

    # -- remembered clients and users --------------------------------------------------------------------------------

    def _share(self, known: dict[str, _Share], whose: str, name: str, rates: Rates) -> _Share:
        share = known.get(name)
        if share is None:
            if len(known) >= self._most_known:
                self._forget()
            share = known[name] = _Share(whose, rates, self._burst_us)
        share.connected += 1
        return share

    def _forget(self) -> None:
        """Forget idle clients and users; if too many disconnected ones are left, also those seen first."""
        for known in (self._clients, self._users):
            for name in [name for name, share in known.items() if share.is_idle(self._now)]:
                del known[name]
            away = [name for name, share in known.items() if not share.connected]
            for name in away[: max(0, len(away) - _REMEMBERED // 2)]:
                del known[name]
        self._most_known = max(_REMEMBERED, 2 * len(self))
