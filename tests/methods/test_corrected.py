"""The label-corrected oracle: which labels it replaces, and that nobody else is given the truth."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxyfl.core import plugins
from proxyfl.core.errors import MethodError
from proxyfl.core.rng import rng
from proxyfl.data.stream import Stream
from proxyfl.methods import create
from proxyfl.methods.context import ClientContext
from toybox import Told, assemble, little_config, make_simulation, play, same_bits, same_state
from toyclient import CPU, UNLABELLED, Pool, batch, context, predictions, step

NAME = "gpl-all-corrected"
TRUTH = torch.tensor([3, 3, 3, 3, 3, 3])


@dataclass
class KnownPool(Pool):
    truth: Tensor = field(default_factory=lambda: TRUTH)


def begun(corrected: float, tau: float) -> ClientContext:
    method = create(NAME, {"corrected": corrected, "tau": tau})
    ctx = context(method, pool=KnownPool(batch().u_weak))
    method.begin(ctx)
    return ctx


def decided(ctx: ClientContext) -> list[int]:
    pseudo = step(ctx).pseudo
    assert pseudo is not None
    assert pseudo.mask.all()
    return pseudo.label.tolist()


def test_unsure_images_that_are_chosen_get_their_true_label() -> None:
    rows = predictions(1, batch().u_weak)  # network 1 is the one the client received
    tau = sorted(map(max, rows))[3]  # three of six images are below
    draws = torch.rand(UNLABELLED, generator=rng(1, 0, 0, "corrected")).tolist()
    expected = [
        3 if max(row) < tau and draw < 0.6 else row.index(max(row))
        for row, draw in zip(rows, draws, strict=True)
    ]
    changed = sum(max(row) < tau and draw < 0.6 for row, draw in zip(rows, draws, strict=True))
    assert 0 < changed < 3  # some of the unsure ones are corrected, some are not
    ctx = begun(0.6, tau)
    assert decided(ctx) == expected
    ctx.method.finish(ctx)
    assert ctx.counts == {"unsure": 3.0, "corrected": float(changed)}


def test_all_or_none_corrected() -> None:
    own = [row.index(max(row)) for row in predictions(1, batch().u_weak)]
    assert own != TRUTH.tolist()
    assert decided(begun(1.0, 1.0)) == TRUTH.tolist()
    assert decided(begun(0.0, 1.0)) == own
    assert decided(begun(1.0, 0.0)) == own  # sure of all: nothing to correct


def test_what_a_small_share_corrects_a_larger_one_corrects_too() -> None:
    contexts = [begun(share, 1.0) for share in (0.1, 0.5, 0.9)]
    few, half, most = (ctx.memory["chosen"] for ctx in contexts)
    assert not (few & ~half).any()
    assert not (half & ~most).any()
    again = begun(0.5, 1.0)
    again.task = type(again.task)(7, 0, again.task.weights)  # another round
    again.method.begin(again)
    assert torch.equal(again.memory["chosen"], half)


def test_with_no_label_corrected_it_trains_like_gpl_all(tmp_path: Path) -> None:
    simulation = make_simulation()
    plain = play(little_config("gpl-all"), simulation, tmp_path / "plain")
    none = play(little_config(NAME, method__corrected=0.0), simulation, tmp_path / "none")
    every = play(little_config(NAME), simulation, tmp_path / "every")
    assert same_bits(none.weights, plain.weights)
    assert not same_bits(every.weights, plain.weights)


@pytest.mark.parametrize(("pool", "count"), [("all", 10), ("unlabelled", 7)])
def test_the_truth_follows_the_pool(pool: str, count: int) -> None:
    simulation = make_simulation((3,), (7,))
    config = little_config(NAME, train__pool=pool)
    for oracle in (True, False):
        data = simulation.holdings.client(0, oracle=oracle)
        stream = Stream(
            data, config.train, simulation.train_views, frozenset({"x"}), rng(1, 1, 0, "batches"), CPU
        )
        assert len(stream.pool) == count
        if oracle:
            assert stream.truth is not None
            assert torch.equal(stream.truth, simulation.dataset.train.labels[stream.pool])
        else:
            assert stream.truth is data.truth is None


def test_who_is_no_oracle_cannot_ask() -> None:
    class Unknown(Pool):
        truth = None

    ctx = context(create("gpl-all"), pool=Unknown(batch().u_weak))
    with pytest.raises(MethodError, match=r"fixmatch .*oracle = True"):
        _ = ctx.truth
    with pytest.raises(MethodError, match="declared oracles"):
        make_simulation().holdings.client(0).all_labelled()


@pytest.mark.slow
def test_a_worker_process_has_the_truth_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "loaded", [])  # those of other tests may be gone by now
    simulation, config = make_simulation(), little_config(NAME, rounds=1, method__corrected=0.5)
    here, there = Told(), Told()
    inline = play(config, simulation, tmp_path / "inline", observers=[here])
    federation, _ = assemble(tmp_path / "pool", config, simulation, 1)
    with closing(federation.engine):
        pooled = play(
            config, simulation, tmp_path / "pool", observers=[there], engine=lambda _: federation.engine
        )
    assert same_state(inline, pooled)
    assert here.reports[0].metrics == there.reports[0].metrics
    counts = here.reports[0].metrics["counts"]
    assert 0 < counts["corrected"] < counts["unsure"]
