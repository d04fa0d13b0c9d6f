"""Settings: typed sections whose every key carries its meaning, range and what each fidelity makes of it.

A *fidelity* says whose reading of the paper counts: ``clean`` (the released algorithm with its accidents
repaired; the default), ``code`` (the released program, accidents included) or ``paper`` (the printed text).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from proxyfl.core.dealing import LabelSettings, PartitionSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.network import ModelSettings
from proxyfl.core.settings import FIDELITIES, check_fields, known_fidelity, read_section, setting
from proxyfl.core.trees import Tree, plain, table_of
from proxyfl.core.views import EncoderSettings, TextSettings, VectorSettings


@dataclass(frozen=True)
class DataSettings:
    """Which images."""

    name: str = setting("digits", "data source, or folder:PATH, npz:FILE, table:FILE, idx:PATH for your own")
    image_size: int = setting(0, "side in pixels after resizing; 0 keeps the native size", low=0, high=1024)
    subset: float = setting(1.0, "training images kept: a share up to 1, or a count above 1", low=0)
    flip: str = setting(
        "own",
        "mirroring of training images: own follows the data set; the released program always mirrors",
        choices=("own", "always", "never"),
        code="always",
    )
    validation: float = setting(
        0.0,
        "share of each class's labelled images that are held out for validation, to "
        "choose rounds and settings; 0: rounds are chosen on the test images",
        low=0,
        high=0.9,
        later=True,
    )
    norm: str = setting(
        "own",
        "own: one normalisation for training and test; release: CIFAR-10's for all training images",
        choices=("own", "release"),
        code="release",
    )
    keys: str = setting(
        "",
        "names of arrays (npz:) or columns (table:) that differ from the usual "
        "ones, such as images=pixels,labels=diagnosis or file=path,label=diagnosis",
        later=True,
    )


@dataclass(frozen=True)
class TrainSettings:
    """How a client trains in a round.

    >>> import proxyfl
    >>> train = proxyfl.Train(epochs=2, batch=32, lr=0.05, schedule="cosine", warmup=2)
    >>> [round(train.lr * train.lr_factor(number, 10), 3) for number in (1, 2, 3, 7, 10)]
    [0.025, 0.05, 0.05, 0.025, 0.002]
    """

    epochs: int = setting(5, "local epochs (E)", low=1)
    batch: int = setting(128, "labelled images per batch (B)", low=1, high=100_000)
    mu: int = setting(2, "unlabelled images per labelled image in a batch", low=1, high=1000)
    lr: float = setting(0.1, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(1e-4, "weight decay on every parameter", low=0)
    optimiser: str = setting("sgd", "sgd, or AdamW", choices=("sgd", "adamw"), later=True)
    nesterov: bool = setting(False, "Nesterov momentum (sgd only)", later=True)
    beta1: float = setting(0.9, "AdamW: decay of the average gradient", low=0, high=0.9999, later=True)
    beta2: float = setting(
        0.999, "AdamW: decay of the average squared gradient", low=0, high=0.999999, later=True
    )
    schedule: str = setting(
        "constant",
        "learning-rate schedule over rounds: constant, cosine (to zero) or step",
        choices=("constant", "cosine", "step"),
        later=True,
    )
    warmup: int = setting(0, "rounds over which the learning rate rises to lr", low=0, later=True)
    decay: float = setting(0.1, "factor applied at each step of schedule = step", low=0, high=1, later=True)
    decay_every: int = setting(100, "rounds between steps of schedule = step", low=1, later=True)
    max_grad_norm: float = setting(0.0, "clip the gradient to this norm; 0: no clipping", low=0, later=True)
    pool: str = setting(
        "all",
        "unlabelled pool: all includes the labelled images without their labels; unlabelled excludes them",
        choices=("all", "unlabelled"),
        paper="unlabelled",
    )
    epoch: str = setting(
        "release",
        "steps per local epoch: release = pool / B; pass = pool / (mu B), one pass over the pool",
        choices=("release", "pass"),
        paper="pass",
    )
    leak_momentum: bool = setting(
        False, "pass the momentum of one client to the next, as the released program does", code=True
    )
    keep_momentum: str = setting(
        "none",
        "whose momentum is kept between rounds: each client's own, that of the "
        "server's own training, or both",
        choices=("none", "clients", "server", "all"),
        later=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, "train.")

    def keeps_momentum(self, who: str) -> bool:
        """Whether the momentum of ``who`` (clients, server) is kept between rounds."""
        return self.keep_momentum in (who, "all")

    def lr_factor(self, round: int, rounds: int) -> float:
        """The factor on the learning rate in this round, counted from 1."""
        if round <= self.warmup:
            return round / self.warmup
        done = round - 1 - self.warmup
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done / max(1, rounds - self.warmup)))
        if self.schedule == "step":
            return float(self.decay ** (done // self.decay_every))
        return 1.0

    @classmethod
    def of(cls, fidelity: str, **values: Any) -> TrainSettings:
        """The settings of a fidelity (``code``, ``paper``), except for the values given.

        >>> import proxyfl
        >>> proxyfl.Train.of("code", epochs=2).leak_momentum
        True
        """
        return read_section(cls, values, known_fidelity(fidelity), "train.")


@dataclass(frozen=True)
class FederationSettings:
    """The rounds."""

    rounds: int = setting(300, "communication rounds (T)", low=1, high=99_999_999)
    per_round: int = setting(8, "clients per round (M)", low=1)
    sampling: str = setting(
        "stream",
        "stream: a pure function of seed and round; poisson: likewise, each client is sampled "
        "independently; legacy: the single numpy stream of the released program",
        choices=("stream", "poisson", "legacy"),
        code="legacy",
    )
    weighting: str = setting(
        "size",
        "client weights: size = number of images; uniform; release = labelled images counted 2,001 times",
        choices=("size", "uniform", "release"),
        code="release",
    )
    quorum: int = setting(1, "updates that a round needs to be valid", low=1)
    max_norm: float = setting(
        0.0,
        "reject updates whose weight change has a larger norm; 0: a million times the norm of the weights",
        low=0,
    )
    evaluate_every: int = setting(
        1, "rounds between evaluations; the last round is always evaluated", low=1, later=True
    )
    late: str = setting(
        "refuse",
        "updates that miss the deadline of their round: refuse, or next = use them in the next round with "
        "0.71 of their weight",
        choices=("refuse", "next"),
        later=True,
    )

    def measures(self, round: int) -> bool:
        """Whether accuracy is measured in this round."""
        return round % self.evaluate_every == 0 or round == self.rounds


@dataclass(frozen=True)
class AggregationSettings:
    """What becomes of the round's updates. Rules have names of their own, so their room checks them."""

    rule: str = setting(
        "mean",
        "mean: weighted; median, trimmed: per coordinate; krum: updates close to the "
        "others; or a registered rule",
    )
    hostile: float = setting(
        0.2,
        "assumed share of malicious updates: trimmed at each end by trimmed, tolerated by krum",
        low=0,
        high=0.49,
    )
    keep: int = setting(
        0, "updates that krum keeps: 1 is Krum, more is multi-Krum; 0: all but the malicious ones", low=0
    )
    clip: float = setting(0.0, "clip weight changes to this norm before aggregation; 0: no clipping", low=0)
    clip_by: str = setting(
        "length",
        "clip is a norm (length), or a multiple of the median norm of the round's changes (median)",
        choices=("length", "median"),
    )
    optimiser: str = setting(
        "none",
        "server optimiser: none applies the mean change as it is, the others use it as a gradient",
        choices=("none", "fedavgm", "fedadam", "fedyogi"),
        later=True,
    )
    lr: float = setting(
        0.0,
        "learning rate of the server optimiser; 0: 1 for fedavgm, 0.01 for fedadam and fedyogi",
        low=0,
        later=True,
    )
    momentum: float = setting(0.9, "momentum of fedavgm", low=0, high=0.9999, later=True)
    beta1: float = setting(0.9, "first-moment decay of fedadam and fedyogi", low=0, high=0.9999, later=True)
    beta2: float = setting(0.99, "second-moment decay of fedadam and fedyogi", low=0, high=0.9999, later=True)
    tau: float = setting(
        1e-3,
        "added to the root of the second moment; larger values make fedadam and fedyogi less adaptive",
        low=1e-12,
        later=True,
    )


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy of whole clients: each one's change is clipped, their sum is noised. Or of single
    images (``record_``): the gradient of each one is clipped, and the sums are noised in every step.
    """

    clip: float = setting(
        0.0, "norm to which each client's weight change is clipped; 0: no differential privacy", low=0
    )
    noise: float = setting(1.0, "noise multiplier: standard deviation on the sum, in units of clip", low=0)
    delta: float = setting(1e-5, "delta at which epsilon is reported", low=0, high=1)
    where: str = setting(
        "server",
        "who clips and adds noise: the server, to the sum; or each site, its share before sending",
        choices=("server", "site"),
    )
    draw: str = setting(
        "seed",
        "seed: noise from the run's seed, reproducible, but removable by anyone who "
        "knows the seed; system: noise from the system's entropy source",
        choices=("seed", "system"),
    )
    record_clip: float = setting(
        0.0,
        "norm to which the gradient of each image is clipped (DP-SGD); 0: no differential privacy of images",
        low=0,
        later=True,
    )
    record_noise: float = setting(
        1.0,
        "noise multiplier of DP-SGD: standard deviation on the sum, in units of record_clip",
        low=0,
        later=True,
    )

    @property
    def is_on(self) -> bool:
        """Whether there is differential privacy, of whole clients or of single images."""
        return bool(self.clip or self.record_clip)


@dataclass(frozen=True)
class ComputeSettings:
    """Where and how it is computed. Part of the config because it decides the last bits."""

    device: str = setting("cpu", "torch device: cpu, cuda, cuda:1, mps")
    dtype: str = setting(
        "auto",
        "fp32, or bf16 autocast; auto is resolved once: bf16 if the machine supports it, else fp32",
        choices=("auto", "fp32", "bf16"),
    )
    threads: int = setting(
        1, "intra-op threads per client; with one thread all engines give identical results", low=1, high=1024
    )
    eval_batch: int = setting(0, "test images per batch; 0 chooses a size for the machine", low=0)


MOST_WATCHED = 100
"""Clients of a round up to which each of them is noted without being asked for."""


@dataclass(frozen=True)
class KeepSettings:
    """What a run writes.

    >>> import proxyfl
    >>> proxyfl.Keep(checkpoint_every=5).snapshot(round=50, rounds=300)
    True
    """

    checkpoint_every: int = setting(1, "rounds between checkpoints", low=1)
    checkpoints: int = setting(2, "newest checkpoints kept", low=2)
    snapshot_every: int = setting(
        50,
        "rounds between snapshots of proxies, in addition to the first and the last; 0: no snapshots",
        low=0,
    )
    last_rounds: int = setting(10, "final rounds over which accuracy is averaged", low=1)
    metrics: str = setting(
        "accuracy",
        "metrics on the test images: accuracy, overall and per class; all: also macro-F1, balanced "
        "accuracy, AUROC, calibration error, top-5 accuracy and per-class precision",
        choices=("accuracy", "all"),
        later=True,
    )
    clients: str = setting(
        "auto",
        "per-client records (clients.jsonl): auto for rounds of at most 100 clients, "
        "all, or none; none under differential privacy",
        choices=("auto", "all", "none"),
        later=True,
    )

    def watches(self, per_round: int) -> bool:
        """Whether individual clients are recorded in rounds with this many."""
        return self.clients == "all" or (self.clients == "auto" and per_round <= MOST_WATCHED)

    def snapshot(self, round: int, rounds: int) -> bool:
        """Whether large tensors of this round are kept."""
        every = self.snapshot_every
        return bool(every) and (round in (1, rounds) or round % every == 0)


@dataclass(frozen=True)
class MethodSettings:
    """A method by name and its parameters; add-ons have a table each."""

    name: str = "proxyfl"
    parameters: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """Everything that decides what an experiment computes."""

    beside: ClassVar[tuple[str, ...]] = ("method",)
    """Tables whose keys are checked elsewhere."""

    seed: int = setting(1, "seed of initialisation, client sampling, batches and views", low=0)
    fidelity: str = setting("clean", "interpretation of the paper: clean, code, paper", choices=FIDELITIES)
    preset: str = setting("", "the preset these settings started from")
    data: DataSettings = field(default_factory=DataSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    vectors: VectorSettings = field(default_factory=VectorSettings, metadata={"later": True})
    encoder: EncoderSettings = field(default_factory=EncoderSettings, metadata={"later": True})
    texts: TextSettings = field(default_factory=TextSettings, metadata={"later": True})
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    federation: FederationSettings = field(default_factory=FederationSettings)
    aggregation: AggregationSettings = field(default_factory=AggregationSettings, metadata={"later": True})
    privacy: PrivacySettings = field(default_factory=PrivacySettings, metadata={"later": True})
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    keep: KeepSettings = field(default_factory=KeepSettings)
    method: MethodSettings = field(default_factory=MethodSettings)

    def to_tree(self) -> Tree:
        """The settings as nested tables, as TOML holds them."""
        tree = table_of(self)
        tree["method"] = {"name": self.method.name, **plain(self.method.parameters)}
        return tree


def read_config(tree: Mapping[str, Any], fidelity: str) -> Config:
    """A checked config from nested tables. Method parameters are checked by the methods room."""
    tables = dict(tree)
    method = tables.pop("method", {})
    if not isinstance(method, Mapping):
        raise ConfigError('method must be a table with a name; write [method] and name = "proxyfl"')
    parameters = dict(method)
    name = parameters.pop("name", "proxyfl")
    if not isinstance(name, str):
        raise ConfigError(f"method.name must be text, not {name!r}")
    config = read_section(Config, {**tables, "fidelity": fidelity}, fidelity)
    return dataclasses.replace(config, method=MethodSettings(name, parameters))
