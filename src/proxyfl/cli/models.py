"""``proxyfl models``: the networks that can be named, what they cost, and one of them layer by layer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxyfl.cli.common import command, examples, out, plain_table
from proxyfl.core.errors import ConfigError

EXAMPLES = examples(
    "proxyfl models",
    "proxyfl models --data digits --per-round 4",
    "proxyfl models --trainable head --lora-rank 4",
    "proxyfl models --channels 512 --size 0",
    "proxyfl models show wrn-28-2",
    "proxyfl --plugin my_network.py models",
)

app = typer.Typer(invoke_without_command=True)

Data = Annotated[
    str | None, typer.Option(help="Take classes, channels and size from this data set.", show_default=False)
]
Classes = Annotated[
    int | None, typer.Option(min=1, help="Number of classes. [default: 10]", show_default=False)
]
Channels = Annotated[
    int | None,
    typer.Option(min=1, help="Channels of an image, or features. [default: 3]", show_default=False),
]
Size = Annotated[
    int | None,
    typer.Option(min=0, help="Pixels along a side; 0: vectors. [default: 32]", show_default=False),
]
Width = Annotated[int, typer.Option(min=1, help="Width factor, for networks that have one.")]
Norm = Annotated[str, typer.Option(help="Normalisation layers, as in model.norm.")]
Trainable = Annotated[str, typer.Option(help="What is trained and sent, as in model.trainable.")]
Rank = Annotated[int, typer.Option(min=0, help="Rank of adapters, as in model.lora_rank; 0: none.")]
Targets = Annotated[str, typer.Option(help="Layers with adapters, as in model.lora_targets.")]


@app.callback(epilog=EXAMPLES)
def models(
    ctx: typer.Context,
    data: Data = None,
    classes: Classes = None,
    channels: Channels = None,
    size: Size = None,
    width: Width = 4,
    per_round: Annotated[int, typer.Option(min=1, help="Clients per round.")] = 8,
    trainable: Trainable = "all",
    lora_rank: Rank = 0,
) -> None:
    """List the networks and what each costs. Register your own with `@proxyfl.register_model`.

    Any wrn-D-K can be named, not only those listed.
    """
    if ctx.invoked_subcommand is not None:
        return
    from rich.markup import escape

    from proxyfl.models import LoRA
    from proxyfl.models.measure import listing

    sizes = _sizes(data, classes, channels, size)
    partly = {"trainable": trainable, "lora": LoRA(lora_rank) if lora_rank else None}
    right = ("parameters", "trained", "MFLOP", "MB")
    table = plain_table("name", *right, "what it is", right=right, keep=("name", *right))
    for name, summary, cost in listing(**sizes, width=width, **partly):
        counts: tuple[str, ...] = ("–", "–", "–", "–")
        if cost is not None:
            sent = 2 * per_round * cost.bytes / 1e6
            numbers = (f"{cost.parameters:,}", f"{cost.trained:,}")
            counts = (*numbers, f"{cost.flops / 1e6:.1f}", f"{sent:.1f}" if sent >= 1 else f"{sent:.2g}")
        table.add_row(f"[bold]{escape(name)}[/]", *counts, escape(summary))
    console = out()
    console.print(table)
    one = "image" if sizes["image_size"] else "vector"
    console.print(
        f"\n[dim]for {_images(sizes)}, width {width}; MFLOP: one {one}, forward pass; "
        f"MB: one round of FedAvg, {per_round} clients, down and up[/]"
    )
    console.print(f"layers of one: {command('models', 'show', 'resnet8')}")


@app.command(epilog=examples("proxyfl models show wrn-28-2", "proxyfl models show resnet18 --size 224"))
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A network.", show_default=False)],
    data: Data = None,
    classes: Classes = None,
    channels: Channels = None,
    size: Size = None,
    width: Width = 4,
    norm: Norm = "batch",
    trainable: Trainable = "all",
    lora_rank: Rank = 0,
    lora_targets: Targets = "*",
) -> None:
    """Show a network layer by layer: output, parameters and cost for one image.

    The names are those that model.trainable and model.lora_targets choose from.
    """
    from rich.markup import escape

    from proxyfl.core.network import ModelSettings
    from proxyfl.core.settings import read_section
    from proxyfl.models import Network
    from proxyfl.models.measure import measure, summary

    partly = {"trainable": trainable, "lora_rank": lora_rank, "lora_targets": lora_targets}
    given = {"name": name, "width": width, "norm": norm, **partly}
    model = read_section(ModelSettings, given, "clean", "model.")
    sizes = _sizes(data, classes, channels, size)
    cost = measure(Network.configured(model, **sizes))
    console = out()
    console.print(f"[bold]{escape(name)}[/]: {escape(summary(name))}", soft_wrap=True)
    console.print(f"[dim]for {_images(sizes)}[/]\n")
    right = ("parameters", "trained", "MFLOP")
    table = plain_table("layer", "kind", "gives", *right, right=right, keep=("layer", "gives", *right))
    for layer in cost.layers:
        shape = " × ".join(map(str, layer.shape))
        counts = (f"{layer.parameters:,}", f"{layer.trained:,}", f"{layer.flops / 1e6:.2f}")
        table.add_row(escape(layer.name), layer.kind, shape, *counts)
    totals = (f"{cost.parameters:,}", f"{cost.trained:,}", f"{cost.flops / 1e6:.2f}")
    table.add_row("[bold]all[/]", "", "", *(f"[bold]{total}[/]" for total in totals))
    console.print(table)
    buffers = cost.state - cost.trained
    travels = f"{cost.bytes / 1e6:.2f} MB are sent each way per client"
    console.print(f"\n{travels}: {cost.trained:,} parameters and {buffers:,} numbers in buffers")


def _sizes(data: str | None, classes: int | None, channels: int | None, size: int | None) -> dict[str, Any]:
    """What is given, else what the data set has, else colour images of 32 pixels and ten classes."""
    found = (10, 3, 32)
    if data is not None:
        from proxyfl.data import sources

        dataset = sources.load(data, image_size=size)
        if dataset.is_texts:
            raise ConfigError(
                f"'{data}' contains texts, and networks take a frozen encoder's features of "
                "them; give the number of features, as in --channels 384 --size 0"
            )
        found = (len(dataset.classes), dataset.channels, dataset.image_size)
    side = found[2] if size is None else size
    return {"classes": classes or found[0], "channels": channels or found[1], "image_size": side}


def _images(sizes: dict[str, Any]) -> str:
    side = sizes["image_size"]
    if not side:
        return f"{sizes['classes']} classes of vectors of {sizes['channels']} features"
    return f"{sizes['classes']} classes of images of {sizes['channels']} × {side} × {side}"
