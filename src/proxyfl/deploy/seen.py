"""How sites came in last, as the gate saw it: by which authority's certificate, and by which of two keys."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from cryptography import x509

from proxyfl.core.files import write_bytes
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.post import private
from proxyfl.deploy.roster import previous_key
from proxyfl.deploy.settings import Deployment

SEEN = "seen"
"""Folder below the deployment's state."""


def settle_key(deployment: Deployment, name: str, current: bool, authority: str) -> None:
    """A site was let in: if by its new key, the former one is locked out. Which authority it has is noted."""
    place = private(deployment.state / SEEN) / name
    if authority != seen_authority(deployment, name):
        write_bytes(place, json.dumps({"authority": authority, "time": time.time()}).encode())
    site = deployment.site(name)
    former = previous_key(site)
    if current and former.is_file() and not _is_same(former, site.public_key):
        AuditLog(deployment.path).add("former key locked out", site=name)
        former.unlink(missing_ok=True)


def _is_same(former: Path, public: Path) -> bool:
    """Whether the former key is still the current one: it is written first when a key is replaced."""
    return former.read_bytes().split()[:2] == public.read_bytes().split()[:2]


def seen_authority(deployment: Deployment, name: str) -> str:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads((deployment.state / SEEN / name).read_text(encoding="utf-8"))
        return str(found.get("authority"))
    return ""


def issuer_of(certificate: bytes) -> str:
    """What the authority that issued a certificate, in DER form, calls its key."""
    with contextlib.suppress(ValueError, x509.ExtensionNotFound):
        found = x509.load_der_x509_certificate(certificate).extensions
        named = found.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        return named.hex() if named else ""
    return ""
