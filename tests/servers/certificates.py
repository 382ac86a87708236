"""A certificate authority of one test, and a server's certificate that it signed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    import pathlib


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM.

    Attributes:
        authority: The authority's certificate.
        certificate: The server's.
        key: The server's private key.
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def write(cls, folder: pathlib.Path, host: str) -> Certificates:
        """Make an authority and a certificate for a host's name, valid for a day."""
        files = cls(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")
        authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        authority_name = _named("test authority")
        authority = (
            _builder(authority_name, authority_name, authority_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        certificate = (
            _builder(_named(host), authority_name, server_key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
