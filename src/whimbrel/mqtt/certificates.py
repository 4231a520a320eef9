"""Certificates for TLS, loaded into an SSL context, with readable errors; for client and server.

Rule: an error names the file that cannot be used, and never its content.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from whimbrel.errors import InvalidInputError

__all__ = ["CertificateError", "load_authorities", "load_certificate", "load_revoked", "valid_until"]

_MISMATCH = "KEY_VALUES_MISMATCH"


class CertificateError(InvalidInputError):
    """A file of certificates or keys cannot be used. Reaction: give the right file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def load_authorities(context: ssl.SSLContext, ca: Path | str) -> None:
    """Add the certificates in *ca* to *context* as trusted authorities."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise CertificateError(f"{ca} has no certificate in PEM") from None
    except OSError as error:
        raise CertificateError(f"{ca}: {error.strerror or error}") from None


def load_revoked(context: ssl.SSLContext, revoked: Path | str) -> None:
    """Add the certificate revocation lists in *revoked* to *context*, which then refuses the certificates in them.

    An expired list refuses every certificate of its authority: later revocations are unknown.
    """
    before = context.cert_store_stats()["crl"]
    try:
        context.load_verify_locations(revoked)
    except ssl.SSLError:
        pass  # reported below
    except OSError as error:
        raise CertificateError(f"{revoked}: {error.strerror or error}") from None
    if context.cert_store_stats()["crl"] == before:
        raise CertificateError(f"{revoked} has no certificate revocation list in PEM")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def load_certificate(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """Load our own certificate and private key into *context*; without *key*, the key is in the certificate's file."""
    for path in (certificate, key):
        if path is not None:
            try:
                Path(path).open("rb").close()
            except OSError as error:  # errors of ssl do not name the file
                raise CertificateError(f"{path}: {error.strerror or error}") from None
    try:
        context.load_cert_chain(certificate, key or None)
    except ssl.SSLError as error:
        if _MISMATCH in str(error.reason):
            raise CertificateError(f"{key or certificate} does not belong to {certificate}") from None
        where = certificate if key is None else f"{certificate} or {key}"
        raise CertificateError(f"{where} is not a certificate, or not a key, in PEM") from None


def valid_until(certificate: Path | str) -> int | None:
    """Return the end of validity of the first certificate in a PEM file, in seconds since 1970; None if unreadable."""
    from cryptography import x509  # only a service with TLS needs it

    try:
        return int(x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc.timestamp())
    except (OSError, ValueError):
        return None
