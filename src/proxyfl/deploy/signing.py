"""The operator's signature under the app: sites run what it covers and nothing else, whoever sends it.

The form is that of Flower's ``--trusted-entities``: a SuperNode compares an app's signatures with the keys
that its own file names before anything of the app is unpacked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from proxyfl.core.errors import ConfigError
from proxyfl.core.files import write_bytes
from proxyfl.deploy import signers
from proxyfl.deploy.pki import write_private
from proxyfl.deploy.settings import Deployment, Site

MARK = 8
"""So many digits of an app's SHA-256 are shown, as many as Flower puts into the name of its folder."""


def create_operator(deployment: Deployment) -> None:
    """The operator's key, and its public half in the form that Flower's programs read."""
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(deployment.operator_key, pem)
    line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    named = {f"fpk_{hashlib.sha256(line.encode()).hexdigest()[:32]}": f"{line} operator"}
    write_bytes(deployment.trusted, f"{json.dumps(named, indent=1)}\n".encode())


def app_bytes(deployment: Deployment) -> bytes:
    """The app as ``flwr run`` packs it: the same files make the same bytes."""
    from flwr.cli.build import build_fab_from_disk

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Flower uses
        return build_fab_from_disk(deployment.app)


def sign_app(deployment: Deployment) -> None:
    """Put the operator's signature under the app as it is now."""
    try:
        private = load_pem_private_key(deployment.operator_key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{deployment.operator_key} cannot be read ({type(error).__name__}); restore the key"
        ) from None
    ((name, _),) = read_trusted(deployment.trusted).items()
    digest, now = hashlib.sha256(app_bytes(deployment)).digest(), int(time.time())
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(f"{deployment.operator_key} is not the operator's key; restore the key")
    signature = base64.urlsafe_b64encode(private.sign(_message(digest, now))).decode()
    record = {"key": name, "app": digest.hex(), "signed_at": now, "signature": signature}
    write_bytes(deployment.app_signature, f"{json.dumps(record, indent=1)}\n".encode())


def read_trusted(file: Path) -> dict[str, Ed25519PublicKey]:
    """The keys whose apps are run, by Flower's names for them."""
    try:
        named = json.loads(file.read_text(encoding="utf-8"))
        keys = {str(name): load_ssh_public_key(line.encode()) for name, line in named.items()}
    except (OSError, ValueError, AttributeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} cannot be read ({type(error).__name__}); restore it") from None
    found = {name: key for name, key in keys.items() if isinstance(key, Ed25519PublicKey)}
    if len(found) != 1 or len(keys) != 1:
        raise ConfigError(f"{file} does not hold one key of an operator; restore it")
    return found


def fingerprint(file: Path) -> str:
    """Of the operator's key, as ``ssh-keygen -l`` writes it."""
    ((_, key),) = read_trusted(file).items()
    return signers.fingerprint(key)


def signature_of(deployment: Deployment) -> dict[str, Any]:
    """The signature record, checked against the key and the app as it is now."""
    file = deployment.app_signature
    cure = f"make it again with: proxyfl deploy init {deployment.path} --renew"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        key = read_trusted(deployment.trusted)[record["key"]]
        digest, raw = bytes.fromhex(record["app"]), base64.urlsafe_b64decode(record["signature"])
        key.verify(raw, _message(digest, record["signed_at"]))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing: the app is not signed; {cure}") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, InvalidSignature):
        raise ConfigError(f"{file} is no signature by the operator's key; {cure}") from None
    if digest != hashlib.sha256(app_bytes(deployment)).digest():
        raise ConfigError(f"{deployment.app} is not what the operator signed; {cure}")
    return dict(record)


def verifications(record: dict[str, Any]) -> dict[str, str]:
    """A signature record as Flower's SuperNodes expect it beside an app."""
    signed = {"signed_at": record["signed_at"], "signature": record["signature"]}
    return {"valid_license": "true", str(record["key"]): json.dumps(signed)}


def signed_by(deployment: Deployment) -> str:
    """What the operator can compare with what sites show, which is the same."""
    app = str(signature_of(deployment)["app"])[:MARK]
    return f"sites run the app {app}, signed by the operator's key {fingerprint(deployment.trusted)}"


def trusted_by(site: Site) -> str:
    return f"runs only apps signed by the operator's key {fingerprint(site.trusted)}"


def _message(digest: bytes, signed_at: int) -> bytes:
    return signed_at.to_bytes(8, byteorder="big") + digest
