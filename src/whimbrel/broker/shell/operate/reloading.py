"""Reloading: users, rights, certificates and the log level, read again while the broker serves.

Rule: all files are read before anything is changed. One that cannot be read leaves everything as it was.
Rule: a broker that had users never comes to have none by a reload: a users file that is gone is an error.
Rule: only connections of users who are gone, or have another password, are closed; and of those whose groups changed
and who have joined named sessions, since what they may do there was decided by their groups.
Rule: what a handshake asked is asked again of every connection: one whose certificate was revoked, has expired or has
no trusted authority any more is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from whimbrel.broker.access.topic_rights import Rights
from whimbrel.broker.settings.config import SECTIONS, Config, ListenerSettings
from whimbrel.broker.settings.fields import ConfigError, settings_of
from whimbrel.broker.shell.net.connections import Stream
from whimbrel.broker.shell.net.handshakes import Chain, TlsContext, secured_by
from whimbrel.broker.shell.net.listeners import tls_context, tls_of
from whimbrel.broker.shell.operate.exposure import check_exposure, note_users, with_users_of_data
from whimbrel.broker.shell.operate.user_files import UserFiles
from whimbrel.broker.shell.running import Running
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.listener_rules import ListenerRules, Verify
from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.certificates import valid_until

__all__ = ["AccessFiles", "Reloading", "restart_needed"]

_log = structlog.get_logger("whimbrel")
_AT_ONCE = 200
"""How many connections are asked for their certificates in a turn of the event loop."""
_RELOADED = {"access.users", "access.rights", "access.anonymous", "access.insecure", "observe.log_level"}


class AccessFiles(NamedTuple):
    """What the files say that a reload reads."""

    users: UserFiles
    rights: Rights
    secured: Mapping[str, TlsContext]
    """The TLS of the listeners that have one, by name; "" is that of [listen]."""
    expires_at: int | None
    """Until when all certificates are valid, in seconds since 1970."""

    @classmethod
    def read(cls, config: Config) -> AccessFiles:
        """Read all of them, or raise ``ConfigError`` or another ``WhimbrelError``."""
        check_exposure(config)
        rights = Rights.read(Path(config.access.rights)) if config.access.rights else Rights.OPEN
        wanted = {"": config.tls} | {each.name: tls_of(each) for each in config.listeners}
        secured = {name: context for name, tls in wanted.items() if (context := tls_context(tls)) is not None}
        ends = (valid_until(wanted[name].certificate) for name in secured)
        expires_at = min((each for each in ends if each is not None), default=None)
        return cls(UserFiles.of(config), rights, secured, expires_at)


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
        self._rules: dict[ListenerSettings, ListenerRules] = {}

    def groups(self, user: str | None) -> frozenset[str]:
        """Return the groups that a user is in."""
        return self.files.users.groups(user)

    @property
    def verify(self) -> Verify | None:
        """What tells whether a user has a password; None where there are no users."""
        return self.files.users.verify_with(self.config.access.users)

    def rules_of(self, listener: ListenerSettings) -> ListenerRules:
        """Return the rules of a listener, which follow each reload."""
        rules = self._rules[listener] = ListenerRules(mount=listener.mount)
        self._set_rules()
        return rules

    def _set_rules(self) -> None:
        users = self.config.access.users
        for listener, rules in self._rules.items():
            rules.verify = self.files.users.verify_with(listener.users_file(users))
            rules.admits_anonymous = listener.admits_anonymous(users)

    async def reload(self, running: Running) -> str:
        """Read all files again and let them count; return what was done, or raise an error and do nothing."""
        async with self._turn:  # a second request waits, and finds the files as they are then
            try:
                config, files = await running.loop.run_in_executor(self._pool, self._read)
            except (WhimbrelError, OSError) as error:
                _log.error("reload failed: the settings stay as they were", reason=str(error))
                raise
            judged = await self._judge(running, files)
            done = self._apply(running, config, files, judged)
        _log.info(done)
        return done

    def _read(self) -> tuple[Config, AccessFiles]:
        wanted = with_users_of_data(self._reread())
        old = self.config
        if old.access.users and not wanted.access.users:
            sentence = f"{old.access.users} is gone: a reload does not take the users away from a broker that has some"
            raise ConfigError("", "access.users", "", old.access.users, sentence=sentence)
        wanted_now = replace(wanted, listeners=old.listeners)
        files = AccessFiles.read(wanted_now)
        note_users(wanted_now)
        return wanted, files

    async def _judge(self, running: Running, files: AccessFiles) -> dict[Link, str | None]:
        """Return for each connection why the certificates of *files* do not let it in, None if they do."""
        asked: list[tuple[Link, TlsContext, Chain]] = []
        for place, link in enumerate(list(running.broker.links), start=1):
            if not place % _AT_ONCE:
                await asyncio.sleep(0)  # clients are served meanwhile
            if (found := self._secured(link, files)) is not None:
                asked.append((link, *found))

        def judge() -> dict[Link, str | None]:
            return {link: context.refusal(chain) for link, context, chain in asked}

        return await running.loop.run_in_executor(self._pool, judge)

    def _secured(self, link: Link, files: AccessFiles) -> tuple[TlsContext, Chain] | None:
        """Return the context of *files* that a connection's client is to be judged by, and its chain."""
        stream = link.shell
        found = secured_by(stream.transport) if isinstance(stream, Stream) and not stream.is_lost else None
        if found is None:
            return None
        used, chain = found
        name = next((name for name, first in self.files.secured.items() if first.newest is used.newest), None)
        return None if name is None or name not in files.secured else (files.secured[name], chain)

    def _refused(
        self, running: Running, files: AccessFiles, judged: Mapping[Link, str | None]
    ) -> Iterator[tuple[Link, str]]:
        """Yield the connections that may not stay, and why; those that came since the others were judged, too."""
        for link in list(running.broker.links):
            refusal: str | None = None
            if link in judged:
                refusal = judged[link]
            elif (found := self._secured(link, files)) is not None:
                refusal = found[0].refusal(found[1])
            if refusal is not None:
                yield link, refusal

    def _apply(self, running: Running, wanted: Config, files: AccessFiles, judged: Mapping[Link, str | None]) -> str:
        broker, old, before = running.broker, self.config, self.files
        refused = list(self._refused(running, files, judged))
        changes = before.users.take(files.users)
        for name, context in before.secured.items():
            if name in files.secured:
                context.hand_over(files.secured[name])
        files = files._replace(users=before.users, secured={**files.secured, **before.secured})
        access = replace(old.access, users=wanted.access.users, rights=wanted.access.rights,
                         anonymous=wanted.access.anonymous, insecure=wanted.access.insecure)  # fmt: skip
        observe = replace(old.observe, log_level=wanted.observe.log_level)
        self.config = replace(old, access=access, tls=wanted.tls, observe=observe)
        self.files = files
        self._set_rules()
        closed = broker.end_untrusted(refused) + broker.replace_users(self.config, self.verify, changes)
        broker.replace_rights(files.rights)
        self._set_log_level(observe.log_level)
        return _summary(self.config, files, closed, list(restart_needed(self.config, wanted)))


def restart_needed(old: Config, wanted: Config) -> Iterator[str]:
    """Yield the settings that a reload does not change, and that are others now."""
    if old.listeners != wanted.listeners:
        yield "listener"
    for section, kind in SECTIONS.items():
        for key in settings_of(kind):
            name, ours, theirs = f"{section}.{key}", getattr(old, section), getattr(wanted, section)
            if name not in _RELOADED and section != "tls" and getattr(ours, key) != getattr(theirs, key):
                yield name


def _summary(config: Config, files: AccessFiles, closed: int, others: list[str]) -> str:
    count = len(files.users)
    read = [f"{count} user{'' if count == 1 else 's'}" if files.users else "no users"]
    read.append(f"rights of {config.access.rights}" if config.access.rights else "no rights file")
    certificates = [config.tls.certificate, *(each.tls_certificate for each in config.listeners)]
    read += [f"certificate {each}" for each in certificates if each]
    told = f"reloaded: {', '.join(read)}, log level {config.observe.log_level}"
    if closed:
        told += (
            f"; {closed} connection{' is' if closed == 1 else 's are'} closed, of users or certificates that changed"
        )
    if others:
        told += f"; restart to change {', '.join(others)}"
    return told
