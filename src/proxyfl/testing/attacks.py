"""Clients that mean harm, for tests and benchmarks: an engine around another whose chosen clients attack.

An attacker answers in form, so that the guard has nothing to object to. What it does to its update::

    sign flip            g - s (x - g): back where honest clients would go forward
    model replacement    g + s (x - g): its own model, so long that the mean of all becomes it
    proxy poisoning      classifier rows alone: each class's row moves towards the next class's, by as much as
                         its honest rows moved and no more, so that no length gives it away

with g the weights it was sent, x those it trained. Label flipping happens before the training, at its data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

import torch

from proxyfl.core.state import Failure, Task, Tensors, Update
from proxyfl.data.holdings import Holdings
from proxyfl.federation.loop import Engine

Attack = Callable[[Update, Task], Update]
CLASSIFIER = "classifier.weight"


def sign_flip(strength: float = 1.0) -> Attack:
    """The honest change turned round."""
    return lambda update, task: _moved(update, task, -strength)


def model_replacement(strength: float) -> Attack:
    """The attacker's change times ``strength``; as many as take part make the mean its model."""
    return lambda update, task: _moved(update, task, strength)


def proxy_poisoning(strength: float = 1.0) -> Attack:
    """Rows that stand for other classes, at ``strength`` times the honest length of their change."""

    def attack(update: Update, task: Task) -> Update:
        old, new = task.weights[CLASSIFIER].double(), update.weights[CLASSIFIER].double()
        aim = old.roll(-1, 0) - old
        length = (new - old).norm() * strength
        rows = old + aim * (length / aim.norm().clamp(min=1e-12))
        return dataclasses.replace(
            update, weights={**update.weights, CLASSIFIER: rows.to(update.weights[CLASSIFIER].dtype)}
        )

    return attack


def flip_labels(holdings: Holdings, attackers: Collection[int], classes: int) -> Holdings:
    """The same images, with class c called C − 1 − c wherever an attacker holds the label."""
    labels = holdings.labels.clone()
    for client in attackers:
        held = torch.from_numpy(holdings.partition.labelled[client])
        labels[held] = classes - 1 - holdings.labels[held]
    return dataclasses.replace(holdings, labels=labels)


class AttackedEngine:
    """Lets another engine train everyone, and alters the updates of ``attackers`` on their way."""

    def __init__(self, engine: Engine, attack: Attack, attackers: Collection[int]) -> None:
        self.engine, self.attack, self.attackers = engine, attack, frozenset(attackers)

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        sent: dict[int, Task] = {}

        def noted() -> Iterator[Task]:
            for task in tasks:
                if task.client in self.attackers:
                    sent[task.client] = task
                yield task

        for answer in self.engine.run(noted()):
            if isinstance(answer, Update) and answer.client in sent:
                answer = self.attack(answer, sent.pop(answer.client))
            yield answer

    def close(self) -> None:
        self.engine.close()


def _moved(update: Update, task: Task, factor: float) -> Update:
    weights: Tensors = {}
    for name, value in update.weights.items():
        old = task.weights[name].double()
        moved = (old + factor * (value.double() - old)).to(value.dtype)
        weights[name] = moved if value.is_floating_point() else value
    for name, value in weights.items():
        if name.endswith("running_var"):  # a negative variance would give the attacker away
            weights[name] = value.clamp(min=0)
    return dataclasses.replace(update, weights=weights)
