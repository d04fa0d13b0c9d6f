"""A federation's keys: an authority, the server's certificate, a key pair and a certificate per site.

All are ECDSA on P-384. A site's certificate and the key by which Flower knows its node are of the same pair.
Private keys are readable by their owner only and never overwritten silently.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import ConfigError, RunError, missing_extra
from proxyfl.core.files import sync_folder, write_bytes
from proxyfl.deploy.addresses import is_host, is_ip

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise missing_extra("cryptography", "flower") from None

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CA_DAYS = 3650
SERVER_DAYS = 825
EARLIER = datetime.timedelta(hours=1)
"""How far certificates reach back, for machines whose clocks are behind."""
ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names that a server's certificate has besides those asked for: its own programs reach it by them."""


def create_authority(certificate: Path, key: Path, name: str) -> None:
    """A new self-signed authority."""
    made, private = new_authority(name)
    write_private(key, private)
    _write_new(certificate, made)


def new_authority(name: str) -> tuple[bytes, bytes]:
    """(certificate, key) of a new self-signed authority in PEM form, not written yet."""
    private = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{name} federation CA")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _certificate(subject, subject, private.public_key(), private.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return builder.sign(private, hashes.SHA384()).public_bytes(Encoding.PEM), _pem(private)


def issue_server(
    certificate: Path,
    key: Path,
    authority: tuple[Path, Path],
    hosts: Sequence[str],
    *,
    days: int = SERVER_DAYS,
    renew: bool = False,
) -> None:
    """A server certificate for host names and IP addresses, signed by ``authority`` (certificate, key)."""
    check_key(authority[1], authority[0])
    issuer, signer = read_certificate(authority[0]), read_key(authority[1])
    private = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys((*hosts, *ALWAYS)))
    builder = _server(names, issuer.subject, private.public_key(), signer.public_key(), days)
    signed = builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)
    write_private(key, _pem(private), replace=renew)
    write_bytes(certificate, signed) if renew else _write_new(certificate, signed)


def issue_site(certificate: Path, public_file: Path, authority: tuple[Path, Path], name: str) -> None:
    """A certificate for a site's key, for as long as the authority lasts; one that exists is replaced.

    It need not end earlier: a site is locked out by its key, see the gate.
    """
    check_key(authority[1], authority[0])
    issuer, signer = read_certificate(authority[0]), read_key(authority[1])
    public = read_public(public_file)
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{public_file} is not an elliptic-curve key; make another with --new-key {name}")
    builder = (
        _certificate(_name(name), issuer.subject, public, signer.public_key(), days_left(authority[0]))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    write_bytes(certificate, builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))


def create_local(folder: Path) -> tuple[Path, Path, Path]:
    """(authority, certificate, key) for the loopback device of this machine, new at every start.

    Programs of one user know by it that they speak to each other. The authority's own key is thrown away.
    """
    signer, private = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    subject, days = _name("this machine"), 3650
    root = (
        _certificate(subject, subject, signer.public_key(), signer.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    leaf = _server(ALWAYS, subject, private.public_key(), signer.public_key(), days)
    files = folder / "local-ca.crt", folder / "local.crt", folder / "local.key"
    for file, builder in zip(files, (root, leaf), strict=False):
        write_bytes(file, builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    write_private(files[2], _pem(private), replace=True)
    return files


def create_site_keys(private_file: Path, public_file: Path, name: str, *, renew: bool = False) -> None:
    """A site's key pair in the OpenSSH formats that Flower's programs read."""
    private = ec.generate_private_key(ec.SECP384R1())
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    content = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_private(private_file, content, replace=renew)
    line = public + f" {name}\n".encode()
    write_bytes(public_file, line) if renew else _write_new(public_file, line)


MALFORMED = (
    *(ValueError, IndexError, UnsupportedAlgorithm, x509.InvalidVersion),
    *(x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
"""What cryptography raises for certificates that are none, or not of those that are issued here."""


def read_certificate(file: Path) -> Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except MALFORMED:
        raise ConfigError(f"{file} is not a certificate in PEM form") from None


def read_authorities(file: Path) -> list[Certificate]:
    """All of a file: several while one authority takes the place of another, the newest first."""
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except MALFORMED:
        raise ConfigError(f"{file} is not a certificate in PEM form") from None


def issuer_of(issued: Certificate, authority: Path) -> Certificate | None:
    """Of the authorities in a file the one that a certificate is of."""
    for issuer in read_authorities(authority):
        with contextlib.suppress(InvalidSignature, TypeError, *MALFORMED):
            issued.verify_directly_issued_by(issuer)
            return issuer
    return None


def is_issued_by(issued: Certificate, authority: Path) -> bool:
    """Whether a certificate is of one of the authorities in a file."""
    return issuer_of(issued, authority) is not None


def hosts_of(certificate: Path) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    names = (
        read_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    )
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def days_left(certificate: Path) -> int:
    """Whole days until a certificate ends; negative when it has."""
    return days_of(read_certificate(certificate))


def days_of(certificate: Certificate) -> int:
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def former_days(authority: Path) -> int:
    """The same of the authority that the server's certificate is of while another takes its place: the last
    of a file. The first one where there is one only.
    """
    return days_of(read_authorities(authority)[-1])


def check_server(certificate: Path, authority: Path, folder: Path | str = "DIR") -> None:
    """Raise where a server's certificate is not of this authority or has ended, with the cure."""
    renew = f"renew it with: proxyfl deploy init {folder} --renew"
    issuer = issuer_of(read_certificate(certificate), authority)
    if issuer is None:
        raise ConfigError(f"{certificate} is not signed by {authority}; {renew}")
    if days_of(issuer) < 0:
        raise ConfigError(
            f"the CA of {certificate} in {authority} has expired, and nothing that it signed is trusted any "
            f"more; replace it with 'proxyfl deploy rotate {folder} --ca' and distribute the sites' folders "
            "again"
        )
    if days_left(certificate) < 0:
        raise ConfigError(f"{certificate} has expired; {renew}")


def check_key(key: Path, certificate: Path) -> None:
    """Raise where a private key is not that of a certificate."""
    if read_certificate(certificate).public_key() != read_key(key).public_key():
        raise ConfigError(f"{key} is not the key of {certificate}; put the right one there")


def check_site_keys(private_file: Path, public_file: Path) -> None:
    """Raise where a site's two key files are unreadable or no pair."""
    if read_private(private_file).public_key() != read_public(public_file):
        raise ConfigError(f"{private_file} and {public_file} do not belong together; ask for a new folder")


def check_site(certificate: Path, public_file: Path, authority: Path) -> None:
    """Raise where a site's certificate is not of its key or of its federation, with the cure."""
    issued = read_certificate(certificate)
    if issued.public_key() != read_public(public_file):
        raise ConfigError(
            f"{certificate} is not for the key {public_file}; ask the federation's operator for both again"
        )
    if not is_issued_by(issued, authority):
        raise ConfigError(
            f"{certificate} is not signed by {authority}; ask the federation's operator for both again"
        )


def site_key_pem(private_file: Path) -> bytes:
    """A site's private key in the form that TLS wants."""
    return read_private(private_file).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_of(certificate: bytes) -> bytes:
    """The public key of a certificate in DER form, in the form in which equal keys are equal bytes."""
    public = x509.load_der_x509_certificate(certificate).public_key()
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def write_private(file: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a file that its owner alone can read; an existing one only stays or is replaced as a whole."""
    target = file.with_name(f".{file.name}.{os.getpid()}.aside") if replace else file
    if replace:
        for left in file.parent.glob(f".{file.name}.*.aside"):  # by one that was killed
            left.unlink(missing_ok=True)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RunError(f"{target} exists and is not overwritten; move it away first") from None
    with os.fdopen(handle, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    if replace:
        target.replace(file)
    sync_folder(file.parent)


def _write_new(file: Path, content: bytes) -> None:
    if file.exists():
        raise RunError(f"{file} exists and is not overwritten; move it away first")
    write_bytes(file, content)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _server(
    names: Sequence[str],
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in names])
    return (
        _certificate(_name(names[0]), issuer, public, signer, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _general_name(host: str) -> x509.GeneralName:
    if is_ip(host):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not is_host(host):
        raise ConfigError(f"'{host}' is not a host name or IP address")
    return x509.DNSName(host)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_private(file: Path) -> ec.EllipticCurvePrivateKey:
    """A site's private key, as Flower's programs read it."""
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{file} is no OpenSSH key; ask for a new folder") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} is not an elliptic-curve key; ask for a new folder")
    return key


def read_public(file: Path) -> object:
    try:
        return load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{file} is no OpenSSH key; ask for a new folder") from None


def read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}; restore the key") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{file} is not an unencrypted private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} is not an elliptic-curve key")
    return key
