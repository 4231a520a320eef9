"""Users files of a broker: that of ``[access]``, and those of listeners with their own.

Rule: a user name means the same user on every listener, since rights and sessions belong to names: a name may be in one
file only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import UserChanges, Users
from whimbrel.broker.settings.config import Config
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.broker.wire.listener_rules import Verify

__all__ = ["UserFiles"]


class UserFiles:
    """All users of a broker, by users file; raises ``ConfigError`` if a name is in two files."""

    def __init__(self, files: Mapping[str, Users], cost: Cost, main: str = "") -> None:
        self._files, self._cost, self._main = dict(files), cost, main
        named: dict[str, str] = {}
        for path, users in self._files.items():
            for name in users.names():
                if named.setdefault(name, path) != path:
                    sentence = f"{name} is in {named[name]} and in {path}; a user's name may be in one users file only"
                    raise ConfigError("", path, name, "a name that no other file has", sentence=sentence)

    @classmethod
    def of(cls, config: Config) -> UserFiles:
        """Read the users files that *config* names, or raise ``ConfigError``."""
        paths = dict.fromkeys((config.access.users, *(each.users for each in config.listeners)))
        return cls(
            {path: Users.read(Path(path)) for path in paths if path},
            Cost.of_memory(config.access.password_hash_mib),
            config.access.users,
        )

    def __len__(self) -> int:
        return sum(map(len, self._files.values()))

    def __bool__(self) -> bool:
        return bool(self._files)

    def take(self, newer: UserFiles) -> UserChanges:
        """Replace the users by those of *newer*, read later; return the users that were revoked or changed groups.

        If a file is no longer used, or is no longer that of ``[access]``, all users in it count as revoked and must
        connect again.
        """
        kept: dict[str, Users] = {}
        revoked, regrouped = set[str](), set[str]()
        for path, users in self._files.items():
            if path not in newer._files or path == self._main != newer._main:
                revoked.update(users.names())
        for path, users in newer._files.items():
            before = self._files.get(path)
            kept[path] = users if before is None else before
            if before is not None:
                changes = before.take(users)
                revoked |= changes.revoked
                regrouped |= changes.regrouped
        self._files, self._main = kept, newer._main
        return UserChanges(frozenset(revoked), frozenset(regrouped))

    def groups(self, user: str | None) -> frozenset[str]:
        """Return the groups that a user is in."""
        if user is None:
            return frozenset()
        return frozenset[str]().union(*(users.groups(user) for users in self._files.values()))

    def verify_with(self, path: str) -> Verify | None:
        """Return a function that verifies the passwords of the users in the file *path*; None if *path* is empty."""
        return partial(self._log_in, path) if path else None

    def _log_in(self, path: str, name: str, password: bytes | None) -> bool:
        users = self._files.get(path)  # a reload may have removed it; the client is then checked again
        return users is not None and users.log_in(name, password, cost=self._cost)
