"""What the benchmarks of whole runs share: drawn images cut into overlapping clients, a real run directory
whose rounds are played one at a time, and how much memory a process holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl.core.config import Config
from proxyfl.core.machine import peak_memory
from proxyfl.core.state import ServerState
from proxyfl.data.dataset import Dataset, Split
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged
from proxyfl.data.stream import ViewSettings
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.loop import Observer, Server, play_round
from proxyfl.runs import build
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.recorder import Recorder
from proxyfl.runs.recording import Recording
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import Simulation

MEGABYTE = 1 << 20


def drawn_simulation(clients: int, *, labelled: int, unlabelled: int, images: int, size: int) -> Simulation:
    """``images`` drawn ones, a tenth of them with labels. Every client holds as many as every other: a range
    of the labelled and one of the unlabelled, which overlap with those of others.
    """
    train, test = _drawn(images, size, 0), _drawn(200, size, 1)
    mean, std = (0.5,) * 3, (0.25,) * 3
    dataset = Dataset("drawn", train, test, tuple("0123456789"), mean, std, True, images)
    index = np.arange(images, dtype=np.int64)
    parts = (_windows(index[: images // 10], clients, labelled),
             _windows(index[images // 10 :], clients, unlabelled))  # fmt: skip
    views = ViewSettings(True, mean, std)
    return Simulation(dataset, Partition(*parts), images // 100, views, views)


def _windows(values: Any, clients: int, length: int) -> Ragged:
    starts = np.arange(clients, dtype=np.int64) * 7 % (len(values) - length + 1)
    return Ragged(values, starts, starts + length)


def _drawn(count: int, size: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randint(0, 120, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), :, labels % size] += 100
    return Split(images, labels)


def settings(method: str, **short: Any) -> Config:
    """The digits protocol with what is said otherwise; the images come from :func:`drawn_simulation`."""
    return resolve("digits", from_short(short), {"method": {"name": method}})


@dataclass
class Stage:
    """A run whose rounds are played when asked, written down by the recorder as in any other run."""

    federation: Server
    trainer: ClientTrainer
    recorder: Recorder
    state: ServerState

    def play(self) -> None:
        self.state = play_round(self.federation, self.state, (self.recorder,))


@contextmanager
def staged(path: Path, config: Config, simulation: Simulation, workers: int) -> Iterator[Stage]:
    """A new run at ``path``, open for as long as the block lasts."""
    run = RunDirectory(path)
    federation = build.assemble(config, simulation, workers=workers)
    recording = Recording.create(run, federation)
    engine = closing(federation.server.engine)
    with recording.opened(federation) as (*_, recorder), numerics(config.compute), engine:
        yield Stage(federation.server, federation.trainer, recorder, federation.state)


def assemble(
    folder: Path, config: Config, simulation: Simulation, workers: int | None = None
) -> tuple[Server, ClientTrainer]:
    """The two halves of a federation, whose clients keep their state in a folder."""
    federation = build.assemble(config, simulation, workers=workers)
    federation.settle(folder)
    return federation.server, federation.trainer


def run_rounds(server: Server, state: ServerState, observers: Iterable[Observer] = ()) -> ServerState:
    """The rounds that are left."""
    while state.round < server.settings.rounds:
        state = play_round(server, state, tuple(observers))
    return state


def resident(pid: int | None = None) -> int:
    """Bytes of memory that a process holds; where the system does not tell, this one's largest so far."""
    try:
        pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_memory() if pid in (None, os.getpid()) else 0
    return pages * os.sysconf("SC_PAGE_SIZE")
