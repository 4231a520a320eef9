"""Exposure: whether clients of other machines can connect without a password, or send one unencrypted.

Rule: a users file in the data folder is used although no setting names it, so that ``whimbrel user add`` and
``whimbrel serve`` agree.
Rule: a broker that listens beyond loopback without users does not start, unless its operator says so (``--insecure``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from whimbrel.broker.config import Config, ListenerSettings
from whimbrel.broker.settings.fields import ConfigError

__all__ = ["USERS", "Warned", "check_exposure", "exposures", "is_loopback", "with_users_of_data"]

USERS = "users"
"""The users file in a data folder."""


class Warned(NamedTuple):
    """A line for the operator: its level, and what it says."""

    level: str
    text: str


def with_users_of_data(config: Config) -> Config:
    """Return *config* with the users file of the data folder, where it names none and there is one."""
    path = Path(config.node.data) / USERS
    if config.access.users or not path.exists():
        return config
    return replace(config, access=replace(config.access, users=str(path)))


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches *host*; a name that is not localhost may be reached by others."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _open_to_others(config: Config) -> bool:
    """Tell whether a client of another machine may connect without a password or certificate."""
    listen, tls = config.listen, config.tls
    if is_loopback(listen.host):
        return False
    has_plain = listen.port >= 0 or listen.ws_port >= 0
    has_tls = listen.tls_port >= 0 or listen.wss_port >= 0
    return has_plain or (has_tls and not tls.require_client_certificate)


def _is_reached(listener: ListenerSettings) -> bool:
    """Tell whether other machines reach a listener; they never reach a Unix socket."""
    return not listener.socket and not is_loopback(listener.host)


def check_exposure(config: Config) -> None:
    """Raise ``ConfigError`` if any client of another machine could connect, and the operator did not say so."""
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
    """Yield what an operator should know of who may connect, when the broker starts and in its status."""
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
