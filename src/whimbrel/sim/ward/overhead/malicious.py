"""Malicious policies: the language has no loops, so each function of a chain calls the next one twice.

SUBLIM defines a malicious agent as one with an infinite loop (6.3). Thirty such functions take about 10^9 steps. A
broker counts the steps before it accepts a policy, so the worst that it runs is the most expensive policy it accepts.
"""

from __future__ import annotations

from functools import cache

from whimbrel.errors import WhimbrelError
from whimbrel.language.policies import Policy

__all__ = ["ENDLESS", "FAILING", "costliest_accepted"]

_ENDLESS_LINKS = 60


def _chain(links: int, last_statements: int = 0) -> str:
    """Return a policy of 2 ** *links* calls and *last_statements* more statements; it sends the original message."""
    lines = ["function f0(a) { return a; }"]
    lines += [f"function f{link}(a) {{ x = f{link - 1}(a); return f{link - 1}(x); }}" for link in range(1, links + 1)]
    lines += [f"x = f{links}(1);", *["x = 1;"] * last_statements, "return m;"]
    return "\n".join(lines) + "\n"


ENDLESS = _chain(_ENDLESS_LINKS)
"""A policy that would run for tens of thousands of years."""

FAILING = "".join(f"state.v{number} = 1; " for number in range(257)) + "return m;\n"
"""A policy that sets more variables than a device may have, so it always fails and is suspended."""


@cache
def costliest_accepted() -> str:
    """Return the most expensive policy of this kind that a broker with the default limits accepts."""
    links = 1
    while _is_accepted(_chain(links + 1)):
        links += 1
    few, many = 0, 100_000
    while few + 1 < many:
        middle = (few + many) // 2
        few, many = (middle, many) if _is_accepted(_chain(links, middle)) else (few, middle)
    return _chain(links, few)


def _is_accepted(text: str) -> bool:
    try:
        Policy(text)
    except WhimbrelError:
        return False
    return True
