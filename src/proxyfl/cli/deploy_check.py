"""``proxyfl deploy check``: what a site's data comes to, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import examples, out, plain_table

if TYPE_CHECKING:
    from proxyfl.deploy.settings import Site

EXAMPLES = examples("proxyfl deploy check images/ --site site-03")


def check(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder of images, CSV of labels, npz file; or a table.", show_default=False
        ),
    ],
    site: Annotated[
        Path,
        typer.Option("--site", metavar="DIR/SITE", help="The site's folder.", show_default=False),
    ],
) -> None:
    """Count a site's images and check them against the class list. Nothing is sent."""
    from proxyfl.deploy.expiry import of_site
    from proxyfl.deploy.settings import Site
    from proxyfl.deploy.site_data import open_site

    told = Site.read(site)
    form = (told.classes, told.channels, told.image_size, told.holdout, told.seed)
    found = open_site(data, *form, features=told.features, keys=told.keys)
    counts, console = found.counts, out()
    brought = (
        f"brought to {told.image_size} × {told.image_size}, {'grey' if told.channels == 1 else 'colour'}"
    )
    shown = f"images, {brought}" if told.image_size else f"vectors of {told.channels} features"
    console.print(f"{told.name}: {data}, read as {found.form}", style="bold", markup=False)
    console.print(f"{counts.total:,} {shown}\n")
    right = ("labelled", "kept back")
    table = plain_table("class", *right, right=right)
    for name, labelled, held in zip(told.classes, counts.labelled, counts.held_out, strict=True):
        table.add_row(name, f"{labelled:,}", f"{held:,}")
    table.add_row("all classes", f"{sum(counts.labelled):,}", f"{sum(counts.held_out):,}", style="bold")
    console.print(table)
    console.print(f"unlabelled: {counts.unlabelled:,}")
    for note in (*found.notes, *of_site(told), *_missing(told)):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not told.insecure and told.trusted.is_file():
        from proxyfl.deploy.signing import told_of

        console.print(f"{told.name} {told_of(told)}", markup=False, soft_wrap=True)
    console.print("nothing was sent")


def _missing(site: Site) -> list[str]:
    """What the site's folder lacks for taking part."""
    files = (site.ca_certificate, site.private_key, site.certificate, site.trusted)
    lacks = [str(file) for file in files if not site.insecure and not file.is_file()]
    return [f"missing here: {', '.join(lacks)}; the operator hands out the whole folder"] if lacks else []
