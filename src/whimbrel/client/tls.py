"""TLS: the certificates that a client connects with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from whimbrel.mqtt.certificates import CertificateError, load_authorities, load_certificate

__all__ = ["CertificateError", "Tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a client speaks TLS.

    *ca* is a file of certificates (PEM) that may sign the broker's; the system's if None. *certificate* and *key* are
    the client's own. *server_name* is the name that the broker's certificate must have, if it is not the host.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return what makes connections; raise ``CertificateError`` if a file cannot be used."""
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
