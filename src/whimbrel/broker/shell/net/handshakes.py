"""Handshakes: how a client learns why its TLS failed, and how connections that are too many are cut before one.

An event loop asks for the protocol of a connection when it accepts it, then for the TLS of its context, and tells the
protocol of the connection only when the handshake is done. So it is refused where the second is asked for.
An event loop closes a connection whose handshake fails without sending the alert that OpenSSL has made of it (RFC 8446,
6): the client would see a closed connection and no reason. So a failure is first reported as "more is needed", which
has the loop send what there is, and as it is when the client answers, closes, or takes too long.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

__all__ = ["TlsContext", "Unwanted"]


_NO_TLS = {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG", "WRONG_VERSION_NUMBER"}
"""What OpenSSL calls the first bytes of a client that speaks no TLS: it would wait, and never answer an alert."""


class _TlsObject(ssl.SSLObject):
    """The TLS of one connection, which sends the alert of a handshake that fails."""

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason in _NO_TLS:
                raise
            self._failure = error
            raise ssl.SSLWantReadError("the client has the alert to read") from error


class TlsContext(ssl.SSLContext):
    """The context of all connections; ``refuse_next`` has one of those that were accepted cut instead of secured."""

    sslobject_class = _TlsObject
    _to_refuse = 0
    _successor: ssl.SSLContext | None = None

    def hand_over(self, successor: ssl.SSLContext) -> None:
        """Let *successor*, which has other certificates, secure all connections that come from now on."""
        self._successor = successor

    def refuse_next(self) -> None:
        """Cut the connection that was accepted just now."""
        self._to_refuse += 1

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401 # as ssl has it
        """Begin the TLS of a connection, or raise if it is too many: the event loop closes it at once."""
        if self._to_refuse:
            self._to_refuse -= 1
            raise ssl.SSLError("there are too many connections")
        if self._successor is not None:
            return self._successor.wrap_bio(*args, **options)
        return super().wrap_bio(*args, **options)


class Unwanted(asyncio.Protocol):
    """The protocol of a connection that is cut; should its handshake be done all the same, it is cut then."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Cut it."""
        cast("asyncio.Transport", transport).abort()
