"""Reloading: users, rights, certificates and the log level, read again while the broker serves.

Rule: all files are read before anything is changed. One that cannot be read leaves everything as it was.
Rule: a broker that had users never comes to have none by a reload: a users file that is gone is an error.
Rule: only connections of users who are gone, or have another password, are closed; and of those whose groups changed
and who have joined named sessions, since what they may do there was decided by their groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from whimbrel.broker.access.topic_rights import Rights
from whimbrel.broker.access.users import UserChanges, Users
from whimbrel.broker.config import SECTIONS, Config
from whimbrel.broker.exposure import check_exposure, with_users_of_data
from whimbrel.broker.handlers.connections.user_check import Verify
from whimbrel.broker.setting_fields import ConfigError, settings_of
from whimbrel.broker.shell.listener_files import ListenerFiles
from whimbrel.broker.shell.net.handshakes import TlsContext
from whimbrel.broker.shell.net.listeners import tls_context
from whimbrel.broker.shell.running import Running
from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.certificates import valid_until

__all__ = ["AccessFiles", "Reloading", "restart_needed"]

_log = structlog.get_logger("whimbrel")
_RELOADED = {"access.users", "access.rights", "access.anonymous", "access.insecure", "observe.log_level"}


class AccessFiles(NamedTuple):
    """What the files say that a reload reads."""

    users: Users | None
    rights: Rights
    secured: TlsContext | None
    listeners: ListenerFiles
    expires_at: int | None
    """Until when the certificate is valid, in seconds since 1970."""

    @classmethod
    def read(cls, config: Config) -> AccessFiles:
        """Read all of them, or raise ``ConfigError`` or another ``WhimbrelError``."""
        check_exposure(config)
        users = Users.read(Path(config.access.users)) if config.access.users else None
        rights = Rights.read(Path(config.access.rights)) if config.access.rights else Rights.OPEN
        secured = tls_context(config.tls)
        listeners = ListenerFiles.read(config, users)
        return cls(users, rights, secured, listeners, None if secured is None else valid_until(config.tls.certificate))


class Reloading:
    """The files of a broker; *reread* returns its configuration as it is now, *set_log_level* has lines written so."""

    def __init__(
        self,
        config: Config,
        pool: Executor,
        *,
        reread: Callable[[], Config] | None = None,
        set_log_level: Callable[[str], None] = lambda _level: None,
    ) -> None:
        self.config = with_users_of_data(config)
        self.files = AccessFiles.read(self.config)
        self._pool, self._set_log_level = pool, set_log_level
        self._reread = reread or (lambda: config)
        self._turn = asyncio.Lock()

    def groups(self, user: str | None) -> frozenset[str]:
        """Return the groups that a user is in."""
        if user is None:
            return frozenset()
        users, own = self.files.users, self.files.listeners.groups(user)
        return own if users is None else users.groups(user) | own

    @property
    def verify(self) -> Verify | None:
        """What tells whether a user has a password; None where there are no users."""
        users = self.files.users
        return None if users is None else partial(users.log_in, cost=self.config.access.password_cost)

    async def reload(self, running: Running) -> str:
        """Read all files again and let them count; return what was done, or raise an error and do nothing."""
        async with self._turn:  # a second request waits, and finds the files as they are then
            try:
                config, files = await running.loop.run_in_executor(self._pool, self._read)
            except (WhimbrelError, OSError) as error:
                _log.error("reload failed: the settings stay as they were", reason=str(error))
                raise
            done = self._apply(running, config, files)
        _log.info(done)
        return done

    def _read(self) -> tuple[Config, AccessFiles]:
        wanted = with_users_of_data(self._reread())
        old = self.config
        if old.access.users and not wanted.access.users:
            sentence = f"{old.access.users} is gone: a reload does not take the users away from a broker that has some"
            raise ConfigError("", "access.users", "", old.access.users, sentence=sentence)
        return wanted, AccessFiles.read(replace(wanted, listeners=old.listeners))

    def _apply(self, running: Running, wanted: Config, files: AccessFiles) -> str:
        broker, old, changes = running.broker, self.config, UserChanges()
        if self.files.users is not None and files.users is not None:
            changes = self.files.users.take(files.users)
            files = files._replace(users=self.files.users)
        if self.files.secured is not None and files.secured is not None:
            self.files.secured.hand_over(files.secured)
            files = files._replace(secured=self.files.secured)
        own = self.files.listeners.take(files.listeners)
        changes = UserChanges(changes.revoked | own.revoked, changes.regrouped | own.regrouped)
        files = files._replace(listeners=self.files.listeners)
        access = replace(old.access, users=wanted.access.users, rights=wanted.access.rights,
                         anonymous=wanted.access.anonymous, insecure=wanted.access.insecure)  # fmt: skip
        observe = replace(old.observe, log_level=wanted.observe.log_level)
        self.config = replace(old, access=access, tls=wanted.tls, observe=observe)
        self.files = files
        closed = broker.replace_users(access, self.verify, changes)
        broker.replace_rights(files.rights)
        self._set_log_level(observe.log_level)
        return _summary(self.config, files, closed, list(restart_needed(self.config, wanted)))


def restart_needed(old: Config, wanted: Config) -> Iterator[str]:
    """Yield the settings that a reload does not change, and that are others now."""
    for section, kind in SECTIONS.items():
        for key in settings_of(kind):
            name, ours, theirs = f"{section}.{key}", getattr(old, section), getattr(wanted, section)
            if name not in _RELOADED and section != "tls" and getattr(ours, key) != getattr(theirs, key):
                yield name
    if old.listeners != wanted.listeners:
        yield "listener"


def _summary(config: Config, files: AccessFiles, closed: int, others: list[str]) -> str:
    read = ["no users" if files.users is None else f"{len(files.users)} users"]
    read.append(f"rights of {config.access.rights}" if config.access.rights else "no rights file")
    if files.secured is not None:
        read.append(f"certificate {config.tls.certificate}")
    told = f"reloaded: {', '.join(read)}, log level {config.observe.log_level}"
    if closed:
        told += f"; {closed} connections of users who changed are closed"
    if others:
        told += f"; restart to change {', '.join(others)}"
    return told
