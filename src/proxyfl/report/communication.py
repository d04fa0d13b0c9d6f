"""What a round sends, counted from the networks themselves, and how the paper's figures come about.

A round is M uploads and as many downloads (``per-client download``), or M uploads and one broadcast
(``one download``); what is meant for a single client is sent to each of them either way.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxyfl.core.errors import MethodError
from proxyfl.core.network import ModelSettings
from proxyfl.core.settings import read_section
from proxyfl.encoders.named import shape_for
from proxyfl.methods.fedmatch import FedMatchParameters
from proxyfl.methods.halves import decompose
from proxyfl.models import Network, part_of

BYTES = 4
"""Of a number in the table. A run records true bytes: a batch-norm counter has 8, a flag 1."""

NETWORK = ("image_size", "norm", "trainable", "lora_rank", "lora_targets")
"""What else a network is made of, and is named where it is not as usual."""

HELPERS, HELPER_EVERY = FedMatchParameters().helpers, FedMatchParameters().helper_every


@dataclass(frozen=True)
class Setting:
    """What a table is for: a network, and the clients of a round (M)."""

    model: str
    width: int
    classes: int
    channels: int
    per_round: int
    image_size: int = 32
    norm: str = "batch"
    trainable: str = "all"
    lora_rank: int = 0
    lora_targets: str = "*"

    def __str__(self) -> str:
        images = f"{self.classes} classes of {self.channels}-channel images"
        setup = f"{self.model} of width {self.width}, {images}, {self.per_round} clients per round"
        usual = {spec.name: spec.default for spec in dataclasses.fields(self)}
        other = [f"{name} = {getattr(self, name)}" for name in NETWORK if getattr(self, name) != usual[name]]
        return ", ".join([setup, *other])

    def build(self, heads: bool = False) -> nn.Module:
        """The network as clients have it; its state is what travels."""
        shape = {name: getattr(self, name) for name in ("width", *NETWORK) if name != "image_size"}
        model = read_section(ModelSettings, {"name": self.model, **shape}, "clean", "model.")
        samples = shape_for(model, self.channels, self.image_size)
        network = Network.configured(model, self.classes, *samples)
        return network.adapt(network(heads))


PAPER = Setting("resnet8", width=4, classes=100, channels=3, per_round=8)
"""What the paper's table is for. Its figures and what they assume are the only numbers typed here."""

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

    ``formula`` is what a round sends, D being the downloads: M or 1. ``printed`` is the paper's
    figure, for the paper's setting.
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
        net = setting.build()
        state: dict[str, Tensor] = net.state_dict()
        heads, dim, no_heads = _heads(setting)
    trained = {name for name, _ in net.named_parameters(remove_duplicate=False)}
    theta = sum(state[name].numel() for name in trained)
    classifier = sum(state[name].numel() for name in trained if part_of(name) == "classifier")
    return Sizes(
        trunk=theta - classifier,
        classifier=classifier,
        heads=heads,
        buffers=sum(value.numel() for name, value in state.items() if name not in trained),
        split=sum(value.numel() for value in decompose(state)[1].values()),
        classes=setting.classes,
        dim=dim,
        no_heads=no_heads,
    )


def _heads(setting: Setting) -> tuple[int, int, str]:
    """Numbers of the projection heads and d; or why there are none."""
    try:
        net = setting.build(heads=True)
    except MethodError as error:
        return 0, 0, str(error)
    if "classifier.weight" not in net.state_dict():
        return 0, 0, f"the classifier of '{setting.model}' is not trained"
    rows = net.get_parameter("classifier.weight")
    return sum(p.numel() for p in net.get_submodule("heads").parameters()), rows.shape[1], ""


def method_rows(sizes: Sizes) -> list[Row]:
    """The methods of the paper's table, in its order; those that need features only where there are any."""
    theta, psi, classes = sizes.theta, sizes.split, sizes.classes
    prototypes = classes * sizes.dim
    both = theta + psi
    rows = [
        _theta_only("FixMatch", theta),
        Row("FedMatch", "M(Θ + ψ + C) + D(Θ + ψ)", both + classes, both),
        Row(
            "FedMatch + helpers", "M(Θ + ψ + C) + D(Θ + ψ) + MHψ",
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
        Row("ProxyFL, local heads", "(M + D)(Θ + C)", theta + classes, theta + classes),
    ]  # fmt: skip


def _theta_only(method: str, theta: int) -> Row:
    return Row(method, "(M + D)Θ", theta, theta, printed=PRINTED_MODEL)


@dataclass(frozen=True)
class Printed:
    """A figure of the paper, the arithmetic that leads to it, what that assumes, and what holds instead.

    ``millions`` is what the arithmetic gives for the counted network.
    """

    figure: str
    of: str
    arithmetic: str
    millions: float
    assumes: str
    instead: str


def printed_figures(sizes: Sizes, per_round: int) -> list[Printed]:
    """How each figure of the paper comes about."""
    transfers, network = 2 * per_round, round(sizes.headed / 1e6, PAPER_PLACES)
    networks = per_round * (2 + PAPER_HELPERS * PAPER_SHARE)
    wide, real = (transfers * sizes.classes * dim / 1e6 for dim in (PAPER_DIM, sizes.dim))
    headed, plain = (transfers * size / 1e6 for size in (sizes.headed, sizes.theta))
    headed_once, plain_once = ((per_round + 1) * size / 1e6 for size in (sizes.headed, sizes.theta))
    return [
        Printed(
            PRINTED_MODEL,
            "all but FedMatch and prototypes",
            f"{transfers} × {network:.2f}",
            transfers * network,
            f"2M transfers of the network with projection heads, its {sizes.headed:,} numbers rounded to "
            f"{network:.2f} million first, for every method alike",
            f"Unrounded it is {headed:.2f} with heads, and {plain:.2f} without, as all but ProxyFL send it. "
            f"The formula printed beside it, M uploads and one download, gives {headed_once:.2f} with heads "
            f"and {plain_once:.2f} without",
        ),
        Printed(
            PRINTED_FEDMATCH,
            "FedMatch",
            f"{networks:g} × {network:.2f}",
            networks * network,
            f"M such networks up, M down, and {PAPER_HELPERS} helpers of {PAPER_SHARE:g} networks each for "
            "every client (a reading that fits)",
            f"σ and ψ are {sizes.theta + sizes.split:,} numbers together, and helpers go out every "
            f"{HELPER_EVERY} rounds",
        ),
        Printed(
            PRINTED_PROTOTYPES,
            "prototypes",
            f"{transfers * network:.2f} + {wide:.4f}",
            transfers * network + wide,
            f"networks as above, and 2M × C × d prototypes with d = {PAPER_DIM}",
            f"The network has d = {sizes.dim}, which adds {real:.4f}",
        ),
        Printed(
            PRINTED_PRIOR,
            "ProxyFL's class prior",
            f"{transfers} × {sizes.classes} / 10⁶",
            transfers * sizes.classes / 1e6,
            "2M × C, class counts up and the prior down for each client",
            f"The formula printed beside it, M × C + C, gives {(per_round + 1) * sizes.classes / 1e6:.4f}",
        ),
    ]
