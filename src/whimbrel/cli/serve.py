"""``whimbrel serve``: runs the broker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from whimbrel.cli.process.log_lines import set_log_level, set_up_logging

if TYPE_CHECKING:
    from whimbrel.broker.settings.config import Config

__all__ = ["serve"]

_LOOK_S = 60.0
_SWITCH_S = 0.0003
"""Longest time for which a thread that writes the log keeps the event loop from running (Python's own value: 5 ms).

A QoS 1 message costs as much processor time as with 5 ms; with 0.1 ms it costs about 5 % more."""


def serve(
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML file of settings; see --print-config.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Where the log and its view are kept.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="The name of this node.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Where to listen; loopback if not given.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="MQTT over TCP; 0 is any free port, -1 none.")] = None,
    ws_port: Annotated[int | None, typer.Option("--ws-port", help="MQTT over WebSocket.")] = None,
    tls_port: Annotated[int | None, typer.Option("--tls-port", help="MQTT over TLS.")] = None,
    wss_port: Annotated[int | None, typer.Option("--wss-port", help="MQTT over WebSocket and TLS.")] = None,
    http_port: Annotated[int | None, typer.Option("--http-port", help="/metrics and /healthz.")] = None,
    http_host: Annotated[
        str | None, typer.Option("--http-host", metavar="ADDRESS", help="Where those are; loopback if not given.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="The certificate, as PEM.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, as PEM.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option("--tls-client-ca", metavar="FILE", help="Who signs clients' certificates, as PEM.")
    ] = None,
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="FILE", help="Who may connect; if not given, DIR/users where there is one."),
    ] = None,
    rights: Annotated[
        str | None, typer.Option("--rights", metavar="FILE", help="Who may use which topics, as TOML.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without users: any client may connect.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Start although records of the log are missing, this once.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting with its meaning, and exit.")
    ] = False,
) -> None:
    """Run a broker for MQTT 5 and 3.1.1 until it is stopped (Ctrl-C or SIGTERM).

    Everything it accepts is kept in a log under --data, and a broker that was killed continues where the log ends.
    Settings come from --config; options given here override them.

    Example: whimbrel serve --port 1883 --ws-port 8083 --data whimbrel-data
    """
    # The broker's parts are loaded here, so that other commands start quickly.
    from whimbrel.broker.settings.config import Config
    from whimbrel.broker.settings.config_files import print_config as printed
    from whimbrel.broker.settings.config_files import read_config

    overrides = {
        "node.name": node,
        "node.data": data,
        "listen.host": host,
        "listen.port": port,
        "listen.ws_port": ws_port,
        "listen.tls_port": tls_port,
        "listen.wss_port": wss_port,
        "listen.http_port": http_port,
        "listen.http_host": http_host,
        "tls.certificate": tls_certificate,
        "tls.key": tls_key,
        "tls.client_ca": tls_client_ca,
        "access.users": users,
        "access.rights": rights,
        "access.insecure": insecure or None,
    }

    def read() -> Config:
        """Return the current settings; a reload reads them again."""
        config = Config() if config_file is None else read_config(config_file)
        return config.with_overrides(overrides)

    config = read()
    if print_config:
        typer.echo(printed(config), nl=False)
        return
    from whimbrel.broker.shell.operate.line_writer import stderr_from_a_thread

    with stderr_from_a_thread():
        failure = _serve_until_stopped(config, read, accepts_loss=accept_loss)
        if failure is not None:
            sys.stderr.write(f"error: {failure}\n")
            raise typer.Exit(1)


def _serve_until_stopped(config: Config, read: Callable[[], Config], *, accepts_loss: bool) -> str | None:
    """Run a broker; return the reason if it stopped by itself, else None."""
    from whimbrel.broker.shell.server import Server  # see above

    set_up_logging(config.observe.log_format, config.observe.log_level)
    log = structlog.get_logger("whimbrel")
    server = Server(config, accepts_loss=accepts_loss, reread=read, set_log_level=set_log_level)
    _run(_serve(server, log))
    return server.failure


async def _serve(server, log) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 # its room is loaded late
    from whimbrel.broker.shell.collector import Collector  # see above

    collector, loop = Collector(), asyncio.get_running_loop()
    collector.begin()
    sys.setswitchinterval(_SWITCH_S)
    try:
        is_serving = await server.start()
    except BaseException:
        server.close()
        raise
    collector.accept()
    if is_serving:
        log.info("listening", host=server.config.listen.host, **server.ports, **server.sockets)

    def look() -> None:
        collector.turn()
        loop.call_later(_LOOK_S, look)

    loop.call_later(_LOOK_S, look)
    await server.serve()
    log.info("stopped")


def _run(coroutine) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
