"""Exposure: check whether clients on other machines can connect without a password, or send it unencrypted.

Rule: a users file in the data folder is used even if no setting names it, so that ``whimbrel user add`` and ``whimbrel
serve`` use the same file.
Rule: a broker that listens beyond loopback without users does not start, unless the operator says ``--insecure``.
Rule: a data folder whose broker had users is not served without users, unless the operator says ``--insecure``. A file
in the folder lists the users files that were used: a backup has it, even if it lacks the users files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from whimbrel.broker.settings.config import Config, ListenerSettings
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.broker.shell.net.web_hosts import is_loopback
from whimbrel.log.backup.manifest import USERS, USERS_NEEDED
from whimbrel.log.files import make_folder, put

__all__ = ["Warned", "check_exposure", "exposures", "note_users", "with_users_of_data"]

_MAX_NOTE_BYTES = 1 << 20


class Warned(NamedTuple):
    """A warning or note for the operator: log level and text."""

    level: str
    text: str


def with_users_of_data(config: Config) -> Config:
    """Return *config*, with the users file in the data folder if *config* names none and that file exists."""
    path = Path(config.node.data) / USERS
    if config.access.users or not path.exists():
        return config
    return replace(config, access=replace(config.access, users=str(path)))


def _open_to_others(config: Config) -> bool:
    """Return whether, without users, other machines could connect to ``[listen]`` without a client certificate."""
    listen, tls = config.listen, config.tls
    if is_loopback(listen.host):
        return False
    has_plain = listen.port >= 0 or listen.ws_port >= 0
    has_tls = listen.tls_port >= 0 or listen.wss_port >= 0
    return has_plain or (has_tls and not tls.require_client_certificate)


def _is_reached(listener: ListenerSettings) -> bool:
    """Return whether other machines can reach a listener; they can never reach a Unix socket."""
    return not listener.socket and not is_loopback(listener.host)


def note_users(config: Config) -> None:
    """Write the list of the configured users files into the data folder; remove that list if there are none."""
    path = Path(config.node.data) / USERS_NEEDED
    files = sorted({each for each in (config.access.users, *(each.users for each in config.listeners)) if each})
    if not files:
        path.unlink(missing_ok=True)
    elif _read_note(path) != files:
        make_folder(path.parent)
        put(path, json.dumps({"users": files}, ensure_ascii=False).encode() + b"\n")


def _read_note(path: Path) -> list[str] | None:
    """Read the list of users files that ``note_users`` wrote; None if there is no list, empty if it is unreadable."""
    try:
        with path.open("rb") as stream:
            found: object = json.loads(stream.read(_MAX_NOTE_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return []  # there were users, but their files are unknown
    files = found.get("users") if isinstance(found, dict) else None
    return [str(each) for each in files] if isinstance(files, list) else []


def _check_users(config: Config) -> None:
    """Raise ``ConfigError`` if the broker of this data folder had users, and has none now."""
    if config.has_users or config.access.insecure:
        return
    files = _read_note(Path(config.node.data) / USERS_NEEDED)
    if files is None:
        return
    were = f" in {', '.join(files)}" if files else ""
    sentence = (
        f"the broker of {config.node.data} had users{were}, and now there are none: name the users file "
        "(access.users or --users), or say --insecure to let any client connect"
    )
    raise ConfigError("", "access.users", "", "a users file", sentence=sentence)


def check_exposure(config: Config) -> None:
    """Raise ``ConfigError`` if clients on other machines could connect without a password, against the settings."""
    _check_users(config)
    for each in config.listeners:
        if _is_reached(each) and not (each.users_file(config.access.users) or each.tls_require_client_certificate):
            if config.access.insecure:
                continue
            sentence = (
                f"listener {each.name} lets other machines in at {each.host or 'all addresses'}, "
                "and there are no users: name a users file, require client certificates, "
                "or say --insecure to let any client connect"
            )
            raise ConfigError("", "listener.host", each.host, "a loopback address", sentence=sentence)
    if config.access.users or config.access.insecure or not _open_to_others(config):
        return
    host, data = config.listen.host or "all addresses", config.node.data
    sentence = (
        f"{host} lets other machines in, and there are no users: add one with `whimbrel user add NAME --data {data}`, "
        "or say --insecure to let any client connect"
    )
    raise ConfigError("", "listen.host", config.listen.host, "a loopback address", sentence=sentence)


def exposures(config: Config) -> Iterator[Warned]:
    """Yield warnings and notes about the clients that may connect, for the start of the broker and its status."""
    listen, is_here = config.listen, is_loopback(config.listen.host)
    for each in config.listeners:
        if _is_reached(each) and not each.tls_require_client_certificate:
            yield from _exposures_of(each, config.access.users)
    if not config.access.users:
        if _open_to_others(config):
            yield Warned(
                "warning", "no users: any client of any machine that reaches this one may connect (--insecure)"
            )
        else:
            yield Warned("info", "no users: any client of this machine may connect; `whimbrel user add` makes a user")
        return
    if not is_here and config.access.anonymous:
        yield Warned("warning", "clients of other machines may connect without a user name (access.anonymous)")
    if not is_here and (listen.port >= 0 or listen.ws_port >= 0):
        text = "users without TLS: passwords cross the network unencrypted; see --tls-port, and --port -1"
        yield Warned("warning", text)


def _exposures_of(listener: ListenerSettings, users: str) -> Iterator[Warned]:
    if listener.admits_anonymous(users):
        yield Warned(
            "warning", f"clients of other machines may connect without a user name to listener {listener.name}"
        )
    if listener.users_file(users) and not listener.tls_certificate:
        text = f"users without TLS: passwords cross the network unencrypted to listener {listener.name}"
        yield Warned("warning", text)
