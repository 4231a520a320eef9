"""Reloading: read users, rights, certificates and the log level again, while the broker is running.

Rule: all files are read before anything is changed. If one cannot be read, everything stays as it was.
Rule: a reload never leaves a broker without users if it had users: a missing users file is an error.
Rule: a reload closes the connections of users that were removed or have a new password, and of users whose groups
changed if they have joined named sessions (shared by several devices), since their groups decided their rights there.
Rule: the certificate of every connection is verified again, as in a handshake. Connections whose certificate was
revoked, has expired or is not signed by a trusted authority any more are closed.
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
"""Connections whose certificates are collected in one turn of the event loop."""
_RELOADED = {"access.users", "access.rights", "access.anonymous", "access.insecure", "observe.log_level"}


class AccessFiles(NamedTuple):
    """Contents of the files that a reload reads."""

    users: UserFiles
    rights: Rights
    secured: Mapping[str, TlsContext]
    """TLS contexts of the listeners that have certificates, by listener name; "" is ``[listen]``."""
    expires_at: int | None
    """When the first of the broker's certificates expires, in seconds since 1970; None without certificates."""

    @classmethod
    def read(cls, config: Config) -> AccessFiles:
        """Read all files that *config* names, or raise ``ConfigError`` or another ``WhimbrelError``."""
        check_exposure(config)
        rights = Rights.read(Path(config.access.rights)) if config.access.rights else Rights.OPEN
        wanted = {"": config.tls} | {each.name: tls_of(each) for each in config.listeners}
        secured = {name: context for name, tls in wanted.items() if (context := tls_context(tls)) is not None}
        ends = (valid_until(wanted[name].certificate) for name in secured)
        expires_at = min((each for each in ends if each is not None), default=None)
        return cls(UserFiles.of(config), rights, secured, expires_at)


class Reloading:
    """Settings and files of a broker that can be read again; *pool* has the thread that reads them.

    *reread* reads the configuration again, and *set_log_level* applies its log level.
    """

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
        """Function that verifies the password of a user of ``[access]``; None without a users file."""
        return self.files.users.verify_with(self.config.access.users)

    def rules_of(self, listener: ListenerSettings) -> ListenerRules:
        """Return the rules of a listener; each reload updates them."""
        rules = self._rules[listener] = ListenerRules(mount=listener.mount)
        self._set_rules()
        return rules

    def _set_rules(self) -> None:
        users = self.config.access.users
        for listener, rules in self._rules.items():
            rules.verify = self.files.users.verify_with(listener.users_file(users))
            rules.admits_anonymous = listener.admits_anonymous(users)

    async def reload(self, running: Running) -> str:
        """Read all files again and apply them; return a summary for the operator, or raise and change nothing."""
        async with self._turn:  # a reload that is requested meanwhile waits, and then reads the files again
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
        """Check all TLS connections by the certificates in *files*, in a thread; return why each is refused, if any."""
        asked: list[tuple[Link, TlsContext, Chain]] = []
        for place, link in enumerate(list(running.broker.links), start=1):
            if not place % _AT_ONCE:
                await asyncio.sleep(0)  # clients are served meanwhile
            if (found := self._find_context(link, files)) is not None:
                asked.append((link, *found))

        def judge() -> dict[Link, str | None]:
            return {link: context.refusal(chain) for link, context, chain in asked}

        return await running.loop.run_in_executor(self._pool, judge)

    def _find_context(self, link: Link, files: AccessFiles) -> tuple[TlsContext, Chain] | None:
        """Return the TLS context in *files* for a connection's listener, and the client's certificate chain."""
        stream = link.shell
        found = secured_by(stream.transport) if isinstance(stream, Stream) and not stream.is_lost else None
        if found is None:
            return None
        used, chain = found
        name = next((name for name, first in self.files.secured.items() if first.newest is used.newest), None)
        return None if name is None or name not in files.secured else (files.secured[name], chain)

    def _find_refused(
        self, running: Running, files: AccessFiles, judged: Mapping[Link, str | None]
    ) -> Iterator[tuple[Link, str]]:
        """Yield the connections to close, each with a reason.

        Connections opened since ``_judge`` ran (in a thread) are checked here; the others have its result.
        """
        for link in list(running.broker.links):
            refusal: str | None = None
            if link in judged:
                refusal = judged[link]
            elif (found := self._find_context(link, files)) is not None:
                refusal = found[0].refusal(found[1])
            if refusal is not None:
                yield link, refusal

    def _apply(self, running: Running, wanted: Config, files: AccessFiles, judged: Mapping[Link, str | None]) -> str:
        broker, old, before = running.broker, self.config, self.files
        refused = list(self._find_refused(running, files, judged))
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
    """Yield the names of the settings that have changed but that only a restart can apply."""
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
