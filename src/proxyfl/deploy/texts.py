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

from proxyfl.core.dealing import PARTIAL, SERVER
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
    span = f"`{sites[0]}/`" if len(sites) == 1 else f"`{sites[0]}/` to `{sites[-1]}/`"
    return {
        "name": deployment.name,
        "warning": _warning(deployment.insecure),
        "count": len(sites),
        "method": config.method.name,
        "rounds": config.federation.rounds,
        "address": deployment.address,
        "accuracy": measured_on(deployment),
        "labels": labels_are(deployment),
        "folders": span,
        "first": sites[0],
        "path": final,
        "shell_path": shlex.quote(str(final)),
        "host": host,
        "port": port,
        "user": _user(),
        "program": shutil.which("proxyfl") or "proxyfl",
        "approve": "" if deployment.insecure else f"    proxyfl deploy approve {sites[0]}\n",
        "server_days": pki.SERVER_DAYS,
        "ca_days": pki.CA_DAYS,
    }


def measured_on(deployment: Deployment) -> str:
    """The images that accuracy is measured on."""
    if deployment.test:
        return f"the server's test {deployment.called} ({deployment.test})"
    if deployment.sites_measure:
        return f"the {deployment.holdout:.0%} of labelled {deployment.called} that every site holds out"
    return f"the {deployment.holdout:.0%} of its labelled {deployment.called} that the server holds out"


def labels_are(deployment: Deployment) -> str:
    """Who has labels."""
    if deployment.scenario == SERVER:
        return (
            f"All labels are at the server ({deployment.server_data}), which trains on these "
            f"{deployment.called} after each aggregation. Sites need no labels; theirs are not used."
        )
    if deployment.scenario == PARTIAL:
        return f"A site has labels for all its {deployment.called} or for none."
    return "Every site trains on the labels that it has."


def _site_labels(site: Site) -> str:
    if site.scenario == SERVER:
        return "No labels are needed: they are at the server, and those that your data have are not used."
    if site.scenario == PARTIAL:
        return "Label all of them or none: here a site has all labels or no label."
    return "Label as many as you can."


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
        "labels": _site_labels(site),
        "data": DATA[site.called],
        "become": _become(site),
        "samples": site.called,
        "server": site.server,
        "approve": "" if site.insecure else APPROVE,
    }


APPROVE = (
    "Approve it: `proxyfl deploy approve THIS_FOLDER`. This site does and sends only what you approved,\n"
    "   whatever the server requests. "
)
IMAGE_DATA = """- a folder with one folder per class, and a folder `unlabelled` for images without a label;
- a folder of images with a file `labels.csv` in it: a line `file,label`, then a line for each labelled image;
- an npz file with `images` (N×H×W or N×H×W×3, of 8 or 16 bits) and `labels` (names, or numbers, -1: none)."""
VECTOR_DATA = """- an npz file with `vectors` (N×d) and `labels` (numbers, -1 for none);
- a table, `.csv` or `.parquet`, with a column for each feature and a column `label`, empty for none."""


TEXT_DATA = """- a table, `.csv` or `.parquet`, with a column `text` and a column `label`, empty for none."""
DATA = {"images": IMAGE_DATA, "vectors": VECTOR_DATA, "texts": TEXT_DATA}
ENCODER = (
    " A frozen encoder reads the {what} on this machine, once. It is not part of the folder: set its "
    'location in site.toml, as in encoder = "hf:/models/clip". It must be the same one that the server uses.'
)


def _become(site: Site) -> str:
    more = ENCODER.format(what=site.called) if site.encoded else ""
    if site.called == "texts":
        return f"Texts are in UTF-8.{more}"
    if site.image_size:
        colour = "grey" if site.channels == 1 else "in colour"
        return f"Images become squares of {site.image_size} pixels, {colour}.{more}"
    names = f": {', '.join(site.features)}" if site.features else ""
    return f"A vector has {site.channels} features{names}."


def _warning(insecure: bool) -> str:
    if not insecure:
        return ""
    return (
        "> **Insecure.** No encryption, no authentication: anyone who reaches the port can read and join. "
        "For trials on one machine only.\n\n"
    )


def write_text(file: Path, template: str, words: Mapping[str, object], mode: int = 0o644) -> None:
    text = resources.files("proxyfl.deploy").joinpath("templates", template).read_text(encoding="utf-8")
    write_bytes(file, _Text(text).substitute(words).encode())
    file.chmod(mode)
