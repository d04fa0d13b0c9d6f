"""Starting, going on and extending: one command for schedulers, more rounds for a run that is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from calling import TINY
from proxyfl import Experiment, Run, resume
from proxyfl.core.errors import RunError

SMALL = {
    "clients": 4,
    "per_round": 2,
    "subset": 120,
    "train__epochs": 1,
    "dtype": "fp32",
    "model__name": "mlp",
}


def content(run: Path) -> dict[str, bytes]:
    names = ["metrics.jsonl", "config.toml", "models/last.safetensors", "models/best.safetensors"]
    newest = sorted(run.glob("checkpoints/round-*"))[-1]
    return {name: (run / name).read_bytes() for name in names} | {
        file.name: file.read_bytes() for file in newest.iterdir() if file.name != "manifest.json"
    }


def test_a_run_that_was_extended_has_the_bits_of_a_longer_one(tmp_path):
    whole = Experiment("fixmatch-gpl", rounds=3, **SMALL).run(tmp_path / "whole", workers=0)
    Experiment("fixmatch-gpl", rounds=1, **SMALL).run(tmp_path / "part", workers=0)
    run = resume(tmp_path / "part", workers=0, rounds=3)
    assert run.finished
    assert content(run.path) == content(whole.path)
    assert "extended" in [each["event"] for each in run.events]
    with pytest.raises(RunError, match="cannot have 2"):
        resume(run.path, workers=0, rounds=2)


def test_what_depends_on_the_number_of_rounds_is_told(tmp_path, capsys):
    Experiment("fedavg", rounds=1, train__schedule="cosine", **SMALL).run(tmp_path / "cosine", workers=0)
    resume(tmp_path / "cosine", workers=0, rounds=2)
    assert "train.schedule = 'cosine' spans all rounds" in capsys.readouterr().err


def test_resume_takes_rounds(call, own_tiny):
    result = call("resume", own_tiny, "--rounds", 2)
    assert result.exit_code == 0, result.stderr
    assert len(Run(own_tiny).metrics) == 2
    assert "is finished" in call("resume", own_tiny, "--rounds", 2).stdout
    assert "cannot have 1" in call("resume", own_tiny, "--rounds", 1).stderr


def test_one_command_starts_and_goes_on(call, own_tiny):
    words = ["run", "digits", *TINY, "--name", "tiny", "--resume"]
    result = call(*words)
    assert (result.exit_code, "is finished: 1 of 1 rounds" in result.stdout) == (0, True), result.stderr
    result = call(*words, "--seed", 5)
    assert result.exit_code == 2
    assert "(seed is 1 there)" in result.stderr
    assert "--resume" in call(*words[:-1]).stderr


def test_a_lost_folder_of_models_is_made_again(call, own_tiny):
    before = (own_tiny / "models" / "last.safetensors").read_bytes()
    shutil.rmtree(own_tiny / "models")
    shutil.rmtree(own_tiny / "snapshots")
    result = call("resume", own_tiny)
    assert result.exit_code == 0, result.stderr
    assert (own_tiny / "models" / "last.safetensors").read_bytes() == before
    assert (own_tiny / "models" / "best.safetensors").is_file()


def test_runs_that_lost_a_part_are_listed_with_the_reason(call, own_tiny):
    shutil.copytree(own_tiny, own_tiny.parent / "bare")
    (own_tiny / "config.toml").unlink()
    shutil.rmtree(own_tiny.parent / "bare" / "checkpoints")
    told = " ".join(call("ls", own_tiny.parent).stdout.split())
    assert "damaged" in told
    assert "config.toml is missing" in told
    listed = json.loads(call("ls", own_tiny.parent, "--json").stdout)
    assert [run["name"] for run in listed] == ["bare", "tiny"]
    assert [run["state"] for run in listed] == ["damaged", "damaged"]
    assert "checkpoints is missing" in listed[0]["reason"]


def test_own_data_is_listed_without_the_folders_of_the_machine(call, own_tiny):
    config, far = own_tiny / "config.toml", f"folder:/{'far/' * 40}clinic"
    config.write_text(config.read_text().replace('name = "digits"', f'name = "{far}"'))
    listed = call("ls", own_tiny.parent).stdout
    assert "folder:clinic" in listed, listed
    assert "far" not in listed
    assert json.loads(call("ls", own_tiny.parent, "--json").stdout)[0]["data"] == far


def test_runs_as_json(call, tiny):
    (listed,) = json.loads(call("ls", tiny.parent, "--json").stdout)
    assert (listed["method"], listed["rounds"], listed["state"]) == ("proxyfl", 1, "finished")
    shown = json.loads(call("show", tiny, "--json").stdout)
    assert shown["config"]["federation"]["rounds"] == 1
    assert shown["summary"]["last"] == shown["metrics"][0]["accuracy"] == Run(tiny).metrics[0]["accuracy"]


@pytest.mark.parametrize("name", ["mine", "object:Mine+icpl"])
def test_a_run_is_read_without_the_code_of_its_method_and_network(call, own_tiny, name):
    for config in [own_tiny / "config.toml", *own_tiny.glob("checkpoints/round-*/config.toml")]:
        text = config.read_text().replace('name = "proxyfl"', f'name = "{name}"')
        config.write_text(text.replace('name = "resnet8"', 'name = "object:MyNet"'))
    assert "finished" in call("ls", own_tiny.parent).stdout
    shown = call("show", own_tiny)
    assert (shown.exit_code, name in shown.stdout) == (0, True), shown.stderr
    assert call("table", own_tiny).exit_code == 0
    page = call("report", own_tiny, "-o", "page.html")
    assert page.exit_code == 0, page.stderr


def test_a_setting_without_its_section_is_told_where_it_belongs(call):
    asked = ("run", "digits", "--set")
    assert "'method.tau' or 'agg" in call(*asked, "tau=0.5").stderr
    assert "'method.weight' or 'method.icpl.weight'" in call(*asked, "weight=2").stderr
    assert "did you mean 'federation.rounds'?" in call(*asked, "rounds=3").stderr
    moved = "unknown setting 'federation.clients'; did you mean 'partition.clients'?"
    assert moved in call(*asked, "federation.clients=3").stderr
    both = "did you mean 'train.beta1' or 'aggregation.beta1'?"
    assert both in call(*asked, "beta1=0.5").stderr


def test_help_says_that_the_demo_takes_settings(call):
    assert "--set" in call("demo", "--help").stdout


def test_compare_varies_sizes_and_spares_methods_without_the_parameter(call):
    words = ["compare", "fedavg,fixmatch-gpl", "--vary", "method.tau=0.8,0.9", "--width", "1,2", "--dry-run"]
    result = call(*words, "--clients", 8, "--subset", 120)
    assert result.exit_code == 0, result.stderr
    names = [line.split("  ")[1].split(" · ")[0] for line in result.stdout.splitlines()]
    assert (names.count("fedavg"), names.count("fixmatch-gpl")) == (2, 4)
    assert "method.over" in call("compare", "fedavg", "--vary", "method.over=1,2", "--dry-run").stderr
