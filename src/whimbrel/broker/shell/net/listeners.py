"""Listeners: open the server's ports and Unix sockets, and limit the number of connections.

Rule: a connection counts from the moment when it is accepted, before its TLS handshake.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from whimbrel.broker.settings.config import Config, ListenerSettings, TlsSettings
from whimbrel.broker.shell.net.connections import Host, ObservedStream, Stream, WebRequests, WebStream
from whimbrel.broker.shell.net.handshakes import RefusedConnection, TlsContext
from whimbrel.broker.shell.net.http import Answer
from whimbrel.broker.shell.net.open_files import MAX_REQUESTS, crowd
from whimbrel.broker.shell.net.unix_sockets import UnixSocket
from whimbrel.broker.shell.net.web_hosts import WebHosts
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.certificates import load_authorities, load_certificate, load_revoked

__all__ = ["ListenError", "Listeners", "tls_context", "tls_of"]

_GRACE_S = 0.25
"""Delay after the timeout of a handshake until it is counted as failed: the event loop closes it first."""


class Listeners:
    """The open ports and Unix sockets of a server.

    *answer* answers HTTP requests for metrics and health; *rules* returns the rules of a ``[[listener]]`` entry.
    *startup_responder* gets the connections that are accepted until ``admit`` is called.
    """

    def __init__(
        self,
        config: Config,
        startup_responder: Host,
        answer: Callable[[str, str], Answer],
        rules: Callable[[ListenerSettings], ListenerRules],
    ) -> None:
        self._config, self._host, self._answer, self._rules = config, startup_responder, answer, rules
        self._startup_responder = startup_responder
        self._loop: asyncio.AbstractEventLoop
        self.ports: dict[str, int] = {}
        """The open TCP ports, by kind (such as "mqtt") or by the name of the listener."""
        self.sockets: dict[str, str] = {}
        """The paths of the Unix sockets, by the name of the listener."""
        self._unix: list[UnixSocket] = []
        self._servers: list[asyncio.Server] = []
        self._shaking: dict[Stream, float] = {}
        """TLS connections whose handshake is not complete, and the times at which it times out."""

    async def start(self, contexts: Mapping[str, TlsContext]) -> None:
        """Open the ports in the configuration; *contexts* has TLS contexts by listener name, "" for ``[listen]``."""
        self._loop = asyncio.get_running_loop()
        secured = contexts.get("")
        listen, timeout_s = self._config.listen, self._config.limits.connect_timeout_s
        web = partial(WebStream, hosts=WebHosts(listen.host, listen.web_hosts))
        await self._listen("mqtt", listen.port, partial(self._accept, Stream))
        await self._listen("ws", listen.ws_port, partial(self._accept, web))
        await self._listen("mqtts", listen.tls_port, partial(self._shake_hands, Stream, secured), secured=secured)
        await self._listen("wss", listen.wss_port, partial(self._shake_hands, web, secured), secured=secured)
        hosts, requests = WebHosts(listen.http_host, listen.web_hosts), WebRequests(MAX_REQUESTS)
        await self._listen(
            "http",
            listen.http_port,
            lambda: ObservedStream(self._answer, timeout_s, hosts, requests),
            host=listen.http_host,
        )
        for each in self._config.listeners:
            await self._open(each, contexts.get(each.name))

    async def _open(self, each: ListenerSettings, secured: TlsContext | None) -> None:
        """Open the port or Unix socket of a ``[[listener]]`` entry."""
        kind: Callable[..., Stream] = Stream
        if each.protocol == "websocket":
            kind = partial(WebStream, hosts=WebHosts("" if each.socket else each.host, self._config.listen.web_hosts))
        kind = partial(kind, listener=self._rules(each))
        make = partial(self._accept, kind) if secured is None else partial(self._shake_hands, kind, secured)
        if not each.socket:
            await self._listen(each.name, each.port, make, secured=secured, host=each.host)
            return
        try:
            unix = UnixSocket(each.socket, each.mode)
        except OSError as error:
            raise ListenError(each.name, each.socket, None, error.strerror or str(error)) from error
        self._unix.append(unix)
        config = self._config
        server = await self._loop.create_unix_server(
            make,
            sock=unix.socket,
            ssl=secured,
            ssl_handshake_timeout=None if secured is None else config.limits.connect_timeout_s,
            backlog=config.listen.backlog,
        )
        self._servers.append(server)
        self.sockets[each.name] = each.socket

    def close(self) -> None:
        """Stop accepting connections, and remove the files of Unix sockets."""
        for server in self._servers:
            server.close()
        for unix in self._unix:
            unix.remove()

    async def _listen(
        self,
        kind: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        secured: ssl.SSLContext | None = None,
        host: str | None = None,
    ) -> None:
        if port < 0:
            return
        config, listen = self._config, self._config.listen
        host = listen.host if host is None else host
        try:
            server = await self._loop.create_server(
                make,
                host,
                port,
                ssl=secured,
                ssl_handshake_timeout=None if secured is None else config.limits.connect_timeout_s,
                backlog=listen.backlog,
                reuse_address=True,
            )
        except OSError as error:
            # The event loop's text is too long: "error while attempting to bind on address ('127.0.0.1', 1883): …".
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ListenError(kind, host, port, reason) from error
        self._servers.append(server)
        self.ports[kind] = server.sockets[0].getsockname()[1]

    def admit(self, host: Host) -> None:
        """Pass connections that are accepted from now on to *host* instead of the startup_responder."""
        host.counters.refused_connections += self._startup_responder.counters.refused_connections
        self._host = host

    # -- admission ---------------------------------------------------------------------------------------------------

    def _accept(self, kind: Callable[[Host, Callable[[Stream], bool]], Stream]) -> Stream:
        """Return the asyncio protocol for a connection that was just accepted."""
        stream = kind(self._host, self._admits)
        self._host.streams.add(stream)
        return stream

    def _shake_hands(
        self, kind: Callable[[Host, Callable[[Stream], bool]], Stream], secured: TlsContext | None
    ) -> asyncio.BaseProtocol:
        """Return the asyncio protocol for a TLS connection that was just accepted; it is used after the handshake."""
        stream = self._accept(kind)
        if secured is not None and self._is_crowded():
            secured.refuse_next()
            self._host.streams.discard(stream)
            return RefusedConnection()
        self._shaking[stream] = self._loop.time() + self._config.limits.connect_timeout_s
        return stream

    def _admits(self, stream: Stream) -> bool:
        """Return whether a connection may stay open, now that its handshake is complete."""
        self._shaking.pop(stream, None)
        return not self._is_crowded()

    def _is_crowded(self) -> bool:
        """Return whether too many connections are open even to answer the CONNECT of a new one; count the refusal.

        A few more connections than the limit may stay open until their CONNECT is answered with the reason.
        """
        is_crowded = len(self._host.streams) > crowd(self._config.limits.connections)
        self._host.counters.refused_connections += is_crowded
        return is_crowded

    def end_handshakes(self) -> None:
        """Remove and count connections whose handshake failed or timed out: the event loop does not report them."""
        if not self._shaking:
            return
        now = self._loop.time()
        for stream in [stream for stream, ends_at in self._shaking.items() if ends_at + _GRACE_S < now]:
            del self._shaking[stream]
            stream.server.streams.discard(stream)
            self._host.counters.failed_handshakes += 1


def tls_context(tls: TlsSettings) -> TlsContext | None:
    """Return the TLS context for the connections of a listener; None if *tls* names no certificate."""
    if not tls.certificate:
        return None
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    load_certificate(context, tls.certificate, tls.key or None)
    if tls.client_ca:
        load_authorities(context, tls.client_ca)
        if tls.revoked:
            load_revoked(context, tls.revoked)
        from whimbrel.broker.shell.net.client_certificates import ClientCertificates  # loads a library

        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
        context.trusted = ClientCertificates.read(tls)
    return context


def tls_of(listener: ListenerSettings) -> TlsSettings:
    """Return the TLS settings of a ``[[listener]]`` entry."""
    return TlsSettings(
        certificate=listener.tls_certificate,
        key=listener.tls_key,
        client_ca=listener.tls_client_ca,
        revoked=listener.tls_revoked,
        require_client_certificate=listener.tls_require_client_certificate,
        minimum_version=listener.tls_minimum_version,
    )


class ListenError(WhimbrelError):
    """A port or Unix socket cannot be opened. Reaction: choose another, or stop the program that uses it."""

    def __init__(self, kind: str, host: str, port: int | None, reason: str) -> None:
        super().__init__(kind, host, port, reason)
        self.kind, self.host, self.port, self.reason = kind, host, port, reason

    def __str__(self) -> str:
        where = self.host if self.port is None else f"{self.host}:{self.port}"
        return f"cannot listen on {where} ({self.kind}): {self.reason}"
