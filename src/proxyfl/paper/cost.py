"""What runs will cost on this machine: from finished ones of the same protocol, else from a formula."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from proxyfl.core.config import Config
from proxyfl.core.text import duration
from proxyfl.data import sources
from proxyfl.methods import registry
from proxyfl.paper import catalogue, plan
from proxyfl.paper.plan import Known
from proxyfl.paper.results import recorded
from proxyfl.paper.scales import scale
from proxyfl.profiling.hardware import matrix_peak
from proxyfl.runs.batch import BY_WORKERS, Job
from proxyfl.runs.run import Run

GMAC = 0.195
"""Billions of multiplications of a forward pass: ResNet-8 of width 4, one image of 32 × 32."""

BACKWARD = 3
"""A pass with its backward pass, in forward passes."""

EFFICIENCY, WIDE, BEST = 0.45, 0.12, 0.8
"""The share of a plain matrix product's speed that training reaches at width 1, more with each width, and at
most. The first is fitted to one run (reduced CIFAR-10 on two cores, bf16), the others are rough guesses.
"""

STEP_OVERHEAD = 0.012
START_SECONDS = 5.0
"""Guesses at what does not scale with the network: a step's many small operations, the start of a process."""

CALIBRATION = 0.3
SIDE = {"digits": 8}
"""Native sizes of images other than 32."""

MOST_WORKERS = 10_000
"""Nothing verifies what events say; more is no count."""

MEASURED, ALIKE, ESTIMATED = "measured", "from other methods", "estimated"
WORDS = (MEASURED, ALIKE, ESTIMATED)
"""Where a number is from, the surest first."""

Protocol = tuple[Any, ...]


@dataclass
class Experience:
    """Core-seconds of finished runs, by protocol and method."""

    seconds: dict[tuple[Protocol, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, jobs: Iterable[Job], known: Known | None = None) -> Experience:
        found, known = cls(), known or Known()
        for job in {job.path: job for job in jobs}.values():
            result = known.find(job.config)
            seconds = result.cpu_seconds if result else core_seconds(Run(job.path)) if job.finished else None
            if seconds:
                found.seconds[protocol(job.config), job.config.method.name].append(seconds)
        return found

    def cost(self, config: Config) -> tuple[float, str]:
        """Core-seconds of a run, and where the number is from."""
        kind, method = protocol(config), config.method.name
        if own := self.seconds.get((kind, method)):
            return statistics.fmean(own), MEASURED
        if alike := [second for (other, _), each in self.seconds.items() if other == kind for second in each]:
            return statistics.fmean(alike), ALIKE
        return estimate(config), ESTIMATED


Row = list[str]
"""Runs, those done, core time of the rest, and where that number is from."""


def overview(
    size: str,
    seeds: Sequence[int],
    folder: Path,
    results: Path,
    root: Path | None,
    device: str,
    step: Callable[[str, float], None],
) -> tuple[dict[str, Row], Row, list[str]]:
    """A row for each item with data, one for all together, and the data sets that they need.

    ``step`` is called with what is counted and the share that is done.
    """
    items = {name: each for name, each in catalogue.ITEMS.items() if each.has_data}
    known, jobs, data = recorded(results), dict[str, list[Job]](), dict[str, None]()
    for number, (name, each) in enumerate(items.items()):
        step(name, number / len(items))
        wanted = plan.cases(each, scale(size), device=device)
        jobs[name] = plan.jobs(wanted, seeds, folder, root, known)
        data |= dict.fromkeys(map(plan.data_of, wanted))
    step("cost", 1.0)
    every = {job.path: job for each in jobs.values() for job in each}
    experience = Experience.of(every.values(), known)
    rows = {name: _row(each, experience) for name, each in jobs.items()}
    return rows, _row(list(every.values()), experience), list(data)


def _row(jobs: Sequence[Job], experience: Experience) -> Row:
    missing = [job for job in jobs if not job.finished]
    costs = [experience.cost(job.config) for job in missing]
    source = max((word for _, word in costs), key=WORDS.index, default="")
    seconds = sum(seconds for seconds, _ in costs)
    counts = [str(len(jobs)), str(len(jobs) - len(missing))]
    if not jobs:
        return [*counts, "", "needs no run"]
    return [*counts, _long(seconds) if missing else "", source]


def _long(seconds: float) -> str:
    """Core time, which at full scale is years."""
    days = seconds / 86_400
    return f"{days:,.0f} days" if days > 3 else duration(seconds)


def core_seconds(run: Run) -> float:
    """A run's processor time; where it has none on record its time by the clock, times its workers."""
    summary = run.summary
    if summary.cpu_seconds:
        return summary.cpu_seconds
    noted = [line.get("workers") for line in run.events if line.get("event") == BY_WORKERS]
    counts = [each for each in noted if isinstance(each, int) and 0 < each < MOST_WORKERS]
    return max(counts, default=1) * summary.seconds


def protocol(config: Config) -> Protocol:
    """What decides how long a run takes, but for its method."""
    data, train, federation = config.data, config.train, config.federation
    return (
        data.name, data.subset, data.image_size, config.model, train.epochs, train.batch, train.mu,
        federation.rounds, federation.per_round, config.partition.clients, config.compute,
    )  # fmt: skip


def estimate(config: Config) -> float:
    """Core-seconds from operations and the speed of a matrix product: the order of magnitude.

    Methods with several passes a step, such as FedDure, cost more than this says.
    """
    train, federation = config.train, config.federation
    pool = _images(config) / config.partition.clients
    batch = train.batch if train.epoch == "release" else train.batch * train.mu
    steps = max(1, int(pool // batch)) * train.epochs * federation.per_round * federation.rounds
    unlabelled = train.batch * train.mu
    views = len({"u_weak", "u_strong"} & registry.find(config.method.name).method.wants)
    passes = BACKWARD * (train.batch + views * unlabelled) + (unlabelled if views else 0)
    side = (config.data.image_size or SIDE.get(config.data.name, 32)) / 32
    gflop = 2 * GMAC * (config.model.width / 4) ** 2 * side**2 * passes
    share = min(BEST, EFFICIENCY + WIDE * (config.model.width - 1))
    speed = share * _peak(config.compute.dtype, config.compute.device)
    return START_SECONDS + steps * (STEP_OVERHEAD + gflop / speed)


def _images(config: Config) -> float:
    known = sources.find(config.data.name).full_size or 1_300
    return config.data.subset if config.data.subset > 1 else config.data.subset * known


@cache
def _peak(dtype: str, device: str) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return matrix_peak(dtype, torch.device(device), CALIBRATION)
    finally:
        torch.set_num_threads(threads)
