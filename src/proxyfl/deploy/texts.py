"""The texts of a deployment: READMEs, start scripts and service units, with what a template leaves open."""

from __future__ import annotations

import contextlib
import getpass
import shlex
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from proxyfl.core.files import write_bytes
from proxyfl.deploy import pki
from proxyfl.deploy.addresses import split_address
from proxyfl.deploy.settings import Deployment, Site


class _Text(Template):
    delimiter = "~"  # shell and systemd have other plans for the dollar


def server_words(deployment: Deployment, final: Path) -> dict[str, object]:
    """What the operator's texts leave open."""
    host, port = split_address(deployment.address)
    config, sites = deployment.config, deployment.sites
    measured = (
        f"the server's test {deployment.called} ({deployment.test})"
        if deployment.test
        else f"the {deployment.holdout:.0%} of labelled {deployment.called} that every site keeps back"
    )
    span = f"`{sites[0]}/`" if len(sites) == 1 else f"`{sites[0]}/` to `{sites[-1]}/`"
    return {
        "name": deployment.name,
        "warning": _warning(deployment.insecure),
        "count": len(sites),
        "method": config.method.name,
        "rounds": config.federation.rounds,
        "address": deployment.address,
        "accuracy": measured,
        "folders": span,
        "first": sites[0],
        "path": final,
        "shell_path": shlex.quote(str(final)),
        "host": host,
        "port": port,
        "user": _user(),
        "program": shutil.which("proxyfl") or "proxyfl",
        "server_days": pki.SERVER_DAYS,
        "ca_days": pki.CA_DAYS,
    }


def _user() -> str:
    """Who the server's service runs as; in a container the user may have no name."""
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return "proxyfl"


def site_words(deployment: Deployment, site: Site) -> dict[str, object]:
    return {
        "site": site.name,
        "name": deployment.name,
        "warning": _warning(site.insecure),
        "classes": ", ".join(site.classes),
        "data": IMAGE_DATA if site.image_size else VECTOR_DATA,
        "become": _become(site),
        "samples": site.called,
        "server": site.server,
    }


IMAGE_DATA = """- a folder with one folder per class, and a folder `unlabelled` for images without a label;
- a folder of images with a file `labels.csv` in it: a line `file,label`, then a line for each labelled image;
- an npz file with `images` (N×H×W or N×H×W×3, of 8 or 16 bits) and `labels` (names, or numbers, -1: none)."""
VECTOR_DATA = """- an npz file with `vectors` (N×d) and `labels` (numbers, -1 for none);
- a table, `.csv` or `.parquet`, with a column for each feature and a column `label`, empty for none."""


def _become(site: Site) -> str:
    if site.image_size:
        colour = "grey" if site.channels == 1 else "in colour"
        return f"Images become squares of {site.image_size} pixels, {colour}."
    names = f": {', '.join(site.features)}" if site.features else ""
    return f"A vector has {site.channels} features{names}."


def _warning(insecure: bool) -> str:
    if not insecure:
        return ""
    return (
        "> **Insecure.** No encryption, no authentication: whoever reaches the port reads and joins. For "
        "trying out on one machine only.\n\n"
    )


def write_text(file: Path, template: str, words: Mapping[str, object], mode: int = 0o644) -> None:
    text = resources.files("proxyfl.deploy").joinpath("templates", template).read_text(encoding="utf-8")
    write_bytes(file, _Text(text).substitute(words).encode())
    file.chmod(mode)
