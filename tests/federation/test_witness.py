"""What is noted of each client of a round, in literal numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.aggregation import Clip, Mean
from proxyfl.aggregation.base import Aggregator
from proxyfl.core.config import FederationSettings, KeepSettings, TrainSettings
from proxyfl.core.state import ServerState, Update
from proxyfl.federation import witness
from proxyfl.federation.fold import Fold
from proxyfl.federation.sampling import Population
from proxyfl.methods.context import ServerContext
from proxyfl.methods.registry import create

OLD = {"w": torch.tensor([1.0, 1.0]), "steps": torch.tensor(5)}
PEOPLE = Population(np.array([2, 5, 0]), np.array([8, 5, 20]))
MOVES = ((3.0, 4.0), (4.0, -3.0), (-6.0, 0.0))


def rows(spool: Path, rule: Aggregator | None = None, **keep: Any) -> list[dict[str, Any]]:
    """Of three clients with 10, 10 and 20 images: the mean of their changes is (-1.25, 0.25)."""
    ctx = ServerContext(3, 1, 3, torch.device("cpu"), {}, {})
    settings: Any = {"train": TrainSettings(), "federation": FederationSettings(), "spool": spool}
    state = ServerState(2, OLD)
    fold = Fold(
        rule or Mean(), create("fedavg"), ctx, state, [0, 1, 2], PEOPLE, keep=KeepSettings(**keep), **settings
    )
    for client, move in enumerate(MOVES):
        weights = {"w": OLD["w"] + torch.tensor(move), "steps": torch.tensor(9)}
        metrics = {"steps": 4.0, "loss/own": 2.0 * client}
        if client:
            counted = {"visits": 8.0, "selected": 2.0 * client, "excluded_images": 1.0}
            metrics |= {f"pseudo/{name}": value for name, value in counted.items()}
        answer = fold.take(
            Update(3, client, int(PEOPLE.sizes[client]), weights, metrics=metrics, seconds=0.25 * client)
        )
        assert isinstance(answer, Update)
    return fold.rows()


def test_norm_and_cosine_to_the_mean_and_what_else_is_noted(tmp_path: Path) -> None:
    length = (1.25**2 + 0.25**2) ** 0.5
    noted = rows(tmp_path)
    assert [row["norm"] for row in noted] == [5.0, 5.0, 6.0]
    assert [row["cosine"] for row in noted] == pytest.approx(
        [-2.75 / (5 * length), -5.75 / (5 * length), 7.5 / (6 * length)], abs=1e-6
    )
    assert [row["labelled"] for row in noted] == [0.2, 0.5, 0.0]
    assert [row.get("trusted") for row in noted] == [None, 0.25, 0.5]
    assert [row["losses"] for row in noted] == [{"own": 0.0}, {"own": 0.5}, {"own": 1.0}]
    assert [row["seconds"] for row in noted] == [0.0, 0.25, 0.5]
    assert [(row["round"], row["client"], row["images"]) for row in noted] == [
        (3, 0, 10),
        (3, 1, 10),
        (3, 2, 20),
    ]


def test_the_norm_is_that_before_clipping(tmp_path: Path) -> None:
    assert [row["norm"] for row in rows(tmp_path, Clip(1.0))] == [5.0, 5.0, 6.0]


def test_none_is_none_and_large_rounds_are_noted_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(tmp_path, clients="none") == []
    assert [KeepSettings().watches(count) for count in (100, 101)] == [True, False]
    assert KeepSettings(clients="all").watches(101)
    monkeypatch.setattr(witness, "MOST_WAITING", 3 * 8 - 1)
    assert ["cosine" in row for row in rows(tmp_path)] == [False] * 3


def test_no_change_has_no_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MOVES", ((3.0, 0.0), (0.0, 0.0), (1.0, 0.0)))
    assert [row.get("cosine") for row in rows(tmp_path)] == [1.0, None, 1.0]
