"""--protocol own: the settings of a method's own paper, below what the user sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyfl import Experiment
from proxyfl.core.errors import ConfigError
from proxyfl.core.trees import dotted, nested
from proxyfl.methods import registry
from proxyfl.methods.semifl import SemiFL
from proxyfl.runs.experiment import load_config
from proxyfl.runs.settings import identity


def test_the_papers_settings_lie_over_the_preset_and_below_the_users_own(call) -> None:
    words = ["--method", "semifl", "--protocol", "own", "--set", "train.lr=0.01"]
    shown = call("config", "show", "digits", *words)
    assert shown.exit_code == 0, shown.output
    assert "lr = 0.01\n" in shown.stdout
    assert "batch = 10\n" in shown.stdout
    assert 'where = "server"\n' in shown.stdout
    by_hand = load_config("digits", nested(SemiFL.protocol), "semifl")
    assert identity(Experiment("semifl", protocol="own").config) == identity(by_hand)
    assert Experiment("semifl", scenario="server").config.train.batch == 16


@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        ("cbafed", "svhn", {"method.tau": 0.9, "method.warmup": 46, "federation.rounds": 547}),
        ("cbafed", "cifar10", {"method.tau": 0.95, "method.warmup": 46, "federation.rounds": 547}),
        ("cbafed", "cifar100", {"method.tau": 0.95, "method.warmup": 91, "federation.rounds": 1092}),
        ("flfl", "cifar10", {"method.rho": 0.1, "model.name": "wrn-28-2"}),
        ("flfl", "cifar100", {"method.rho": 1.0, "model.name": "wrn-28-8"}),
        ("semifl", "cifar100", {"model.name": "wrn-28-8"}),
    ],
)
def test_where_a_paper_has_other_settings_for_a_data_set(
    method: str, data: str, expected: dict[str, object]
) -> None:
    for config in (
        load_config(data, {}, method, protocol="own"),
        load_config("cinic10", {"data": {"name": data}}, method, protocol="own"),
    ):
        now = dotted(config.to_tree())
        assert {key: now[key] for key in expected} == expected


def test_a_file_takes_the_presets_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "digits"\n[train]\nlr = 0.2\n[method]\nname = "semifl"\n', encoding="utf-8")
    config = load_config(file, {"federation": {"rounds": 3}}, protocol="own")
    assert (config.train.lr, config.federation.rounds, config.partition.clients) == (0.03, 3, 100)


def test_runs_and_comparisons_say_whose_protocol_it_is(call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxyfl.runs.experiment.Experiment.run", stop)
    result = call("run", "digits", "--method", "semifl", "--protocol", "own", "--rounds", "2")
    assert result.exit_code == 130
    line = next(line for line in result.stdout.splitlines() if line.startswith("protocol: "))
    assert line.startswith("protocol: semifl's own, labels.where=server, partition.clients=100, ")
    assert line.endswith("; changed: federation.rounds=2 (its own: 800)")
    compared = call("compare", "semifl", "--protocol", "own", "--dry-run", "--seeds", "2")
    assert compared.stderr.count("protocol: semifl's own") == 1
    Path("grid.toml").write_text("methods = 'semifl'\n[set]\nrounds = 2\n", encoding="utf-8")
    swept = call("sweep", "grid.toml", "--protocol", "own", "--dry-run")
    assert "changed: federation.rounds=2" in swept.stderr
    shown = call("methods", "show", "semifl").stdout
    assert "--protocol own: labels.where=server, " in shown
    assert (
        '\n  on cifar100: model.name="wrn-28-8"\n' in shown
        or "\n  on cifar100: model.name=wrn-28-8\n" in shown
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "fedavg", "--protocol", "own"], "fedavg has no protocol of its own"),
        (["compare", "semifl,server-only", "--protocol", "own"], "server-only has no protocol of its own"),
        (["run", "--method", "semifl", "--protocol", "owm"], "unknown protocol 'owm'; did you mean 'own'"),
    ],
)
def test_what_has_no_protocol_of_its_own_is_refused(call, words: list[str], message: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not Path("runs").exists()


def test_a_config_is_not_given_a_protocol() -> None:
    config = Experiment("semifl", scenario="server").config
    with pytest.raises(ConfigError, match="either a config or"):
        Experiment(config=config, protocol="own")


def test_every_protocol_holds_settings_that_exist_and_takes_effect() -> None:
    for recipe in registry.recipes():
        if recipe.method.protocol:
            config = Experiment(recipe.name, protocol="own").config
            now = dotted(config.to_tree())
            assert {key: now[key] for key in recipe.method.protocol} == recipe.method.protocol
