"""Client identifiers: which of them a user may connect with, from the ``[[client]]`` tables of the rights file.

    [[client]]
    ids = ["{user}", "{user}:*"]   # * is any text, {user} the user's own name

    [[client]]
    group = "gateways"             # also: user = "…"; all that are given must fit
    ids = ["gateway-*"]

Rule: without a table every identifier is free, and a session belongs to the first user who made it. With one, a client
may use only an identifier that a table grants to its user.
Rule: ``"*"`` fits every user, ``user = ""`` clients without a verified user. ``{user}`` never fits these.
Rule: a user's name is plain text in an identifier: a user called ``*`` is granted no more than others.

At a mount point, ``lamp`` is a client of its own, which the broker knows as ``home/7/lamp``.
Rule: the whole identifier is the mount point and what the client says. It belongs to the longest mount point that it
begins with: no client of another listener may say it.
Rule: rules of the rights file are about what the client says, whichever its listener is.
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
    """One table: which users it fits, and the client identifiers that it grants them."""

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
        """Tell whether this rule lets the user connect as *client_id*."""
        return (
            (self.user is None or self.user in {EVERY_NAME, user or ""})
            and (self.group is None or self.group in groups)
            and any(_fits(pattern, user, client_id) for pattern in self.ids)
        )


class ClientIds:
    """All rules about client identifiers; they never change."""

    def __init__(self, rules: Sequence[ClientRule] = ()) -> None:
        count = sum(len(rule.ids) for rule in rules)
        if len(rules) > MAX_CLIENT_RULES:
            raise InvalidValueError("number of client rules", len(rules), f"at most {MAX_CLIENT_RULES}")
        if count > MAX_CLIENT_PATTERNS:
            raise InvalidValueError("client identifiers of all rules", count, f"at most {MAX_CLIENT_PATTERNS}")
        self.rules = tuple(rules)

    def may_use(self, user: str | None, groups: Collection[str], client_id: str) -> bool:
        """Tell whether a user may connect as *client_id*."""
        return not self.rules or any(rule.grants(user, groups, client_id) for rule in self.rules)


class MountedIds:
    """The mount points of a broker."""

    def __init__(self, mounts: Iterable[str] = ()) -> None:
        self.mounts: list[str] = []
        """All of them, the longest first."""
        for mount in mounts:
            self.add(mount)

    def __bool__(self) -> bool:
        return bool(self.mounts)

    def add(self, mount: str) -> None:
        """Take in a mount point; the empty one is none."""
        if mount and mount not in self.mounts:
            self.mounts.append(mount)
            self.mounts.sort(key=len, reverse=True)

    def mount_of(self, whole: str) -> str:
        """Return the mount point that a whole identifier belongs to; empty if it belongs to none."""
        return next((mount for mount in self.mounts if whole.startswith(mount)), "")

    def said(self, whole: str) -> str:
        """Return what the client with a whole identifier says."""
        return whole[len(self.mount_of(whole)) :] if self.mounts else whole


def _fits(pattern: str, user: str | None, client_id: str) -> bool:
    """Tell whether *pattern*, with the user's own name filled in, is *client_id*; in linear time, without a regex."""
    if _USER in pattern and not user:
        return False
    # Split before the name is filled in, so that a * in the name is only a character.
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
