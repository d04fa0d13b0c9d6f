"""What a round sends, counted from the networks themselves, and how the paper's figures come about.

A round is M uploads and as many downloads (``per-client download``), or M uploads and one broadcast
(``one download``); what is meant for a single client is sent to each of them either way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxyfl.core.errors import MethodError
from proxyfl.methods.fedmatch import FedMatchParameters, decompose
from proxyfl.models import build, part_of

BYTES = 4
"""Of a number in the table. A run records true bytes: a batch-norm counter has 8, a flag 1."""

HELPERS, HELPER_EVERY = FedMatchParameters().helpers, FedMatchParameters().helper_every


@dataclass(frozen=True)
class Setting:
    """What a table is for: a network, and the clients of a round (M)."""

    model: str = "resnet8"
    width: int = 4
    classes: int = 100
    channels: int = 3
    per_round: int = 8

    def __str__(self) -> str:
        network = (
            f"{self.model} of width {self.width}, {self.classes} classes, {self.channels}-channel images"
        )
        return f"{network}, {self.per_round} clients per round"


PAPER = Setting()
"""What the paper's table is for."""

PRINTED_MODEL, PRINTED_FEDMATCH, PRINTED_PROTOTYPES, PRINTED_PRIOR = "22.08", "33.12", "22.90", "0.0016"
"""In millions of numbers per round, as printed."""

PAPER_PLACES, PAPER_DIM, PAPER_HELPERS, PAPER_SHARE = 2, 512, 2, 0.5
"""What those figures assume: a network rounded to 0.01 million, d, H, and psi as a share of a network."""


@dataclass(frozen=True)
class Sizes:
    """How many numbers a network has. ``heads`` and ``dim`` (d) are 0 where it cannot carry heads."""

    trunk: int
    classifier: int
    heads: int
    buffers: int
    split: int
    """Weights that FedMatch has twice (psi): those of convolutions and linear maps."""
    classes: int
    dim: int
    no_heads: str = ""
    """Why it cannot carry heads."""

    @property
    def theta(self) -> int:
        return self.trunk + self.classifier

    @property
    def headed(self) -> int:
        return self.theta + self.heads


@dataclass(frozen=True)
class Count:
    """Numbers that a round sends, under the names of a run's ``traffic``."""

    up: int
    down: int
    down_once: int

    @property
    def per_client_download(self) -> int:
        return self.up + self.down

    @property
    def one_download(self) -> int:
        return self.up + self.down_once


@dataclass(frozen=True)
class Row:
    """A method's traffic in numbers: what a client sends, what all receive, what is for one client alone.

    ``formula`` is what a round sends, D being the downloads: M or 1. ``printed`` is
    the paper's figure for its own setting.
    """

    method: str
    formula: str
    up: int
    down: int
    personal: int = 0
    printed: str = ""

    def count(self, per_round: int, buffers: int = 0) -> Count:
        """One round of that many clients; ``buffers`` travel with every network."""
        down, personal = self.down + buffers, per_round * self.personal
        return Count(per_round * (self.up + buffers), per_round * down + personal, down + personal)


def measure(setting: Setting) -> Sizes:
    """Build the network and count its tensors."""
    with torch.random.fork_rng(devices=[]):  # initialising draws from the global generator
        plain = _build(setting, heads=False)
        try:
            headed, why = _build(setting, heads=True), ""
        except MethodError as error:
            headed, why = plain, str(error)
    state: dict[str, Tensor] = plain.state_dict()
    trained = {name for name, _ in plain.named_parameters(remove_duplicate=False)}
    parts = {"trunk": 0, "classifier": 0, "heads": 0}
    for name in trained:
        parts[part_of(name)] += state[name].numel()
    classifier = getattr(headed, "classifier", None)
    return Sizes(
        trunk=parts["trunk"] + parts["heads"],
        classifier=parts["classifier"],
        heads=0 if why else sum(p.numel() for p in headed.get_submodule("heads").parameters()),
        buffers=sum(value.numel() for name, value in state.items() if name not in trained),
        split=sum(value.numel() for value in decompose(state)[1].values()),
        classes=setting.classes,
        dim=0 if why or not isinstance(classifier, nn.Linear) else classifier.in_features,
        no_heads=why,
    )


def _build(setting: Setting, *, heads: bool) -> nn.Module:
    return build(setting.model, setting.classes, setting.channels, setting.width, heads)


def method_rows(sizes: Sizes) -> list[Row]:
    """The methods of the paper's table, in its order; those that need features only where there are any."""
    theta, psi, classes = sizes.theta, sizes.split, sizes.classes
    prototypes = classes * sizes.dim
    both = theta + psi
    rows = [
        _theta_only("FixMatch", theta),
        Row("FedMatch", "M(Θ + ψ + C) + D(Θ + ψ)", both + classes, both),
        Row(
            "FedMatch with helpers", "M(Θ + ψ + C) + D(Θ + ψ) + MHψ",
            both + classes, both, HELPERS * psi, PRINTED_FEDMATCH,
        ),
        _theta_only("FedLabel", theta),
        _theta_only("FedDure", theta),
        Row("FedDB", "M(Θ + C) + DΘ", theta + classes, theta, printed=PRINTED_MODEL),
        _theta_only("SAGE", theta),
    ]  # fmt: skip
    if sizes.no_heads:
        return rows
    with_prototypes, with_heads = theta + prototypes + classes, sizes.headed + classes
    return [
        *rows,
        Row(
            "prototypes", "(M + D)(Θ + Cd + C)",
            with_prototypes, with_prototypes, printed=PRINTED_PROTOTYPES,
        ),
        Row("ProxyFL", "(M + D)(Θ + P + C)", with_heads, with_heads, printed=PRINTED_MODEL),
        Row("ProxyFL, heads kept local", "(M + D)(Θ + C)", theta + classes, theta + classes),
    ]  # fmt: skip


def _theta_only(method: str, theta: int) -> Row:
    return Row(method, "(M + D)Θ", theta, theta, printed=PRINTED_MODEL)


@dataclass(frozen=True)
class Printed:
    """A figure of the paper, the assumptions that lead to it, and what counting says instead.

    ``millions`` is what the assumptions give for the counted network.
    """

    figure: str
    of: str
    assumptions: str
    instead: str
    millions: float

    @property
    def follows(self) -> bool:
        """Whether the assumptions give the figure, to as many places as it is printed with."""
        return f"{self.millions:.{len(self.figure.partition('.')[2])}f}" == self.figure


def printed_figures(sizes: Sizes, per_round: int) -> list[Printed]:
    """How each figure of the paper comes about."""
    transfers, network = 2 * per_round, round(sizes.headed / 1e6, PAPER_PLACES)
    model = transfers * network
    with_helpers = per_round * (2 + PAPER_HELPERS * PAPER_SHARE)
    wide, real = (transfers * sizes.classes * dim / 1e6 for dim in (PAPER_DIM, sizes.dim))
    broadcast = [(per_round + 1) * size / 1e6 for size in (sizes.headed, sizes.theta)]
    return [
        Printed(
            PRINTED_MODEL,
            "all but FedMatch and prototypes",
            f"{transfers} × {network:.2f}: 2M transfers of the network with projection heads, its "
            f"{sizes.headed:,} numbers rounded to {network:.2f} million first, for every method alike",
            f"unrounded {transfers * sizes.headed / 1e6:.2f} with heads, and {transfers * sizes.theta / 1e6:.2f}"
            f" without, as all but ProxyFL send it; the formula printed beside it, M uploads and one download,"
            f" gives {broadcast[0]:.2f} with heads and {broadcast[1]:.2f} without",
            model,
        ),
        Printed(
            PRINTED_FEDMATCH,
            "FedMatch",
            f"{with_helpers:g} × {network:.2f}, by a reading that fits: M such networks up, M down, and "
            f"{PAPER_HELPERS} helpers of {PAPER_SHARE:g} networks each for every client",
            f"σ and ψ together are {sizes.theta + sizes.split:,} numbers, of which those that moved are sent; "
            f"helpers are sent every {HELPER_EVERY} rounds",
            with_helpers * network,
        ),
        Printed(
            PRINTED_PROTOTYPES,
            "prototypes",
            f"{model:.2f} + {wide:.2f}: {PRINTED_MODEL} as above, and 2M × C × d with d = {PAPER_DIM}",
            f"the network has d = {sizes.dim}: {real:.2f} instead of {wide:.2f}",
            model + wide,
        ),
        Printed(
            PRINTED_PRIOR,
            "ProxyFL's class prior",
            "2M × C: each client sends class counts and receives the prior",
            f"the formula printed beside it, M × C + C, gives {(per_round + 1) * sizes.classes / 1e6:.4f}",
            transfers * sizes.classes / 1e6,
        ),
    ]
