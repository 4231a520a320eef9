"""Own properties: which user properties of a packet are meant for the broker, and which are the application's.

| name | meant for |
|---|---|
| ``whimbrel.<name>`` | the broker, on every connection |
| ``<name>`` | the broker, on a connection whose CONNECT carries ``whimbrel=1``; otherwise the application |

Rule: this is decided here and nowhere else. A client that does not know Whimbrel may use any name without the prefix:
the broker passes its properties on unchanged.
Rule: the broker's properties are checked strictly. A prefixed name that has no meaning in a packet is refused, as is a
value that does not parse (``joining``, ``requested`` and ``publication_keys`` read the values).
Rule: a name and its prefixed form are the same option: an option that may occur once may occur once in either form.
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
"""The user property of a CONNECT that makes names without the prefix the broker's too."""

IN_CONNECT = ("session", "password", "receipt", "key", "policy")
IN_SUBSCRIBE = (
    *("filter", "ttl", "max", "name", "session", "key", "insecure", "policy", "near", "stale", "since"),
    "modify",
)
"""The broker's options in SUBSCRIBE and UNSUBSCRIBE."""
IN_PUBLISH = ("key", "insecure", "place", "radius", "deadline")
"""The broker's options in PUBLISH, and in a will."""
SECRET = ("key", "insecure")
"""Properties that are removed from a publication before it is sent on; the others are sent on too (``placing``)."""

NUMBER = f"{PREFIX}id"
"""User property with the id of a copy's notification, ``node:seq``, on connections that subscribed with ``since``."""

_LONGEST_NAME = 80

Pairs = Sequence[tuple[str, str]]


def is_marked(user: Pairs) -> bool:
    """Return whether these user properties of a CONNECT declare that the client knows Whimbrel."""
    return MARK in user


def split_own(user: Pairs, known: Sequence[str], *, is_ours: bool) -> tuple[list[tuple[str, str]], Pairs]:
    """Split user properties into the broker's, without their prefix, and the application's, both in order.

    *known* are the names that have a meaning in such a packet; *is_ours*: the connection's CONNECT ``is_marked``.
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
