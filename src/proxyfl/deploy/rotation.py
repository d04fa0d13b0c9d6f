"""New keys in the place of old ones, without a moment in which nobody is let in.

A site's former key stays admitted until the new one is used, or for some days. A new authority is trusted
beside the former one until every site has shown a certificate of the new one, and at a site until it has the
``ca.crt`` without the former one.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.deploy import approval, expiry, pki, signing
from proxyfl.deploy.addresses import with_listen
from proxyfl.deploy.app_template import write_app
from proxyfl.deploy.audit import AuditLog, listed
from proxyfl.deploy.names import known_site
from proxyfl.deploy.roster import NOTES, former_key, previous_key, previous_note, site_key
from proxyfl.deploy.seen import seen_authority
from proxyfl.deploy.settings import Deployment, Site

DAYS, MOST_DAYS = 14, 365
"""For which a former key of a site is admitted, where the new one is not used earlier; and at most."""
RETIRED = "retired.crt"
"""Authorities that were replaced, beside the one that counts: models of their time are verified with it."""
FRESH = "new.crt"
"""A new authority that is not in ``ca.crt`` yet."""


def rotate_site(folder: str | Path, name: str, days: float = DAYS) -> Site:
    """Another key for a site; the former one is admitted until the new one is used, at most for ``days``.

    The former key is written before the new one, so that after a crash in between the site is let in with the
    key that it has; repeated, also before the new one is used, the command keeps that key as the former one.
    """
    if not 0 < days <= MOST_DAYS:  # not a number is refused, too
        raise ConfigError(
            f"--days {days:g}: the former key is accepted for more than 0 and at most {MOST_DAYS} days; to "
            f"lock it out at once: proxyfl deploy init {folder} --new-key {name}"
        )
    deployment = _secure(folder)
    site = _present_site(deployment, name)
    until = datetime.now(UTC) + timedelta(days=days)
    again = _is_half_replaced(site) or _is_unused(site)
    former = (previous_key(site) if again else site.public_key).read_bytes().split()[:2]
    line = b" ".join([*former, f"until={until.isoformat(timespec='seconds')}".encode()])
    require_authority(deployment)
    log = AuditLog(deployment.path)
    log.add("new key", site=name)
    log.add("key rotated", site=name, until=until.isoformat(timespec="seconds"))
    write_bytes(previous_key(site), line + b"\n")
    if not again:
        with contextlib.suppress(OSError):  # the SuperLink goes on knowing it, under another name
            (deployment.state / NOTES / name).replace(previous_note(deployment, name))
    _replace_key(deployment, site)
    return site


def _is_half_replaced(site: Site) -> bool:
    """Whether a crash came before the certificate of a new key was written: no site has that key."""
    if not previous_key(site).is_file() or not site.certificate.is_file():
        return False
    return pki.read_certificate(site.certificate).public_key() != pki.read_public(site.public_key)


def _is_unused(site: Site) -> bool:
    """Whether the new key was not used yet: the former one is forgotten as soon as it is."""
    return former_key(site) not in (b"", site_key(site.public_key))


def renew(folder: str | Path, more: Sequence[str] = ()) -> int:
    """A new server certificate and key for the same names and more, and what else is missing. Its days.

    Sites need nothing, unless theirs is missing or ends soon. The app is that of this version, signed anew.
    """
    deployment = Deployment.read(folder)
    if deployment.insecure:
        raise ConfigError(f"{deployment.file} says insecure = true: there is no certificate to renew")
    if deployment.trusted.is_file() and not deployment.operator_key.is_file():
        raise ConfigError(
            f"{deployment.operator_key} is missing, and sites run only what it signed; restore it. If it "
            f"is lost, move {deployment.trusted} away and repeat this: sites then need the new trusted.yaml"
        )
    authority = deployment.ca_certificate, deployment.ca_key
    if len(pki.read_authorities(authority[0])) > 1:
        raise ConfigError(
            "a new authority is being introduced, and sites may not know it yet; "
            + (_expired(deployment) or f"finish that first: {_finish(deployment)}")
        )
    hosts = with_listen((*pki.hosts_of(deployment.server_certificate), *more), deployment.listen)
    require_authority(deployment)
    AuditLog(deployment.path).add("certificate renewed", hosts=list(hosts))
    pki.issue_server(deployment.server_certificate, deployment.server_key, authority, hosts, renew=True)
    if not deployment.trusted.is_file():
        deployment.operator_key.unlink(missing_ok=True)
        signing.create_operator(deployment)
    for site in map(deployment.site, deployment.present):
        if not site.certificate.is_file() or pki.days_left(site.certificate) < expiry.SOON:
            certify(deployment, site)
        write_bytes(site.trusted, deployment.trusted.read_bytes())
    write_app(deployment.app)
    signing.sign_app(deployment)
    approval.write_offers(deployment)
    return pki.days_left(deployment.server_certificate)


def new_key(folder: str | Path, name: str) -> Site:
    """Another key pair for a site whose key was lost or stolen. The old key is no site's any more."""
    deployment = Deployment.read(folder)
    if deployment.insecure:
        raise ConfigError(f"{deployment.file} says insecure = true: sites have no keys")
    site = _present_site(deployment, name)
    require_authority(deployment)
    AuditLog(deployment.path).add("new key", site=name)
    previous_key(site).unlink(missing_ok=True)
    _replace_key(deployment, site)
    return site


def _replace_key(deployment: Deployment, site: Site) -> None:
    pki.create_site_keys(site.private_key, site.public_key, site.name, renew=True)
    certify(deployment, site)


def _present_site(deployment: Deployment, name: str) -> Site:
    site = deployment.site(known_site(name, deployment.sites))
    if deployment.is_removed(name):
        raise ConfigError(f"{name} was removed; add a site instead: proxyfl deploy add-site DIR NAME")
    return site


def certify(deployment: Deployment, site: Site) -> None:
    authority = deployment.ca_certificate, deployment.ca_key
    pki.issue_site(site.certificate, site.public_key, authority, site.name)


def begin_authority(folder: str | Path) -> list[str]:
    """A new authority beside the former one; what is to be done next, in sentences. Repeated, it goes on."""
    deployment = _secure(folder)
    ended = bool(_expired(deployment))
    if is_under_way(deployment):
        _log_begun(deployment, pki.read_authorities(deployment.ca_certificate)[0])
        deployment.ca_certificate.with_name(FRESH).unlink(missing_ok=True)  # by one that was killed
    else:
        _introduce(deployment)
    for site in map(deployment.site, deployment.present):
        write_bytes(site.ca_certificate, deployment.ca_certificate.read_bytes())
        certify(deployment, site)
    handed = "send each site its new ca.crt and site.crt"
    sent = _sent(deployment, "ca.crt", "site.crt")
    if ended:
        _finish_authority(deployment, force=True)
        return ["restart the server", f"the former authority had expired: {handed}", *sent]
    return [
        f"a new authority is trusted beside the former one; restart the server, then {handed}",
        *sent,
        f"when all have them, were restarted and were connected once: {_finish(deployment)}",
    ]


def _introduce(deployment: Deployment) -> None:
    """Write the new authority before the former one into the file; a crash in between is made good."""
    certificate, key = deployment.ca_certificate, deployment.ca_key
    fresh, fresh_key = certificate.with_name(FRESH), key.with_name("new.key")
    if _is_half_introduced(deployment, fresh):
        _log_begun(deployment, pki.read_certificate(fresh))
    else:
        pki.check_key(key, certificate)
        pem, private = pki.new_authority(deployment.name)
        _log_begun(deployment, x509.load_pem_x509_certificate(pem))
        for file in (fresh, fresh_key):
            file.unlink(missing_ok=True)
        pki.write_private(fresh_key, private)
        write_bytes(fresh, pem)
        fresh_key.replace(key)
    former, retired = certificate.read_bytes(), certificate.with_name(RETIRED)
    earlier = retired.read_bytes() if retired.is_file() else b""
    if former not in earlier:  # as it is when this is repeated
        write_bytes(retired, earlier + former)
    write_bytes(certificate, fresh.read_bytes() + former)
    fresh.unlink()


def _is_half_introduced(deployment: Deployment, fresh: Path) -> bool:
    """Whether a crash came when the new key was in its place and its certificate was not in ``ca.crt``.

    One that is there already was left by an earlier rotation: used again, it would leave a stolen key valid.
    """
    if not fresh.is_file() or not deployment.ca_key.is_file():
        return False
    public = pki.read_certificate(fresh).public_key()
    if public in [one.public_key() for one in pki.read_authorities(deployment.ca_certificate)]:
        return False
    return public == pki.read_key(deployment.ca_key).public_key()


def _log_begun(deployment: Deployment, authority: x509.Certificate) -> None:
    AuditLog(deployment.path).add("authority begun", authority=_key_name(authority))


def finish_authority(folder: str | Path, *, force: bool = False) -> list[str]:
    """The server trusts the former authority no longer; what is to be done at the sites, in sentences."""
    deployment = _secure(folder)
    _finish_authority(deployment, force)
    return [
        "the server no longer trusts the former authority; restart it, then send sites the shorter ca.crt",
        *_sent(deployment, "ca.crt"),
        "each site restarts with it; until then it still trusts the former authority: a stolen ca.key "
        "of that can impersonate the server to it",
    ]


def _finish_authority(deployment: Deployment, force: bool) -> None:
    """Leave the new authority alone in every ca.crt, and give the server a certificate of it."""
    if not is_under_way(deployment):
        raise RunError(
            f"no new authority is being introduced; begin with: proxyfl deploy rotate {deployment.path} --ca"
        )
    newest = authority_of(deployment.ca_certificate)
    waiting = [name for name in deployment.present if seen_authority(deployment, name) != newest]
    if waiting and not force:
        if expired := _expired(deployment):
            raise RunError(expired)
        raise RunError(
            f"{', '.join(waiting)} did not yet show a certificate of the new authority; send them ca.crt and "
            "site.crt, let them connect once, or give --force: sites without them are then locked out"
        )
    hosts, authority = pki.hosts_of(deployment.server_certificate), deployment.ca_certificate
    (first, *_) = pki.read_authorities(authority)
    alone = first.public_bytes(Encoding.PEM)
    pki.check_key(deployment.ca_key, authority)
    AuditLog(deployment.path).add("authority finished", authority=newest, **listed(waiting, "waiting"))
    for name in deployment.present:
        write_bytes(deployment.site(name).ca_certificate, alone)
    pair = deployment.server_certificate, deployment.server_key
    pki.issue_server(*pair, (authority, deployment.ca_key), hosts, renew=True)
    write_bytes(authority, alone)  # last: until then, the command can be repeated after a crash


def _sent(deployment: Deployment, *files: str) -> list[str]:
    """The commands that install files at each site, as its folder was installed at first."""
    return [
        f"    scp {' '.join(shlex.quote(str(deployment.site_folder(name) / file)) for file in files)} "
        f"SITE-MACHINE:{name}/"
        for name in deployment.present
    ]


def is_under_way(deployment: Deployment) -> bool:
    return len(pki.read_authorities(deployment.ca_certificate)) > 1


def authority_of(certificate: Path) -> str:
    """What the newest authority of a file calls its key."""
    return _key_name(pki.read_authorities(certificate)[0])


def _key_name(authority: x509.Certificate) -> str:
    found = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return found.value.digest.hex()


def require_authority(deployment: Deployment) -> None:
    """Raise before anything is logged or written that could not be certified in the end."""
    pki.check_key(deployment.ca_key, deployment.ca_certificate)
    if expired := _expired(deployment):
        raise ConfigError(expired)


def _expired(deployment: Deployment) -> str:
    """What to do where the authority that the server's certificate is of has expired: no site can connect."""
    if pki.former_days(deployment.ca_certificate) >= 0:
        return ""
    rotate = f"proxyfl deploy rotate {deployment.path} --ca"
    return f"the CA of the server's certificate has expired; replace it at once with: {rotate}"


def _finish(deployment: Deployment) -> str:
    return f"proxyfl deploy rotate {deployment.path} --ca --finish"


def _secure(folder: str | Path) -> Deployment:
    deployment = Deployment.read(folder)
    if deployment.insecure:
        raise ConfigError(f"{deployment.file} says insecure = true: there are no keys to replace")
    return deployment
