"""A client's round: the global model comes in, local steps are taken, an update goes out.

Every engine calls the same :class:`ClientTrainer`; what differs is where it runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.config import ComputeSettings, TrainSettings
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.flat import Flat
from proxyfl.core.rng import SERVER, isolated, rng
from proxyfl.core.spans import BEGIN, FINISH, OBSERVE, ROUND, STEP, span
from proxyfl.core.state import (
    STATISTICS,
    Metrics,
    Task,
    Tensors,
    Update,
    content_hash,
    detached,
    namespace,
    within,
)
from proxyfl.core.text import shortened
from proxyfl.data.stream import Batch, ClientData, Stream, ViewSettings
from proxyfl.data.vectors import prepared
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import eval_batch
from proxyfl.federation.pseudo_metrics import count_decisions
from proxyfl.federation.records import RecordPrivacy, RecordRound, require_network
from proxyfl.federation.statistics import sums
from proxyfl.methods.base import Method, overrides
from proxyfl.methods.context import ClientContext, turn_of
from proxyfl.methods.optimisers import OptimiserFactory
from proxyfl.models import Network, part_of
from proxyfl.models.loading import put

MOMENTUM = "momentum"
"""What a client keeps of its optimiser lies below this name in its state."""

Steps = Callable[[ClientContext], Iterator[Iterator[Batch]]]
"""Which steps of a round are taken: for each, the batches of its epoch, of which it draws the next."""


def every_step(ctx: ClientContext) -> Iterator[Iterator[Batch]]:
    """All steps of all local epochs."""
    epochs = ctx.settings.epochs
    for ctx.epoch in range(epochs):
        with closing(ctx.stream.epoch()) as batches:
            for _ in range(ctx.stream.steps):
                yield batches


class ClientTrainer:
    """Trains one client at a time with one network that is reused. Keeps nothing between clients."""

    def __init__(
        self,
        method: Method,
        network: Network,
        views: ViewSettings,
        store: ClientStore,
        *,
        train: TrainSettings,
        compute: ComputeSettings,
        rounds: int,
        seed: int,
        start: Tensors | None = None,
        optimiser: OptimiserFactory | None = None,
        outgoing: Callable[[Update, Task], Update] | None = None,
        records: RecordPrivacy | None = None,
    ) -> None:
        self.method, self.factory, self.views, self.store = method, network, views, store
        self.settings, self.compute, self.rounds, self.seed = train, compute, rounds, seed
        self.start, self.optimiser, self.outgoing, self.records = start or {}, optimiser, outgoing, records

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes, which build networks of their own."""
        return {name: value for name, value in vars(self).items() if name not in ("network", "plain")}

    @property
    def classes(self) -> int:
        return self.factory.classes

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep anything between rounds."""
        return self.method.keeps_state or self.settings.keeps_momentum("clients")

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.compute.device)

    @cached_property
    def network(self) -> nn.Module:
        """The one that all clients are trained with."""
        return self.placed(self.new_network())

    def new_network(self) -> nn.Module:
        """The network before the first round, the same in every process: as the seed initialises it, and
        where the run starts from weights, with those.
        """
        with isolated(self.seed, 0, SERVER, "adapters"):
            return self.factory.adapt(self.plain_network())

    def plain_network(self) -> nn.Module:
        """The same before anything of it was frozen or got an adapter."""
        with isolated(self.seed, 0, SERVER, "initialise"):
            network = self.factory(heads=self.method.needs_heads)
        if self.records:
            require_network(network)
        if self.start:
            network.load_state_dict(fitting(self.start, network.state_dict()), strict=False)
        return network

    @cached_property
    def plain(self) -> Tensors:
        """The whole network before the first round, but for what is private."""
        return self.method.shared(detached(self.plain_network().state_dict()))

    @property
    def checksums(self) -> dict[str, str]:
        """A hash of the network that frozen tensors are part of, for who must find it again; empty where
        nothing is frozen.
        """
        return {"frozen": content_hash(self.plain)} if self.factory.is_partial else {}

    def whole(self, weights: Tensors) -> Tensors:
        """The state of a network to evaluate, save or export: what travels, what is frozen, and adapters made
        part of the weights beside them.
        """
        trained = self.method.model(weights)
        return self.factory.whole(self.plain, trained) if self.factory.is_partial else trained

    def placed(self, network: nn.Module) -> nn.Module:
        """On the device, in the memory layout in which convolutions are fastest."""
        return network.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def initial_weights(self) -> Tensors:
        """The server's weights before the first round."""
        return self.method.initial(self.method.shared(detached(self.new_network().state_dict())))

    def train(
        self,
        task: Task,
        data: ClientData,
        truth: Callable[[Tensor], Tensor] | None = None,
        steps: Steps = every_step,
    ) -> Update:
        """One client's round. ``truth`` (images to true labels) is asked when the method is done."""
        if task.purpose == STATISTICS:
            return self.measure(task, data)
        with span(ROUND):
            update = self._train(task, data, truth, steps)
            return self.outgoing(update, task) if self.outgoing else update

    def load(self, weights: Tensors) -> None:
        """Put the server's weights into the network; what is private is as the seed initialises it."""
        private = self._private_part(self.new_network().state_dict()) if self.method.all_private else {}
        put(self.network, self.method.model(weights) | private)

    def measure(self, task: Task, data: ClientData) -> Update:
        """What static batch norm sees of a client's images, as sums."""
        start = time.perf_counter()
        strict = not self.method.all_private
        self.network.load_state_dict(self.method.model(task.weights), strict=strict)
        index = torch.cat([data.labelled, data.unlabelled])
        size = eval_batch(self.compute.eval_batch, data.images.shape[-1], self.device)

        def batches() -> Iterator[Tensor]:
            for part in index.tensor_split(-(-len(index) // size)):
                yield prepared(data.images[part].to(self.device), self.views.mean, self.views.std)

        with autocast(self.compute, self.device):
            found = sums(self.network, batches())
        spent = time.perf_counter() - start
        return Update(task.round, task.client, len(data), {}, found, seconds=spent)

    def _train(
        self, task: Task, data: ClientData, truth: Callable[[Tensor], Tensor] | None, steps: Steps
    ) -> Update:
        start, given = time.perf_counter(), self.method.rearrange(data)
        records = self.records.begin(self.seed, task) if self.records else None
        state = self.store.load(task.client, task.version) if self.keeps_state else {}
        sums, trained, carry = Counter[str](), list[Tensors](), task.carry
        for turn in range(task.times):
            ctx = self._context(replace(task, carry=carry), given, state, turn, records)
            extras = self._train_once(ctx, steps, records)
            trained.append(Flat.of(self.method.upload(ctx)))
            state, carry = ctx.state, momentum_of(ctx) if self.settings.leak_momentum else {}
            sums["steps"] += ctx.steps
            watched = Metrics()
            if records is None:  # sums about images, which nothing has noised
                sums.update({f"loss/{name}": float(value) for name, value in ctx.losses.items()})
                sums.update({f"count/{name}": float(value) for name, value in ctx.counts.items()})
                watched = count_decisions(ctx.decisions, ctx.stream.pool, truth)
            # Parts may keep what points back to the context; its tensors would stay until cycles are looked
            # for.
            vars(ctx).clear()
        if self.keeps_state:
            self.store.save(task.client, task.round, state, base=task.version)
        return Update(
            round=task.round,
            client=task.client,
            samples=len(data),
            weights=trained[0],
            extras=extras,
            metrics={name: float(value) for name, value in sums.items()} | watched,
            carry=carry,
            seconds=time.perf_counter() - start,
            again=tuple(trained[1:]),
        )

    def _train_once(self, ctx: ClientContext, steps: Steps, records: RecordRound | None) -> Tensors:
        """All steps from the weights received; what is sent beside the weights that they lead to."""
        put(self.network, self.method.model(ctx.task.weights) | self._private(ctx))
        self.network.train().requires_grad_(True)
        with isolated(self.seed, ctx.task.round, ctx.task.client, turn_of("layers", ctx.turn)):
            with span(BEGIN):
                self.method.begin_all(ctx)
            restore_momentum(ctx, namespace(ctx.state, MOMENTUM) or ctx.task.carry)
            if records is not None:
                with records.watching(ctx):
                    for batches in steps(ctx):
                        records.step(next(batches), ctx)
            else:
                for batches in steps(ctx):
                    with span(STEP):
                        outputs = self.method.step(next(batches), ctx)
                        with span(OBSERVE):
                            self.method.observe_all(outputs, ctx)
                _require_terms(ctx)
            with span(FINISH):
                extras = self.method.finish_all(ctx)
        if self.method.all_private:
            ctx.state |= within("private", self._private_part(self.network.state_dict()))
        if self.settings.keeps_momentum("clients"):
            ctx.state |= within(MOMENTUM, momentum_of(ctx))
        return detached(extras)

    def _private(self, ctx: ClientContext) -> Tensors:
        """What this client kept of the network to itself; at its first round, as the seed initialises it."""
        if not self.method.all_private:
            return {}
        return namespace(ctx.state, "private") or self._private_part(self.new_network().state_dict())

    def _private_part(self, weights: Tensors) -> Tensors:
        return {name: value for name, value in weights.items() if name.startswith(self.method.all_private)}

    def _context(
        self, task: Task, data: ClientData, state: Tensors, turn: int, records: RecordRound | None = None
    ) -> ClientContext:
        stream = Stream(
            data,
            self.settings,
            self.views,
            self.method.all_wants,
            rng(self.seed, task.round, task.client, turn_of("batches", turn)),
            self.device,
            walk_labelled=self.method.walks_labelled,
            sampler=records.sample if records else None,
        )
        stream.steps = max(
            1, self.method.steps_per_epoch(len(data.labelled), stream.steps, self.settings.batch)
        )
        return self.context(task, stream, self.settings, state, turn)

    def context(
        self,
        task: Task,
        stream: Stream,
        settings: TrainSettings,
        state: Tensors | None = None,
        turn: int = 0,
    ) -> ClientContext:
        """What the method sees of training on this stream."""
        return ClientContext(
            method=self.method,
            model=self.network,
            stream=stream,
            task=task,
            settings=settings,
            classes=self.classes,
            rounds=self.rounds,
            seed=self.seed,
            device=self.device,
            autocast=lambda: autocast(self.compute, self.device),
            initial=self.initial_weights,
            own_optimiser=self.optimiser,
            state=state or {},
            turn=turn,
        )


def fitting(start: Tensors, own: Tensors) -> Tensors:
    """Those of the weights to start from that the network has; tensors that do not fit are an error.

    Projection heads may be on one side only: they belong to some methods alone.
    """
    strange = [name for name in start if name not in own and part_of(name) != "heads"]
    missing = [name for name in own if name not in start and part_of(name) != "heads"]
    other = [
        f"{name} {tuple(start[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in start and start[name].shape != own[name].shape
    ]
    for names, what in ((other, "other shapes"), (missing, "no"), (strange, "unknown tensors:")):
        if names:
            raise ConfigError(
                f"the initial weights do not fit this network: {what} {shortened(names)}; choose the "
                "model.name, model.width, classes and channels that they were trained with"
            )
    return {name: value for name, value in start.items() if name in own}


def autocast(compute: ComputeSettings, device: torch.device) -> AbstractContextManager[Any]:
    if compute.dtype == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@contextmanager
def numerics(compute: ComputeSettings) -> Iterator[None]:
    """Thread count and deterministic kernels for as long as clients are computed; put back afterwards."""
    threads = torch.get_num_threads()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.set_num_threads(compute.threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def _require_terms(ctx: ClientContext) -> None:
    """A method with a step of its own must ask for its add-ons' losses: they never vanish silently."""
    adding = [addon.name for addon in ctx.method.addons if overrides(addon, "term")]
    if adding and ctx.stream.steps and not ctx.terms_taken:
        raise MethodError(
            f"{ctx.method.name} has its own step, which ignores +{', +'.join(adding)}; add "
            "ctx.terms(outputs) to its losses, or refuse them in refuses(addon)"
        )


def momentum_of(ctx: ClientContext) -> Tensors:
    """The moving sums of the optimiser that trains the model, by the parameter's name."""
    buffers = {
        name: ctx.optimiser.state[parameter].get("momentum_buffer")
        for name, parameter in ctx.model.named_parameters()
    }
    return detached({name: value for name, value in buffers.items() if value is not None})


def restore_momentum(ctx: ClientContext, kept: Tensors) -> None:
    """Let the optimiser go on from sums as :func:`momentum_of` gives them."""
    if not kept:
        return
    for name, parameter in ctx.model.named_parameters():
        if name in kept:
            buffer = kept[name].to(parameter.device, copy=True)
            ctx.optimiser.state[parameter]["momentum_buffer"] = buffer
