"""Own properties: which user properties of a packet speak to the broker, and which are the application's.

| name | whose |
|---|---|
| ``whimbrel.<name>`` | the broker's, on every connection |
| ``<name>`` | the broker's on a connection whose CONNECT carries ``whimbrel=1``; elsewhere the application's |

Rule: this is decided here and nowhere else. A client that knows nothing of Whimbrel may use any name without the
prefix: its properties travel untouched.
Rule: what is the broker's is strict. A name behind the prefix that has no meaning in a packet is refused, as is a value
that does not parse (``joining``, ``subscribing`` and ``unlocking`` read the values).
Rule: a name and its prefixed form are the same option: one that may stand once may stand once in either form.
"""

from __future__ import annotations

from collections.abc import Sequence

from whimbrel.errors import InvalidValueError

__all__ = [
    "IN_CONNECT",
    "IN_PUBLISH",
    "IN_SUBSCRIBE",
    "MARK",
    "NUMBER",
    "PREFIX",
    "SECRET",
    "Pairs",
    "is_marked",
    "split_own",
]

PREFIX = "whimbrel."
MARK = ("whimbrel", "1")
"""What a CONNECT carries so that names without the prefix are the broker's too."""

IN_CONNECT = ("session", "password", "receipt", "key", "policy")
IN_SUBSCRIBE = (
    *("filter", "ttl", "max", "name", "session", "key", "insecure", "policy", "near", "stale", "since"),
    "modify",
)
"""UNSUBSCRIBE has the same."""
IN_PUBLISH = ("key", "insecure", "place", "radius", "deadline")
"""A will has the same."""
SECRET = ("key", "insecure")
"""The properties that are removed from a publication before it is sent on; the others stay (``placing``)."""

NUMBER = f"{PREFIX}id"
"""Which notification a copy is of, ``node:seq``, on connections that subscribed with ``since``."""

_LONGEST_NAME = 80

Pairs = Sequence[tuple[str, str]]


def is_marked(user: Pairs) -> bool:
    """Tell whether these user properties of a CONNECT say that its client knows Whimbrel."""
    return MARK in user


def split_own(user: Pairs, known: Sequence[str], *, is_ours: bool) -> tuple[list[tuple[str, str]], Pairs]:
    """Return the broker's properties of a packet, without their prefix, and the application's, both in order.

    *known* are the names that mean something in such a packet; *is_ours*: its connection ``is_marked``.
    """
    own: list[tuple[str, str]] = []
    rest: list[tuple[str, str]] = []
    for pair in user:
        name, value = pair
        if name.startswith(PREFIX):
            bare = name.removeprefix(PREFIX)
            if bare not in known:
                allowed = ", ".join(PREFIX + each for each in known)
                raise InvalidValueError("name", name[:_LONGEST_NAME], f"{allowed} in this packet")
            own.append((bare, value))
        elif is_ours and name in known:
            own.append(pair)
        else:
            rest.append(pair)
    return own, rest if own else user
