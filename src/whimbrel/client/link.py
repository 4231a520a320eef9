"""A link: one connection to the broker, with its socket streams, and TLS and dialling.

Rule: a link is never reconnected; the client makes a new one. The task that reads it notices that it is broken.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whimbrel.client.errors import CannotConnectError, ClientError, ConnectRefusedError
from whimbrel.mqtt.certificates import CertificateError, load_authorities, load_certificate
from whimbrel.mqtt.client import Accepted, ClientConnection, ClientLimits, ClientSession, Event, Refused
from whimbrel.mqtt.packets import Connect

__all__ = ["READ_BYTES", "BrokenLinkError", "Endpoint", "Link", "Tls", "why"]

READ_BYTES = 65_536
_GOODBYE_S = 2.0
_CLOSED = "the connection was closed before CONNECT was answered"
_PERHAPS_TLS = "a port for TLS does that to a client without TLS (--tls, --tls-ca)"
_NO_TLS = "the connection was closed during the TLS handshake; a port without TLS does that"


class BrokenLinkError(ClientError):
    """A connection ended, and the client makes another. This error never leaves the package."""


@dataclass(slots=True, eq=False)
class Link:
    """An accepted connection."""

    connection: ClientConnection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    opened_at: float
    first_events: list[Event]
    """Events of packets that were received together with CONNACK."""
    is_session_present: bool
    home: str
    """The default session of SUBSCRIBE; empty: the private session."""
    is_held: bool = False
    """Whether the connection's output is held back until ``release``."""

    def flush(self) -> None:
        """Send the connection's output, unless it is held back."""
        if self.is_held:
            return
        data = self.connection.take(now=asyncio.get_running_loop().time())
        if data and not self.writer.is_closing():  # a closing one is noticed by the reading task
            self.writer.write(data)

    async def flush_and_wait(self) -> None:
        """Flush, and wait while the socket's buffer is full (back-pressure)."""
        self.flush()
        with suppress(ConnectionError):
            await self.writer.drain()

    def say_first(self, data: bytes) -> None:
        """Send *data* before the connection's output, which is held back until ``release``."""
        self.is_held = True
        self.writer.write(data)

    def release(self) -> None:
        """Send the connection's output, and hold it back no longer."""
        self.is_held = False
        self.flush()

    def abort(self) -> None:
        """Close the link without DISCONNECT; the reading task notices."""
        self.writer.transport.abort()

    async def leave(self) -> None:
        """Send DISCONNECT, and read until the broker closes: unread bytes could make the system drop our output."""
        self.connection.disconnect()
        self.release()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self.writer.drain()
                while await self.reader.read(READ_BYTES):
                    pass
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self.writer.wait_closed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings of a client.

    *ca* is a PEM file of the authorities trusted to sign the broker's certificate; the system's if None. *certificate*
    and *key* are the client's own. *server_name* is the name in the broker's certificate, if it is not the host.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the SSL context; raise ``CertificateError`` if a file cannot be used."""
        if self.key is not None and self.certificate is None:
            raise CertificateError("a TLS key needs its certificate")
        context = ssl.create_default_context()
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_authorities(context, self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            load_certificate(context, self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address of a broker, TLS context, and time limit for connecting."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    timeout_s: float
    server_name: str | None = None
    """The name required in the broker's certificate; the host if None."""

    async def dial(self, session: ClientSession, connect: Connect, limits: ClientLimits, *, home: str) -> Link:
        """Connect, send CONNECT and wait for the answer; *home* becomes the home of the link."""
        clock = asyncio.get_running_loop().time
        writer = None
        try:
            async with asyncio.timeout(self.timeout_s):
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, ssl=self.tls, server_hostname=self.server_name
                )
                connection = ClientConnection(session, connect, limits, now=clock())
                writer.write(connection.take(now=clock()))
                events: list[Event] = []
                while not events:
                    data = await reader.read(READ_BYTES)
                    if not data:
                        raise self.unreachable(_CLOSED if self.tls else f"{_CLOSED}; {_PERHAPS_TLS}")
                    events = connection.receive(data, now=clock())
                    if connection.failure is not None and not events:
                        raise self.unreachable(str(connection.failure))
            first, *events = events
            if isinstance(first, Refused):
                raise ConnectRefusedError(*first)
            assert isinstance(first, Accepted), "nothing else is taken for an answer"
            return Link(connection, reader, writer, clock(), events, first.is_session_present, home)
        except BaseException as error:
            if writer is not None:
                writer.close()
            if isinstance(error, TimeoutError):
                raise self.unreachable(f"no answer in {self.timeout_s:g} s") from error
            if isinstance(error, OSError):
                raise self.unreachable(why(error) or _NO_TLS) from error
            raise

    def unreachable(self, reason: str) -> CannotConnectError:
        """Return the error for *reason*, with host and port."""
        return CannotConnectError(self.host, self.port, reason)


def why(error: OSError) -> str:
    """Return the system's description of *error*."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()  # asyncio's own text is "Connect call failed"
    return error.strerror or str(error)
