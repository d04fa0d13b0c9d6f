"""How much a client can have done: literal numbers, and what every method really does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from proxyfl.aggregation.effort import Effort, most_effort
from proxyfl.core.config import TrainSettings
from proxyfl.core.state import Failure, Update
from proxyfl.methods import create
from toybox import Told, every_method, little_config, make_simulation, play

TRAIN = TrainSettings(epochs=5, batch=128, mu=2)


@pytest.mark.parametrize(
    ("images", "changes", "expected"),
    [
        # 434 // 128 = 3 steps of 128 + 256 images
        (434, {}, Effort(434, steps=15, epochs=5, visits=1152)),
        # 434 // 256 = 1
        (434, {"epoch": "pass"}, Effort(434, steps=5, epochs=5, visits=384)),
        # fewer than a batch: labelled images are drawn with replacement, the pool is walked once
        (10, {}, Effort(10, steps=5, epochs=5, visits=138)),
        (1, {"epochs": 1, "batch": 1, "mu": 1}, Effort(1, steps=1, epochs=1, visits=2)),
    ],
)
def test_literal_numbers(images: int, changes: dict[str, Any], expected: Effort) -> None:
    assert most_effort(dataclasses.replace(TRAIN, **changes), create("proxyfl"), images) == expected


def test_a_method_with_steps_of_its_own_says_so() -> None:
    """Passes over the labels round up, and a walk through labelled images is by batches of them."""
    by_labels = create("fedavg", {"steps": "labelled"})
    assert most_effort(TRAIN, by_labels, 434).steps == 5 * 4
    one_pass = dataclasses.replace(TRAIN, epoch="pass")
    assert most_effort(one_pass, create("fedavg-sl"), 434).steps == 5 * 3


SMALL = [
    {"train__batch": 3, "train__mu": 2, "train__epochs": 2, "train__epoch": "release", "train__pool": "all"},
    {"train__batch": 40, "train__mu": 1, "train__epoch": "pass", "train__pool": "unlabelled"},
]
ODD = {"labelled": (8, 0, 8, 1), "unlabelled": (16, 20, 0, 0)}
"""A usual client, one without labels, one without unlabelled images, one with a single image."""


class Heard(Told):
    """Keeps the metrics of each update."""

    def answered(self, answer: Update | Failure) -> None:
        assert isinstance(answer, Update), answer
        super().answered(answer)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SMALL[0], id="small batches"),
        pytest.param(SMALL[1], id="large batches", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", every_method())
def test_what_honest_clients_report_is_within_their_means(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Of every method every update is taken, and without the room that is left for methods of one's own."""
    tune = {"method__gpt__epochs": 1} if "gpt" in {part.name for part in create(name).parts} else {}
    config = little_config(name, per_round=4, rounds=1, **settings, **tune)
    told = Heard()
    play(config, make_simulation(**ODD), tmp_path, observers=[told])
    updates = [answer for kind, answer in told.calls if kind == "answered"]
    assert len(updates) + len(told.reports[0].metrics["idle"]) == 4
    for update in updates:
        most = most_effort(config.train, create(name), update.samples)
        assert 0 < update.metrics["steps"] <= most.steps
        for key, value in update.metrics.items():
            if key.startswith("pseudo/") and key != "pseudo/set_size":
                assert value <= 2 * max(most.visits, most.images), key  # FedDure notes each decision twice
        for counts in (update.extras[key] for key in create(name).all_counts):
            assert 0 <= float(counts.sum()) <= most.visits


def test_counts_and_losses_beyond_a_clients_means_leave_no_trace(tmp_path: Path) -> None:
    """9e14 images of one class would be the prior, 1e19 the mean loss: the client is named instead."""

    class Boasting:
        def __init__(self, engine: Any) -> None:
            self.engine = engine

        def run(self, tasks: Any) -> Any:
            for answer in self.engine.run(tasks):
                if answer.client == 1:
                    answer.extras["prior/counts"][0] = 9e14
                if answer.client == 2:
                    answer.metrics["loss/supervised"] = 1e19
                yield answer

    config = little_config("fixmatch-gpl+prior", per_round=4, rounds=1)
    told = Told()
    play(config, make_simulation(), tmp_path, observers=[told], engine=Boasting)
    metrics = told.reports[0].metrics
    assert sorted(metrics["clients"]) == [0, 3]
    assert metrics["failed"].keys() == {"1", "2"}
    assert "its class counts add up to 9e+14" in metrics["failed"]["1"]
    assert "loss/supervised is 1e+19" in metrics["failed"]["2"]
    assert max(metrics["prior"]) < 0.11
    assert metrics["losses"]["supervised"] < 10
    assert set(metrics["class_counts"]) == {"0", "3"}
