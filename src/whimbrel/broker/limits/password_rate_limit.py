"""Rate limit of wrong passwords per network address (brute-force protection): a token bucket for each address.

Rule: an address may give a minute's worth of wrong passwords at once. Then it may give one more each time that its
share of a minute has passed (6 seconds at 10 per minute). Right passwords cost nothing.
Rule: wrong passwords beyond the limit are counted too. If checks that were admitted together all fail, the address
waits longer, so that in the long run an attacker gains nothing by guessing in parallel.
Rule: an IPv4 address counts by itself; an IPv6 address counts as its /64 network, the smallest that a household has.
An IPv4-mapped IPv6 address counts as IPv4. The port is ignored. A text that is not an address counts by itself.
Rule: memory is bounded. If it is full, the addresses whose buckets are full again are removed; if there are none, the
address that failed longest ago is removed.
Rule: if the clock is set back, no address loses its allowance, and the time that passed before it counts.

For each address, the time at which its bucket will be full again is stored. The unit of time is a microsecond divided
by the allowed failures per minute, so that one failure is a whole number of units and nothing is rounded.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, IPv6Network, ip_address

from whimbrel.model.bounds import INT32_MAX, whole

__all__ = ["PasswordRateLimit", "origin_of"]

_MINUTE_US = 60_000_000
_NETWORK_BITS = 64
# The text of a peer address: a tuple of Python's socket module; [host] or [host]:port; host:port.
_HOST = re.compile(
    r"""\(['"]([^'"]*)['"], [0-9]+(?:, [0-9]+, [0-9]+)?\)|\[([^\]]*)\](?::[0-9]+)?|(.*):[0-9]+""", re.DOTALL
)


class PasswordRateLimit:
    """Limits the wrong passwords of each address to *per_minute* (0: no limit); remembers at most *most* addresses."""

    def __init__(self, per_minute: int, *, most: int = 10_000) -> None:
        self._per_minute = whole("wrong passwords per minute", per_minute, 0, INT32_MAX)
        self._most = whole("addresses that are remembered", most, 1, INT32_MAX)
        self._whole_at: dict[str, int] = {}
        """The time at which the bucket of each address will be full again, in the order of their last failures."""
        self._passed = 0
        """Time since the first call, in units of a microsecond divided by the failures per minute."""
        self._last_us: int | None = None

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._whole_at)

    def may_try(self, address: str, now_us: int) -> bool:
        """Return whether a password from *address* may be checked now."""
        if not self._per_minute:
            return True
        now = self._advance(now_us)
        owed = self._whole_at.get(origin_of(address), now) - now
        return owed <= (self._per_minute - 1) * _MINUTE_US

    def count_failure(self, address: str, now_us: int) -> None:
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
        """Advance the clock to *now_us*, and return the time since the first call, which never goes back."""
        if self._last_us is not None and now_us > self._last_us:
            self._passed += (now_us - self._last_us) * self._per_minute
        self._last_us = now_us
        return self._passed

    def _forget(self, now: int) -> None:
        """Remove all addresses whose buckets are full again, or else the address that failed longest ago."""
        # This scan is rare: an address that failed once is full again soon, and one scan removes all such addresses.
        remembered = {who: whole_at for who, whole_at in self._whole_at.items() if now < whole_at}
        if len(remembered) == len(self._whole_at):
            del remembered[next(iter(remembered))]
        self._whole_at = remembered


def origin_of(address: str) -> str:
    """Return the network or host by which *address* is counted: addresses with the same origin share a bucket."""
    network = _network(address)
    parts = _HOST.fullmatch(address)
    if network is not None or parts is None:  # the end of an IPv6 address without brackets only looks like a port
        return network or address
    host = next(part for part in parts.groups() if part is not None)
    return _network(host) or host


def _network(host: str) -> str | None:
    """Return the IPv4 address, or the /64 network of the IPv6 address, *host*; None if it is not an address."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return str(IPv6Network((int(found), _NETWORK_BITS), strict=False))
        found = found.ipv4_mapped
    return str(found)
