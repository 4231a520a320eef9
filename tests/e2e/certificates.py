"""Certificates for tests: an authority that exists for a moment, and what it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]


class Authority:
    """Whoever signs certificates in these tests."""

    def __init__(self, folder: Path, name: str = "test authority", above: Authority | None = None) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = self if above is None else above
        self.root = signer._signed(f"root of {name}", self._name, self._key, is_authority=True, folder=folder)[0]

    def sign(self, file: str, common_name: str) -> tuple[Path, Path]:
        """Return a certificate and its key."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return self._signed(file, name, ec.generate_private_key(ec.SECP256R1()), is_authority=False)

    def revoke(self, file: str, *certificates: Path, days: int = 1) -> Path:
        """Return a list that revokes *certificates*, and that is to be renewed in so many days."""
        today = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        made = made.last_update(today - timedelta(days=3)).next_update(today + timedelta(days=days))
        for each in certificates:
            number = x509.load_pem_x509_certificate(each.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(today)
            made = made.add_revoked_certificate(revoked.build())
        path = self._folder / f"{file}.crl"
        path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def _signed(
        self,
        file: str,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_authority: bool,
        folder: Path | None = None,
    ) -> tuple[Path, Path]:
        folder = self._folder if folder is None else folder
        today = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate, private = folder / f"{file}.pem", folder / f"{file}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return certificate, private
