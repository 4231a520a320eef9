"""The files of listeners that have settings of their own: their users, and their certificates.

Rule: a user's name means the same user on every listener, since rights and sessions go by names: no two files may have
the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from whimbrel.broker.access.users import UserChanges, Users
from whimbrel.broker.config import Config, ListenerSettings
from whimbrel.broker.setting_fields import ConfigError
from whimbrel.broker.shell.net.handshakes import TlsContext
from whimbrel.broker.shell.net.listeners import tls_context, tls_of
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.hold.access import Cost

__all__ = ["ListenerFiles"]


class ListenerFiles(NamedTuple):
    """What the files of listeners say: users by path, and the TLS of each listener that has some, by its name."""

    users: Mapping[str, Users]
    secured: Mapping[str, TlsContext]

    @classmethod
    def read(cls, config: Config, users: Users | None) -> ListenerFiles:
        """Read the files that listeners name, or raise ``ConfigError``; *users* are those of [access]."""
        paths = dict.fromkeys(each.users for each in config.listeners if each.users != config.access.users)
        found = {path: Users.read(Path(path)) for path in paths if path}
        _check_names({**found, config.access.users: users} if users is not None else found)
        contexts = ((each.name, tls_context(tls_of(each))) for each in config.listeners)
        return cls(found, {name: context for name, context in contexts if context is not None})

    def take(self, newer: ListenerFiles) -> UserChanges:
        """Let the files count as *newer* has them; return how the users differ."""
        changes = [users.take(newer.users[path]) for path, users in self.users.items()]
        for name, context in self.secured.items():
            context.hand_over(newer.secured[name])
        revoked = frozenset[str]().union(*(each.revoked for each in changes))
        return UserChanges(revoked, frozenset[str]().union(*(each.regrouped for each in changes)))

    def groups(self, user: str) -> frozenset[str]:
        """Return the groups that a user is in by these files."""
        return frozenset[str]().union(*(users.groups(user) for users in self.users.values()))

    def rules(self, listener: ListenerSettings, cost: Cost) -> ListenerRules:
        """Return the rules of a listener."""
        users = self.users.get(listener.users)
        return ListenerRules(
            verify=None if users is None else partial(users.log_in, cost=cost),
            anonymous=listener.anonymous,
            mount=listener.mount,
        )


def _check_names(files: Mapping[str, Users]) -> None:
    named: dict[str, str] = {}
    for path, users in files.items():
        for name in users.names():
            if named.setdefault(name, path) != path:
                sentence = f"{name} is in {named[name]} and in {path}; a user's name may be in one users file only"
                raise ConfigError("", path, name, "a name that no other file has", sentence=sentence)
