"""``proxyfl comm``: what a round of each method sends, counted, beside what the paper prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import examples, out, plain_table
from proxyfl.core.dealing import require_scenario

if TYPE_CHECKING:
    from rich.console import Console

    from proxyfl.report.communication import Row, Setting, Sizes

EXAMPLES = examples(
    "proxyfl comm",
    "proxyfl comm --classes 10 --per-round 20",
    "proxyfl comm --width 1 --classes 10 --channels 1 --markdown",
    "proxyfl comm --model wrn-28-2 --lora-rank 4",
    "proxyfl comm --scenario server",
)
UNITS = (
    "Millions of numbers, and MB at 4 bytes each: M uploads and D downloads, "
    "D = M (per-client download) or D = 1 (one download: a broadcast)."
)


def comm(
    model: Annotated[str, typer.Option(help="A name from `proxyfl models`.")] = "resnet8",
    width: Annotated[int, typer.Option(help="The network's width factor.")] = 4,
    classes: Annotated[int, typer.Option(help="Number of classes (C).")] = 100,
    channels: Annotated[int, typer.Option(help="Channels of an image: 3 for colour, 1 for grey.")] = 3,
    per_round: Annotated[int, typer.Option(min=1, help="Clients per round (M).")] = 8,
    size: Annotated[int, typer.Option(min=1, help="Pixels along an image's side.")] = 32,
    norm: Annotated[str, typer.Option(help="As model.norm.")] = "batch",
    trainable: Annotated[str, typer.Option(help="What is trained and sent, as in model.trainable.")] = "all",
    lora_rank: Annotated[int, typer.Option(min=0, help="Rank of adapters; 0: none.")] = 0,
    lora_targets: Annotated[str, typer.Option(help="Layers with adapters, as in model.lora_targets.")] = "*",
    scenario: Annotated[
        str,
        typer.Option(metavar="WHERE", help="Only methods defined with labels at clients, server or partial."),
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a document.")] = False,
) -> None:
    """What each method sends per round: the formula, the count, the paper's figure and why it differs.

    Counted from the network itself. The defaults are the setting of the paper's table.
    """
    if scenario:
        require_scenario(scenario)
    from proxyfl.report.communication import Setting, measure

    partly = (size, norm, trainable, lora_rank, lora_targets)
    setting = Setting(model, width, classes, channels, per_round, *partly)
    if scenario:
        _show_scenario(scenario, setting, markdown)
        return
    sizes = measure(setting)
    console = out()
    if markdown:
        console.print(_markdown(setting, sizes), markup=False, soft_wrap=True, end="")
    else:
        _show(setting, sizes, console)


def _show(setting: Setting, sizes: Sizes, console: Console) -> None:
    from proxyfl.report.communication import PAPER, method_rows

    rows, per_round = method_rows(sizes), setting.per_round
    console.print(f"Traffic per round: {setting}", style="bold", markup=False)
    console.print(f"{UNITS}\n")
    paper = ("paper",) if setting == PAPER else ()
    right = ("D = M", "MB", "D = 1", " MB", *paper)
    table = plain_table("parameters only", "per round", *right, right=right, keep=("parameters only", *right))
    for row in rows:
        figure = (row.printed or "–",) if paper else ()
        table.add_row(row.method, row.formula, *_counts(row, per_round, 0), *figure)
    console.print(table)
    console.print()
    right = right[:4]
    table = plain_table("with buffers", *right, right=right, keep=("with buffers", *right))
    for row in rows:
        table.add_row(row.method, *_counts(row, per_round, sizes.buffers))
    console.print(table)
    for title, lines in _remarks(setting, sizes, rows):
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(line, markup=False)


def _show_scenario(where: str, setting: Setting, markdown: bool) -> None:
    from proxyfl.report.communication import BYTES
    from proxyfl.report.scenario_traffic import facts, sent_in

    heads = ("a client sends", "it receives", "MB per round, D = M", "D = 1")
    title = f"Traffic per round with labels.where = {where}: {setting}. Numbers, buffers included."
    rows, clients = [], setting.per_round
    for row in sent_in(where, setting):
        each, once = clients * (row.up + row.down), clients * row.up + row.down
        counts = (f"{row.up:,}", f"{row.down:,}", f"{BYTES * each / 1e6:.2f}", f"{BYTES * once / 1e6:.2f}")
        rows.append((row.method, *(counts if not row.why else ("0", "0", "0.00", "0.00")), row.why))
    console, known = out(), facts(where)
    if markdown:
        lines = [("method", *heads, "note"), ("---", *["---:"] * 4, "---"), *rows]
        text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        noted = "".join(f"\n- {fact}\n" for fact in known)
        console.print(f"{title}\n\n{text}{noted}", markup=False, soft_wrap=True, end="")
        return
    console.print(title, style="bold", markup=False)
    table = plain_table("method", *heads, "note", right=heads, keep=("method", *heads))
    for line in rows:
        table.add_row(*line)
    console.print(table)
    for fact in known:
        console.print(fact, markup=False)


def _markdown(setting: Setting, sizes: Sizes) -> str:
    from proxyfl.report.communication import PAPER, method_rows

    rows = method_rows(sizes)
    heads = ["method", "per round"]
    for what in ("parameters only", "with buffers"):
        heads += [f"D = M, {what}", "MB", f"D = 1, {what}", "MB"]
    lines = [[*heads, "paper"], ["---", "---", *["---:"] * 9]]
    for row in rows:
        plain, whole = (_counts(row, setting.per_round, buffers) for buffers in (0, sizes.buffers))
        lines.append([row.method, row.formula, *plain, *whole, row.printed or "–"])
    if setting != PAPER:
        lines = [line[:-1] for line in lines]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    text = f"Traffic per round: {setting}. {UNITS}\n\n{table}"
    for title, remarks in _remarks(setting, sizes, rows):
        text += f"\n{title}:\n\n" + "".join(f"- {line}\n" for line in remarks)
    return text


def _counts(row: Row, per_round: int, buffers: int) -> list[str]:
    """A row in both conventions: millions of numbers, and MB."""
    from proxyfl.report.communication import BYTES

    count = row.count(per_round, buffers)
    totals = (count.per_client_download, count.one_download)
    return [cell for total in totals for cell in (f"{total / 1e6:.4f}", f"{BYTES * total / 1e6:.2f}")]


def _remarks(setting: Setting, sizes: Sizes, rows: list[Row]) -> list[tuple[str, list[str]]]:
    """What stands below the table, by title."""
    from proxyfl.report.communication import PAPER, printed_figures

    facts = _facts(sizes, rows, setting.per_round)
    remarks = [("Symbols", _symbols(setting, sizes)), ("Good to know", facts)]
    if setting != PAPER:
        note = f"left out here: they are for {PAPER}; proxyfl comm without options shows them"
        return [*remarks, ("The paper's figures", [note])]
    figures = [
        f"{each.figure} ({each.of}): {each.arithmetic} = {each.millions:.4f}, that is {each.assumes}. "
        f"{each.instead}."
        for each in printed_figures(sizes, setting.per_round)
    ]
    return [*remarks, ("The paper's figures, and what they assume", figures)]


def _symbols(setting: Setting, sizes: Sizes) -> list[str]:
    from proxyfl.report.communication import HELPER_EVERY, HELPERS

    heads = f"P = {sizes.heads:,}: projection heads; d = {sizes.dim}: features of an image"
    return [
        f"M = {setting.per_round} clients; D = {setting.per_round} or 1 downloads of what all receive",
        f"Θ = {sizes.theta:,}: trunk {sizes.trunk:,}, classifier {sizes.classifier:,}",
        *([] if sizes.no_heads else [heads]),
        f"C = {sizes.classes} classes: one number each, such as counts or the prior",
        f"ψ = {sizes.split:,}: weights that FedMatch has twice; H = {HELPERS} helpers for each client, "
        f"every {HELPER_EVERY} rounds",
        f"buffers = {sizes.buffers:,}: batch-norm statistics and counters. They are "
        "sent with every Θ, so a run records the count with buffers",
    ]


def _facts(sizes: Sizes, rows: list[Row], per_round: int) -> list[str]:
    facts = [
        "FedAvg, FedProx, FlexMatch and FedLoKe send Θ only, as FixMatch does",
        "FedMatch is counted densely, as it is sent here: an upper bound. The "
        "original sends only entries that changed; a run records how many those are",
    ]
    if sizes.no_heads:
        return [*facts, f"prototypes and ProxyFL are left out: {sizes.no_heads}"]
    sent = {row.method: row.count(per_round).per_client_download for row in rows}
    more, less = (100 * (sent[name] / sent["FixMatch"] - 1) for name in ("ProxyFL", "ProxyFL, local heads"))
    return [
        *facts,
        f"ProxyFL sends {more:.3g} % more than FixMatch; {less:.3g} % with heads that "
        "stay on the clients: --set method.icpl.keep_heads=true",
    ]
