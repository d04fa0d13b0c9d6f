"""Attacks of the test kit: what they send, and that the rules see through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from proxyfl.core.state import Failure, Task, Update
from proxyfl.testing.attacks import (
    Attack,
    AttackedEngine,
    flip_labels,
    model_replacement,
    proxy_poisoning,
    sign_flip,
)
from toybox import Told, little_config, make_simulation, play

OLD = {
    "w": torch.tensor([1.0, 2.0]),
    "norm.running_var": torch.tensor([1.0]),
    "steps": torch.tensor(4),
    "classifier.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]]),
}
NEW = {
    "w": torch.tensor([2.0, 0.0]),
    "norm.running_var": torch.tensor([3.0]),
    "steps": torch.tensor(9),
    "classifier.weight": torch.tensor([[1.0, 3.0], [4.0, 1.0], [3.0, 3.0]]),
}
TASK = Task(1, 0, OLD)


def attacked(attack: Attack) -> Update:
    return attack(Update(1, 0, 10, NEW, {"prior/counts": torch.ones(3)}), TASK)


def test_sign_flip() -> None:
    sent = attacked(sign_flip(2.0))
    assert sent.weights["w"].tolist() == [-1.0, 6.0]
    assert sent.weights["steps"].item() == 9
    assert sent.weights["norm.running_var"].item() == 0, "a negative variance would give it away"
    assert sent.extras["prior/counts"].tolist() == [1.0, 1.0, 1.0]


def test_model_replacement_makes_the_mean_the_attackers_model() -> None:
    sent = attacked(model_replacement(4))
    mean = (sent.weights["w"] + 3 * OLD["w"]) / 4
    assert mean.tolist() == [2.0, 0.0]


def test_proxy_poisoning_moves_rows_towards_the_next_class_and_no_further_than_honest_ones() -> None:
    sent = attacked(proxy_poisoning())
    moved = sent.weights["classifier.weight"] - OLD["classifier.weight"]
    assert moved.norm().item() == pytest.approx(5.0)
    aim = OLD["classifier.weight"].roll(-1, 0) - OLD["classifier.weight"]
    assert torch.allclose(moved / 5, aim / aim.norm())
    assert sent.weights["w"] is NEW["w"]
    further = attacked(proxy_poisoning(2.0)).weights["classifier.weight"] - OLD["classifier.weight"]
    assert further.norm().item() == pytest.approx(10.0)


def test_labels_are_flipped_where_attackers_hold_them() -> None:
    holdings = make_simulation().holdings
    flipped = flip_labels(holdings, [1, 3], 10)
    for client in range(4):
        mine, theirs = holdings.client(client), flipped.client(client)
        assert torch.equal(theirs.labels, 9 - mine.labels if client in (1, 3) else mine.labels)
        assert torch.equal(mine.unlabelled, theirs.unlabelled)
    assert holdings.client(1).labels.tolist() == make_simulation().holdings.client(1).labels.tolist()


class Silent:
    """An engine whose client 2 fails and whose others send what they trained."""

    closed = False

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for task in tasks:
            failed = Failure(task.round, task.client, "fell asleep")
            yield failed if task.client == 2 else Update(task.round, task.client, 10, NEW)

    def close(self) -> None:
        self.closed = True


def test_the_engine_alters_attackers_updates_alone() -> None:
    inner = Silent()
    engine = AttackedEngine(inner, sign_flip(), [1, 2])
    honest, hostile, failed = engine.run(Task(1, client, OLD) for client in range(3))
    assert isinstance(honest, Update)
    assert isinstance(hostile, Update)
    assert honest.weights is NEW
    assert hostile.weights["w"].tolist() == [0.0, 4.0]
    assert isinstance(failed, Failure)
    engine.close()
    assert inner.closed


def test_krum_leaves_a_replaced_model_out_of_everything(tmp_path: Path) -> None:
    simulation = make_simulation((6,) * 6, (26,) * 6)
    config = little_config(
        "proxyfl", clients=6, per_round=6, rounds=1, aggregation__rule="krum", aggregation__hostile=0.15
    )
    told = Told()

    def hostile(strength: float) -> dict[str, torch.Tensor]:
        return play(
            config, simulation, tmp_path / str(strength), observers=[told],
            engine=lambda engine: AttackedEngine(engine, model_replacement(strength), [4]),
        ).weights  # fmt: skip

    first, second = hostile(40.0), hostile(-70.0)
    assert [report.metrics["rejected"] for report in told.reports] == [[4], [4]]
    assert all(4 not in map(int, report.metrics["class_counts"]) for report in told.reports)
    for name, value in first.items():
        assert torch.equal(value, second[name]), "nothing of it arrives, neither in the mean nor in proxies"
