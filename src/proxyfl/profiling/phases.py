"""What a profile says: the phases of a step and of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxyfl.core.spans import (
    BACKWARD,
    BEGIN,
    FINISH,
    FORWARD,
    LOSSES,
    OBSERVE,
    OPTIMISER,
    PSEUDO,
    ROUND,
    STRONG,
    TEACHER,
    WEAK,
    loss_span,
)

REST = "rest"
"""What is left of a step."""

NETWORK = (TEACHER, FORWARD, BACKWARD)
"""The phases in which the network computes."""

FIRST = (WEAK, STRONG, TEACHER, FORWARD, PSEUDO)
LAST = (BACKWARD, OPTIMISER, OBSERVE, REST)
ON_CLIENT = (BEGIN, FINISH, ROUND)

LEAST = 0.0005
"""The share of a step from which on deciding and observing are no part of the rest."""


@dataclass(frozen=True)
class Phase:
    """A part of a step or of a round. ``gflop`` are the operations of convolutions and matrix products."""

    name: str
    ms: float
    gflop: float = 0.0

    @property
    def gflops(self) -> float:
        """Billions of operations per second."""
        return 1000 * self.gflop / self.ms if self.ms else 0.0


@dataclass(frozen=True)
class Encoding:
    """What a frozen encoder costs before the first round. ``phases`` are those of a training sample; there
    are ``samples`` to train on, each in so many ``views``, the sample itself among them.
    """

    phases: tuple[Phase, ...]
    samples: int
    views: int
    called: str

    @property
    def ms(self) -> float:
        return sum(phase.ms for phase in self.phases)

    @property
    def per_second(self) -> float:
        """Features."""
        return 1000 * self.views / self.ms

    @property
    def seconds(self) -> float:
        """All training samples, projected."""
        return self.samples * self.ms / 1000


@dataclass(frozen=True)
class Profile:
    """What was measured. ``step`` are the phases of a mean step and add up to it; ``client`` and ``server``
    happen once a round. Convolution shares are parts of a step's time; ``peak`` is what a plain matrix
    product reaches, in GFLOP/s; ``cores`` is CPU time over wall time.
    """

    method: str
    data: str
    network: str
    dtype: str
    device: str
    threads: int
    client_id: int
    images: int
    steps: int
    steps_per_round: int
    updates: int
    test_images: tuple[int, int]
    step: tuple[Phase, ...]
    client: tuple[Phase, ...]
    server: tuple[Phase, ...]
    conv_forward: float
    conv_backward: float
    peak: float
    memory: int
    cores: float
    encoding: Encoding | None = None
    called: str = "images"
    """What ``images`` and ``test_images`` count: images, vectors or texts."""

    @property
    def step_ms(self) -> float:
        return sum(phase.ms for phase in self.step)

    @property
    def round_seconds(self) -> float:
        """The client's whole round, projected from the steps that were taken."""
        return (self.steps_per_round * self.step_ms + sum(phase.ms for phase in self.client)) / 1000

    @property
    def network_phase(self) -> Phase:
        """Teacher, forward and backward pass together."""
        parts = [phase for phase in self.step if phase.name in NETWORK]
        return Phase("network", sum(part.ms for part in parts), sum(part.gflop for part in parts))

    def share(self, phase: Phase) -> float:
        """Of a step's time."""
        return phase.ms / self.step_ms

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Profile:
        """The inverse of ``dataclasses.asdict``."""
        rows = {name: tuple(Phase(**row) for row in tree[name]) for name in ("step", "client", "server")}
        made = tree.get("encoding")
        encoding = (
            Encoding(**{**made, "phases": tuple(Phase(**row) for row in made["phases"])}) if made else None
        )
        return cls(**{**tree, **rows, "test_images": tuple(tree["test_images"]), "encoding": encoding})


def step_phases(spent: Mapping[str, float], losses: Iterable[str]) -> dict[str, float]:
    """What a step's phases took, in the order of a step; ``losses`` are the names of the method's own."""
    found = {name: value for name, value in spent.items() if name not in (*ON_CLIENT, LOSSES)}
    own = loss_span(*losses)
    place = REST if own == loss_span() else own
    found[place] = found.get(place, 0.0) + spent.get(LOSSES, 0.0)
    least = LEAST * sum(found.values())
    for name in (PSEUDO, OBSERVE):
        if found.get(name, least) < least:
            found[REST] += found.pop(name)
    middle = sorted((name for name in found if name not in FIRST + LAST), key=_place)
    return {name: found[name] for name in (*FIRST, *middle, *LAST) if name in found}


def _place(name: str) -> tuple[bool, bool]:
    """Supervised first, then the method's own losses, then those of add-ons in their order."""
    return name != loss_span("supervised"), not name.startswith(loss_span("unlabelled"))
