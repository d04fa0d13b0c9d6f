"""``proxyfl models``: the networks that can be named."""

from __future__ import annotations

from proxyfl.cli.common import examples, out, plain_table

EXAMPLES = examples(
    "proxyfl models",
    "proxyfl run digits --set model.name=resnet8 --width 2",
    "proxyfl --plugin my_network.py run digits --set model.name=mine",
)


def models() -> None:
    """List the networks. Your own become known by name with `@proxyfl.register_model` in a --plugin."""
    from rich.markup import escape

    from proxyfl.models import describe

    table = plain_table("name", "parameters", "what it is", right=("parameters",), keep=("name",))
    for info in describe():
        table.add_row(f"[bold]{escape(info.name)}[/]", f"{info.parameters:,}", escape(info.summary))
    console = out()
    console.print(table)
    console.print("\n[dim]parameters: at width 4, 10 classes of colour images, without projection heads[/]")
