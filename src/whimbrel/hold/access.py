"""Access control lists of sessions: which users and groups may do what to a session (Elvin proxy, 5.2.1).

Rule: a session has passwords or an access control list. This module has the list. Passwords and their hashes are in
``broker.access.passwords``; readers of the log, folds and clients never need them.
Rule: an error message never quotes a given access value, because it may be a password in the wrong place.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from whimbrel.errors import InvalidValueError, MalformedBodyError, Phrase
from whimbrel.model.attributes import Limits
from whimbrel.model.bounds import name
from whimbrel.model.facts import MAX_ACCESS_BYTES
from whimbrel.model.json_body import read_json

__all__ = [
    "ALL_RIGHTS",
    "AccessControlList",
    "Grant",
    "Right",
    "access_refusal",
    "access_text",
    "access_tree",
    "read_list",
]

_LIMITS = Limits(max_bytes=MAX_ACCESS_BYTES)
_Member = TypeVar("_Member", bound=Enum)


class Right(Enum):
    """Permission to perform some operations on a session, grouped as in the paper."""

    JOIN = "join"
    """Join, leave, and receive while joined."""
    CHANGE_SUBSCRIPTIONS = "change subscriptions"
    CHANGE_ACCESS = "change access"
    """Replace the passwords or the list."""
    DELETE = "delete"


ALL_RIGHTS = frozenset(Right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One entry of an access control list: the rights of a user, or of all members of a group."""

    who: str
    rights: frozenset[Right]
    is_group: bool = False

    def __post_init__(self) -> None:
        name("group" if self.is_group else "user", self.who)
        object.__setattr__(self, "rights", frozenset(self.rights))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlList:
    """Access control list: rights of users and groups, by name. The broker authenticates users before it checks."""

    owner: str
    """The user who owns the session and has all rights."""
    grants: tuple[Grant, ...] = ()

    def __post_init__(self) -> None:
        name("owner", self.owner)
        grants = tuple(sorted(self.grants, key=lambda grant: (grant.is_group, grant.who)))
        object.__setattr__(self, "grants", grants)
        if len({(grant.is_group, grant.who) for grant in grants}) < len(grants):
            raise InvalidValueError("grants", len(grants), "one for each user and group")

    def allows(
        self, right: Right, *, password: str | None = None, user: str | None = None, groups: Collection[str] = ()
    ) -> bool:
        """Return whether *user*, or one of the *groups* the user is in, has *right*; *password* is ignored."""
        return right in self.rights(password=password, user=user, groups=groups)

    def rights(
        self, *, password: str | None = None, user: str | None = None, groups: Collection[str] = ()
    ) -> frozenset[Right]:
        """Return the rights of *user*, by name or through one of the *groups*; *password* is ignored."""
        del password
        if user is None:
            return frozenset()
        if user == self.owner:
            return ALL_RIGHTS
        theirs = (
            grant.rights for grant in self.grants if (grant.who in groups if grant.is_group else grant.who == user)
        )
        return frozenset[Right]().union(*theirs)

    def to_text(self) -> str:
        """Return this list as the JSON text for ``SessionChanged.access``."""
        users, groups = (
            {
                grant.who: sorted(right.value for right in grant.rights)
                for grant in self.grants
                if grant.is_group is kind
            }
            for kind in (False, True)
        )
        return access_text({"list": {"owner": self.owner, "users": users, "groups": groups}})


def access_tree(access: str) -> dict[str, object]:
    """Parse the JSON object *access*, or raise ``InvalidValueError``, which quotes no part of the text."""
    try:
        return read_json(access, limits=_LIMITS)
    except MalformedBodyError:
        raise access_refusal("access", "an object of JSON that is not too large") from None


def access_text(tree: dict[str, object]) -> str:
    """Return *tree* as JSON text for ``SessionChanged.access``, or raise ``InvalidValueError`` if it is too long."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    if (size := len(text.encode())) > MAX_ACCESS_BYTES:
        raise InvalidValueError("access", Phrase(f"{size} bytes"), f"at most {MAX_ACCESS_BYTES} bytes of JSON")
    return text


def read_list(tree: object) -> AccessControlList:
    """Return the access control list in a JSON object, or raise ``InvalidValueError``, which quotes no part of it."""
    match tree:
        case {"owner": owner, "users": dict() as users, "groups": dict() as groups, **rest} if not rest:
            grants = [*_grants(users, is_group=False), *_grants(groups, is_group=True)]
            return AccessControlList(owner=name("owner", owner), grants=tuple(grants))
    raise access_refusal("list", "an object of owner, users and groups")


def access_refusal(what: str, allowed: str) -> InvalidValueError:
    """Return an error that names the allowed values and hides the given one, which may be a misplaced password."""
    return InvalidValueError(what, Phrase("another value (not shown)"), allowed)


def _grants(tree: dict[str, object], *, is_group: bool) -> list[Grant]:
    grants: list[Grant] = []
    for who, rights in tree.items():
        if not isinstance(rights, list):
            raise access_refusal("rights", "an array")
        found = frozenset(_member(Right, "right", right) for right in rights)
        grants.append(Grant(who=who, rights=found, is_group=is_group))
    return grants


def _member(kind: type[_Member], what: str, value: object) -> _Member:
    for member in kind:
        if member.value == value:
            return member
    raise access_refusal(what, ", ".join(str(member.value) for member in kind))
