"""``proxyfl deploy explain`` and ``check``: what a federation sends, and a look at data before it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import command, examples, out, plain_table
from proxyfl.cli.deploy_life import require_flower
from proxyfl.cli.deploy_scaffold import Folder
from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxyfl.deploy.explain import Explanation, Item
    from proxyfl.deploy.settings import Deployment, Site
    from proxyfl.deploy.site_data import SiteData

EXPLAIN_EXAMPLES = examples("proxyfl deploy explain hospital")
CHECK_EXAMPLES = examples(
    "proxyfl deploy check images/ --site site-03", "proxyfl deploy check labelled/ --server hospital"
)


def explain(folder: Folder) -> None:
    """Print exactly what leaves a site with the chosen method, what it receives, and what that reveals.

    Observed in a dry run of one round with random images.
    """
    from proxyfl.deploy.explain import explain as explained
    from proxyfl.deploy.settings import Deployment

    deployment = Deployment.read(folder)
    out().print(
        f"{deployment.name}: what leaves a site with {deployment.config.method.name}",
        style="bold",
        markup=False,
    )
    show_explanation(explained(deployment), deployment)


def show_explanation(found: Explanation, deployment: Deployment | Site) -> None:
    """What leaves a site, what comes to it, and what that reveals."""
    from proxyfl.core.text import in_words

    console = out()
    console.print("\nLabels", style="bold")
    _bullets((found.labels,))
    console.print("\nOnce, when it enrols", style="bold")
    _bullets(found.enrols)
    console.print(f"\nIn every round, from a site to the server: {in_words(found.bytes_up)}", style="bold")
    console.print(_table(found.up))
    console.print(f"and sums of its losses and decisions: {', '.join(found.metrics)}", markup=False)
    console.print(f"\nIn every round, from the server to a site: {in_words(found.bytes_down)}", style="bold")
    console.print(_table(found.down))
    if found.declared:
        console.print("\nAs declared by the method", style="bold")
        _bullets(found.declared)
    console.print("\nAccuracy is measured", style="bold")
    _bullets((found.measured,))
    console.print("\nRecorded by the server", style="bold")
    _bullets((found.noted,))
    console.print("\nStays at the site", style="bold")
    _bullets(found.stays)
    console.print("\nWhat this reveals", style="bold")
    _bullets(found.remarks)
    if found.privacy:
        console.print("\nDifferential privacy", style="bold")
        _bullets([f"{key} = {value}" for key, value in found.privacy.items()])
    if deployment.insecure:
        console.print("\nINSECURE: all of this is neither encrypted nor authenticated.", style="bold red")


def _bullets(lines: Sequence[str]) -> None:
    for line in lines:
        out().print(f"- {line}", markup=False)


def _table(items: Sequence[Item]) -> object:
    from proxyfl.core.text import in_words

    table = plain_table("what", "numbers", "size", "shape", right=("numbers", "size"), keep=("what",))
    for item in items:
        shape = " × ".join(map(str, item.shape))
        table.add_row(item.what, f"{item.numbers:,}", in_words(item.bytes), shape)
    return table


def check(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder of images, CSV of labels, npz file; or a table.", show_default=False
        ),
    ],
    site: Annotated[
        Path | None,
        typer.Option("--site", metavar="DIR/SITE", help="The site's folder.", show_default=False),
    ] = None,
    server: Annotated[
        Path | None,
        typer.Option(
            "--server",
            metavar="DIR",
            help="The deployment's folder: DATA contains labelled images for the server.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Count a site's or the server's images and check them against the class list. Nothing is sent."""
    require_flower()
    from proxyfl.deploy.server_data import notes, open_server_data
    from proxyfl.deploy.settings import Deployment, Site
    from proxyfl.deploy.site_data import open_data

    if (site is None) == (server is None):
        raise ConfigError("specify whose images these are: --site DIR/SITE, or --server DIR for the server's")
    if server is not None:
        deployment = Deployment.read(server)
        own = open_server_data(deployment, str(data))
        _show_counts("the server", data, deployment, own, notes(own))
    elif site is not None:
        settings = Site.read(site)
        found = open_data(settings, data)
        _show_counts(settings.name, data, settings, found, [*found.notes, *_of_folder(settings)])
        if not settings.insecure and settings.trusted.is_file():
            from proxyfl.deploy.signing import trusted_by

            out().print(f"{settings.name} {trusted_by(settings)}", markup=False, soft_wrap=True)
            _show_terms(settings)
    out().print("nothing was sent")


def _show_terms(site: Site) -> None:
    """What the site is to agree to; without a folder that says so, what to do."""
    from proxyfl.cli.deploy_trust import show_offer, show_standing
    from proxyfl.core.plugins import load_plugins
    from proxyfl.deploy.approval import newest_offer, terms_hash

    load_plugins(())
    try:
        offer, asked = newest_offer(site)
        show_offer(site, offer, asked)
        if not show_standing(site, offer):
            approve = command("deploy", "approve", site.path, "--hash", terms_hash(site, offer))
            out().print(f"approve exactly this with: {approve}", markup=False, soft_wrap=True)
    except ConfigError as error:
        out().print(f"note: {error}", markup=False, soft_wrap=True)


def _show_counts(
    name: str, data: Path, form: Site | Deployment, found: SiteData, notes: Sequence[str]
) -> None:
    counts, console = found.counts, out()
    brought = (
        f"resized to {form.image_size} × {form.image_size}, {'grey' if form.channels == 1 else 'colour'}"
    )
    shown = f"images, {brought}" if form.image_size else form.called
    shown += f" of {form.channels} features" if form.called == "vectors" else ""
    console.print(f"{name}: {data}, read as {found.form}", style="bold", markup=False)
    console.print(f"{counts.total:,} {shown}\n")
    right = ("labelled", "held out")
    table = plain_table("class", *right, right=right)
    for one, labelled, held in zip(form.classes, counts.labelled, counts.held_out, strict=True):
        table.add_row(one, f"{labelled:,}", f"{held:,}")
    table.add_row("all classes", f"{sum(counts.labelled):,}", f"{sum(counts.held_out):,}", style="bold")
    console.print(table)
    console.print(f"unlabelled: {counts.unlabelled:,}")
    for note in notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _of_folder(site: Site) -> list[str]:
    """What there is to tell about the site's folder: what ends soon, what is missing."""
    from proxyfl.deploy.expiry import of_site

    return [*of_site(site), *_missing(site)]


def _missing(site: Site) -> list[str]:
    """What the site's folder lacks for taking part."""
    files = (site.ca_certificate, site.private_key, site.certificate, site.trusted)
    lacks = [str(file) for file in files if not site.insecure and not file.is_file()]
    return [f"missing here: {', '.join(lacks)}; ask the operator for the whole folder"] if lacks else []
