"""PasswordRateLimit: how many wrong passwords an address may give before it has to wait.

Rule: an address may fail as often as it may in a minute at once, and gets one of these back each time that such a share
of a minute has passed. What was right costs nothing.
Rule: failures beyond that are counted too. Tasks that were let in together, before one of them was answered, are
paid for by waiting longer, so that in the long run an attacker gains nothing by guessing in parallel.
Rule: an IPv4 address stands for itself, an IPv6 address for its /64, which is the least that a household has;
IPv4 written as IPv6 is IPv4. The port means nothing. What is no address stands for itself.
Rule: memory is bounded. Forgotten are, when there is no more room, those who have everything back, and if there are
none the one who failed longest ago.
Rule: a clock that is set back takes no client's allowance away; the time until it was set back counts.

For each address it is known when it will have everything back. Times are counted in shares of a microsecond, as many
as it may fail in a minute, so that a failure is a whole number of them and nothing is rounded.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, IPv6Network, ip_address

from whimbrel.model.bounds import INT32_MAX, whole

__all__ = ["PasswordRateLimit", "origin_of"]

_MINUTE_US = 60_000_000
_NETWORK_BITS = 64
# What a socket says of its other end, as text; [host] and [host]:port; host:port.
_HOST = re.compile(
    r"""\(['"]([^'"]*)['"], [0-9]+(?:, [0-9]+, [0-9]+)?\)|\[([^\]]*)\](?::[0-9]+)?|(.*):[0-9]+""", re.DOTALL
)


class PasswordRateLimit:
    """Who has given wrong passwords, and how many more each may give; *per_minute* of 0 is without limit."""

    def __init__(self, per_minute: int, *, most: int = 10_000) -> None:
        self._per_minute = whole("wrong passwords per minute", per_minute, 0, INT32_MAX)
        self._most = whole("addresses that are remembered", most, 1, INT32_MAX)
        self._whole_at: dict[str, int] = {}
        """When each has everything back; in the order of their last failures."""
        self._passed = 0
        """The shares of microseconds that have passed since the first question."""
        self._last_us: int | None = None

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._whole_at)

    def may_try(self, address: str, now_us: int) -> bool:
        """Tell whether a password from *address* is to be looked at."""
        if not self._per_minute:
            return True
        now = self._advance(now_us)
        owed = self._whole_at.get(origin_of(address), now) - now
        return owed <= (self._per_minute - 1) * _MINUTE_US

    def failed(self, address: str, now_us: int) -> None:
        """Count a wrong password from *address*."""
        if not self._per_minute:
            return
        now = self._advance(now_us)
        who = origin_of(address)
        whole_at = max(self._whole_at.pop(who, now), now)
        if len(self._whole_at) >= self._most:
            self._forget(now)
        self._whole_at[who] = whole_at + _MINUTE_US

    def _advance(self, now_us: int) -> int:
        """Return the time that has passed, which never goes back."""
        if self._last_us is not None and now_us > self._last_us:
            self._passed += (now_us - self._last_us) * self._per_minute
        self._last_us = now_us
        return self._passed

    def _forget(self, now: int) -> None:
        """Make room for one."""
        # Looking at all of them is rare: those who failed once are whole soon, and all of them go at once.
        remembered = {who: whole_at for who, whole_at in self._whole_at.items() if now < whole_at}
        if len(remembered) == len(self._whole_at):
            del remembered[next(iter(remembered))]
        self._whole_at = remembered


def origin_of(address: str) -> str:
    """Return what is remembered for *address*: two addresses that have the same are the same to us."""
    network = _network(address)
    parts = _HOST.fullmatch(address)
    if network is not None or parts is None:  # IPv6 without brackets ends like a port, and is an address
        return network or address
    host = next(part for part in parts.groups() if part is not None)
    return _network(host) or host


def _network(host: str) -> str | None:
    """Return the IPv4 address or the IPv6 network that *host* is; ``None`` if it is neither."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return str(IPv6Network((int(found), _NETWORK_BITS), strict=False))
        found = found.ipv4_mapped
    return str(found)
