"""Certificates for the tests: an authority, and what it signs, good or expired."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for 127.0.0.1 and localhost; `ca` is its own."""

    def __init__(self, folder: Path, *, name: str = "test authority") -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(parents=True, exist_ok=True)
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key.public_key(), days=30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.certificate = builder.sign(self._key, hashes.SHA256())
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(_pem(self.certificate))

    def issue(self, name: str, *, host: str = "localhost", expired: bool = False) -> Path:
        """A PEM file of key and certificate; `expired`: yesterday."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key.public_key(), days=-1 if expired else 30)
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority_key, False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{name}.pem"
        key_bytes = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        # Java wants the key first, and the chain up to the authority.
        whole = key_bytes + _pem(certificate) + _pem(self.certificate)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(whole)
        temporary.replace(path)  # whole at once, as Kubernetes replaces secrets
        return path


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, *, days: int) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
