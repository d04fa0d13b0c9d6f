"""The work that all peers do: FedAvg with every label on small images, and what is noted of each round.

Network, views and numbers are the same for all: proxyfl's ResNet-8 at width 1, its weak view of whole batches
(:mod:`proxyfl.data.augment`), SGD with momentum. A client walks its images once, in random order and without
the incomplete last batch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from proxyfl.core.machine import has_bf16
from proxyfl.data.augment import normalise, weak
from proxyfl.models.resnet import ResNet

CLASSES = 10
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4
SEED = 1
TEST_BATCH = 1_000


class Size(NamedTuple):
    """How many clients there are, how many train in a round, and what each holds."""

    clients: int
    per_round: int
    held: int
    batch: int
    images: int

    @property
    def steps(self) -> int:
        """Those of one client in a round."""
        return self.held // self.batch


class Work(NamedTuple):
    """The images of a size and who holds which: row k of ``index`` are those of client k."""

    size: Size
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    index: Tensor

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(zip(self._fields[1:], self[1:], strict=True)), folder / "work.safetensors")
        (folder / "size.json").write_text(json.dumps(self.size._asdict()), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Work:
        size = Size(**json.loads((folder / "size.json").read_text(encoding="utf-8")))
        return cls(size, **load_file(folder / "work.safetensors"))

    def of_client(self, client: int) -> tuple[Tensor, Tensor]:
        return self.images[self.index[client]], self.labels[self.index[client]]


def drawn(count: int, side: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of ten patterns of 4 × 4 fields, half of which is noise, and their classes."""
    patterns = torch.randint(256, (CLASSES, 3, 4, 4), generator=torch.Generator().manual_seed(SEED))
    patterns = patterns.repeat_interleave(side // 4, 2).repeat_interleave(side // 4, 3)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randint(256, (count, 3, side, side), generator=generator)
    return ((patterns[labels] + noise) // 2).to(torch.uint8), labels


def dealt(size: Size) -> Tensor:
    """As many images for each client; where there are too few for all, clients share them."""
    generator = torch.Generator().manual_seed(SEED)
    rounds = -(-size.clients * size.held // size.images)
    order = torch.cat([torch.randperm(size.images, generator=generator) for _ in range(rounds)])
    return order[: size.clients * size.held].reshape(size.clients, size.held)


def new_network(tuned: bool) -> nn.Module:
    torch.manual_seed(SEED)
    network = ResNet(CLASSES, 3, 1)
    return network.to(memory_format=torch.channels_last) if tuned else network


def casting(tuned: bool) -> Any:
    """Convolutions in bf16 where the loop is tuned and the processor has instructions for it."""
    fast = tuned and has_bf16()
    return torch.autocast("cpu", dtype=torch.bfloat16) if fast else nullcontext()


def seen(images: Tensor, generator: torch.Generator, tuned: bool) -> Tensor:
    """The weak view of a batch, as the network takes it."""
    views = normalise(weak(images, generator), MEAN, STD)
    return views if tuned else views.contiguous()


def batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(count, generator=generator)
    for start in range(0, count - batch + 1, batch):
        yield order[start : start + batch]


def optimiser_of(parameters: Iterable[nn.Parameter], lr: float = LR) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def train_client(network: nn.Module, work: Work, client: int, round: int, tuned: bool) -> int:
    """One client's round, as anyone would write it; gives the number of its steps."""
    generator = torch.Generator().manual_seed(round * work.size.clients + client)
    images, labels = work.of_client(client)
    network.train()
    optimiser = optimiser_of(network.parameters())
    steps = 0
    for index in batches(len(images), work.size.batch, generator):
        with casting(tuned):
            loss = F.cross_entropy(network(seen(images[index], generator, tuned)), labels[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
    return steps


@lru_cache(maxsize=1)
def kept(folder: str, tuned: bool) -> tuple[Work, nn.Module]:
    """The images and the network of a process that trains many clients: made once. One thread for each."""
    torch.set_num_threads(1)
    return Work.load(Path(folder)), new_network(tuned)


def accuracy(network: nn.Module, work: Work) -> float:
    """In percent, on the test images."""
    network.eval()
    right = 0
    parts = zip(work.test_images.split(TEST_BATCH), work.test_labels.split(TEST_BATCH), strict=True)
    with torch.inference_mode():
        for images, labels in parts:
            right += int((network(normalise(images, MEAN, STD)).argmax(1) == labels).sum())
    return 100 * right / len(work.test_labels)


class Notes:
    """When each round ended, and the CPU time of all processes below ``root`` until then."""

    def __init__(self, root: int | None = None) -> None:
        self.root = root or os.getpid()
        self.rounds: list[dict[str, float]] = []
        self.steps = 0

    def round_ended(self, steps: int) -> None:
        self.steps += steps
        ended = time.monotonic()
        spent = processor_seconds(self.root)
        self.rounds.append({"ended": ended, "processor": spent, "next": time.monotonic()})

    def answer(self, accuracy: float, version: str) -> str:
        found = {"rounds": self.rounds, "steps": self.steps, "accuracy": accuracy, "version": version}
        return json.dumps(found)


def family(root: int) -> Iterator[tuple[int, list[str]]]:
    """A process and all below it: their numbers, and the fields of their ``stat`` from the third on."""
    children: dict[int, list[int]] = {}
    fields: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        pid = int(path.parent.name)
        fields[pid] = text.rpartition(")")[2].split()
        children.setdefault(int(fields[pid][1]), []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in fields:
            yield pid, fields[pid]
        waiting += children.get(pid, [])


def processor_seconds(root: int) -> float:
    """Of a process and all below it, those that have ended included."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in family(root))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(root: int) -> int:
    """Bytes that a process and all below it hold together; shared pages count once."""
    held = 0
    for pid, _ in family(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        held += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024 * held
