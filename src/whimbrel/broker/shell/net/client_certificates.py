"""Client certificates: check those of open connections again after a reload has read new authorities or revocations.

A handshake verifies a certificate once, and OpenSSL cannot repeat that on an open connection. So this module repeats
the checks whose result can have changed: does the chain lead to a trusted authority, is every certificate in its period
of validity, is the client's certificate revoked?
Rule: as in a handshake, if revocation lists are configured, that of the authority which signed the client's certificate
must be up to date. The signatures of a chain whose root is still trusted were verified in the handshake.
Rule: in doubt the connection is refused: its client connects again, and the new handshake decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from whimbrel.broker.settings.listeners import TlsSettings

__all__ = ["ClientCertificates"]

_BLOCK = re.compile(rb"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----.*?-----END (?P=kind)-----", re.DOTALL)
_CERTIFICATES = {b"CERTIFICATE", b"X509 CERTIFICATE"}
_LONGEST_CHAIN = 16


class ClientCertificates:
    """Certificate authorities and revocation lists of one listener, as last read from its files."""

    def __init__(
        self,
        authorities: Iterable[x509.Certificate],
        lists: Iterable[x509.CertificateRevocationList] | None = None,
        *,
        is_required: bool = False,
    ) -> None:
        self._authorities = list(authorities)
        self._roots = {each.public_bytes(Encoding.DER) for each in self._authorities}
        self._lists = None if lists is None else [_List(each) for each in lists]
        self._is_required = is_required

    @classmethod
    def read(cls, tls: TlsSettings) -> ClientCertificates:
        """Read the authorities and revocation lists that *tls* names; OpenSSL has already accepted these files."""
        authorities = [x509.load_pem_x509_certificate(each) for each in _blocks(tls.client_ca, _CERTIFICATES)]
        lists = None
        if tls.revoked:
            lists = [x509.load_pem_x509_crl(each) for each in _blocks(tls.revoked, {b"X509 CRL"})]
        return cls(authorities, lists, is_required=tls.require_client_certificate)

    def refusal(self, chain: Sequence[bytes], now: datetime | None = None) -> str | None:
        """Return why a client is refused now, or None; *chain* is its certificate chain, its own certificate first."""
        if not chain:
            return "a certificate is needed now" if self._is_required else None
        now = datetime.now(UTC) if now is None else now
        try:
            first, *others = (x509.load_der_x509_certificate(each) for each in chain)
            if not _is_in_time(first, now):
                return "this certificate has expired"
            if chain[-1] in self._roots and all(_is_in_time(each, now) for each in others):
                issuer: x509.Certificate | None = others[0] if others else first
            else:
                issuer = self._issuer(first, others, now)
            if issuer is None:
                return "no authority that signed this certificate is trusted any more"
            return self._revocation(first, issuer, now)
        except ValueError:
            return "this certificate cannot be read"

    def _issuer(
        self, first: x509.Certificate, others: Sequence[x509.Certificate], now: datetime
    ) -> x509.Certificate | None:
        """Return the certificate that signed *first*, if a chain leads from there to a trusted root; else None."""
        issuer: x509.Certificate | None = None
        at = first
        for _ in range(_LONGEST_CHAIN):
            found = next((each for each in (*self._authorities, *others) if _has_signed(each, at, now)), None)
            if found is None:
                return None
            issuer = issuer or found
            if found.subject == found.issuer and found in self._authorities:
                return issuer
            at = found
        return None

    def _revocation(self, first: x509.Certificate, issuer: x509.Certificate, now: datetime) -> str | None:
        if self._lists is None:
            return None
        lists = [each for each in self._lists if each.is_of(issuer, now)]
        if not lists:
            return "there is no revocation list of its authority that is up to date"
        return "this certificate was revoked" if any(each.names(first) for each in lists) else None


class _List:
    """A revocation list (CRL); its signature is verified once per authority, and the result is cached."""

    def __init__(self, found: x509.CertificateRevocationList) -> None:
        self._found = found
        self._serials: set[int] | None = None
        self._signers: dict[x509.Certificate, bool] = {}

    def is_of(self, issuer: x509.Certificate, now: datetime) -> bool:
        """Return whether *issuer* signed this list, and the list is up to date."""
        if self._found.issuer != issuer.subject:
            return False
        until = self._found.next_update_utc
        if now < self._found.last_update_utc or (until is not None and until < now):
            return False
        if issuer not in self._signers:
            self._signers[issuer] = _is_signed_by(self._found, issuer)
        return self._signers[issuer]

    def names(self, certificate: x509.Certificate) -> bool:
        """Return whether this list revokes *certificate*."""
        if self._serials is None:
            self._serials = {each.serial_number for each in self._found}
        return certificate.serial_number in self._serials


def _is_signed_by(found: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    try:
        return found.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]  # others are a TypeError
    except (TypeError, ValueError):
        return False


def _is_in_time(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate, now: datetime) -> bool:
    if issuer.subject != certificate.issuer or not _is_in_time(issuer, now):
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _blocks(path: str, kinds: set[bytes]) -> list[bytes]:
    """Return the blocks in a PEM file whose label is one of *kinds*."""
    return [found[0] for found in _BLOCK.finditer(Path(path).read_bytes()) if found["kind"] in kinds]
