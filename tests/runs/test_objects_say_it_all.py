"""Whatever a config can say about an experiment, objects can say, too: fidelity, views, computing."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from proxyfl.core.config import ComputeSettings, FederationSettings
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.methods import ProxyFL
from proxyfl.methods.addons import GPT
from proxyfl.runs import build
from proxyfl.runs.simulation import simulate
from proxyfl.runs.views import views_of
from toybox import make_simulation, same_state, tiny_config

COLOUR = make_simulation(channels=3)
DATA, SPLIT = dataclasses.replace(COLOUR.dataset, flip=True), COLOUR.partition
OTHER = proxyfl.Views(flip=False, mean=(0.2,) * 3, std=(0.3,) * 3)


def federation(**changes: Any) -> proxyfl.Federation:
    options: dict[str, Any] = {"rounds": 1, "per_round": 2, "width": 1, "dtype": "fp32", "workers": 0}
    train = proxyfl.Train(epochs=1, batch=8)
    return proxyfl.Federation(DATA, SPLIT, **{**options, "train": train, **changes})


@pytest.mark.parametrize("fidelity", ["code", "paper"])
@pytest.mark.parametrize("named", [True, False])
def test_a_fidelity_by_name_and_by_objects(fidelity: str, named: bool) -> None:
    config = tiny_config(rounds=1, fidelity=fidelity)
    views = views_of(DATA, config.vectors, config.data.norm, config.data.flip)
    by_name = build.assemble(config, simulate(DATA, SPLIT, views=views), workers=0)
    train = {key: getattr(config.train, key) for key in ("epochs", "batch", "lr", "mu")}
    ours = federation(
        fidelity=fidelity,
        method="proxyfl" if named else ProxyFL(fidelity=fidelity),
        train=proxyfl.Train.of(fidelity, **train),
        seed=config.seed,
    )
    for section in ("train", "federation", "method", "compute", "fidelity"):
        assert getattr(ours.config, section) == getattr(config, section), section
    assert (ours.config.data.norm, ours.config.data.flip) == (config.data.norm, config.data.flip)
    assert same_state(by_name.run().state, ours.run().state)


def test_parts_that_nobody_gives_are_made_in_the_fidelity_of_the_method() -> None:
    usual, paper = ProxyFL(), ProxyFL(fidelity="paper")
    assert [part.parameters for part in usual.addons] != [part.parameters for part in paper.addons]
    assert ProxyFL(fidelity="paper", addons=[GPT(batch=2)]).addons[0].parameters.batch == 2
    for wrong in (lambda: ProxyFL(fidelity="pap"), lambda: proxyfl.Train.of("pap"),
                  lambda: federation(fidelity="pap")):  # fmt: skip
        with pytest.raises(ConfigError, match="did you mean 'paper'"):
            wrong()


def test_views_of_ones_own_normalise_and_are_part_of_the_run(tmp_path: Path) -> None:
    ours = federation(test_views=OTHER)
    assert ours.simulation.train_views.mean == DATA.mean
    assert ours.run().history[0].accuracy == ours.evaluate().accuracy
    seen = federation(views=OTHER)
    assert seen.simulation.test_views == seen.simulation.train_views == OTHER
    assert ours.config.data.norm != seen.config.data.norm
    assert {ours.config.data.norm[:7], seen.config.data.norm[:7]} == {"object:"}
    seen.record(tmp_path / "run").run()
    with pytest.raises(RunError, match=r"data\.norm"):
        federation().resume(tmp_path / "run")
    assert federation(views=OTHER).resume(tmp_path / "run").state.round == 1
    card = proxyfl.load_model(tmp_path / "run" / "models" / "last.safetensors").card
    assert tuple(card.mean) == OTHER.mean


@pytest.mark.parametrize(
    ("changes", "fault"), [({"mean": (0.5,)}, "needs 3 of each"), ({"std": (0.5, 0.0, 0.5)}, "above 0")]
)
def test_views_that_do_not_fit_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        federation(test_views=dataclasses.replace(OTHER, **changes))


def test_images_are_held_out_to_choose_by() -> None:
    split = proxyfl.partition(DATA, clients=4, per_class=6, scheme="iid", validation=0.2)
    assert split.validation is not None
    kept = split.validation.values
    assert len(kept) == 10
    assert not set(kept) & {*split.labelled.values, *split.unlabelled.values}
    ours = proxyfl.Federation(DATA, split, "resnet8", "fedavg", rounds=1, per_round=2, width=1, workers=0)
    assert "validation" in ours.run().history[0].metrics


@pytest.mark.parametrize("section", [FederationSettings, ComputeSettings])
def test_every_setting_of_a_section_is_a_keyword(section: Any) -> None:
    known = inspect.signature(proxyfl.Federation).parameters
    assert {spec.name for spec in dataclasses.fields(section)} <= known.keys()
