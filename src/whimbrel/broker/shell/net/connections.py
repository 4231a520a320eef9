"""Connections: what the event loop tells of a socket, and what is written to it.

MQTT over TCP or TLS, MQTT over WebSocket, and requests for metrics and health over HTTP.
Rule: what comes is given to the server, which decides whether more of it is read.
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
"""How long a client may take to close a connection that we have said our last word on."""
_LEAST_WEB_READ, MAX_WEB_READ = 8 << 10, 64 << 10
"""How many bytes are read of a WebSocket at a time: at first, and while its frames are small, at most 1,365 frames."""
_LATE_WEB_READ = 1 << 10
"""How many where small frames have filled this turn already: at most 170 frames, however many clients send them."""
_SMALL_FRAME_BYTES = 64


class Host(Protocol):
    """The server, as its connections know it."""

    config: Config
    streams: set[Stream]
    """The connections that are open."""

    @property
    def counters(self) -> Counters:
        """What is counted of them."""

    def open(self, stream: Stream, address: str, user: str | None, listener: ListenerRules | None) -> Link:
        """Return the link of a connection that was opened; *user* is whom its certificate names."""

    def choke(self, stream: Stream, *, is_choked: bool) -> None:
        """Take in that a client reads too slowly, or reads again."""

    def finish(self, stream: Stream) -> None:
        """Take in that a connection is gone and that nothing more comes of it."""

    @property
    def is_full_of_frames(self) -> bool:
        """Whether so many frames of WebSocket were read in this turn as end that of one client."""

    @property
    def web_buffer(self) -> memoryview:
        """Where WebSockets are read to."""

    def received(self, link: Link, data: bytes) -> None:
        """Take in what a client sent."""

    def count_frames(self, stream: Stream, frames: int) -> None:
        """Count frames of WebSocket as work of this turn."""

    def is_waited_for(self, stream: Stream) -> bool:
        """Tell whether there is a reason not to read from a client now."""

    def lose(self, stream: Stream) -> None:
        """Take in that nothing more can be written to a connection; packets that it sent may still wait."""

    def finish_later(self, stream: Stream) -> None:
        """Let the core know that a connection is gone once it has handled the packets that came over it."""

    def forget(self, stream: Stream) -> None:
        """Forget a connection that is gone."""


class Stream(asyncio.BaseProtocol):
    """A connection of MQTT over TCP or TLS; once it is open, *admits* tells whether it may stay."""

    def __init__(self, server: Host, admits: Callable[[Stream], bool], listener: ListenerRules | None = None) -> None:
        self.server, self._admits = server, admits
        self._listener = listener
        self.link: Link | None = None
        self.transport: asyncio.Transport | None = None
        self.is_leaving = False
        self.is_lost = False
        """The connection is gone; packets that it sent may still wait for their turn, or for what its rate allows."""
        self.written_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait to be written to the client, or for it to acknowledge others."""
        buffered = 0 if self.transport is None else self.transport.get_write_buffer_size()
        client = None if self.link is None else self.link.client
        return buffered + (0 if client is None or client.link is not self.link else client.queued_bytes)

    @property
    def taken_bytes(self) -> int:
        """How many bytes the client's machine has taken of what was written."""
        assert self.transport is not None
        return self.written_bytes - self.transport.get_write_buffer_size() - unsent_bytes(self.transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take in that it is open."""
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
        """Make the core's link; cut a client whose certificate was revoked between its handshake and now."""
        assert self.transport is not None
        if late_refusal(self.transport) is not None:
            self.server.counters.failed_handshakes += 1
            self.transport.abort()
            return
        user = certified_user(self.transport.get_extra_info("peercert"))
        self.link = self.server.open(self, _address(self.transport), user, self._listener)

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        assert self.link is not None
        self.server.received(self.link, data)

    def write(self, data: bytes) -> None:
        """Write what the core has for the client."""
        assert self.transport is not None
        self.written_bytes += len(data)
        self.transport.write(data)

    def close(self) -> None:
        """Close once everything is written.

        We stop writing, and read on until the client closes: closing at once would reset the connection where the
        client has sent more than we read, and what we said last would be lost with it.
        """
        assert self.transport is not None
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client is gone; asyncio raises it here, uvloop reports it later
                self.transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def pause_reading(self) -> None:
        """Read nothing more for now; what the client says meanwhile is not heard, and its silence is not judged."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            if self.link is not None:
                self.link.is_unread = True

    def resume_reading(self) -> None:
        """Read on, if there is no other reason to wait."""
        if self.server.is_waited_for(self):
            return
        if self.link is not None:
            self.link.is_unread, self.link.is_heard = False, True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Take in that the client reads too slowly."""
        if self.link is not None:
            self.server.choke(self, is_choked=True)

    def resume_writing(self) -> None:
        """Take in that the client reads again."""
        if self.link is not None:
            self.server.choke(self, is_choked=False)

    def eof_received(self) -> bool:
        """Close: a client that stops sending has nothing more to say."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that it is gone."""
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
        """Let the core know that the connection is gone and that nothing more comes of it."""
        if self.link is not None:
            self.server.finish(self)
        self.server.forget(self)


class WebStream(Stream, asyncio.BufferedProtocol):
    """A connection of MQTT over WebSocket.

    It is read into a buffer of ours, since a client chooses how many frames a byte takes: an event loop that reads
    256 KB at a time, and 32 times in a row from one connection, would unmask a million before any other client's turn.
    Rule: a read is small at first and after one with small frames, and doubles with every full one without. It is
    smaller yet where other clients' frames have filled the turn.
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
        """Wait for the upgrade; until then there is nothing for the core."""
        timeout = self.server.config.limits.connect_timeout_s
        asyncio.get_running_loop().call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        if self.link is None and self.transport is not None:
            self.transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to: the same for all connections, as it is used at once."""
        del sizehint
        is_late = self._read_bytes == _LEAST_WEB_READ and self.server.is_full_of_frames
        return self.server.web_buffer[: _LATE_WEB_READ if is_late else self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what was read."""
        before = self._framing.frames
        self.data_received(bytes(self.server.web_buffer[:nbytes]))
        if nbytes < _SMALL_FRAME_BYTES * (self._framing.frames - before):
            self._read_bytes = _LEAST_WEB_READ
        elif nbytes == self._read_bytes:
            self._read_bytes = min(2 * nbytes, MAX_WEB_READ)

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
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
            if self.link is None:  # it was cut
                return
            self.transport.write(upgrade)
            data = request.rest
        assert self.link is not None
        framing, before = self._framing, self._framing.frames
        carried = framing.receive(data)
        if carried:
            self.server.received(self.link, carried)
        self.server.count_frames(self, framing.frames - before)
        if answers := framing.to_send():
            super().write(answers)
        if framing.closed:
            self.transport.close()

    def write(self, data: bytes) -> None:
        """Write what the core has for the client, in a frame."""
        super().write(self._framing.wrap(data))

    def close(self) -> None:
        """Close once everything is written, with a frame that says so."""
        if self._exchange is None:
            super().write(self._framing.close())
        super().close()


class WebRequests:
    """The connections for metrics and health that are open; the oldest of *most* makes room for another."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[ObservedStream, asyncio.Transport] = {}

    def add(self, stream: ObservedStream, transport: asyncio.Transport) -> None:
        """Take in a connection that was opened."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._open))
            self._open.pop(oldest).abort()
        self._open[stream] = transport

    def remove(self, stream: ObservedStream) -> None:
        """Take in that a connection is gone."""
        self._open.pop(stream, None)


class ObservedStream(asyncio.Protocol):
    """A request for metrics or health, to be made, and its answer read, within *timeout_s*.

    *answer* is called with method and path; *requests* are all such connections.
    """

    def __init__(
        self, answer: Callable[[str, str], Answer], timeout_s: float, hosts: WebHosts, requests: WebRequests
    ) -> None:
        self._answer, self._timeout_s, self._hosts, self._requests = answer, timeout_s, hosts, requests
        self._exchange = HttpExchange()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take in that it is open."""
        transport = cast("asyncio.Transport", transport)  # uvloop has its own, which is one in all but name
        self._transport = transport
        self._requests.add(self, transport)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
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
        """Take in that it is gone."""
        del exc
        self._requests.remove(self)
        if self._timer is not None:
            self._timer.cancel()


def _address(transport: asyncio.Transport) -> str:
    """Return where a connection comes from."""
    return str(transport.get_extra_info("peername") or peer_name(transport.get_extra_info("socket")))


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes of a connection its other end has not confirmed yet; 0 where the kernel does not say.

    A kernel's own buffer has megabytes, and asks for more only when a third of it is free: without this a client that
    reads slowly, and steadily, would seem to take nothing for minutes.
    """
    peer = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError, AttributeError):
        return 0


def bound_unsent(transport: asyncio.Transport, most_bytes: int) -> None:
    """Have the kernel keep no more than about *most_bytes* of a connection that it has not sent.

    What is written beyond that waits in the broker. Sockets that are not of TCP, and systems without this, have no such
    bound.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    peer = transport.get_extra_info("socket")
    if option is not None and peer is not None:
        with suppress(OSError, AttributeError):
            peer.setsockopt(socket.IPPROTO_TCP, option, most_bytes)


def certified_user(certificate: object) -> str | None:
    """Return the common name of a client's certificate, which TLS has verified."""
    if not isinstance(certificate, dict):
        return None
    for entry in certificate.get("subject", ()):
        for name, value in entry:
            if name == "commonName" and 1 <= len(str(value).encode()) <= MAX_NAME_BYTES and "\0" not in str(value):
                return str(value)
    return None
