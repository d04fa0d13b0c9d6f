"""Signatures of a site's and of the server's key, and who may have made one."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxyfl.core.errors import RunError
from proxyfl.deploy import pki
from proxyfl.deploy.settings import Site

SCHEME = ec.ECDSA(hashes.SHA384())


def sign_with_site(private_file: Path, message: bytes) -> str:
    """A site's signature, as hexadecimal digits."""
    return pki.read_private(private_file).sign(message, SCHEME).hex()


def sign_with_server(key_file: Path, message: bytes) -> str:
    return pki.read_key(key_file).sign(message, SCHEME).hex()


def is_of_site(public_file: Path, message: bytes, signature: str) -> bool:
    """Whether a signature is of a site's key."""
    return _verifies(pki.read_public(public_file), message, signature)


def fingerprint(key: Any) -> str:
    """Of a public key, as ``ssh-keygen -l`` writes it."""
    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def identity(site: Site) -> dict[str, str]:
    """Fingerprints of a site's key and of the authorities that it trusts, as its log records them; without
    keys none. Those of authorities are as ``openssl x509 -fingerprint -sha256`` writes them, without colons.
    """
    if site.insecure:
        return {}
    trusted = pki.read_authorities(site.ca_certificate)
    authorities = [one.fingerprint(hashes.SHA256()).hex() for one in trusted]
    return {"key": fingerprint(pki.read_public(site.public_key)), "ca": ",".join(authorities)}


@dataclass(frozen=True)
class Signer:
    """A server whose certificate is of the federation's authority."""

    name: str
    certificate: x509.Certificate

    def signed(self, message: bytes, signature: str) -> bool:
        return _verifies(self.certificate.public_key(), message, signature)

    @property
    def ended(self) -> bool:
        return self.certificate.not_valid_after_utc < datetime.now(UTC)


def server_signer(pem: str, authority: Path, when: datetime) -> Signer:
    """Whoever holds a certificate, if the authority issued it to a server and it was valid then."""
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        name = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        certificate.public_key()  # that it can be read
    except pki.MALFORMED:
        raise RunError("the signature carries no certificate of a server") from None
    if not pki.is_issued_by(certificate, authority):
        raise RunError(f"it was signed by {name}, which {authority} does not know: another federation's")
    if ExtendedKeyUsageOID.SERVER_AUTH not in usage:
        raise RunError(f"it was signed by {name}, which is not a server of the federation")
    if not certificate.not_valid_before_utc <= when <= certificate.not_valid_after_utc:
        raise RunError(f"it was signed at {when:%Y-%m-%d}, when the certificate of {name} was not valid")
    return Signer(name, certificate)


def _verifies(public: object, message: bytes, signature: str) -> bool:
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(bytes.fromhex(signature), message, SCHEME)
            return True
    except (InvalidSignature, ValueError):
        pass
    return False
