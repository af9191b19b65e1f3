"""Certificates that the tests of TLS make: of an authority of their own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority"]

HOURS = datetime.timedelta(hours=24)
NO_USE = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    ),
    False,
)  # fmt: skip
CA_USE = x509.KeyUsage(**NO_USE | {"key_cert_sign": True, "crl_sign": True})
SERVER_USE = x509.KeyUsage(**NO_USE | {"digital_signature": True})
"""Since Python 3.13 an authority must say that it may sign."""


class Authority:
    """It signs its own certificate, and those of servers and clients."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.pem"
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._write(self.file, self._signed(self._name, self._key.public_key(), ca=True))

    def issue(self, name: str, host: str) -> tuple[Path, Path]:
        """Certificate and key, in files of this name, of who is at this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._signed(title, key.public_key(), ca=False, alternative=alternative)
        certificate, secret = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        self._write(certificate, signed)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )  # fmt: skip
        return certificate, secret

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        ca: bool,
        alternative: x509.GeneralName | None = None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOURS)
            .not_valid_after(now + HOURS)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(CA_USE if ca else SERVER_USE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer),
                critical=False,
            )
        )
        if alternative is not None:
            names = x509.SubjectAlternativeName([alternative])
            made = made.add_extension(names, critical=False)
        return made.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
