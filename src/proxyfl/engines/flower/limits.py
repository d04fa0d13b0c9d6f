"""What a site's people let a federation use of their machine: threads, memory, disk and time of a round.

A round that would need more is refused before it begins, with the number; one that takes longer is given up
between two steps. The memory of a round is estimated from a dry run with two samples::

    now + 70 MB + 5 × weights + 2 × samples in a step × what the backward pass keeps of a sample

now is what the process has taken when the site's data are read; 70 MB are code and buffers that training
brings in; five are the weights received, trained and sent, their gradients and the optimiser's momentum; two
are what is kept and the gradients of it. That of an evaluation::

    now + 70 MB + 3 × weights + 2 × samples in a batch × what the largest layer takes and gives

three are the weights received and loaded and a copy for the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.config import ComputeSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.machine import usable_memory
from proxyfl.core.state import size_in_bytes
from proxyfl.data.stream import Batch
from proxyfl.federation.client import ClientTrainer, Steps, every_step
from proxyfl.methods.context import ClientContext

MB = 1_000_000
BASE, COPIES, SLACK, SAMPLES = 70 * MB, 5, 2, 2
EVALUATED = 3
"""Copies of the weights in an evaluation."""
PIECE = 1_000_000
"""Bytes of the pieces in which Flower is made to send models, one after the other; its own are of 5 MB, two
at once. A request of ``max_request_mb = 1`` holds such a piece.
"""

SLOWEST = 1000
"""Kilobits a second that a site's people must at least allow. Flower's program gives up a piece that takes
30 s: 8 × PIECE / 30 s are 267 kbit/s, of a real line about 280 with what TCP and TLS add. At 1,000 a piece
takes 8 s, which leaves room for a line that is slower at times.
"""

AUTO = "auto"
"""As a device: the GPU with the most free memory, without one the processor."""


class LimitReached(ConfigError):
    """More than the site allows; the words are for the server, too."""


@dataclass(frozen=True)
class Limits:
    """By the names of ``site.toml``; 0 means no limit of its own."""

    threads: int = 0
    max_memory_mb: int = 0
    max_disk_mb: int = 0
    max_seconds: float = 0.0

    def compute(self, asked: ComputeSettings, device: str) -> ComputeSettings:
        """What the experiment asks for, as this site computes it."""
        device = free_gpu() if device == AUTO else device
        return dataclasses.replace(
            asked, device=device or asked.device, threads=self.threads or asked.threads
        )

    def require_disk(self, state: Path, more: int = 0) -> None:
        """Refuse where what the site keeps, and ``more`` bytes, are too much."""
        if not self.max_disk_mb:
            return
        kept = _bytes_below(state)
        if kept + more > self.max_disk_mb * MB:
            raise LimitReached(
                f"the site keeps {kept / MB:,.0f} MB and this round adds {more / MB:,.1f} MB; max_disk_mb of "
                f"its site.toml allows {self.max_disk_mb:,}; 'proxyfl deploy prune' deletes "
                "what earlier runs left"
            )

    def require_memory(self, trainer: ClientTrainer) -> int:
        """Refuse where training needs more memory than there is, or than is allowed; gives the estimate."""
        cure = "smaller batches (train.batch, train.mu) or a smaller network need less"
        return self._require("training", estimate(trainer), trainer, cure)

    def require_memory_to_evaluate(self, trainer: ClientTrainer, batch: int) -> int:
        """The same for an evaluation with so many samples in a batch."""
        cure = "a smaller batch (compute.eval_batch) or a smaller network needs less"
        return self._require("evaluation", estimate_evaluation(trainer, batch), trainer, cure)

    def _require(self, what: str, needed: int, trainer: ClientTrainer, cure: str) -> int:
        room = _room(trainer.device)
        allowed = self.max_memory_mb * MB or room
        if needed > min(allowed, room):
            why = (
                f"max_memory_mb of its site.toml allows {self.max_memory_mb:,}"
                if allowed < room
                else f"the machine has {room / MB:,.0f} MB"
            )
            raise LimitReached(f"{what} needs about {needed / MB:,.0f} MB of memory here, and {why}; {cure}")
        return needed

    def steps(self, clock: Callable[[], float] = time.monotonic) -> Steps:
        """All steps of a round, as long as there is time for them."""
        if not self.max_seconds:
            return every_step
        heed = self.timer("training", "fewer local epochs (train.epochs) or a larger limit", clock)

        def timed(ctx: ClientContext) -> Iterator[Iterator[Batch]]:
            for batches in every_step(ctx):
                heed()
                yield batches

        return timed

    def timer(self, what: str, cure: str, clock: Callable[[], float] = time.monotonic) -> Callable[[], None]:
        """What raises once the time that begins now is over."""
        began, seconds = clock(), self.max_seconds

        def heed() -> None:
            if seconds and clock() - began > seconds:
                raise LimitReached(
                    f"{what} took longer than the {seconds:g} s that max_seconds of its site.toml allows; "
                    f"{cure}"
                )

        return heed


def _bytes_below(folder: Path) -> int:
    """The size of all files; what goes meanwhile, as a run that is pruned, does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def estimate(trainer: ClientTrainer) -> int:
    """Bytes of memory that a round takes, as far as it can be known beforehand."""
    train = trainer.settings
    weights = size_in_bytes(trainer.new_network().state_dict())
    step = sum(train.batch * (train.mu if view.startswith("u_") else 1) for view in trainer.method.all_wants)
    each = kept_by_backward(trainer) + (weights if trainer.records else 0)  # a gradient for every image
    work = BASE + COPIES * weights + SLACK * step * each
    return work + (_resident() if trainer.device.type == "cpu" else 0)


def estimate_evaluation(trainer: ClientTrainer, batch: int) -> int:
    """Bytes of memory that an evaluation takes, likewise."""
    weights = size_in_bytes(trainer.new_network().state_dict())
    work = BASE + EVALUATED * weights + SLACK * batch * largest_layer(trainer)
    return work + (_resident() if trainer.device.type == "cpu" else 0)


def largest_layer(trainer: ClientTrainer) -> int:
    """Bytes of a sample that the largest layer takes and gives, seen in a dry run that leaves no trace."""
    seen = [0]

    def note(layer: nn.Module, taken: Any, given: Any) -> None:
        found = [value for value in (*taken, given) if isinstance(value, Tensor)]
        seen.append(sum(value.numel() * value.element_size() for value in found) // SAMPLES)

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        network = trainer.new_network().eval()
        for layer in network.modules():
            layer.register_forward_hook(note)
        network(torch.zeros(SAMPLES, *trainer.factory.shape))
    return max(seen)


def kept_by_backward(trainer: ClientTrainer) -> int:
    """Bytes that the backward pass keeps of a sample, seen in a dry run that leaves no trace."""
    seen: dict[int, int] = {}

    def note(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        held.append(storage)  # or another tensor might get its place
        return value

    held: list[object] = []
    with torch.random.fork_rng(devices=[]):
        network = trainer.new_network().train()
        own = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            network(torch.zeros(SAMPLES, *trainer.factory.shape))
    return sum(size for place, size in seen.items() if place not in own) // SAMPLES


def free_gpu() -> str:
    """The GPU with the most free memory."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "cpu"
    return f"cuda:{max(range(count), key=lambda number: torch.cuda.mem_get_info(number)[0])}"


def _room(device: torch.device) -> int:
    """Bytes that there are where the network is trained."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else usable_memory()


def _resident() -> int:
    """Bytes of memory that this process has taken; 0 where nobody can tell."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return 0
