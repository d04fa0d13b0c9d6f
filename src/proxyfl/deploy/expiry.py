"""Certificates that end soon or have ended: said before it matters, and what to do."""

from __future__ import annotations

import contextlib
from pathlib import Path

from proxyfl.core.errors import ConfigError
from proxyfl.deploy import pki
from proxyfl.deploy.roster import former_until
from proxyfl.deploy.settings import Deployment, Site

SOON = 30
"""Days before its end from which on a certificate is announced."""


def of_server(deployment: Deployment) -> list[str]:
    """What the operator should know of the server's, the authority's and the sites' certificates."""
    if deployment.insecure:
        return []
    renew = f"proxyfl deploy init {deployment.path} --renew"
    notes = _note(deployment.server_certificate, f"renew it with: {renew}, and restart the server")
    notes += _of_authority(deployment)
    for site in map(deployment.site, deployment.present):
        cure = f"renew it with: {renew}, and send the new one to {site.name}"
        notes += _note(site.certificate, cure)
        try:
            former_until(site)
        except ConfigError as error:
            notes.append(str(error))
        except OSError:  # there is none
            continue
    return notes


def _of_authority(deployment: Deployment) -> list[str]:
    """While another is introduced, the former one counts: the server's certificate is of it."""
    rotate = f"proxyfl deploy rotate {deployment.path} --ca"
    try:
        several = len(pki.read_authorities(deployment.ca_certificate)) > 1
        left = pki.former_days(deployment.ca_certificate)
    except ConfigError:
        return []
    if not several:
        return _note(deployment.ca_certificate, f"introduce another with: {rotate}")
    if left < 0:
        return [
            f"the former CA in {deployment.ca_certificate} {end(left)}; replace it at once with: {rotate}"
        ]
    soon = f" and before the former one {end(left)}" if left < SOON else ""
    return [f"a new authority is being introduced; when all sites have it{soon}: {rotate} --finish"]


def of_site(site: Site) -> list[str]:
    """The same for the people of a site."""
    if site.insecure:
        return []
    cure = "ask the federation's operator for a new one"
    notes = [note for file in (site.certificate, site.ca_certificate) for note in _note(file, cure)]
    with contextlib.suppress(ConfigError):
        if len(pki.read_authorities(site.ca_certificate)) > 1:
            notes.append(
                f"{site.ca_certificate} trusts the former authority, too; replace it with the shorter one "
                "that the federation's operator sends in the end, and restart the site"
            )
    return notes


def has_ended(certificate: Path) -> bool:
    return certificate.is_file() and pki.days_left(certificate) < 0


def _note(certificate: Path, cure: str) -> list[str]:
    try:
        left = pki.days_left(certificate)
    except ConfigError:  # missing or unreadable: said where it is used
        return []
    if left >= SOON:
        return []
    return [f"{certificate} {end(left)}; {cure}"]


def end(left: int) -> str:
    """When a certificate ends that has so many days left."""
    return f"expires in {left} days" if left >= 0 else f"expired {-left} day(s) ago"
