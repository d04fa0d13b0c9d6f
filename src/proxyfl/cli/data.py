"""``proxyfl data``: which data sets are where, whether their files are sound, fetching and seeing them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import Scenario, Settings, examples, overrides, plain_table
from proxyfl.cli.own_data import draw_sheet, explain, require_png

if TYPE_CHECKING:
    from rich.console import Console

    from proxyfl.core.trees import Tree
    from proxyfl.data.dataset import Dataset
    from proxyfl.data.files import Checksum
    from proxyfl.data.sources import Source

app = typer.Typer(help="Data sets: list, check, fetch, preview.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="A name from `proxyfl data ls`, or folder:PATH, npz:FILE, table:FILE, idx:PATH.")
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--data-root", "--root", help="The data folder. Default: $PROXYFL_DATA, else the user's cache folder."
    ),
]
MANY_CLASSES = 20
MANY_FILES = 20
COLOURS = {"unknown": "yellow", "differs": "red"}


def _console() -> Console:
    from proxyfl.cli.terminal import Terminal

    return Terminal(highlight=False, soft_wrap=True)


@app.command(epilog=examples("proxyfl data ls --data-root ~/data"))
def ls(root: Root = None) -> None:
    """List the data sets and where their files are."""
    from proxyfl.data.files import data_root
    from proxyfl.data.sources import SOURCES

    folder = data_root(root)
    heads = ("name", "here", "train + test")
    table = plain_table(*heads, "what and where", right=heads[2:], keep=heads)
    for source in SOURCES.values():
        table.add_row(*_row(source, folder))
    console = _console()
    console.print(f"data folder: {folder}", markup=False)
    console.print(table, soft_wrap=False)


def _row(source: Source, root: Path) -> tuple[str, str, str, str]:
    """Whether a data set is here, how many images, and where; without reading the images."""
    from rich.markup import escape

    from proxyfl.core.errors import ConfigError, ProxyFLError

    here, counts, place = "[dim]no[/]", "", ""
    try:
        found = source.locate(root)
    except ConfigError:
        here = "[dim]own[/]"  # a source that needs a path
    except ProxyFLError as error:
        here, place = "[red]damaged[/]", str(error)
    else:
        place = str(found.folder or found.note)
        if found.folder is not None:
            counts = f"{found.counts[0]:,} + {found.counts[1]:,}" if found.counts else "not counted"
            short = source.shortfall(*found.counts) if found.counts else found.note
            partial = short and source.full_size
            here = "[yellow]partial[/]" if partial else "[green]yes[/]"
    return source.name, here, counts, source.title + (f"\n[dim]{escape(place)}[/]" if place else "")


@app.command(
    epilog=examples(
        "proxyfl data check cifar10",
        "proxyfl data check digits --scenario server",
        "proxyfl data check folder:clinic -o clinic.png",
    )
)
def check(
    name: Name,
    root: Root = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="For your own data: a PNG file with samples of each class."),
    ] = None,
    keys: Annotated[
        str, typer.Option(help="Names of arrays or columns, as in images=pixels,labels=diagnosis.")
    ] = "",
    scenario: Scenario = None,
    set_: Settings = None,
) -> None:
    """Compare files with their checksums, read everything, count the classes.

    With --scenario it also shows who has labels once the data is partitioned.
    Your own data (folder:PATH, npz:FILE, table:FILE) is explained instead: classes, what is unlabelled,
    sizes, clients, problems and next steps.

    official: the authors publish this checksum. customary: they publish none, this is the one in general use.
    recorded: as it was when downloaded. unknown: no checksum is known. differs: not the original file.
    Exit code 1 if a file differs.
    """
    from proxyfl.data.files import data_root
    from proxyfl.data.sources import find, is_own, load

    folder = data_root(root)
    source = find(name)
    console = _console()
    asked = overrides(None, {"scenario": scenario}, set_ or ())
    if is_own(name):
        explain(name, folder, keys, output, console, asked)
        return
    console.print(source.title)
    differing = _check_files(source, folder, console)
    _describe(load(name, folder), console)
    if asked:
        _tell_labels(name, folder, asked, console)
    if differing:
        console.print(f"[red]{differing} of the files are not the originals[/]")
        raise typer.Exit(1)


def _tell_labels(name: str, root: Path, asked: Tree, console: Console) -> None:
    """Who has labels when the preset of that name deals its data."""
    from proxyfl.runs.experiment import load_config
    from proxyfl.runs.simulation import labels_in_words, prepare

    config = load_config(name, asked)
    simulation = prepare(config, root)
    dealt = simulation.partition
    holders = f"{int((dealt.labelled.sizes > 0).sum()):,} of {dealt.clients:,} clients"
    usual = f"{len(dealt.all_labelled):,} {simulation.dataset.called} are labelled, at {holders}"
    who = labels_in_words(simulation) or usual
    console.print(f"labels.where = {config.labels.where}: {who}", markup=False)


def _check_files(source: Source, root: Path, console: Console) -> int:
    """Print a line for each file, archives included; the number of those that differ."""
    from rich.markup import escape

    from proxyfl.core.text import in_words
    from proxyfl.data.files import judge

    found = source.locate(root)
    files: list[tuple[Path, tuple[Checksum, ...]]]
    files = [(file, source.checksums.get(file.name, ())) for file in found.files]
    if len(files) > MANY_FILES and not source.checksums:
        console.print(f"[yellow]unknown  [/] {len(files):,} files, no official checksums are known")
        files = []
    for archive in (*source.files, *source.alternatives):
        if archive.unpacks_to and (root / archive.path).is_file():
            files.append((root / archive.path, (archive.checksum,) if archive.checksum else ()))
    differing = 0
    for file, checksums in files:
        verdict = judge(file, checksums)
        differing += verdict.word == "differs"
        facts = f"({in_words(file.stat().st_size)}, {verdict.detail})"
        colour = COLOURS.get(verdict.word, "green")
        console.print(f"[{colour}]{verdict.word:9}[/] {escape(str(file))} {facts}")
    return differing


def _describe(dataset: Dataset, console: Console) -> None:
    import torch

    height, width = dataset.train.images.shape[-2:]
    size = f"{height}×{width}, {'grey' if dataset.channels == 1 else 'colour'}"
    size = f"{dataset.channels:,} features" if dataset.is_vectors else size
    size = f"up to {width:,} bytes" if dataset.is_texts else size
    counts = f"{len(dataset.train):,} training and {len(dataset.test):,} test {dataset.train.called}"
    console.print(f"{counts}, {size}")
    console.print(f"[yellow]partial: {dataset.partial}[/]" if dataset.partial else "complete")
    splits = (dataset.train, dataset.test)
    known = [split.labels[split.labels >= 0] for split in splits]
    train, test = (torch.bincount(labels, minlength=len(dataset.classes)) for labels in known)
    if len(dataset.classes) > MANY_CLASSES:
        low, high = int(train.min()), int(train.max())
        console.print(f"{len(dataset.classes)} classes with {low:,} to {high:,} training images each")
        return
    for label, class_name in enumerate(dataset.classes):
        console.print(f"  {label:2} {class_name:14} {train[label]:7,} + {test[label]:,}", markup=False)


@app.command(epilog=examples("proxyfl data fetch cifar10 --data-root ~/data"))
def fetch(
    name: Name,
    root: Root = None,
    mirror: Annotated[str | None, typer.Option(help="Another address with the same files.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Move an incomplete copy aside.")] = False,
) -> None:
    """Download a data set, check it and unpack it. An interrupted download is continued."""
    from proxyfl.data.fetch import fetch as bring
    from proxyfl.data.files import data_root
    from proxyfl.data.sources import find

    console = _console()

    def tell(line: str) -> None:
        console.print(line, markup=False)

    place = bring(find(name), data_root(root), mirror=mirror, force=force, tell=tell)
    tell(f"{name} is in {place}")


@app.command(epilog=examples("proxyfl data preview cifar10 -o cifar10.png"))
def preview(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write, a PNG file.")],
    root: Root = None,
    count: Annotated[int, typer.Option(help="How many samples.")] = 8,
    seed: Annotated[int, typer.Option(help="A different seed shows different samples.")] = 0,
    image_size: Annotated[int | None, typer.Option(help="Resize the images to this size first.")] = None,
) -> None:
    """Draw samples with weak and strong views beside them."""
    from proxyfl.data.sources import load

    require_png(output)
    draw_sheet(load(name, root, image_size=image_size), output, _console(), count=count, seed=seed)
