"""Robust rules in a round: what becomes the mean, what server hooks read, and what is refused."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.aggregation.build import build_aggregator
from proxyfl.aggregation.coverage import reads_updates
from proxyfl.core.config import AggregationSettings, FederationSettings, PrivacySettings, TrainSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import ServerState, Update
from proxyfl.federation.fold import Fold
from proxyfl.federation.sampling import Population
from proxyfl.methods import create, recipes
from proxyfl.methods.base import Method, overrides
from proxyfl.methods.context import ServerContext
from proxyfl.runs.settings import identity, resolve
from toybox import Told, assemble, make_simulation, play, same_bits, same_state, tiny_config

SIMULATION = make_simulation((6,) * 6, (26, 42, 10, 26, 30, 18))
STATE = ServerState(0, {"classifier.weight": torch.zeros(2, 2), "steps": torch.tensor(3)})
PEOPLE = Population(np.full(9, 2), np.full(9, 8))


def fold(
    method: str | Method = "gpt-only",
    folder: Path | None = None,
    state: ServerState = STATE,
    weighting: str = "uniform",
    **settings: Any,
) -> Fold:
    return Fold(
        build_aggregator(AggregationSettings(**settings), PrivacySettings()),
        create(method) if isinstance(method, str) else method,
        context(),
        state,
        list(range(9)),
        PEOPLE,
        train=TrainSettings(),
        federation=FederationSettings(per_round=9, weighting=weighting),
        spool=folder,
    )


def context() -> ServerContext:
    return ServerContext(1, 1, 2, torch.device("cpu"), {}, {})


def answer(client: int, rows: list[list[float]], **changes: Any) -> Update:
    weights = {"classifier.weight": torch.tensor(rows), "steps": torch.tensor(10 + client)}
    return dataclasses.replace(Update(1, client, 10, weights), **changes)


def diagonal(*values: float) -> list[Update]:
    return [answer(k, [[value, 0.0], [0.0, 2 * value]]) for k, value in enumerate(values)]


def settled(folded: Fold, updates: list[Update]) -> tuple[dict[str, Tensor], ServerContext, list[Any]]:
    for update in updates:
        assert folded.take(update) is not None
    assert not folded.failed
    ctx = context()
    ctx.clients, ctx.samples = folded.clients, folded.samples
    weights = folded.mean(ctx)
    read = [tensors["gpt/rows"].diagonal().tolist() for tensors in folded.kept if "gpt/rows" in tensors]
    return weights, ctx, read


def test_median(tmp_path: Path) -> None:
    weights, ctx, read = settled(fold(folder=tmp_path, rule="median"), diagonal(1, 2, 3, 4, 900))
    assert weights["classifier.weight"].tolist() == [[3.0, 0.0], [0.0, 6.0]]
    assert weights["steps"].item() == 12
    assert weights["steps"].dtype == torch.int64
    assert read == [[2.0, 4.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0], [4.0, 8.0]], "drawn to the middle half"
    assert "rejected" not in ctx.metrics
    assert not any(tmp_path.iterdir())


def test_trimmed_mean(tmp_path: Path) -> None:
    weights, _, read = settled(fold(folder=tmp_path, rule="trimmed", hostile=0.2), diagonal(1, 2, 3, 7, -900))
    assert weights["classifier.weight"].tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert read == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [3.0, 6.0], [1.0, 2.0]], "what is left is trusted"


def test_krum_keeps_rejected_rows_from_proxy_tuning(tmp_path: Path) -> None:
    folded = fold(folder=tmp_path, rule="krum", hostile=0.2)
    weights, ctx, read = settled(folded, diagonal(1, 2, 900, 3, 4))
    assert weights["classifier.weight"].tolist() == [[2.5, 0.0], [0.0, 5.0]]
    assert read == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]]
    assert (ctx.clients, ctx.metrics["rejected"]) == ([0, 1, 3, 4], [2])
    assert len(ctx.samples) == len(ctx.rule_weights) == 4
    assert folded.clients == [0, 1, 2, 3, 4], "they answered, so what they keep to themselves moves on"


def test_krum_of_one() -> None:
    weights, ctx, _ = settled(fold(rule="krum", hostile=0.2, keep=1), diagonal(1, 2, 900, 3, 4))
    assert weights["classifier.weight"][0, 0].item() in (2.0, 3.0)
    assert len(ctx.metrics["rejected"]) == 4


def test_clipping_to_a_length() -> None:
    """The change (3, 0, 0, 4) shortened to 2.5 is half of it; (0.3, …) stays."""
    updates = [answer(0, [[3.0, 0.0], [0.0, 4.0]]), answer(1, [[0.3, 0.0], [0.0, 0.4]])]
    weights, _, read = settled(fold(clip=2.5), updates)
    assert weights["classifier.weight"].diagonal().tolist() == pytest.approx([0.9, 1.2])
    assert read == [pytest.approx([1.5, 2.0]), pytest.approx([0.3, 0.4])], "proxy tuning reads what is left"


def test_clipping_to_the_median_length() -> None:
    updates = [answer(k, [[3.0 * s, 0.0], [0.0, 4.0 * s]]) for k, s in enumerate((1.0, 2.0, 100.0))]
    weights, _, read = settled(fold(clip=1.0, clip_by="median"), updates)
    assert weights["classifier.weight"].diagonal().tolist() == pytest.approx([5.0, 20 / 3])
    assert read == [pytest.approx([3.0, 4.0]), pytest.approx([6.0, 8.0]), pytest.approx([6.0, 8.0])]


def test_clipping_and_a_rule() -> None:
    updates = diagonal(-1, 1, 2, 3, 900)
    weights, _, _ = settled(fold(rule="trimmed", hostile=0.0, clip=5**0.5), updates)
    assert weights["classifier.weight"][0, 0].item() == pytest.approx((-1 + 1 + 1 + 1 + 1) / 5)


def test_extras_are_drawn_in_and_chosen_like_weights(tmp_path: Path) -> None:
    counts = [[5.0, 5.0], [6.0, 4.0], [4.0, 6.0], [5.0, 5.0], [0.0, 130.0]]
    updates = [
        dataclasses.replace(update, extras={"prior/counts": torch.tensor(count)})
        for update, count in zip(diagonal(1, 2, 3, 4, 900), counts, strict=True)
    ]
    for rule, expected in (
        ("trimmed", [[5.0, 5.0], [5.0, 5.0], [4.0, 6.0], [5.0, 5.0], [4.0, 6.0]]),
        ("krum", counts[:4]),
    ):
        folded = fold("fixmatch-gpl+prior", tmp_path, rule=rule, hostile=0.2)
        settled(folded, updates)
        assert [tensors["prior/counts"].tolist() for tensors in folded.kept] == expected


class Formless(Method):
    """Reads extras without saying what they look like, as a plug-in may."""

    name = "formless"

    def receive(self, update: Update) -> dict[str, Tensor]:
        return dict(update.extras)


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum"])
def test_extras_without_a_form_do_not_end_a_round(rule: str) -> None:
    """One client sends another shape, one sends none: nobody could say which of them is right."""
    folded = fold(Formless(Formless.Parameters()), rule=rule)
    for update, size in zip(diagonal(1, 2, 3, 4), (2, 2, 3, 0), strict=True):
        folded.take(dataclasses.replace(update, extras={"formless/a": torch.ones(size)} if size else {}))
    assert folded.mean(context())["classifier.weight"].isfinite().all()
    if rule == "krum":
        assert folded.clients == [0, 1, 2, 3], "it draws nothing in"
        return
    assert folded.clients == [3]
    assert f"sends 'formless/a', but aggregation.rule = '{rule}'" in folded.failed[0]


@pytest.mark.parametrize(
    ("rule", "hostile", "count", "withstood"),
    [("krum", 0.3, 9, None), ("krum", 0.3, 8, 2), ("krum", 0.3, 2, 0), ("trimmed", 0.2, 9, None),
     ("trimmed", 0.2, 2, 0), ("trimmed", 0.2, 5, 1), ("median", 0.2, 2, None)],
)  # fmt: skip
def test_a_round_that_withstands_less_than_planned_says_so(
    rule: str, hostile: float, count: int, withstood: int | None
) -> None:
    _, ctx, _ = settled(fold(rule=rule, hostile=hostile), diagonal(*range(1, count + 1)))
    assert ctx.metrics.get("withstood") == withstood


def test_a_method_that_reads_nothing_is_spared_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = fold("fedavg", rule="median")
    monkeypatch.setattr("proxyfl.aggregation.coordinates.drawn_in", None)
    weights, _, _ = settled(folded, diagonal(1, 2, 3))
    assert weights["classifier.weight"][0, 0].item() == 2.0


def test_weights_of_the_method_hold_for_clipped_updates(tmp_path: Path) -> None:
    averages = [[0.9, 0.1], [0.1, 0.9]]
    for by in ("length", "median"):
        folded = fold("feddb", tmp_path, clip=1.0, clip_by=by)
        updates = [
            dataclasses.replace(update, extras={"feddb/average": torch.tensor(average)})
            for update, average in zip(diagonal(1, 3), averages, strict=True)
        ]
        weights, ctx, _ = settled(folded, updates)
        assert ctx.metrics["client_weights"] == pytest.approx([0.5, 0.5])
        reached = {"length": (1 + 1) / 5**0.5 / 2, "median": (1 + 2) / 2}[by]
        assert weights["classifier.weight"][0, 0].item() == pytest.approx(reached)
        assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "layer", "reason"),
    [
        ("feddb", {"aggregation": {"rule": "median"}}, "feddb chooses weights of its own"),
        ("fedmatch", {"aggregation": {"rule": "trimmed"}}, "fedmatch chooses weights of its own"),
        ("feddb", {"aggregation": {"rule": "krum"}}, "feddb chooses weights of its own"),
        (
            "fedavg",
            {"aggregation": {"rule": "median"}, "train": {"leak_momentum": True}},
            "the momentum that clients pass on",
        ),
        (
            "fedavg",
            {"aggregation": {"rule": "krum", "hostile": 0.4}},
            "hostile = 0.4 is too much",
        ),
        ("fedavg", {"aggregation": {"rule": "average"}}, "is not one of mean, median, trimmed, krum"),
        ("fedavg", {"aggregation": {"hostile": 0.5}}, "aggregation.hostile = 0.5 is above 0.49"),
    ],
)
def test_refusals(method: str, layer: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        resolve("digits", layer, {"method": {"name": method}})
    assert "\n" not in str(refused.value)


def test_what_reads_updates_is_told_from_hooks() -> None:
    class Curious(Method):
        name = "curious"

        def receive(self, update: Update) -> dict[str, Tensor]:
            return {}

    assert reads_updates(Curious(Curious.Parameters()))
    assert overrides(create("feddb"), "weights")
    assert not overrides(create("sage"), "weights")
    found = {recipe.name for recipe in recipes() if reads_updates(create(recipe.name))}
    assert {"proxyfl", "gpt-only", "icpl-only", "proto", "feddb", "fedmatch"} <= found
    assert found.isdisjoint(
        {"fedavg", "fixmatch-gpl", "fixmatch-lpl", "flexmatch", "fedloke", "sage", "feddure"}
    )


def test_settings_that_are_left_alone_do_not_rename_runs() -> None:
    plain = resolve("digits", {"compute": {"dtype": "fp32"}})
    assert identity(plain)[:6] == "3897fe", "as it was before there were these settings"
    other = resolve("digits", {"compute": {"dtype": "fp32"}, "aggregation": {"rule": "median"}})
    assert identity(other) != identity(plain)


RULES: list[dict[str, Any]] = [
    {"rule": "krum", "hostile": 0.15},
    {"rule": "median", "clip": 1.0},
    {"rule": "trimmed", "clip": 1.0, "clip_by": "median"},
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"])
def test_every_engine_gives_the_same_bits(tmp_path: Path, rule: dict[str, Any]) -> None:
    given = {f"aggregation__{name}": value for name, value in rule.items()}
    config = tiny_config("proxyfl", clients=6, per_round=6, **given)
    told = Told()
    here = play(config, SIMULATION, tmp_path / "inline", observers=[told])
    federation, _ = assemble(tmp_path / "pool", config, SIMULATION, 1)
    with closing(federation.engine):
        there = play(config, SIMULATION, tmp_path / "pool", engine=lambda _: federation.engine)
    assert same_state(here, there)
    left_out = [len(report.metrics.get("rejected", [])) for report in told.reports]
    assert left_out == ([1, 1] if rule["rule"] == "krum" else [0, 0])


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "krum"])
@pytest.mark.parametrize("by", ["length", "median"])
def test_the_order_of_names_does_not_matter(rule: str, by: str) -> None:
    """Another wire, or a checkpoint that was read again, may name tensors in another order."""
    generator = torch.Generator().manual_seed(4)
    shapes = {"a.weight": (7, 5), "b.bias": (9,), "classifier.weight": (2, 2), "z.running_mean": (6,)}

    def drawn() -> dict[str, Tensor]:
        floats = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        return {**floats, "steps": torch.tensor(3)}

    old, given = drawn(), [drawn() for _ in range(7)]
    clip = 0.7 if by == "median" else 6.0
    found = []
    for turned in (False, True):
        state = ServerState(0, dict(sorted(old.items(), reverse=turned)))
        folded = fold(state=state, weighting="size", rule=rule, hostile=0.2, clip=clip, clip_by=by)
        updates = [Update(1, k, 10, dict(sorted(w.items(), reverse=turned))) for k, w in enumerate(given)]
        weights, _, _ = settled(folded, updates)
        kept = {str(k): tensors["gpt/rows"] for k, tensors in enumerate(folded.kept)}
        found.append((weights, kept))
    (weights, kept), (again, kept_again) = found
    assert same_bits(weights, again)
    assert same_bits(kept, kept_again)
