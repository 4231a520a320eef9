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
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:  # it loads a library that only a listener with client certificates needs
    from whimbrel.broker.shell.net.client_certificates import ClientCertificates

__all__ = ["Chain", "TlsContext", "Unwanted", "late_refusal", "secured_by"]

Chain: TypeAlias = tuple[bytes, ...]
"""A client's certificate and those that lead to its root, as DER; empty if it showed none."""
_DER = 2
"""What ``_ssl`` calls DER."""


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
    _successor: TlsContext | None = None
    trusted: ClientCertificates | None = None
    """The certificates of clients that it trusts; None if it does not ask for any."""

    @property
    def newest(self) -> TlsContext:
        """The context that secures the connections that come now: this one, or the last of its successors."""
        found = self
        while found._successor is not None:
            found = found._successor
        if found is not self:
            self._successor = found  # a broker may be reloaded a thousand times
        return found

    def refusal(self, chain: Chain) -> str | None:
        """Return why a client with this *chain*, which another context let in, would not be let in by this one."""
        if self.trusted is None:
            return "certificates of clients do not count any more" if chain else None
        return self.trusted.refusal(chain)

    def hand_over(self, successor: TlsContext) -> None:
        """Let *successor*, which has other certificates, secure all connections that come from now on."""
        before, self._successor = self.newest, successor
        if before is not self:
            before.hand_over(successor)

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


def secured_by(transport: asyncio.BaseTransport | None) -> tuple[TlsContext, Chain] | None:
    """Return the context of a connection's handshake, and its client's chain; None for a connection without TLS."""
    secured = None if transport is None else transport.get_extra_info("ssl_object")
    if not isinstance(secured, ssl.SSLObject) or not isinstance(secured.context, TlsContext):
        return None
    first = secured.getpeercert(binary_form=True)
    if first is None:
        return secured.context, ()
    if hasattr(secured, "get_verified_chain"):  # from Python 3.13 on
        chain = tuple(secured.get_verified_chain())
    else:
        found = cast("Any", secured)._sslobj.get_verified_chain()  # noqa: SLF001 # there is no other way before
        chain = tuple(each.public_bytes(_DER) for each in found or ())
    return secured.context, chain or (first,)


def late_refusal(transport: asyncio.BaseTransport) -> str | None:
    """Return why a client may not go on whose handshake was begun before a reload, if it may not."""
    found = secured_by(transport)
    if found is None or (newest := found[0].newest) is found[0]:
        return None
    return newest.refusal(found[1])


class Unwanted(asyncio.Protocol):
    """The protocol of a connection that is cut; should its handshake be done all the same, it is cut then."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Cut it."""
        cast("asyncio.Transport", transport).abort()
