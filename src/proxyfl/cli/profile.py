"""``proxyfl profile``: one client's round taken apart, as a table with bars and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    Method,
    Settings,
    examples,
    load_settings,
    out,
    plain_table,
    require_device,
)
from proxyfl.cli.progress import share_bar
from proxyfl.core.text import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxyfl.profiling.phases import Encoding, Phase, Profile

EXAMPLES = examples(
    "proxyfl profile",
    "proxyfl profile cifar10 --method sage --width 1",
    "proxyfl profile cifar10 --dtype fp32 --steps 5 --output pictures/step",
)
BAR, EIGHTHS = 24, " ▏▎▍▌▋▊▉"
COLOURS = {"network": "blue", "views": "yellow", "losses": "red", "other": "bright_black"}
BUSY = 0.85
"""Below this share of a core, other programs have slowed the measurement down."""


def profile(
    preset: Annotated[
        str, typer.Argument(metavar="[PRESET|FILE.toml]", help="A name from `proxyfl config ls`, or a file.")
    ] = "digits",
    method: Method = None,
    set_: Settings = None,
    width: Annotated[int | None, typer.Option(help="Width of the network.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side in pixels; 0 is the native size.")] = None,
    subset: Annotated[
        float | None, typer.Option(help="Training images: a share up to 1, or a count.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16, or auto (bf16 if the machine supports it).")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps to time.", show_default="about 10 s of them, at most 50"),
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Whose round.", show_default="the largest of round 1")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PICTURE", help="Also write it as PNG, SVG and CSV.", show_default=False
        ),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Measure one client's round: views, teacher, forward, backward, each loss, optimiser, server.

    With a frozen encoder, also the cost of encoding before the first round.
    Trains for a few steps under the conditions of a run, and keeps nothing. The speed of the network is
    compared with that of a plain matrix product on this machine.
    """
    flags = {
        "width": width, "image_size": image_size, "subset": subset, "device": device, "dtype": dtype,
    }  # fmt: skip
    config = load_settings(preset, method, flags, set_)
    require_device(config)
    if picture is not None:
        from proxyfl.report import plot_style

        plot_style.new_figure(1, 1)  # finds out now, not after measuring, whether pictures can be drawn

    from proxyfl.profiling.process import profile_in_process

    with share_bar("measuring") as tell:
        found = profile_in_process(config, data_root, steps=steps, client=client, tell=tell)
    _show(found, out())
    if picture is not None:
        from proxyfl.report.phases import phase_bars

        files = phase_bars(found, picture)
        typer.echo(f"\npicture    {', '.join(map(str, files))}")


def _show(found: Profile, console: Console) -> None:
    threads = f"{found.threads} thread{'s' * (found.threads > 1)}"
    console.print(
        f"A step of {found.method} on {found.data}: {found.step_ms:,.1f} ms", style="bold", markup=False
    )
    console.print(
        f"{found.network}, {found.dtype}, {threads} on {found.device}; client {found.client_id} of round 1: "
        f"{found.images:,} {found.called}, mean of {found.steps} of {found.steps_per_round} steps\n",
        style="dim",
        markup=False,
    )
    console.print(_step_table(found))
    console.print()
    console.print(_once_table(found))
    console.print()
    if found.encoding is not None:
        console.print(_encoding_table(found.encoding))
        console.print()
    for name, text in _facts(found):
        console.print(f"{name:11}{text}", markup=False, soft_wrap=True)
    if found.device == "cpu" and found.threads == 1 and found.cores < BUSY:
        alone = found.network_phase.gflops / found.cores
        console.print(
            f"\nother programs are running: this process had {100 * found.cores:.0f} % of a core, so times "
            f"are longer than on an idle machine; in CPU time the network reaches about {alone:,.0f} GFLOP/s",
            style="yellow",
            soft_wrap=True,
        )


def _step_table(found: Profile) -> Table:
    from rich.markup import escape

    from proxyfl.report.phases import kind_of

    right = ("ms", "share", "GFLOP/s")
    table = plain_table("one step", *right, "", right=right, keep=("one step", *right, ""))
    longest = max(phase.ms for phase in found.step)
    for phase in found.step:
        speed = f"{phase.gflops:,.0f}" if phase.gflop > 0.01 * found.network_phase.gflop else ""
        bar = f"[{COLOURS[kind_of(phase.name)]}]{_bar(phase.ms / longest)}[/]"
        share = f"{100 * found.share(phase):.1f} %"
        table.add_row(escape(phase.name), f"{phase.ms:,.1f}", share, speed, bar)
    table.add_row("[bold]together[/]", f"[bold]{found.step_ms:,.1f}[/]", "100.0 %")
    return table


def _once_table(found: Profile) -> Table:
    table = plain_table("once per round", "ms", "", right=("ms",), keep=("once per round", "ms"))
    rows: list[tuple[Phase, str]] = [(phase, "client") for phase in found.client]
    some, every = found.test_images
    notes = {
        "check and fold updates": f"server, {found.updates} updates like this one",
        "evaluation": "server"
        if some == every
        else f"server, projected from {some:,} of {every:,} {found.called}",
    }
    rows += [(phase, notes.get(phase.name, "server")) for phase in found.server]
    for phase, where in rows:
        table.add_row(phase.name, f"{phase.ms:,.1f}", f"[dim]{where}[/]")
    return table


def _encoding_table(made: Encoding) -> Table:
    """What a training sample costs before the first round."""
    head = f"encoding, once per {made.called.removesuffix('s')}"
    table = plain_table(head, "ms", "share", right=("ms", "share"), keep=(head, "ms", "share"))
    for phase in made.phases:
        table.add_row(phase.name, f"{phase.ms:,.1f}", f"{100 * phase.ms / made.ms:.1f} %")
    table.add_row("[bold]together[/]", f"[bold]{made.ms:,.1f}[/]", "100.0 %")
    return table


def _facts(found: Profile) -> list[tuple[str, str]]:
    from proxyfl.core.text import in_words

    network, forward, backward = found.network_phase, found.conv_forward, found.conv_backward
    made = found.encoding
    encoding = (
        []
        if made is None
        else [
            (
                "encoding",
                f"{made.per_second:,.0f} features/s: {made.samples:,} training {made.called} in "
                f"{made.views} views each take {duration(made.seconds)} once and are then cached",
            )
        ]
    )
    return [
        *encoding,
        (
            "network",
            f"{network.gflop:,.2f} GFLOP per step (teacher, forward, backward) at "
            f"{network.gflops:,.0f} GFLOP/s: {100 * network.gflops / found.peak:.0f} % of a "
            f"plain matrix product here ({found.peak:,.0f} in {found.dtype})",
        ),
        (
            "in kernels",
            f"convolutions are {100 * (forward + backward):.0f} % of step time: "
            f"{100 * forward:.0f} % forward, {100 * backward:.0f} % backward",
        ),
        ("round", f"{found.steps_per_round} steps take this client {duration(found.round_seconds)}"),
        ("memory", f"{in_words(found.memory)} at most, {_whose(found)}"),
    ]


def _whose(found: Profile) -> str:
    return (
        "for tensors on the device"
        if found.device.startswith("cuda")
        else f"by the process, {found.called} included"
    )


def _bar(share: float) -> str:
    full, eighths = divmod(round(share * BAR * 8), 8)
    return "█" * full + EIGHTHS[eighths].strip()
