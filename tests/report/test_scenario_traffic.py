"""What a method is said to send is what its clients send."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from proxyfl.deploy.explain import dry_run
from proxyfl.deploy.settings import Deployment
from proxyfl.methods import create
from proxyfl.report.communication import Setting
from proxyfl.report.scenario_traffic import numbers


def size(*parts: dict[str, Tensor]) -> int:
    return sum(value.numel() for part in parts for value in part.values())


@pytest.mark.parametrize("name", ["semifl", "proxyfl", "feddb", "proto"])
def test_declared_numbers_are_those_of_a_rehearsal(name: str) -> None:
    deployment = Deployment(
        address="localhost:8000", classes=("cat", "dog", "eel"), channels=1, image_size=8, mean=(0.5,),
        std=(0.25,), sites=("a", "b"), holdout=0.2, server_data="/labelled", path=Path("/deployment"),
        experiment={
            "preset": "digits", "federation": {"per_round": 2}, "compute": {"dtype": "fp32"},
            "labels": {"where": "server"}, "method": {"name": name},
        },
    )  # fmt: skip
    task, update = dry_run(deployment)
    setting = Setting("resnet8", 1, 3, 1, 2, image_size=8)
    sent = size(update.weights, update.extras), size(task.weights, task.extras, task.personal)
    assert numbers(create(name), setting) == sent
