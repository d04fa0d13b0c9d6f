"""No line of a client's training is for the CPU only.

The nearest thing to a GPU that every machine has is torch's ``meta`` device, whose tensors hold no numbers. A
small federation is played on it with every method, and :class:`Accelerator` looks at each operation as a
GPU would: tensors of two devices do not mix, and a step does not wait for a number to come back.

Fake tensors that claim to be on ``cuda`` would say the same, but a build of torch without CUDA has no device
guard for them: with torch 2.13, an operation that is recorded for backward ends the process, and indexing or
copying such a tensor raises. So they serve only for what needs neither.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from proxyfl.core.errors import MethodError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.data import stream
from proxyfl.data.augment import OPERATIONS, strong, weak
from proxyfl.data.stream import Batch, Stream
from proxyfl.federation.loop import Engine
from proxyfl.methods import feddb, fedlabel, fedloke, fedmatch, halves, losses, recipes, registry, sage
from proxyfl.methods.addons import icpl, proximal, soft_weight
from proxyfl.methods.context import ClientContext
from proxyfl.models import build
from proxyfl.runs.simulation import Simulation
from toybox import little_config, make_simulation, play

NAMES = [recipe.name for recipe in recipes("clients")]
PARENTS = list({recipe.method: recipe.name for recipe in reversed(recipes("clients"))}.values())
"""A method for each class of methods."""

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("proxyfl", {"fidelity": "paper", "train__epochs": 2}),
    ("proxyfl", {"method__icpl__keep_heads": True, "train__leak_momentum": True}),
    ("fixmatch", {"method__teacher_mode": "eval", "method__over": "selected"}),
    ("feddb", {"method__over": "batch"}),
    ("feddure", {"method__variant": "release"}),
    ("fedmatch", {"method__helper_every": 1, "clients": 2}),
    ("softmatch", {"method__softmatch__statistics": "client"}),
]
"""Other paths through a client's round: other readings, state between rounds, helpers from other clients."""

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._foreach_copy_.default}
MOVES = {aten._to_copy.default, aten.to.dtype_layout}
READS = MOVES | {aten._local_scalar_dense.default, aten.copy_.default, aten.bincount.default}
"""What may bring numbers back between steps: sums, weights and state of a finished round, and the histogram
that ``equalise`` counts for a strong view."""

SELECTS = {"feddb": aten.nonzero.default}
"""Parts that must look at numbers of the device between steps, with the operation that does. FedDB: once a
round, at its start, to fill batches with the images it selected."""


@pytest.fixture(autouse=True)
def zeros_are_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that come back from ``meta`` are zeros; FedDB's server would refuse them."""
    monkeypatch.setattr(feddb, "OFF_ONE", 1.0)


class WrongDevice(MethodError):
    """An operation that a GPU would refuse, or for which a step would wait."""


class Accelerator(TorchDispatchMode):
    """Lets the ``meta`` device stand for a GPU. Between steps numbers may come back from it: zeros."""

    def __init__(self, parts: Iterable[str] = ()) -> None:
        super().__init__()
        self.between_steps = READS | {SELECTS[part] for part in parts if part in SELECTS}
        self.in_step, self.steps = False, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_of(args))
        if any(tensor.is_meta for tensor in tensors):
            if reads(func, args, kwargs):
                return self._read(func, args, kwargs)
            mixed = any(tensor.is_cpu and tensor.dim() for tensor in tensors)
            if mixed and func not in COPIES:
                raise WrongDevice(f"{func} mixes tensors of the device with tensors on the CPU")
        return func(*args, **kwargs)

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.in_step:
            raise WrongDevice(f"{func} makes the step wait for the device")
        if func not in self.between_steps:
            raise WrongDevice(f"{func} looks at numbers on the device")
        return STAND_INS[func](*args, **kwargs)

    def watched(self, epoch: Callable[[Stream], Iterator[Batch]]) -> Callable[[Stream], Iterator[Batch]]:
        """``Stream.epoch``; what its user does with a batch is a step."""

        def epoch_of_steps(batches: Stream) -> Iterator[Batch]:
            for batch in epoch(batches):
                self.in_step, self.steps = True, self.steps + 1
                try:
                    yield batch
                finally:
                    self.in_step = False

        return epoch_of_steps


def tensors_of(args: Iterable[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_of(arg)


def reads(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operation needs numbers that are on the device."""
    if func in MOVES:
        return kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "meta"
    if func in COPIES:
        return any(target.is_cpu for target in tensors_of(args[:1]))
    if func is aten.index.Tensor:
        return any(index.dtype == torch.bool for index in tensors_of(args[1]))
    return func in STAND_INS


STAND_INS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(MOVES, lambda value, **_: torch.zeros(value.shape, dtype=value.dtype)),
    aten.copy_.default: lambda target, source: target.zero_(),
    aten._local_scalar_dense.default: lambda value: torch.zeros((), dtype=value.dtype).item(),
    aten.bincount.default: lambda value, weights=None, minlength=0: value.new_zeros(minlength),
    aten.nonzero.default: lambda value: value.new_zeros((value.numel(), value.dim()), dtype=torch.int64),
}


class AnswersAll:
    """An engine that ends the test, with the client's traceback, when a client fails."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for answer in self.engine.run(tasks):
            assert isinstance(answer, Update), answer.detail or answer.reason
            yield answer


@functools.cache
def drawn(clients: int) -> Simulation:
    """Clients with two steps a round."""
    return make_simulation([6] * clients, [17] * clients)


def steps_on_device(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any]
) -> int:
    """Two rounds on the device: how many steps were taken there."""
    clients = settings.get("clients", 1)
    config = little_config(name, device="meta", **{**settings, "clients": clients, "per_round": clients})
    method = registry.create(config.method.name, config.method.parameters, config.fidelity)
    device = Accelerator(part.name for part in method.parts)
    monkeypatch.setattr(stream, "strong", weak)  # fourteen operations take their time; they come below
    monkeypatch.setattr(Stream, "epoch", device.watched(Stream.epoch))
    # torch has no autocast for this device: it raises even where autocast is switched off.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with device, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "for .* copying from a non-meta parameter")
        play(config, drawn(clients), folder, engine=AnswersAll)
    return device.steps


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in PARENTS else pytest.mark.slow) for name in NAMES]
)
def test_every_method_trains_on_any_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_on_device(name, tmp_path, monkeypatch, {}) >= 4


def with_addons(name: str) -> list[str]:
    """The method with each add-on that it accepts and does not carry by itself."""
    found = []
    for addon in registry.addons():
        full = registry.find(f"{name}+{addon}").name
        with contextlib.suppress(MethodError):
            registry.create(full)
            found.append(full)
    return [full for full in dict.fromkeys(found) if full not in NAMES]


@pytest.mark.slow
@pytest.mark.parametrize("name", PARENTS)
def test_every_class_of_methods_trains_with_all_it_can_carry(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for addon in registry.addons():
        with contextlib.suppress(MethodError):  # of two masks the first
            registry.create(f"{name}+{addon}")
            name = registry.find(f"{name}+{addon}").name
    assert steps_on_device(name, tmp_path, monkeypatch, {}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [full for name in NAMES for full in with_addons(name)])
def test_every_pair_trains_on_any_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_on_device(name, tmp_path, monkeypatch, {}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_other_paths_train_on_any_device(
    name: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_on_device(name, tmp_path, monkeypatch, settings) >= 4


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_made_on_any_device(channels: int) -> None:
    images = torch.empty((8, channels, 8, 8), dtype=torch.uint8, device="meta")
    strengths = torch.empty(8, dtype=torch.int64, device="meta")
    generator = torch.Generator().manual_seed(0)
    with Accelerator():
        for operation in OPERATIONS.values():
            assert operation(images, strengths).is_meta
        for view in (weak, strong):
            assert view(images, generator).is_meta


HERE, THERE = torch.arange(3), torch.empty(3, device="meta")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: THERE + HERE,
        lambda: torch.cat([THERE, torch.zeros(2)]),
        lambda: torch.where(THERE > 0, HERE, THERE),
        lambda: THERE[HERE],
        lambda: HERE[THERE.long()],
        lambda: THERE.clone().index_put_((THERE.long(),), torch.zeros(3)),
        lambda: THERE.cpu(),
        lambda: HERE.clone().copy_(THERE),
        lambda: float(THERE.sum()),
        lambda: bool((THERE > 0).any()),
        lambda: THERE.tolist(),
        lambda: THERE[THERE > 0],
        lambda: (THERE > 0).nonzero(),
    ],
)
def test_the_device_refuses_in_a_step(wrong: Callable[[], Any]) -> None:
    device = Accelerator(["feddb"])
    device.in_step = True
    with device, pytest.raises(WrongDevice):
        wrong()


def test_the_device_takes_numbers_in_a_step_and_gives_them_between() -> None:
    device = Accelerator()
    with device:
        device.in_step = True
        there = THERE.clone().copy_(HERE) + HERE.to("meta") + torch.tensor(2.0)
        device.in_step = False
        assert there.cpu().tolist() == [0.0, 0.0, 0.0]
        with pytest.raises(WrongDevice, match="nonzero"):
            there.nonzero()


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def fake_network() -> nn.Module:
    """A network on the device: made there, since moving it there is what fake tensors cannot do."""
    with torch.random.fork_rng(devices=[]):
        network = build("resnet8", 10, 1, 1).eval()
    for module in network.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(fake(*value.shape), requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, fake(*buffer.shape, dtype=buffer.dtype))
    return network


def predicted(images: Tensor) -> Tensor:
    context: Any = SimpleNamespace(classes=10, autocast=contextlib.nullcontext)
    return ClientContext.predict(context, fake_network(), images)


ON_CUDA: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "predict": lambda p, q, label, mask: predicted(fake(8, 1, 8, 8)),
    "masked_mean": lambda p, q, label, mask: losses.masked_mean(fake(8), mask, "selected"),
    "masked_cross_entropy": lambda p, q, label, mask: losses.masked_cross_entropy(p, label, mask),
    "masked_divergence": lambda p, q, label, mask: losses.masked_divergence(p, q, mask),
    "local_share": lambda p, q, label, mask: sage.local_share(p, q, 13.8),
    "expert": lambda p, q, label, mask: fedlabel.expert(p, q, "entropy"),
    "debias": lambda p, q, label, mask: feddb.debias(p, fake(10)),
    "taught": lambda p, q, label, mask: fedloke.taught(p, q, 0.1),
    "agreement_loss": lambda p, q, label, mask: fedmatch.agreement_loss(p, q, label, mask, [q]),
    "decomposition_penalty": lambda p, q, label, mask: halves.decomposition_penalty([p], [q], 10.0, 1e-4),
    "compose": lambda p, q, label, mask: halves.compose({"a": p}, {"a": q})["a"],
    "proximal": lambda p, q, label, mask: proximal([p], [q], 0.1),
    "soft_weight": lambda p, q, label, mask: soft_weight(p.amax(1), p.mean(), p.var(), 2.0),
    "likeliest": lambda p, q, label, mask: icpl._likeliest(p),
}
"""Functions of probabilities (8 × 10), a label and a mask that neither index nor copy. The others (ICPL,
prototypes, thresholds, mixed targets) are met in the rounds above."""


@pytest.mark.parametrize("name", ON_CUDA)
def test_fake_cuda_tensors_stay_there(name: str) -> None:
    with FakeTensorMode(), torch.no_grad():
        p, q = fake(8, 10), fake(8, 10)
        label, mask = fake(8, dtype=torch.int64), fake(8, dtype=torch.bool)
        assert ON_CUDA[name](p, q, label, mask).device.type == "cuda"


def test_fake_cuda_tensors_do_not_mix_with_the_cpu() -> None:
    with FakeTensorMode(), torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        losses.masked_mean(fake(8), torch.ones(8, dtype=torch.bool))
