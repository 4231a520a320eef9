"""Rate limits: how many messages and bytes a second a client, and all clients of a user together, may send.

Rule: nothing is dropped and no client is told: what a client may not send yet is held, and the shell reads no more from
its connection. So TCP's own back-pressure reaches the client.
Rule: at no time more has passed than the rate times the time plus the burst, of bytes and of PUBLISH packets alike.
Rule: the clients of one user who wait take turns, each with a small part of what is there, so none of them starves.
Rule: nothing here asks a clock: ``now`` is an argument, in microseconds of a clock that never steps.
Rule: to connect again is no way around a limit: what a client has used up is remembered until it is whole again.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import NamedTuple

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.inflow import Inflow
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.settings.config import LimitSettings
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.clock import US_PER_S

__all__ = ["Meter", "RateLimits", "Rates", "Slowed", "TokenBucket"]

_SLOWED = "the client sends more than {} allows; it is read from as slowly as that, and nothing is dropped"
_WAITS = 10
"""Who waits is woken when a tenth of a second's worth is there, not for every byte."""
_TURNS = 50
"""A turn of one of several clients of a user is a fiftieth of a second's worth."""
_EPISODE_US = 60 * US_PER_S
"""A client that is slowed again within so long is still the same piece of news."""
_REMEMBERED = 10_000


class Rates(NamedTuple):
    """What may be sent in a second; 0 is any number."""

    messages: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.messages or self.bytes)


class Slowed(NamedTuple):
    """A client that begins to be slowed, for the log of the process."""

    client: str
    user: str | None
    setting: str
    """The rate that is exceeded: of the client, or of its user."""

    def notice(self) -> Notice:
        """Return what an operator should read of it."""
        return Notice(_SLOWED.format(self.setting), self.client, self.user)


class TokenBucket:
    """Tokens that come at *rate* a second, up to *burst_us* microseconds' worth; without a rate, without end."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: int, burst_us: int) -> None:
        self._rate = rate
        self._most = max(rate * burst_us, US_PER_S)
        self._level = self._most
        """In millionths of a token, so that nothing is ever rounded."""
        self._at: int | None = None

    def left(self, now: int) -> int:
        """Return how many whole tokens there are."""
        if not self._rate:
            return INT64_MAX
        if self._at is not None and now > self._at:
            self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now if self._at is None else max(self._at, now)
        return self._level // US_PER_S

    def take(self, number: int) -> None:
        """Take tokens; those that are not there are owed."""
        if self._rate:
            self._level -= number * US_PER_S

    def wait_us(self, now: int) -> int:
        """Return how long until there are enough to go on, where there is none now; 0 where there is one."""
        if self.left(now) > 0:
            return 0
        wanted = min(self._most, max(1, self._rate // _WAITS) * US_PER_S)
        return -(-(wanted - self._level) // self._rate)

    @property
    def turn(self) -> int:
        """How many tokens one of several takes before it is another's turn."""
        return max(1, self._rate // _TURNS) if self._rate else INT64_MAX

    def is_full(self, now: int) -> bool:
        """Tell whether nothing is owed any more."""
        self.left(now)
        return not self._rate or self._level >= self._most


class _Share:
    """What a client, or a user, may send; and of a user the clients that wait for it."""

    __slots__ = ("_whose", "blocked_at", "bytes", "connected", "is_scheduled", "messages", "waiting")

    def __init__(self, whose: str, rates: Rates, burst_us: int) -> None:
        self._whose = whose
        self.messages, self.bytes = TokenBucket(rates.messages, burst_us), TokenBucket(rates.bytes, burst_us)
        self.connected = 0
        """How many connections share it."""
        self.waiting: deque[Meter] = deque()
        self.is_scheduled = False
        self.blocked_at: int | None = None
        """When a client had last to wait for it."""

    def take(self, messages: int, size: int) -> None:
        self.messages.take(messages)
        self.bytes.take(size)

    def wait_us(self, now: int) -> int:
        return max(self.messages.wait_us(now), self.bytes.wait_us(now))

    def setting(self, now: int) -> str:
        """Return the name of the rate that has to be waited for."""
        what = "messages" if self.messages.wait_us(now) else "bytes"
        return f"limits.{self._whose}_{what}_per_second"

    def is_idle(self, now: int) -> bool:
        """Tell whether it can be forgotten: it is not shared, nothing is owed, and it was not reported lately."""
        is_old = self.blocked_at is None or now - self.blocked_at > _EPISODE_US
        return not self.connected and is_old and self.messages.is_full(now) and self.bytes.is_full(now)


class Meter:
    """What one connection sends, as far as it may not be handled yet."""

    __slots__ = ("client", "inflow", "is_closed", "is_waiting", "link", "own", "shared", "turn", "user")

    def __init__(self, link: object, client: str, user: str | None, own: _Share, shared: _Share | None) -> None:
        self.link, self.client, self.user = link, client, user
        self.own, self.shared = own, shared
        """What its client may send, and what all clients of its user may; None if that is not limited."""
        self.inflow = Inflow()
        self.is_waiting = False
        """The shell is not to read from the connection."""
        self.is_closed = False
        self.turn: tuple[int, int] | None = None
        """What is left of its turn, in messages and bytes, where its user's tokens were used up in the middle."""


class RateLimits:
    """The rates of all clients and users; *burst_us* is how much of a second's worth may come at once."""

    def __init__(self, per_client: Rates, per_user: Rates, burst_us: int, counters: Counters) -> None:
        self._per_client, self._per_user, self._burst_us = per_client, per_user, burst_us
        self.are_any = bool(per_client or per_user)
        """Whether anything is limited."""
        self._counters = counters
        self._clients: dict[str, _Share] = {}
        self._users: dict[str, _Share] = {}
        self._due: list[tuple[int, int, Meter | _Share]] = []
        """Connections that wait for tokens of their own, and users whose clients wait; by the time to look again."""
        self._numbers = count()
        self._now, self._most_known = 0, _REMEMBERED
        self._new: list[Meter] = []
        """Connections that sent more behind their CONNECT, which were not looked at yet."""
        self.slowed = 0
        """How many connections are not read from for now."""
        self.news: list[Slowed] = []
        """What the shell is to log, and then to forget."""

    @classmethod
    def of(cls, limits: LimitSettings, counters: Counters) -> RateLimits:
        """Return the rates that the configuration sets."""
        per_client = Rates(limits.client_messages_per_second, limits.client_bytes_per_second)
        per_user = Rates(limits.user_messages_per_second, limits.user_bytes_per_second)
        return cls(per_client, per_user, int(limits.rate_burst_s * US_PER_S), counters)

    def __len__(self) -> int:
        """Return how many clients and users are remembered."""
        return len(self._clients) + len(self._users)

    def next_at(self, now: int) -> int | None:
        """Return when ``turn`` has something to do; None if never."""
        if self._new:
            return now
        return self._due[0][0] if self._due else None

    def open(self, link: object, client: str, user: str | None, data: bytes) -> Meter:
        """Return the meter of a connection whose CONNECT is answered; *data* came behind it."""
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
        """Forget a connection, and what is held of it."""
        if meter.is_closed:
            return
        meter.is_closed, meter.link, meter.inflow = True, None, Inflow()
        self._set_waiting(meter, is_waiting=False)
        meter.own.connected -= 1
        if meter.shared is not None:
            meter.shared.connected -= 1
            if meter in meter.shared.waiting:
                meter.shared.waiting.remove(meter)

    def receive(self, meter: Meter, data: bytes, now: int) -> bytes:
        """Take in what came over a connection; return what may be handled now. The rest comes with ``turn``."""
        self._now = now
        meter.inflow.put(data)
        return b"" if meter.is_waiting else self._admit(meter, now)

    def turn(self, now: int) -> list[tuple[Meter, bytes]]:
        """Return what may be handled now of what was held; who does not wait any more may be read from again."""
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
        """Return what a connection may send now; where it has more than that, it waits."""
        if meter.shared is not None and meter.shared.waiting and meter.inflow.has_more:
            self._wait_for_user(meter, meter.shared, now)  # behind the connections that wait already
            return b""
        data, _ = self._taken(meter, INT64_MAX, INT64_MAX, now)
        if meter.inflow.has_more:
            self._wait(meter, now)
        return data

    def _taken(self, meter: Meter, messages: int, size: int, now: int) -> tuple[bytes, int]:
        """Return what passes, at most so much and no more than there are tokens for; and how many messages it is."""
        shares = (meter.own,) if meter.shared is None else (meter.own, meter.shared)
        messages = min(messages, *(share.messages.left(now) for share in shares))
        size = min(size, *(share.bytes.left(now) for share in shares))
        data, used = meter.inflow.take(max(0, messages), max(0, size))
        for share in shares:
            share.take(used, len(data))
        return data, used

    def _wait(self, meter: Meter, now: int) -> None:
        """Let a connection wait for what it has not enough of: tokens of its own first, then those of its user."""
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
        """Let those who wait for a user's tokens take turns until these are used up."""
        waiting = users.waiting
        while waiting and not users.wait_us(now):
            meter = waiting.popleft()
            messages, size = meter.turn or (users.messages.turn, users.bytes.turn)
            data, used = self._taken(meter, messages, size, now)
            passed.append((meter, data))
            messages, size, meter.turn = messages - used, size - len(data), None
            if not meter.inflow.has_more:
                self._set_waiting(meter, is_waiting=False)
            elif own_us := meter.own.wait_us(now):
                heapq.heappush(self._due, (now + own_us, next(self._numbers), meter))
            elif messages > 0 and size > 0:  # the user's tokens were used up: its turn goes on with the next
                meter.turn = messages, size
                waiting.appendleft(meter)
            else:
                waiting.append(meter)
        if waiting:
            self._schedule(users, now)

    # -- who is remembered -------------------------------------------------------------------------------------------

    def _share(self, known: dict[str, _Share], whose: str, name: str, rates: Rates) -> _Share:
        share = known.get(name)
        if share is None:
            if len(known) >= self._most_known:
                self._forget()
            share = known[name] = _Share(whose, rates, self._burst_us)
        share.connected += 1
        return share

    def _forget(self) -> None:
        """Make room: those who owe nothing go, and of others who are not connected the half known longest."""
        for known in (self._clients, self._users):
            for name in [name for name, share in known.items() if share.is_idle(self._now)]:
                del known[name]
            away = [name for name, share in known.items() if not share.connected]
            for name in away[: max(0, len(away) - _REMEMBERED // 2)]:
                del known[name]
        self._most_known = max(_REMEMBERED, 2 * len(self))
