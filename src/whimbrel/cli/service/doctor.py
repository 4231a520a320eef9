"""``whimbrel doctor``: finds reasons why a broker could not run well here, and says what to do about them."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from whimbrel.errors import WhimbrelError

if TYPE_CHECKING:  # other commands need not load the broker's parts
    from whimbrel.broker.settings.config import Config

__all__ = ["Finding", "doctor", "findings"]

_ROOM_BYTES = 1 << 30
_PORTS = ("port", "ws_port", "tls_port", "wss_port", "http_port")


class Finding(NamedTuple):
    """One check: its name, whether the result is good, and the result with advice."""

    name: str
    is_well: bool
    told: str


def doctor(
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The broker's TOML file of settings.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="DIR", help="Where the broker keeps its log.")] = None,
) -> None:
    """Check the needs of a broker here: settings, folder, disk, files, ports, certificates, users, the matcher.

    Nothing is changed, and the broker need not run. Exits 1 if something needs attention.

    Example: whimbrel doctor --config broker.toml
    """
    from whimbrel.broker.settings.config import Config
    from whimbrel.broker.settings.config_files import read_config
    from whimbrel.broker.shell.operate.exposure import with_users_of_data  # see above

    config = Config() if config_file is None else read_config(config_file)
    config = config.with_overrides({"node.data": data})
    is_well = True
    for found in findings(with_users_of_data(config)):
        is_well = is_well and found.is_well
        typer.echo(f"{'ok      ' if found.is_well else 'LOOK AT '} {found.name}: {found.told}")
    if not is_well:
        raise typer.Exit(1)


def findings(config: Config) -> Iterator[Finding]:
    """Yield the results of all checks for a broker with these settings on this machine."""
    from whimbrel.broker.settings.config import constant_warnings
    from whimbrel.broker.shell.net.open_files import descriptors_needed
    from whimbrel.log.descriptors import RESERVED, most_descriptors
    from whimbrel.match.first_use import is_compiled  # see above

    yield from (Finding("configuration", False, text) for text in constant_warnings(config))
    yield from _folder(Path(config.node.data))
    most, needed = most_descriptors(), descriptors_needed(config.limits.connections)
    advice = f"{most + RESERVED} files may be open, and limits.connections is {config.limits.connections}"
    remedy = "" if most >= needed else f": ulimit -n {needed + RESERVED}, else a broker lowers it"
    yield Finding("open files", most >= needed, advice + remedy)
    for name in _PORTS:
        port = getattr(config.listen, name)
        if port > 0:
            yield _port(f"listen.{name}", config.listen.http_host if name == "http_port" else config.listen.host, port)
    yield from _access(config)
    compiled = is_compiled()
    yield Finding("matcher", compiled, "compiled" if compiled else "not compiled yet: run `whimbrel warm-up` first")


def _folder(folder: Path) -> Iterator[Finding]:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    is_writable = os.access(there, os.W_OK)
    told = f"{folder} {'can be written' if is_writable else 'cannot be written by this user'}"
    yield Finding("data", is_writable, told)
    free = shutil.disk_usage(there).free
    yield Finding("disk", free >= _ROOM_BYTES, f"{free / 1e9:.1f} GB free at {there}; a broker wants 1 GB at least")


def _port(name: str, host: str, port: int) -> Finding:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(name, False, f"cannot listen on {host}:{port}: {error.strerror}")
    return Finding(name, True, f"{host}:{port} is free")


def _access(config: Config) -> Iterator[Finding]:
    from whimbrel.broker.access.topic_rights import Rights
    from whimbrel.broker.access.users import Users
    from whimbrel.broker.shell.net.listeners import tls_context
    from whimbrel.broker.shell.operate.exposure import check_exposure, exposures  # see above

    checks: dict[str, tuple[str, Callable[[], object]]] = {
        "tls": (config.tls.certificate, lambda: tls_context(config.tls)),
        "users": (config.access.users, lambda: Users.read(Path(config.access.users))),
        "rights": (config.access.rights, lambda: Rights.read(Path(config.access.rights))),
    }
    for name, (file, check) in checks.items():
        if file:
            try:
                check()
                yield Finding(name, True, f"{file} can be used")
            except (WhimbrelError, OSError) as error:
                yield Finding(name, False, str(error))
    try:
        check_exposure(config)
    except WhimbrelError as error:
        yield Finding("users", False, str(error))
    for warned in exposures(config):
        yield Finding("access", warned.level == "info", warned.text)
