"""What a method sees: on the client one round of training, on the server one round's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import MethodError
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.spans import BACKWARD, BEGIN, FORWARD, OPTIMISER, TEACHER, loss_span, span
from proxyfl.core.state import Task, Tensors, namespace, within
from proxyfl.data.stream import Batch, Stream
from proxyfl.methods.optimisers import OptimiserFactory, usual_optimiser
from proxyfl.models import duplicate, fold_batchnorm

if TYPE_CHECKING:
    from proxyfl.methods.base import Method


def descend(loss: Tensor, optimiser: torch.optim.Optimizer, clip: float = 0.0) -> None:
    """One optimiser step against the gradient of the loss; ``clip`` bounds each of its elements."""
    with span(OPTIMISER):
        optimiser.zero_grad(set_to_none=True)
    if not loss.requires_grad:
        return
    with span(BACKWARD):
        loss.backward()  # type: ignore[no-untyped-call]
    if clip:
        nn.utils.clip_grad_value_([p for group in optimiser.param_groups for p in group["params"]], clip)
    with span(OPTIMISER):
        optimiser.step()


class FeatureNetwork(Protocol):
    """A network that shows its features and its last layer."""

    features: Callable[[Tensor], Tensor]
    classifier: nn.Linear


def has_features(network: object) -> TypeGuard[FeatureNetwork]:
    return hasattr(network, "features") and hasattr(network, "classifier")


class PerClientStore(Protocol):
    """Named tensors of single clients, on disk."""

    def save(self, client: int, round: int, tensors: Mapping[str, Tensor]) -> None: ...

    def newest(self, client: int, at_most: int) -> Tensors: ...


@dataclass
class Pseudo:
    """What a method decided about the unlabelled images of a batch.

    ``label`` (N,) is the class it would name, ``mask`` (N,) the images it trusts, ``target`` (N, C) a soft
    label where it uses one. ``weight`` (N,) is how much each image counts, where that is more than yes or no.
    ``scores`` (N, C) are the probabilities that named the labels, for masks that are attached
    (:meth:`Addon.weigh`); without them those of the local model are weighed.
    """

    label: Tensor
    mask: Tensor
    target: Tensor | None = None
    weight: Tensor | None = None
    scores: Tensor | None = None

    @property
    def trust(self) -> Tensor:
        """What multiplies each image's loss: its weight, else the mask."""
        return self.mask if self.weight is None else self.weight

    def named_by(self, outputs: Outputs) -> Tensor:
        """The probabilities that a mask weighs."""
        return outputs.local_weak if self.scores is None else self.scores


@dataclass(frozen=True)
class Decision:
    """What a method decided about some images of the pool, for whoever compares it with the truth later."""

    index: Tensor
    mask: Tensor
    label: Tensor | None = None
    sets: Tensor | None = None


@dataclass
class Outputs:
    """One forward pass over labelled, weak and strong images together, so that batch norm sees all of them.

    ``logits`` and ``features`` have one row per image in that order; losses are computed in float32.
    """

    batch: Batch
    logits: Tensor
    features: Tensor | None
    ctx: ClientContext
    pseudo: Pseudo | None = None

    @property
    def labelled_rows(self) -> int:
        return len(self.batch.x)

    @property
    def x(self) -> Tensor:
        return self.logits[: self.labelled_rows]

    @property
    def weak(self) -> Tensor:
        return self.logits[self.labelled_rows : self.labelled_rows + len(self.batch.u_weak)]

    @property
    def strong(self) -> Tensor:
        return self.logits[self.labelled_rows + len(self.batch.u_weak) :]

    @cached_property
    def local_weak(self) -> Tensor:
        """pL: the local model's probabilities on weak views, gradient stopped."""
        return self.weak.detach().softmax(1)

    @cached_property
    def _global(self) -> Tensor:
        images = (
            torch.cat([self.batch.x, self.batch.u_weak]) if self.ctx.teach_labelled else self.batch.u_weak
        )
        return self.ctx.teacher(images)

    @property
    def global_weak(self) -> Tensor:
        """pG: the frozen global model's probabilities on weak views."""
        return self._global[self.labelled_rows :] if self.ctx.teach_labelled else self._global

    @property
    def global_x(self) -> Tensor:
        """The global model's probabilities on the labelled images, for parts that want ``teacher_x``."""
        if not self.ctx.teach_labelled:
            raise MethodError("global_x needs 'teacher_x' among the views a part wants")
        return self._global[: self.labelled_rows]


@dataclass
class ClientContext:
    """One client's round. ``state`` is what the method keeps for this client between rounds;
    ``memory`` is what a part keeps until the end of this one.
    """

    method: Method
    model: nn.Module
    stream: Stream
    task: Task
    settings: TrainSettings
    classes: int
    rounds: int
    seed: int
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    initial: Callable[[], Tensors]
    own_optimiser: OptimiserFactory | None = None
    state: Tensors = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    epoch: int = 0
    steps: int = 0
    turn: int = 0
    """Which training of the round this is, where the task asks for several."""
    terms_taken: bool = False

    def __post_init__(self) -> None:
        self.extras = {name: value.to(self.device) for name, value in self.task.extras.items()}
        self.teach_labelled = "teacher_x" in self.method.all_wants

    @property
    def last_epoch(self) -> bool:
        return self.epoch == self.settings.epochs - 1

    @cached_property
    def truth(self) -> Tensor:
        """The true labels of the pool by position, for a declared oracle."""
        if self.stream.truth is None:
            raise MethodError(f"{self.method.name} requests true labels, which requires oracle = True")
        return self.stream.truth.to(self.device)

    @cached_property
    def optimiser(self) -> torch.optim.Optimizer:
        return self.new_optimiser(self.method.trainables(self))

    def new_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """As the settings say, at this round's learning rate; also for methods that train more than the model
        that is sent.
        """
        train, given = self.settings, list(parameters)
        lr = self.method.learning_rate(train.lr) * train.lr_factor(self.task.round, self.rounds)
        optimiser = (self.own_optimiser or usual_optimiser)(given, lr, train)
        if train.max_grad_norm:

            def clip(*_: Any) -> None:
                nn.utils.clip_grad_norm_(given, train.max_grad_norm)

            optimiser.register_step_pre_hook(clip)
        return optimiser

    @cached_property
    def teacher(self) -> Callable[[Tensor], Tensor]:
        """The global model as received, frozen, in eval mode: images to probabilities."""
        with span(BEGIN):
            frozen = fold_batchnorm(self.model_from(self.task.weights))
        return lambda images: self.predict(frozen, images)

    @cached_property
    def pool_predictions(self) -> Tensor:
        """The global model's probabilities on a weak view of each image of the pool, in its order."""
        size = self.settings.batch * self.settings.mu
        found = [self.teacher(views) for _, views in self.stream.walk_pool(size)]
        return torch.cat(found) if found else torch.zeros(0, self.classes, device=self.device)

    def model_from(self, weights: Tensors) -> nn.Module:
        """A copy of the network with these weights, on the device."""
        network = duplicate(self.model)
        network.load_state_dict(self.method.model(weights), strict=not self.method.all_private)
        return network.requires_grad_(False)

    def predict(self, network: nn.Module, images: Tensor) -> Tensor:
        """Probabilities without a graph."""
        if not len(images):
            return images.new_zeros((0, self.classes))
        with span(TEACHER), torch.no_grad():
            with self.autocast():
                logits = network(images)
            return torch.softmax(logits.float(), 1)

    def forward(self, batch: Batch, network: nn.Module | None = None) -> Outputs:
        """Labelled, weak and strong images through the local network in one pass."""
        network = network or self.model
        with span(FORWARD):
            images = torch.cat([batch.x, batch.u_weak, batch.u_strong])
            with self.autocast():
                if has_features(network):
                    features = network.features(images)
                    logits = network.classifier(features)
                    return Outputs(batch, logits.float(), features.float(), self)
                return Outputs(batch, network(images).float(), None, self)

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        """The losses that add-ons contribute to this step. A method's own step must include them."""
        found = {}
        self.terms_taken = True
        for addon in self.method.addons:
            with span(loss_span(addon.name)):
                term = addon.term(outputs, self)
            if term is not None:
                found[addon.name] = term
        return found

    def descend(self, losses: Mapping[str, Tensor], clip: float = 0.0) -> None:
        """One optimiser step on the sum of the named losses; ``clip`` bounds each gradient element."""
        self.log(losses)
        total = torch.stack(list(losses.values())).sum()
        descend(total, self.optimiser, clip)

    def log(self, losses: Mapping[str, Tensor]) -> None:
        """Add to the round's mean losses; stays on the device, so nothing waits for it."""
        for name, value in losses.items():
            value = value.detach()
            self.losses[name] = self.losses[name] + value if name in self.losses else value
        self.steps += 1

    def count(self, name: str, value: float) -> None:
        """Add to a sum over this client's round and all clients, recorded as ``counts`` of the round."""
        self.counts[name] = self.counts.get(name, 0.0) + value

    def show(
        self, index: Tensor, *, label: Tensor | None = None, mask: Tensor, sets: Tensor | None = None
    ) -> None:
        """Note what was decided for these pool positions. Only the last local epoch counts."""
        if self.last_epoch:
            self.decisions.append(Decision(index, mask, label, sets))

    def rng(self, purpose: str) -> torch.Generator:
        return rng(self.seed, self.task.round, self.task.client, turn_of(purpose, self.turn))


def turn_of(purpose: str, turn: int) -> str:
    """What a stream of random numbers is for, in a client's first training of a round or a further one."""
    return f"{purpose} {turn}" if turn else purpose


OWN_MOMENTUM = "own/_momentum"
"""Where the server's extras hold the momentum of its own training; it is never sent."""


class OwnTraining(Protocol):
    """Training on the labelled images that the server itself holds."""

    def train(
        self, round: int, weights: Tensors, momentum: Tensors, epochs: int, batch: int
    ) -> tuple[Tensors, Tensors, dict[str, float]]: ...


@dataclass
class ServerContext:
    """One round on the server after averaging. Parts may replace entries of ``weights``; ``previous`` holds
    those that the round began with.

    ``clients`` and ``samples`` are in folding order, as are the kept tensors that hooks receive and
    ``rule_weights``, what ``federation.weighting`` gives each client; one that trained several times is there
    as often.
    ``metrics`` takes values for ``metrics.jsonl``, ``snapshots`` tensors worth keeping.
    """

    round: int
    seed: int
    classes: int
    device: torch.device
    weights: Tensors
    extras: Tensors
    previous: Tensors = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    rule_weights: list[float] = field(default_factory=list)
    store: PerClientStore | None = None
    updates: Sequence[Tensors] = ()
    """The clients' weights in folding order, each read from disk when it is asked for: in
    :meth:`Method.weights` alone."""
    metrics: dict[str, Any] = field(default_factory=dict)
    snapshots: Tensors = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    """What a part keeps until the end of the round."""
    own: OwnTraining | None = None
    """Where the server holds labelled images."""
    begun: bool = True
    """False before the first round."""

    def train_own(self, epochs: int = 0, batch: int = 0) -> None:
        """Train ``weights`` on the server's images: 0 means as many epochs, and batches as large, as a
        client's.
        """
        if self.own is None:
            raise MethodError("the server holds no labelled images; they come with labels.where = 'server'")
        round = self.round if self.begun else 0
        kept = namespace(self.extras, OWN_MOMENTUM)
        trained, kept, self.metrics["server"] = self.own.train(round, self.weights, kept, epochs, batch)
        self.weights = trained
        self.extras |= within(OWN_MOMENTUM, kept)

    def rng(self, purpose: str) -> torch.Generator:
        return rng(self.seed, self.round, SERVER, purpose)
