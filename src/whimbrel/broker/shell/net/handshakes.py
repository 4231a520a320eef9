"""TLS handshakes: send a client the alert when its handshake fails, and close excess connections before the handshake.

When the event loop accepts a connection, it first creates the asyncio protocol, then a TLS object from the TLS context.
It informs the protocol of the connection only after the handshake. So an excess connection is refused when the TLS
object is created.
If a handshake fails, the event loop closes the connection without sending the alert that OpenSSL has prepared (RFC
8446, 6): the client would see a closed connection without a reason. So the failure is first reported to the loop as
"more data is needed", which makes it send the alert, and is raised when the client answers, closes, or takes too long.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:  # it loads a library that only a listener with client certificates needs
    from whimbrel.broker.shell.net.client_certificates import ClientCertificates

__all__ = ["Chain", "RefusedConnection", "TlsContext", "late_refusal", "secured_by"]

Chain: TypeAlias = tuple[bytes, ...]
"""A client's certificate chain, from its own certificate to the root, as DER; empty if it sent no certificate."""
_DER = 2
"""The constant of ``_ssl`` for the encoding DER."""


_NO_TLS = {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG", "WRONG_VERSION_NUMBER"}
"""OpenSSL's error reasons for a client that does not speak TLS; it is sent no alert, which it would not answer."""


class _TlsObject(ssl.SSLObject):
    """TLS object of one connection; if the handshake fails, the client still gets the alert."""

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Continue the handshake; report a failure as "more data is needed" once, so that the alert is sent."""
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
    """TLS context of a listener; after ``refuse_next``, the connection just accepted is closed instead of secured."""

    sslobject_class = _TlsObject
    _to_refuse = 0
    _successor: TlsContext | None = None
    trusted: ClientCertificates | None = None
    """The trusted authorities of client certificates; None if this listener requests no client certificates."""

    @property
    def newest(self) -> TlsContext:
        """The TLS context for new connections: this one, or the newest context after reloads."""
        found = self
        while found._successor is not None:
            found = found._successor
        if found is not self:
            self._successor = found  # keep the chain short: a broker may be reloaded a thousand times
        return found

    def refusal(self, chain: Chain) -> str | None:
        """Return why this context refuses a certificate *chain* that an older context admitted; None if it does not."""
        if self.trusted is None:
            return "certificates of clients do not count any more" if chain else None
        return self.trusted.refusal(chain)

    def hand_over(self, successor: TlsContext) -> None:
        """Use *successor*, which has other certificates, for all new connections."""
        before, self._successor = self.newest, successor
        if before is not self:
            before.hand_over(successor)

    def refuse_next(self) -> None:
        """Close the connection that was just accepted, before its handshake."""
        self._to_refuse += 1

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401 # the signature in ssl
        """Create the TLS object of a connection; raise if that is to be refused, so that the event loop closes it."""
        if self._to_refuse:
            self._to_refuse -= 1
            raise ssl.SSLError("there are too many connections")
        if self._successor is not None:
            return self._successor.wrap_bio(*args, **options)
        return super().wrap_bio(*args, **options)


def secured_by(transport: asyncio.BaseTransport | None) -> tuple[TlsContext, Chain] | None:
    """Return the TLS context of a connection and its client's certificate chain; None for a connection without TLS."""
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
    """Return why a client whose handshake began before a reload must be refused by the new settings; None if not."""
    found = secured_by(transport)
    if found is None or (newest := found[0].newest) is found[0]:
        return None
    return newest.refusal(found[1])


class RefusedConnection(asyncio.Protocol):
    """Protocol of a refused connection: it aborts the connection, should the handshake succeed nevertheless."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Abort the connection."""
        cast("asyncio.Transport", transport).abort()
