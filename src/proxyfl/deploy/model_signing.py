"""The server's signature under a model: ``FILE.sig`` beside it, checked against the federation's authority.

The certificate is in it, so that the authority's is all that is needed, also after the server got another
one. A site's certificate is of the same authority and counts for nothing here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, has_hash, read_bounded, sha256, write_bytes
from proxyfl.deploy import signers
from proxyfl.deploy.settings import FEDERATION_FILE, Deployment

FORMAT = 1


@dataclass(frozen=True)
class Signed:
    """Who signed a file, when, and what they said of it."""

    server: str
    time: datetime
    about: dict[str, Any]
    ended: bool
    """Whether the certificate has ended since."""


def signature_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sig")


def sign(file: Path, deployment: Deployment, **about: Any) -> Path:
    """Sign a file as it is now, with the server's key."""
    record = {
        "format": FORMAT,
        "sha256": sha256(file),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "about": {"federation": deployment.name, **about},
        "certificate": deployment.server_certificate.read_text(encoding="ascii"),
    }
    record["signature"] = signers.sign_with_server(deployment.server_key, _message(record))
    place = signature_file(file)
    write_bytes(place, f"{json.dumps(record, indent=1)}\n".encode())
    return place


def all_signed(deployment: Deployment) -> bool:
    """Whether nothing is left to sign; a kill right behind a run's last checkpoint leaves models unsigned."""
    return deployment.insecure or not list(unsigned(deployment))


def unsigned(deployment: Deployment) -> Iterator[Path]:
    """The models of the run that changed since they were signed, or never were."""
    for file in sorted((deployment.run / "models").glob("*.safetensors")):
        with contextlib.suppress(RunError, OSError, ValueError, AttributeError):
            if has_hash(file, json.loads(read_bounded(signature_file(file), 1, SHORT)).get("sha256")):
                continue
        yield file


def check(file: Path, authority: Path, signature: Path | None = None) -> Signed:
    """Who signed a file; an error in words where nobody did who may."""
    place = signature or signature_file(file)
    if not file.is_file():
        raise RunError(f"{file} does not exist")
    try:
        record = json.loads(read_bounded(place, JSON_SWELLS, SHORT))
        digest, raw, pem = (str(record[name]) for name in ("sha256", "signature", "certificate"))
        when, about = datetime.fromisoformat(record["time"]), dict(record["about"])
        if record["format"] != FORMAT or when.tzinfo is None:
            raise ValueError
    except FileNotFoundError:
        raise RunError(f"{place} does not exist: the file is not signed, or was moved without it") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise RunError(f"{place} is not a signature; get it again from the source of the file") from None
    signer = signers.server_signer(pem, authority, when)
    if not signer.signed(_message(record), raw):
        raise RunError(f"{place} was changed: it is not what {signer.name} signed")
    if not has_hash(file, digest):
        raise RunError(f"{file} is not what was signed: it was changed, or {place.name} is of another file")
    return Signed(signer.name, when, about, signer.ended)


def deployment_of(run: Path) -> Deployment | None:
    """The federation whose run this is, where its server's key is at hand."""
    folder = run.resolve().parent
    if not (folder / FEDERATION_FILE).is_file():
        return None
    with contextlib.suppress(ConfigError):
        found = Deployment.read(folder)
        if not found.insecure and found.server_key.is_file():
            return found
    return None


def _message(record: dict[str, Any]) -> bytes:
    signed = {name: value for name, value in record.items() if name != "signature"}
    return b"proxyfl model\n" + json.dumps(signed, sort_keys=True).encode()
