"""``proxyfl data``: which data sets are where, whether their files are sound, fetching them, looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from proxyfl.data.dataset import Dataset
    from proxyfl.data.sources import Source

app = typer.Typer(help="Data sets: list, check, fetch, preview.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="A data set, as `proxyfl data ls` lists them; folder:PATH, npz:FILE.")
]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="The data folder. Default: $PROXYFL_DATA, else the user's cache folder."),
]
MANY_CLASSES = 20
COLOURS = {
    "official": "green",
    "customary": "green",
    "recorded": "green",
    "unknown": "yellow",
    "differs": "red",
}


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


@app.command()
def ls(root: Root = None) -> None:
    """What is known, and what of it is where.

    Example: proxyfl data ls --root ~/data
    """
    from rich.table import Table

    from proxyfl.data.files import data_root
    from proxyfl.data.sources import SOURCES

    folder = data_root(root)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "here?", "training + test images", "where"):
        table.add_column(heading, overflow="fold")
    for source in SOURCES.values():
        table.add_row(source.name, source.title, *_status(source, folder))
    console = _console()
    console.print(f"data folder: {folder}")
    console.print(table, soft_wrap=False)


def _status(source: Source, root: Path) -> tuple[str, str, str]:
    """Whether a data set is here, how many images, and where; without reading the images."""
    from proxyfl.core.errors import ConfigError, ProxyFLError

    try:
        found = source.locate(root)
    except ConfigError:
        return "[dim]give a path[/]", "", ""
    except ProxyFLError as error:
        return "[red]damaged[/]", "", str(error)
    if found.folder is None:
        return "[dim]no[/]", "", found.note
    counts = f"{found.counts[0]:,} + {found.counts[1]:,}" if found.counts else f"in {len(found.files)} files"
    short = source.shortfall(*found.counts) if found.counts else found.note
    return ("[yellow]partial[/]" if short else "[green]yes[/]"), counts, str(found.folder)


@app.command()
def check(name: Name, root: Root = None) -> None:
    """Compare files with their checksums, read everything, count the classes.

    official: the authors publish this checksum. customary: they publish none, this is the one in general use.
    recorded: as it was when downloaded. unknown: no checksum is known. differs: the file is not the original.
    Exit code 1 where a file differs.

    Example: proxyfl data check cifar10
    """
    from proxyfl.data.files import data_root
    from proxyfl.data.sources import find, load

    folder = data_root(root)
    source = find(name)
    console = _console()
    console.print(source.title)
    differing = _check_files(source, folder, console)
    dataset = load(name, folder)
    _describe(dataset, console)
    if differing:
        console.print(f"[red]{differing} of the files are not the originals[/]")
        raise typer.Exit(1)


def _check_files(source: Source, root: Path, console: Console) -> int:
    """Print a line for each file, archives included; the number of those that differ."""
    from proxyfl.data.files import in_words, judge

    found = source.locate(root)
    archives = {file.path: file for file in (*source.files, *source.alternatives) if file.unpacks_to}
    known = [(file, source.checksums.get(file.name, ())) for file in found.files]
    known += [
        (root / path, (file.checksum,) if file.checksum else ())
        for path, file in archives.items()
        if (root / path).is_file()
    ]
    if len(known) > 50 and not source.checksums:
        console.print(f"{len(known):,} files without known checksums in {found.folder}")
        return 0
    differing = 0
    for file, checksums in known:
        verdict = judge(file, checksums)
        differing += verdict.word == "differs"
        colour = COLOURS[verdict.word]
        size = in_words(file.stat().st_size)
        console.print(f"[{colour}]{verdict.word:9}[/] {file} ({size}, {verdict.detail})")
    return differing


def _describe(dataset: Dataset, console: Console) -> None:
    import torch

    height, width = dataset.train.images.shape[-2:]
    kind = "grey" if dataset.channels == 1 else "colour"
    console.print(
        f"{len(dataset.train):,} training and {len(dataset.test):,} test images, {height}×{width}, {kind}"
    )
    console.print(f"[yellow]partial: {dataset.partial}[/]" if dataset.partial else "complete")
    counts = [
        torch.bincount(split.labels, minlength=len(dataset.classes))
        for split in (dataset.train, dataset.test)
    ]
    if len(dataset.classes) > MANY_CLASSES:
        low, high = int(counts[0].min()), int(counts[0].max())
        console.print(f"{len(dataset.classes)} classes with {low:,} to {high:,} training images each")
        return
    for label, class_name in enumerate(dataset.classes):
        console.print(f"  {label:2} {class_name:14} {counts[0][label]:7,} + {counts[1][label]:,}")


@app.command()
def fetch(
    name: Name,
    root: Root = None,
    mirror: Annotated[
        str | None, typer.Option(help="Fetch the same files from this address instead of the official one.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Put an incomplete copy aside as NAME.old1.")
    ] = False,
) -> None:
    """Download a data set, check it and unpack it. A broken download goes on where it stopped.

    Example: proxyfl data fetch cifar10 --root ~/data
    """
    from proxyfl.data.fetch import fetch as bring
    from proxyfl.data.files import data_root
    from proxyfl.data.sources import find

    console = _console()
    place = bring(find(name), data_root(root), mirror=mirror, force=force, tell=console.print)
    console.print(f"{name} is in {place}")


@app.command()
def preview(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write, a PNG file.")],
    root: Root = None,
    count: Annotated[int, typer.Option(help="How many samples.")] = 8,
    seed: Annotated[int, typer.Option(help="Another seed shows other samples.")] = 0,
    image_size: Annotated[int | None, typer.Option(help="Bring the images to this size first.")] = None,
) -> None:
    """Draw samples with weak and strong views beside them.

    Example: proxyfl data preview cifar10 -o cifar10.png
    """
    from proxyfl.core.errors import ConfigError, DataError
    from proxyfl.core.rng import SERVER, rng
    from proxyfl.data.preview import contact_sheet
    from proxyfl.data.sources import load

    if output.suffix.lower() != ".png":
        raise ConfigError(f"--output {output} must end in .png")
    dataset = load(name, root, image_size=image_size)
    sheet = contact_sheet(dataset, rng(seed, 0, SERVER, "preview"), count=count)
    try:
        sheet.save(output)
    except OSError as error:
        raise DataError(f"{output} cannot be written ({error.strerror or error})") from None
    _console().print(f"{output}: {sheet.width}×{sheet.height} pixels")
