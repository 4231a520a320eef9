"""Connections: asyncio protocols for MQTT over TCP or TLS, MQTT over WebSocket, and HTTP for metrics and health.

Rule: a connection passes the bytes that it reads to the server, which decides whether more is read.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from whimbrel.broker.access.users import MAX_NAME_BYTES
from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.settings.config import Config
from whimbrel.broker.shell.net.handshakes import late_refusal
from whimbrel.broker.shell.net.http import Answer, BadRequestError, HttpExchange
from whimbrel.broker.shell.net.unix_sockets import peer_name
from whimbrel.broker.shell.net.web_hosts import WebHosts
from whimbrel.broker.shell.net.websocket import Framing, accept
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.listener_rules import ListenerRules

__all__ = ["MAX_WEB_READ", "Host", "ObservedStream", "Stream", "WebRequests", "WebStream"]

_LINGER_S = 2.0
"""Time for a client to close its side after the broker has closed its own; then the connection is aborted."""
_LEAST_WEB_READ, MAX_WEB_READ = 8 << 10, 64 << 10
"""Least and most bytes of one read of a WebSocket; the least, while its frames are small, is at most 1,365 frames."""
_LATE_WEB_READ = 1 << 10
"""Bytes of one read if small frames have already filled this turn of the event loop: at most 170 frames."""
_SMALL_FRAME_BYTES = 64


class Host(Protocol):
    """Interface of the server to its connections."""

    config: Config
    streams: set[Stream]
    """The open connections."""

    @property
    def counters(self) -> Counters:
        """Counters of connections and bytes, for metrics."""

    def open(self, stream: Stream, address: str, user: str | None, listener: ListenerRules | None) -> Link:
        """Return the link (the core's object) of a new connection; *user* is the name in its certificate, or None."""

    def choke(self, stream: Stream, *, is_choked: bool) -> None:
        """Pause messages to a client that reads too slowly (back-pressure), or resume them."""

    def finish(self, stream: Stream) -> None:
        """Report to the core that a connection is closed and that all its packets were handled."""

    @property
    def is_full_of_frames(self) -> bool:
        """Whether the WebSocket frames read in this turn have used up the allowance of one client."""

    @property
    def web_buffer(self) -> memoryview:
        """The buffer into which the bytes of all WebSocket connections are read."""

    def receive(self, link: Link, data: bytes) -> None:
        """Handle bytes received from a client."""

    def count_frames(self, stream: Stream, frames: int) -> None:
        """Add WebSocket frames to the work of this turn."""

    def is_waited_for(self, stream: Stream) -> bool:
        """Return whether a client must not be read from now (back-pressure)."""

    def lose(self, stream: Stream) -> None:
        """Handle that a connection cannot be written to any more; packets received over it may still wait."""

    def finish_later(self, stream: Stream) -> None:
        """Report to the core that a connection is closed, once all packets received over it are handled."""

    def forget(self, stream: Stream) -> None:
        """Remove a closed connection from all lists."""


class Stream(asyncio.BaseProtocol):
    """A connection of MQTT over TCP or TLS; when it has been opened, *admits* decides whether it may stay open."""

    def __init__(self, server: Host, admits: Callable[[Stream], bool], listener: ListenerRules | None = None) -> None:
        self.server, self._admits = server, admits
        self._listener = listener
        self.link: Link | None = None
        self.transport: asyncio.Transport | None = None
        self.is_leaving = False
        self.is_lost = False
        """Whether the connection is closed; packets received over it may still wait for their turn or a rate limit."""
        self.written_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent to the client: in the write buffer, or until it acknowledges earlier messages."""
        buffered = 0 if self.transport is None else self.transport.get_write_buffer_size()
        client = None if self.link is None else self.link.client
        return buffered + (0 if client is None or client.link is not self.link else client.queued_bytes)

    @property
    def taken_bytes(self) -> int:
        """Bytes written to this connection that the client's machine has acknowledged (TCP)."""
        assert self.transport is not None
        return self.written_bytes - self.transport.get_write_buffer_size() - unsent_bytes(self.transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up an open connection: its write buffer and its link; close it if it is not admitted."""
        transport = cast("asyncio.Transport", transport)  # uvloop has its own, which is one in all but name
        self.transport = transport
        if not self._admits(self):
            transport.abort()
            return
        limits = self.server.config.limits
        transport.set_write_buffer_limits(high=limits.send_buffer_bytes)
        if limits.kernel_unsent_bytes:
            bound_unsent(transport, limits.kernel_unsent_bytes)
        self.begin()

    def begin(self) -> None:
        """Create the link, the core's object for this connection.

        Abort the connection instead if its TLS settings were reloaded since the handshake began, and the new ones
        refuse the client's certificate, or require one that it did not send.
        """
        assert self.transport is not None
        if late_refusal(self.transport) is not None:
            self.server.counters.failed_handshakes += 1
            self.transport.abort()
            return
        user = certified_user(self.transport.get_extra_info("peercert"))
        self.link = self.server.open(self, _address(self.transport), user, self._listener)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the server."""
        assert self.link is not None
        self.server.receive(self.link, data)

    def write(self, data: bytes) -> None:
        """Write bytes to the client."""
        assert self.transport is not None
        self.written_bytes += len(data)
        self.transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written.

        We close our side for writing, and read on until the client closes its side: closing both at once would reset
        the connection if the client has sent more than we have read, and the client would lose our last packets.
        """
        assert self.transport is not None
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client is gone; asyncio raises it here, uvloop reports it later
                self.transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def pause_reading(self) -> None:
        """Stop reading for now; meanwhile the client's keep-alive timeout does not run, since nothing is received."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            if self.link is not None:
                self.link.is_unread = True

    def resume_reading(self) -> None:
        """Resume reading, unless another reason not to read exists."""
        if self.server.is_waited_for(self):
            return
        if self.link is not None:
            self.link.is_unread, self.link.is_heard = False, True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Pause messages to a client that reads too slowly: its write buffer is full."""
        if self.link is not None:
            self.server.choke(self, is_choked=True)

    def resume_writing(self) -> None:
        """Resume messages to a client that reads again."""
        if self.link is not None:
            self.server.choke(self, is_choked=False)

    def eof_received(self) -> bool:
        """Return False, so that the event loop closes the connection: the client has ended its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish a closed connection; later, if packets received over it still wait to be handled."""
        del exc
        self.is_lost = True
        self.server.lose(self)
        link = self.link
        if link is not None and link.closing is None:
            if link.is_busy:
                self.server.finish_later(self)
                return
            if link.meter is not None and link.meter.is_waiting:
                return
        self.finish()

    def finish(self) -> None:
        """Report to the core that the connection is closed and that all its packets were handled."""
        if self.link is not None:
            self.server.finish(self)
        self.server.forget(self)


class WebStream(Stream, asyncio.BufferedProtocol):
    """A connection of MQTT over WebSocket.

    It is read into a buffer of our own, of bounded size, since a client may send very small frames: an event loop that
    reads 256 KB at a time, and 32 times in a row from one connection, would unmask a million frames before another
    client's turn.
    Rule: reads are small at first and after a read of small frames, and double with every full read of larger frames.
    They are smaller still if other clients' frames have filled the turn.
    """

    def __init__(
        self,
        server: Host,
        admits: Callable[[Stream], bool],
        listener: ListenerRules | None = None,
        *,
        hosts: WebHosts,
    ) -> None:
        super().__init__(server, admits, listener)
        self._hosts = hosts
        self._exchange: HttpExchange | None = HttpExchange()
        self._framing = Framing(max_frame_bytes=server.config.limits.packet_bytes + 1_024)
        self._read_bytes = _LEAST_WEB_READ

    def begin(self) -> None:
        """Start the timeout for the upgrade to WebSocket; the core gets the connection afterwards."""
        timeout = self.server.config.limits.connect_timeout_s
        asyncio.get_running_loop().call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        if self.link is None and self.transport is not None:
            self.transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into: all connections share it, since its content is used at once."""
        del sizehint
        is_late = self._read_bytes == _LEAST_WEB_READ and self.server.is_full_of_frames
        return self.server.web_buffer[: _LATE_WEB_READ if is_late else self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes that were read, and choose the size of the next read."""
        before = self._framing.frames
        self.data_received(bytes(self.server.web_buffer[:nbytes]))
        if nbytes < _SMALL_FRAME_BYTES * (self._framing.frames - before):
            self._read_bytes = _LEAST_WEB_READ
        elif nbytes == self._read_bytes:
            self._read_bytes = min(2 * nbytes, MAX_WEB_READ)

    def data_received(self, data: bytes) -> None:
        """Answer the upgrade request; after that, decode frames and pass their content to the server."""
        assert self.transport is not None
        if self._exchange is not None:
            try:
                request = self._exchange.receive(data)
                if request is None:
                    return
                self._hosts.check(request)
                answer = accept(request, origins=self.server.config.listen.ws_origins)
            except BadRequestError as error:
                self.transport.write(self._exchange.send(error.answer))
                self.transport.close()
                return
            upgrade = self._exchange.send(answer)
            self._exchange = None
            super().begin()
            if self.link is None:  # the connection was refused during the upgrade
                return
            self.transport.write(upgrade)
            data = request.rest
        assert self.link is not None
        framing, before = self._framing, self._framing.frames
        carried = framing.receive(data)
        if carried:
            self.server.receive(self.link, carried)
        self.server.count_frames(self, framing.frames - before)
        if answers := framing.to_send():
            super().write(answers)
        if framing.closed:
            self.transport.close()

    def write(self, data: bytes) -> None:
        """Write bytes to the client as one binary frame."""
        super().write(self._framing.wrap(data))

    def close(self) -> None:
        """Send a close frame, and close the connection once everything is written."""
        if self._exchange is None:
            super().write(self._framing.close())
        super().close()


class WebRequests:
    """Open connections for metrics and health; when there are *most*, a new one closes the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[ObservedStream, asyncio.Transport] = {}

    def add(self, stream: ObservedStream, transport: asyncio.Transport) -> None:
        """Register a new connection; close the oldest one if there are too many."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._open))
            self._open.pop(oldest).abort()
        self._open[stream] = transport

    def remove(self, stream: ObservedStream) -> None:
        """Remove a closed connection."""
        self._open.pop(stream, None)


class ObservedStream(asyncio.Protocol):
    """HTTP connection for one request of metrics or health; it is aborted if that takes longer than *timeout_s*.

    *answer* is called with method and path and returns the answer; *requests* are all such connections.
    """

    def __init__(
        self, answer: Callable[[str, str], Answer], timeout_s: float, hosts: WebHosts, requests: WebRequests
    ) -> None:
        self._answer, self._timeout_s, self._hosts, self._requests = answer, timeout_s, hosts, requests
        self._exchange = HttpExchange()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and start its timeout."""
        transport = cast("asyncio.Transport", transport)  # uvloop has its own, which is one in all but name
        self._transport = transport
        self._requests.add(self, transport)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer the request once it is complete, and close the connection."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        try:
            request = self._exchange.receive(data)
            if request is None:
                return
            self._hosts.check(request)
            answer = self._answer(request.method, request.path)
        except BadRequestError as error:
            answer = error.answer
        self._transport.write(self._exchange.send(answer))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the closed connection, and cancel its timeout."""
        del exc
        self._requests.remove(self)
        if self._timer is not None:
            self._timer.cancel()


def _address(transport: asyncio.Transport) -> str:
    """Return the address of a connection's client; for a Unix socket, a text with the user id at its other end."""
    return str(transport.get_extra_info("peername") or peer_name(transport.get_extra_info("socket")))


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes in the kernel's send buffer that the client has not acknowledged; 0 if the kernel cannot tell.

    That buffer holds megabytes, and takes more only when a third of it is free: without this number a client that
    reads slowly but steadily would seem to read nothing for minutes.
    """
    peer = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError, AttributeError):
        return 0


def bound_unsent(transport: asyncio.Transport, most_bytes: int) -> None:
    """Limit the unsent bytes in the kernel's send buffer to about *most_bytes* (``TCP_NOTSENT_LOWAT``).

    Bytes beyond that wait in the broker. Sockets other than TCP, and systems without this option, have no such limit.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    peer = transport.get_extra_info("socket")
    if option is not None and peer is not None:
        with suppress(OSError, AttributeError):
            peer.setsockopt(socket.IPPROTO_TCP, option, most_bytes)


def certified_user(certificate: object) -> str | None:
    """Return the common name in a client's certificate, which TLS has verified; None without a usable name."""
    if not isinstance(certificate, dict):
        return None
    for entry in certificate.get("subject", ()):
        for name, value in entry:
            if name == "commonName" and 1 <= len(str(value).encode()) <= MAX_NAME_BYTES and "\0" not in str(value):
                return str(value)
    return None
