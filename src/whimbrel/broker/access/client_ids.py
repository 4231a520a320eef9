"""Client identifiers: which of them a user may connect with, from the ``[[client]]`` tables of the rights file.

    [[client]]
    ids = ["{user}", "{user}:*"]   # * is any text, {user} the user's own name

    [[client]]
    group = "gateways"             # also: user = "…"; if both are given, both must fit
    ids = ["gateway-*"]

Rule: without a ``[[client]]`` table every identifier is free, and a session belongs to the first user who created it.
If there are such tables, a client may use only an identifier that one of them grants to its user.
Rule: ``user = "*"`` fits every client, ``user = ""`` clients without a verified user. ``{user}`` never fits these.
Rule: in place of ``{user}`` the user's name is taken literally: a user called ``*`` is granted no more than others.

A listener may have a mount point: a prefix of its clients' topics and identifiers. The client ``lamp`` of
a listener with the mount point ``home/7/`` is known to the broker as ``home/7/lamp``.
Rule: the whole identifier is the mount point followed by the identifier that the client sent. It belongs to the longest
mount point that it begins with; a client of another listener must not use it.
Rule: the rules of the rights file are about the identifier that the client sent, whatever its listener.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from whimbrel.broker.access.users import check_group, check_user_name
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import text

__all__ = ["ClientIds", "ClientRule", "MountedIds"]

EVERY_NAME = "*"
MAX_CLIENT_RULES = 10_000
MAX_CLIENT_PATTERNS = 100_000
_MAX_PATTERN_BYTES = 1_024
_USER = "{user}"
_BRACED = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRule:
    """One ``[[client]]`` table: the users that it fits, and the client identifiers that it grants them."""

    ids: tuple[str, ...]
    user: str | None = None
    """``None`` and ``"*"`` fit every user, the empty string a client without a verified user."""
    group: str | None = None

    def __post_init__(self) -> None:
        if self.user not in {None, "", EVERY_NAME}:
            check_user_name(self.user)
        if self.group is not None:
            check_group(self.group)
        if not self.ids:
            raise InvalidValueError("ids", [], "at least one pattern of client identifiers")
        for pattern in self.ids:
            text("pattern of client identifiers", pattern, max_bytes=_MAX_PATTERN_BYTES)
            if not pattern or any(braced != _USER for braced in _BRACED.findall(pattern)):
                raise InvalidValueError("ids", pattern, "text with {user} as the only word in braces")

    def grants(self, user: str | None, groups: Collection[str], client_id: str) -> bool:
        """Return whether this rule allows *user*, who is in *groups*, to connect as *client_id*."""
        return (
            (self.user is None or self.user in {EVERY_NAME, user or ""})
            and (self.group is None or self.group in groups)
            and any(_fits(pattern, user, client_id) for pattern in self.ids)
        )


class ClientIds:
    """All rules about client identifiers (immutable)."""

    def __init__(self, rules: Sequence[ClientRule] = ()) -> None:
        count = sum(len(rule.ids) for rule in rules)
        if len(rules) > MAX_CLIENT_RULES:
            raise InvalidValueError("number of client rules", len(rules), f"at most {MAX_CLIENT_RULES}")
        if count > MAX_CLIENT_PATTERNS:
            raise InvalidValueError("client identifiers of all rules", count, f"at most {MAX_CLIENT_PATTERNS}")
        self.rules = tuple(rules)

    def may_use(self, user: str | None, groups: Collection[str], client_id: str) -> bool:
        """Return whether *user*, who is in *groups*, may connect as *client_id*; True if there are no rules."""
        return not self.rules or any(rule.grants(user, groups, client_id) for rule in self.rules)


class MountedIds:
    """The mount points (prefixes of topics and client identifiers) of all listeners of a broker."""

    def __init__(self, mounts: Iterable[str] = ()) -> None:
        self.mounts: list[str] = []
        """All mount points, the longest first."""
        for mount in mounts:
            self.add(mount)

    def __bool__(self) -> bool:
        return bool(self.mounts)

    def add(self, mount: str) -> None:
        """Add a mount point; an empty one is ignored."""
        if mount and mount not in self.mounts:
            self.mounts.append(mount)
            self.mounts.sort(key=len, reverse=True)

    def mount_of(self, whole: str) -> str:
        """Return the mount point that the identifier *whole* begins with, or the empty string."""
        return next((mount for mount in self.mounts if whole.startswith(mount)), "")

    def without_mount(self, whole: str) -> str:
        """Return the identifier as the client sent it: *whole* without its mount point."""
        return whole[len(self.mount_of(whole)) :] if self.mounts else whole


def _fits(pattern: str, user: str | None, client_id: str) -> bool:
    """Return whether *client_id* matches *pattern* with the user's own name in it; in linear time, without a regex."""
    if _USER in pattern and not user:
        return False
    # Split before the name is inserted, so that a * in the name is an ordinary character.
    first, *others = (part.replace(_USER, user or "") for part in pattern.split("*"))
    if not others:
        return client_id == first
    *middle, last = others
    end = len(client_id) - len(last)
    at = len(first)
    if not client_id.startswith(first) or not client_id.endswith(last) or at > end:
        return False
    for part in middle:
        at = client_id.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
