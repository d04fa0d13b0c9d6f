"""proxyfl run and resume: settings in, a run's folder out, and nothing at all after a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calling import TINY
from proxyfl.runs.run import Run


def test_run_shows_settings_by_section_and_marks_what_was_changed(tiny):
    told = (tiny.parent / "told.txt").read_text(encoding="utf-8")
    assert told.startswith("tiny  seed=1 fidelity=clean preset=digits\n")
    assert "├── partition   scheme=paired alpha=0.1" in told
    assert "clients=4* seed=0" in told
    assert "├── model       name=mlp*" in told
    assert " width=1' " in told
    assert "epochs=1* batch=16' mu=2" in told
    assert "└── method      name=proxyfl tau=0.95" in told
    assert "    └── gpt         epochs=100 lr=0.005" in told
    assert "* changed   ' set by preset digits   others: defaults" in told


def test_run_ends_with_the_result_the_place_and_the_next_command(tiny):
    told = (tiny.parent / "told.txt").read_text(encoding="utf-8")
    summary = Run(tiny).summary
    head = "accuracy, mean of last round  last     best (round 1)  rounds  time"
    assert head in told
    assert f"{100 * summary.mean_last:.2f} %" in told
    assert f"per round  {summary.seconds / summary.rounds:.2f} s\n" in told
    assert f"run        {tiny}\n" in told
    assert f"curve      proxyfl show {tiny}\n" in told


def test_flags_and_assignments_reach_the_config(tiny):
    config = Run(tiny).config
    assert config.federation.rounds == 1
    assert config.federation.per_round == 2
    assert config.partition.clients == 4
    assert config.data.subset == 120
    assert config.train.epochs == 1


@pytest.mark.parametrize(
    ("flag", "value", "section", "key", "expected"),
    [
        ("--label-ratio", "0.2", "labels", "ratio", 0.2),
        ("--alpha", "0.5", "partition", "alpha", 0.5),
        ("--width", "2", "model", "width", 2),
        ("--image-size", "16", "data", "image_size", 16),
        ("--dtype", "bf16", "compute", "dtype", "bf16"),
        ("--device", "cpu:0", "compute", "device", "cpu:0"),
    ],
)
def test_every_common_flag_is_a_setting(call, monkeypatch, flag, value, section, key, expected):
    trained = []

    def note(self, path, observers, workers, engine):
        trained.append(self.config)
        raise KeyboardInterrupt

    monkeypatch.setattr("proxyfl.runs.experiment.Experiment.run", note)
    assert call("run", flag, value).exit_code == 130
    assert getattr(getattr(trained[0], section), key) == expected


def test_run_names_itself_and_quiet_prints_only_the_folder(call):
    result = call("run", *TINY, "--quiet", "--method", "fedavg", "--seed", "3", "--runs", "here")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("here/digits-fedavg-seed3-")
    assert result.stderr == ""
    assert Run(lines[0]).finished


def test_a_line_per_round_where_there_is_no_terminal(call, tiny):
    result = call("run", *TINY, "--name", "other", "--seed", "1")
    accuracy = f"{100 * Run('runs/other').summary.last:.2f} %"
    assert result.stderr.startswith(f"round 1/1  accuracy {accuracy}  best {accuracy}  ")


def test_a_config_file_runs_and_other_settings_go_over_it(call):
    Path("mine.toml").write_text(
        'preset = "digits"\n[partition]\nclients = 5\n[method]\nname = "fedavg"\n', encoding="utf-8"
    )
    arguments = ["--rounds", "1", "--per-round", "1", "--subset", "120", "--set", "train.epochs=1"]
    assert call("run", "mine.toml", *arguments, "--name", "m", "--quiet").exit_code == 0
    config = Run("runs/m").config
    assert (config.partition.clients, config.method.name, config.train.batch) == (5, "fedavg", 16)


MISTAKES = [
    (["digit"], "unknown preset 'digit'; did you mean 'digits'?"),
    (
        ["none.toml"],
        "none.toml does not exist; known presets: cifar10, cifar100, cinic10, digits, fashion-mnist, own, "
        "svhn",
    ),
    (["--method", "proxifl"], "unknown method 'proxifl'; did you mean 'proxyfl'?"),
    (["--set", "train.epokhs=3"], "unknown setting 'train.epokhs'; did you mean 'train.epochs'?"),
    (
        ["--set", "method.gpt.epoch=3"],
        "unknown setting 'method.gpt.epoch'; did you mean 'method.gpt.epochs'?",
    ),
    (["--set", "train.epochs=many"], "train.epochs must be a whole number, not 'many'"),
    (["--set", "method.tau=2"], "method.tau = 2.0 is above 1"),
    (["--set", "train.epochs"], "'train.epochs' is not a setting; write it like method.tau=0.9"),
    (["--set", "partition.scheme=pared"], "unknown partition scheme 'pared'; did you mean 'paired'?"),
    (
        ["--set", "data.name=cifar"],
        "unknown data set 'cifar': did you mean 'cifar10'? "
        "(your own: register it and name its file with --plugin)",
    ),
    (["--set", "preset=svhn"], "preset cannot be set; name it as the first argument: proxyfl run PRESET"),
    (
        ["--rounds", "3", "--set", "federation.rounds=4"],
        "'federation.rounds' is given twice: --rounds 3 and --set federation.rounds=4; keep one",
    ),
    (
        ["--method", "fedavg", "--set", "method={name='proxyfl'}"],
        "'method.name' is given twice: --method fedavg and --set method={name='proxyfl'}; keep one",
    ),
    (["--fidelity", "papers"], "unknown fidelity 'papers'; did you mean 'paper'?"),
    (["--rounds", "0"], "federation.rounds = 0 is below 1"),
    (
        ["--per-round", "30"],
        "federation.per_round = 30 is more than partition.clients = 20; "
        "lower it, as in --set federation.per_round=20",
    ),
    (["--dtype", "fp16"], "compute.dtype = 'fp16' is not one of auto, fp32, bf16; did you mean 'bf16'?"),
    (["--name", "a/b"], "--name 'a/b' must be a folder's name without a path; --runs says where it is put"),
    (["--name", ".."], "--name '..' must be a folder's name without a path; --runs says where it is put"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_writes_nothing(call, arguments, message):
    result = call("run", *arguments)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert result.stdout == ""
    assert not Path("runs").exists()


def test_a_device_that_is_not_there_writes_nothing(call):
    result = call("run", "--device", "cuda:99")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: compute.device = 'cuda:99' cannot be used here: ")
    assert result.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_missing_data_is_told_before_anything_is_written(call):
    result = call("run", "cifar10", "--data-root", "nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cifar10: ")
    assert "proxyfl data fetch cifar10 --data-root nowhere" in result.stderr
    assert not Path("runs").exists()


def test_an_existing_run_is_not_overwritten(call, own_tiny):
    before = {path: path.read_bytes() for path in own_tiny.rglob("*") if path.is_file()}
    result = call("run", *TINY, "--name", "tiny")
    assert result.exit_code == 2
    message = (
        "runs/tiny exists; continue it with 'proxyfl resume runs/tiny' or --resume, or use another --name"
    )
    assert result.stderr == f"error: {message}\n"
    assert {path: path.read_bytes() for path in own_tiny.rglob("*") if path.is_file()} == before


def test_a_file_written_for_one_fidelity_is_not_half_read_as_another(call):
    assert call("config", "copy", "digits", "mine.toml").exit_code == 0
    result = call("run", "mine.toml", "--fidelity", "paper")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: mine.toml was written for fidelity 'clean'; ")
    assert not Path("runs").exists()


def test_another_method_than_the_files_says_what_is_left_out(call):
    assert call("config", "copy", "digits", "mine.toml", "--set", "method.tau=0.5").exit_code == 0
    result = call("config", "show", "mine.toml", "--method", "fedavg")
    assert "[method] of mine.toml is for proxyfl" in result.stderr
    assert "tau = 0.95" in result.stdout


def test_resume_of_a_finished_run_says_so(call, tiny):
    result = call("resume", tiny)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{tiny} is finished: 1 of 1 rounds\n")
    assert call("resume", tiny, "--quiet").stdout == f"{tiny}\n"


def test_resume_of_a_changed_config_is_refused(call, own_tiny):
    config = own_tiny / "config.toml"
    config.write_text(config.read_text().replace("rounds = 1", "rounds = 2"))
    result = call("resume", own_tiny)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {config} was changed since the run began")


def test_resume_mends_metrics_of_a_finished_run(call, own_tiny):
    metrics = own_tiny / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(b"")
    assert call("resume", own_tiny).exit_code == 0
    assert metrics.read_bytes() == whole


def test_resume_begins_a_run_whose_creation_was_cut_short(call, own_tiny):
    whole = (own_tiny / "metrics.jsonl").read_bytes()
    aside = own_tiny.with_name(".tiny.creating")
    own_tiny.rename(aside)
    for path in ("checkpoints", "partition.safetensors"):
        (aside / path).rename(aside.parent / path)
    assert "tiny; start with: proxyfl resume runs/tiny" in call("ls").stdout
    assert call("resume", "tiny", "--quiet").stdout == "runs/tiny\n"
    assert (own_tiny / "metrics.jsonl").read_bytes() == whole
    assert not aside.exists()


def test_resume_of_no_run_names_the_nearest(call, own_tiny):
    result = call("resume", "tinny")
    assert result.exit_code == 2
    assert "did you mean 'runs/tiny'?" in result.stderr
    result = call("resume", "somethingelse")
    hint = "'proxyfl ls DIR' lists the runs in a folder"
    assert result.stderr == f"error: somethingelse is not a run; {hint}\n"


def test_the_runs_folder_can_come_from_the_environment(call, monkeypatch):
    monkeypatch.setenv("PROXYFL_RUNS", "elsewhere")
    assert call("run", *TINY, "--name", "e", "--method", "fedavg", "--quiet").stdout == "elsewhere/e\n"
    assert len(json.loads(Path("elsewhere/e/metrics.jsonl").read_text().splitlines()[0])["per_class"]) == 10
    assert call("show", "e").exit_code == 0
