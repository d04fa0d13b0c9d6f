"""proxyfl methods, models and config: what there is to choose from."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from proxyfl.methods import registry
from proxyfl.runs.config_file import load_toml, preset_names
from proxyfl.runs.settings import resolve


@pytest.fixture
def listing(call, monkeypatch):
    """What ``proxyfl methods`` prints where nothing needs to be wrapped."""
    monkeypatch.setenv("COLUMNS", "300")
    return call("methods").stdout


def test_methods_lists_every_method_with_aliases_and_oracles(listing):
    for recipe in registry.recipes():
        row = next(line for line in listing.splitlines() if line.startswith(f"  {recipe.name} "))
        assert recipe.summary in row
        assert ("(oracle)" in row) == registry.create(recipe.name).oracle
        for alias in registry.aliases_of(recipe.name):
            assert alias in listing
    assert "also fixmatch-lpl+prox, fixmatch+prox" in listing
    assert "upper bound: every image labelled (oracle) " in listing
    assert "as in fedavg+gpt: " in listing


def test_methods_tells_what_is_sent_beside_the_weights_and_kept(listing):
    assert "(+prior +icpl +gpt)" in listing
    assert "  +prior  sends class counts up, class prior down" in listing
    rows = [line.strip() for line in listing.splitlines()]
    assert rows[rows.index("clients keep a private model") - 1].startswith("fedloke ")
    for recipe in registry.recipes():
        assert recipe.method.sends in listing


def test_methods_groups_what_belongs_together_and_has_room_for_plugins(listing, call, monkeypatch):
    groups = ["labelled only", "FixMatch", "federated SSL", "prototypes", "ProxyFL and parts"]
    assert [line.strip() for line in listing.splitlines() if line.strip() in groups] == groups
    fixmatch = listing.partition("\nFixMatch ")[2].partition("\nfederated SSL ")[0]
    assert cells(fixmatch, "  gpl-all")[:2] == ["gpl-all", "FixMatch-GPL"]
    mine = dataclasses.replace(registry.find("fedavg"), name="mine", summary="a method [of mine]")
    monkeypatch.setattr(registry, "_recipes", {**registry._recipes, "mine": mine})
    told = call("methods").stdout.partition("\nothers ")[2]
    assert cells(told, "  mine") == ["mine", "a", "method", "[of", "mine]"]


@pytest.mark.parametrize("columns", [80, 120])
def test_methods_fits_the_terminal_and_keeps_names_whole(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = call("methods").stdout.splitlines()
    assert max(map(len, lines)) <= columns
    for recipe in registry.recipes():
        assert any(line.startswith(f"  {recipe.name} ") for line in lines)


def test_methods_of_a_scenario_and_why_others_are_not_defined_there(call):
    told = " ".join(call("methods", "--scenario", "server").stdout.split())
    assert "semifl" in told
    assert "labels at server: fedavg, fedprox: " in told
    assert call("methods", "--scenario", "sever").exit_code == 2


def cells(table: str, key: str) -> list[str]:
    return next(line.split() for line in table.splitlines() if line.startswith(key + " "))


def test_methods_show_has_defaults_other_fidelities_ranges_and_meanings(call):
    told = call("methods", "show", "proxyfl").stdout
    own, _, rest = told.partition("[method.prior]")
    assert cells(own, "tau")[:6] == ["tau", "0.95", "≥", "0,", "≤", "1"]
    assert cells(own, "mask")[1:3] == ["either", "global"]
    gpt = rest.partition("[method.gpt]")[2]
    assert cells(gpt, "batch")[:3] == ["batch", "4", "0"]
    assert cells(gpt, "margin")[1:3] == ["true", "false"]
    assert "passes over the clients' rows per round (Q)" in gpt
    assert "[method.icpl]" in rest


def test_methods_show_of_a_composition_has_the_add_ons_table_and_an_example(call):
    told = call("methods", "show", "fedavg+gpt").stdout
    assert told.startswith("fedavg+gpt: labelled images only, weights averaged\n")
    assert cells(told, "steps")[1] == "matched"
    assert cells(told.partition("[method.gpt]")[2], "epochs")[1] == "100"
    assert "example: proxyfl run digits --method fedavg+gpt --set method.tau=0.95" in told


def test_methods_show_says_of_every_part_whom_it_follows_and_where_it_deviates(call):
    own = [each for each in registry.recipes() if each.method.__module__.startswith("proxyfl.methods.")]
    for recipe in own:
        told = call("methods", "show", recipe.name).stdout
        parts = registry.create(recipe.name).parts
        assert told.count("\n  Deviations: ") == len(parts), recipe.name
    parts = call("methods", "show", "sage+proxyfl").stdout.split("\n[method")
    starts = ["SAGE (Liu", "The class prior of", "Indecisive-categories", "Global proxy tuning (GPT)"]
    for part, start in zip(parts[1:], starts, strict=True):
        assert f"\n  {start}" in part


def test_methods_show_gives_the_recipes_own_defaults(call):
    assert cells(call("methods", "show", "fixmatch-gpl").stdout, "teacher")[1] == "global"
    assert cells(call("methods", "show", "fixmatch-lpl").stdout, "teacher")[1] == "local"
    assert "(oracle)" in call("methods", "show", "fedavg-full").stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavgg", "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ("fedavg+gtp", "unknown add-on '+gtp' in 'fedavg+gtp'; did you mean 'gpt'?"),
    ],
)
def test_methods_show_of_an_unknown_name(call, name, message):
    result = call("methods", "show", name)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_models_lists_networks_with_their_parameters(call):
    told = call("models").stdout
    assert cells(told, "resnet8")[1] == "1,227,594"
    assert cells(told, "wrn-28-2")[1:5] == ["1,467,610", "1,467,610", "428.7", "94.2"]
    assert "for 10 classes of images of 3 × 32 × 32, width 4" in told


def test_models_counts_what_is_trained_for_a_data_set(call):
    partly = ("--trainable", "head", "--lora-rank", "2", "--per-round", "100")
    told = call("models", "--data", "digits", "--width", "1", *partly).stdout
    assert cells(told, "resnet8")[1:3] == ["81,708", "4,604"]
    assert cells(told, "resnet8")[4] == "3.7"  # 200 × 4 bytes × 4,604
    assert "for 10 classes of images of 1 × 8 × 8, width 1" in told


def test_models_show_lists_layers(call):
    told = call("models", "show", "wrn-10-1", "--norm", "group").stdout
    assert cells(told, "trunk.stage2.0.skip")[1:] == "Conv2d 32 × 16 × 16 512 512 0.26".split()
    assert "GroupNorm" in told
    assert cells(told, "all") == ["all", "77,850", "77,850", "25.00"]
    assert "77,850 parameters and 0 numbers in buffers" in told


def test_models_show_of_an_unknown_name(call):
    result = call("models", "show", "resnet9")
    assert result.exit_code == 2
    assert "unknown model 'resnet9'; did you mean 'resnet8'" in result.stderr


def test_config_ls_lists_every_preset(call):
    told = call("config", "ls").stdout
    for name in preset_names():
        assert cells(told, name)[0] == name
    assert cells(told, "cifar10")[1:] == [
        "cifar10",
        "proxyfl",
        "300",
        "8",
        "of",
        "20",
        "5",
        "128",
        "0.1",
        "4",
    ]


def test_config_show_prints_the_resolved_config(call):
    told = call("config", "show", "cifar10").stdout
    assert told.startswith("# proxyfl run cifar10 --method proxyfl --fidelity clean\n")
    assert tomllib.loads(told) == resolve("cifar10").to_tree()


def test_config_show_takes_a_method_a_fidelity_and_settings(call):
    told = call(
        "config", "show", "digits", "--method", "fedavg+gpt", "--fidelity", "paper", "--set", "seed=5"
    )
    tree = tomllib.loads(told.stdout)
    assert (tree["method"]["name"], tree["fidelity"], tree["seed"]) == ("fedavg+gpt", "paper", 5)
    assert tree["method"]["gpt"]["anchor"] == "global"
    assert tree["partition"]["scheme"] == "dirichlet"


def test_config_copy_writes_what_validate_and_run_read_back(call):
    result = call("config", "copy", "svhn", "mine.toml", "--method", "fedavg")
    assert result.exit_code == 0
    assert "proxyfl run mine.toml" in result.stdout
    assert Path("mine.toml").read_text().startswith("# proxyfl run mine.toml\n")
    assert resolve("", load_toml(Path("mine.toml"))) == resolve("svhn", {"method": {"name": "fedavg"}})


def test_config_copy_overwrites_only_when_told_to(call):
    Path("mine.toml").write_text("precious")
    result = call("config", "copy", "digits", "mine.toml")
    message = "error: mine.toml exists; overwrite it with --force or choose another name\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert Path("mine.toml").read_text() == "precious"
    assert call("config", "copy", "digits", "mine.toml", "--force").exit_code == 0
    assert "precious" not in Path("mine.toml").read_text()


def test_config_copy_refuses_what_run_could_not_read_or_nobody_can_write(call):
    result = call("config", "copy", "digits", "mine.txt")
    assert "mine.txt must end in .toml" in result.stderr
    result = call("config", "copy", "digits", "no/folder/mine.toml")
    assert result.exit_code == 2
    assert "no/folder/mine.toml cannot be written" in result.stderr
    assert (
        call("config", "show", "cifar11").stderr
        == "error: unknown preset 'cifar11'; did you mean 'cifar10'?\n"
    )


def test_settings_are_explained_and_copied_with_their_meaning(call):
    told = call("config", "explain", "train")
    assert told.exit_code == 0, told.stderr
    assert "train.lr " in told.stdout
    assert "partition.alpha" not in told.stdout
    assert "method.icpl.weight" in call("config", "explain").stdout
    assert "method.half" in call("config", "explain", "method", "--method", "sage").stdout
    assert "did you mean 'train'?" in call("config", "explain", "trian").stderr
    assert call("config", "copy", "digits", "mine.toml").exit_code == 0
    text = Path("mine.toml").read_text()
    assert "  # learning rate [≥ 0]\n" in text
    from proxyfl.runs.config_file import load_toml
    from proxyfl.runs.settings import resolve

    assert resolve("", load_toml(Path("mine.toml"))) == resolve("digits")
