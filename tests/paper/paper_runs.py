"""Micro runs for the tests of this room, trained in this process."""

from __future__ import annotations

from collections.abc import Iterable

from proxyfl import Experiment
from proxyfl.paper import catalogue, plan
from proxyfl.paper.plan import Case
from proxyfl.paper.scales import scale
from proxyfl.runs.batch import Job


def micro_cases(name: str, only: str = "") -> list[Case]:
    size = scale("micro")
    return plan.cases(catalogue.item(name), size, plan.read_choice(only, size))


def train(jobs: Iterable[Job]) -> None:
    for job in jobs:
        if not job.finished:
            Experiment(config=job.config).run(job.path, workers=0)
