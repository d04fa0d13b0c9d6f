"""A resolved config is TOML that reads back to the same config, for every preset, fidelity and method."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import pytest

from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.settings import FIDELITIES
from proxyfl.core.trees import parse_assignment
from proxyfl.methods import recipes
from proxyfl.runs.config_file import load_toml, preset_names, to_toml
from proxyfl.runs.experiment import load_config
from proxyfl.runs.settings import default_name, identity, resolve
from proxyfl.runs.short_names import COMMON, from_short


@pytest.mark.parametrize(("preset", "fidelity"), list(itertools.product(preset_names(), FIDELITIES)))
def test_every_preset_and_fidelity_round_trips_for_every_method(preset: str, fidelity: str) -> None:
    for recipe in recipes("clients"):
        config = resolve(preset, {"fidelity": fidelity, "method": {"name": recipe.name}})
        text = to_toml(config, "proxyfl run x.toml")
        assert text.splitlines()[0] == "# proxyfl run x.toml"
        again = resolve("", tomllib.loads(text))
        assert again == config
        assert to_toml(again) == to_toml(config)
        assert (config.preset, config.fidelity, config.method.name) == (preset, fidelity, recipe.name)


def test_what_is_written_is_explicit() -> None:
    """Another version's defaults must not change an old run: every setting is in the file."""
    config = resolve("digits", {"fidelity": "paper"})
    tree = tomllib.loads(to_toml(config))
    assert tree["partition"]["scheme"] == "dirichlet"
    assert tree["train"]["pool"] == "unlabelled"
    assert tree["method"]["icpl"]["views"] == "weak"
    assert tree["method"]["prior"]["ema"] == 0.0
    assert set(tree) == set(config.to_tree())


PROTOCOL = {
    "cifar10": (500, 300, 100),
    "cifar100": (50, 500, 10),
    "svhn": (460, 150, 100),
    "cinic10": (900, 400, 100),
}


@pytest.mark.parametrize("preset", sorted(PROTOCOL))
def test_presets_carry_the_protocol(preset: str) -> None:
    config = resolve(preset)
    assert (
        config.labels.ten_percent,
        config.federation.rounds,
        config.method.parameters["gpt"]["epochs"],
    ) == PROTOCOL[preset]
    assert (config.partition.clients, config.federation.per_round, config.partition.alpha) == (20, 8, 0.1)
    assert (config.train.epochs, config.train.batch, config.train.mu) == (5, 128, 2)
    assert (config.train.lr, config.train.momentum, config.train.weight_decay) == (0.1, 0.9, 1e-4)
    assert (config.model.width, config.method.parameters["tau"], config.method.name) == (4, 0.95, "proxyfl")


def test_a_preset_suggests_only_what_the_method_has() -> None:
    assert resolve("cifar100", {"method": {"name": "fedavg"}}).method.parameters == {
        "tau": 0.95,
        "strict": False,
        "steps": "matched",
    }
    assert (
        resolve("cifar100", {"method": {"name": "fixmatch-lpl+gpt"}}).method.parameters["gpt"]["epochs"] == 10
    )


def test_layers_win_over_the_preset_and_later_ones_over_earlier() -> None:
    config = resolve("digits", {"federation": {"rounds": 3}}, parse_assignment("federation.rounds=4"))
    assert config.federation.rounds == 4


@pytest.mark.parametrize(
    ("preset", "layer", "message"),
    [
        ("digit", {}, "unknown preset 'digit'; did you mean 'digits'?"),
        ("digits", {"fidelity": "cleen"}, "unknown fidelity 'cleen'; did you mean 'clean'?"),
        ("digits", {"fidelity": 3}, "fidelity must be text, not 3"),
        ("digits", {"method": {"name": "proxfl"}}, "unknown method 'proxfl'; did you mean 'proxyfl'?"),
        ("digits", {"method": {"taw": 1}}, "unknown setting 'method.taw'; did you mean 'method.tau'?"),
        (
            "digits",
            {"method": {"gpt": {"epoch": 1}}},
            "unknown setting 'method.gpt.epoch'; did you mean 'method.gpt.epochs'?",
        ),
        ("digits", {"method": {"gpt": 1}}, "'method.gpt' is a table of settings, not 1"),
        (
            "digits",
            {"method": {"prox": {"weight": 1}}},
            "'proxyfl' has no add-on 'prox'; attached: prior, icpl, gpt",
        ),
        ("digits", {"data": {"name": "cifr10"}}, "unknown data set 'cifr10': did you mean 'cifar10'?"),
        ("digits", {"model": {"name": "resnet9"}}, "unknown model 'resnet9'; did you mean 'resnet8'?"),
        (
            "digits",
            {"federation": {"per_round": 21}},
            "federation.per_round = 21 is more than partition.clients = 20; "
            "lower it, as in --set federation.per_round=20",
        ),
        ("digits", {"data": {"subset": 0}}, "data.subset = 0 keeps no image"),
        (
            "digits",
            {"compute": {"device": "gpu"}},
            "compute.device = 'gpu' is not a device; use cpu, cuda, cuda:1 or mps",
        ),
    ],
)
def test_refusals(preset: str, layer: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(preset, layer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_combination_that_a_method_refuses_is_refused_before_anything_is_written() -> None:
    with pytest.raises(MethodError, match="fedavg-sl cannot carry \\+icpl"):
        resolve("digits", {"method": {"name": "fedavg-sl+icpl"}})


def test_short_names() -> None:
    tree = from_short({"rounds": 3, "alpha": 0.5, "method__gpt__epochs": 2, "train.lr": 0.2, "width": None})
    assert tree == {
        "federation": {"rounds": 3},
        "partition": {"alpha": 0.5},
        "method": {"gpt": {"epochs": 2}},
        "train": {"lr": 0.2},
    }
    with pytest.raises(ConfigError, match=r"'round'; .*'rounds'"):
        from_short({"round": 3})
    config = resolve("digits", from_short({"seed": 4}))
    assert config.seed == 4


def test_every_short_name_leads_to_a_setting() -> None:
    tree = resolve("digits").to_tree()
    for full in COMMON.values():
        place = tree
        for word in full.split("."):
            place = place[word]


def test_toml_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'preset = "digits"\n[federation]\nrounds = 3\n[method]\nname = "fedavg"\nsteps = "labelled"\n'
    )
    config = load_config(file, {})
    assert (config.federation.rounds, config.method.name, config.method.parameters["steps"]) == (
        3,
        "fedavg",
        "labelled",
    )
    assert load_config(file, {}, "proxyfl").method.name == "proxyfl"
    with pytest.raises(ConfigError, match=r"nothing\.toml .*cifar10"):
        load_toml(tmp_path / "nothing.toml")
    file.write_text("a = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_toml(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(file)


def test_the_identity_ignores_what_does_not_decide_the_result() -> None:
    base = resolve("digits")
    assert identity(base) == identity(resolve("digits", {"keep": {"last_rounds": 3}}))
    assert identity(base) != identity(resolve("digits", {"seed": 2}))
    assert default_name(base) == f"digits-proxyfl-seed1-{identity(base)[:6]}"


def test_marks_at_the_beginning_of_a_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_bytes("\ufeffseed = 3\n".encode())  # as editors on Windows write it
    assert load_toml(file) == {"seed": 3}
    for coding in ("utf-16", "utf-16-le", "utf-16-be"):
        file.write_bytes("seed = 3\n".encode(coding))
        with pytest.raises(ConfigError, match=r"UTF-16.*UTF-8"):
            load_toml(file)
