"""Certificates for TLS, and what is said where they do not fit; for both sides of a connection.

Rule: an error names the file that cannot be used, and never what is in it.
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
    """Let *context* trust what the certificates of *ca* signed."""
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise CertificateError(f"{ca} has no certificate in PEM") from None
    except OSError as error:
        raise CertificateError(f"{ca}: {error.strerror or error}") from None


def load_revoked(context: ssl.SSLContext, revoked: Path | str) -> None:
    """Let *context* refuse the certificates that the revocation lists of *revoked* name.

    A list that is out of date lets no certificate of its authority pass: what was revoked since is not known.
    """
    before = context.cert_store_stats()["crl"]
    try:
        context.load_verify_locations(revoked)
    except ssl.SSLError:
        pass  # said below
    except OSError as error:
        raise CertificateError(f"{revoked}: {error.strerror or error}") from None
    if context.cert_store_stats()["crl"] == before:
        raise CertificateError(f"{revoked} has no certificate revocation list in PEM")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def load_certificate(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """Let *context* prove who we are; without *key* it stands in the same file as the certificate."""
    for path in (certificate, key):
        if path is not None:
            try:
                Path(path).open("rb").close()
            except OSError as error:  # ssl does not say which of the two files it means
                raise CertificateError(f"{path}: {error.strerror or error}") from None
    try:
        context.load_cert_chain(certificate, key or None)
    except ssl.SSLError as error:
        if _MISMATCH in str(error.reason):
            raise CertificateError(f"{key or certificate} does not belong to {certificate}") from None
        where = certificate if key is None else f"{certificate} or {key}"
        raise CertificateError(f"{where} is no certificate, or no key, in PEM") from None


def valid_until(certificate: Path | str) -> int | None:
    """Return until when the first certificate in a file of PEM is valid, in seconds since 1970; None if unreadable."""
    from cryptography import x509  # only a service with TLS needs it

    try:
        return int(x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc.timestamp())
    except (OSError, ValueError):
        return None
