"""proxyfl ls, show and validate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxyfl.runs.run import Run
from written_runs import without_seals


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def set_rounds(run: Path, rounds: int) -> None:
    """Make a finished run look like one that has rounds left."""
    config = run / "config.toml"
    config.write_text(config.read_text().replace("rounds = 1\n", f"rounds = {rounds}\n", 1))


def row_of(table: str, name: str) -> list[str]:
    return next(line.split() for line in table.splitlines() if line.startswith(name + " "))


def test_ls_lists_name_data_method_seed_rounds_accuracy_state(call, tiny):
    result = call("ls", tiny.parent)
    assert result.exit_code == 0
    head = result.stdout.splitlines()[0].split()
    assert head == ["name", "data", "method", "seed", "rounds", "accuracy", "state"]
    accuracy = percent(Run(tiny).summary.mean_last).split()
    assert row_of(result.stdout, "tiny") == ["tiny", "digits", "proxyfl", "1", "1/1", *accuracy, "finished"]


def test_ls_tells_stopped_and_running_apart(call, own_tiny):
    set_rounds(own_tiny, 9)
    row = row_of(call("ls").stdout, "tiny")
    assert (row[4], row[-1]) == ("1/9", "stopped")
    with Run(own_tiny).directory.locked():
        assert row_of(call("ls").stdout, "tiny")[-1] == "running"
        assert "running: 1 of 9 rounds done" in call("show", "tiny").stdout
    assert row_of(call("ls").stdout, "tiny")[-1] == "stopped"


def test_ls_goes_on_past_a_run_it_cannot_read(call, own_tiny):
    broken = own_tiny.with_name("broken")
    (broken / "checkpoints").mkdir(parents=True)
    (broken / "config.toml").write_text("this is not TOML")
    result = call("ls")
    assert result.exit_code == 0
    assert row_of(result.stdout, "broken")[1] == "unreadable"
    assert row_of(result.stdout, "tiny")[-1] == "finished"


def test_ls_of_nothing_a_run_and_no_folder(call, own_tiny):
    Path("empty").mkdir()
    assert "no runs in empty" in call("ls", "empty").stdout
    result = call("ls", "nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: nowhere is not a folder;")
    result = call("ls", own_tiny)
    assert f"'proxyfl show {own_tiny}'" in result.stderr


def test_ls_without_a_runs_folder_is_no_error(call):
    result = call("ls")
    assert result.exit_code == 0
    assert "no runs in runs" in result.stdout


def add_rounds(run: Path, accuracies: list[float]) -> None:
    """Write rounds into the metrics of a copied run, one of them with a client that failed."""
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    lines = []
    for number, accuracy in enumerate(accuracies, 1):
        failed = {"3": "MemoryError: no\nroom"} if number == 2 else {}
        lines.append(json.dumps({**line, "round": number, "accuracy": accuracy, "failed": failed}))
    (without_seals(run) / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_show_has_settings_result_curve_rounds_failures_and_what_to_do(call, own_tiny):
    set_rounds(own_tiny, 9)
    add_rounds(own_tiny, [0.1, 0.9, 0.5, 0.25])
    told = call("show", own_tiny, "--rounds", "3").stdout
    assert told.startswith("tiny  seed=1 fidelity=clean preset=digits\n")
    assert "best (round 2)" in told
    assert " 90.00 %  █\n" in told
    assert " 10.00 % ▁█" in told
    assert "test accuracy, rounds 1 to 4" in told
    numbers = [
        line.split()[:2] for line in told.splitlines() if line.strip().startswith(("1  ", "2  ", "4  "))
    ]
    assert numbers == [["2", "90.00"], ["4", "25.00"]]
    assert "\n  round 2, client 3: MemoryError: no room\n" in told
    assert f"stopped after round 4 of 9; continue with: proxyfl resume {own_tiny}\n" in told


def test_show_of_a_finished_run_has_nothing_to_continue(call, tiny):
    told = call("show", tiny).stdout
    assert "continue with" not in told
    assert "failed or were refused" not in told


def test_show_has_what_the_last_round_sent_by_part(call, own_tiny):
    file = without_seals(own_tiny) / "metrics.jsonl"
    line = json.loads(file.read_text().splitlines()[-1])
    line["traffic"]["up"] = line["traffic"]["down"] = {"trunk": 5_000_000, "extras": 40}
    line["traffic"]["numbers"] = {"up": {"trunk": 1_250_000, "extras": 10}, "down": {"trunk": 7, "extras": 8}}
    file.write_text(json.dumps(line) + "\n")
    told = call("show", own_tiny).stdout.partition(f"\nround {line['round']} ")[2].splitlines()
    assert told[0].split() == ["numbers", "up", "bytes", "up", "numbers", "down", "bytes", "down"]
    assert told[1].split() == ["trunk", "1,250,000", "5.0", "MB", "7", "5.0", "MB"]
    assert told[2].split() == ["extras", "10", "40", "bytes", "8", "40", "bytes"]
    del line["traffic"]["numbers"]
    file.write_text(json.dumps(line) + "\n")
    row = call("show", own_tiny).stdout.partition("\ntrunk ")[2].splitlines()[0]
    assert row.split() == ["–", "5.0", "MB", "–", "5.0", "MB"]


def test_show_before_the_first_round(call, own_tiny):
    (without_seals(own_tiny) / "metrics.jsonl").write_text("")
    assert "no round is finished yet" in call("show", "tiny").stdout


def test_validate_a_config_tells_method_and_sizes(call):
    assert call("config", "copy", "digits", "mine.toml", "--set", "data.subset=200").exit_code == 0
    result = call("validate", "mine.toml")
    assert result.exit_code == 0
    line = "OK: proxyfl on digits: 200 images (20 labelled), "
    assert result.stdout.startswith(line)
    end = " per client; 15 rounds with 8 of 20 clients; resnet8 with 86,010 parameters\n"
    assert result.stdout.endswith(end)


def test_validate_without_the_data_says_how_to_get_it(call):
    result = call("validate", "cifar10", "--data-root", "nowhere")
    assert result.exit_code == 0
    assert "300 rounds with 8 of 20 clients" in result.stdout
    assert "proxyfl data fetch cifar10 --data-root nowhere" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepokhs = 3\n", "unknown setting 'train.epokhs'; did you mean 'train.epochs'?"),
        ("[train]\nepochs = 1.5\n", "train.epochs must be a whole number, not 1.5"),
        ('[method]\nname = "fedavgg"\n', "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ('[partition]\nscheme = "idd"\n', "unknown partition scheme 'idd'; did you mean 'iid'?"),
        ("[data]\nsubset = 9999\n", "data.subset asks for 9999 of 1300 training images"),
        ("train = 3\n", "'train' is a table of settings, not 3"),
    ],
)
def test_validate_tells_one_fault_on_one_line(call, text, message):
    Path("bad.toml").write_text(text)
    result = call("validate", "bad.toml")
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_validate_of_broken_toml_names_the_file(call):
    Path("bad.toml").write_text("[train\n")
    assert call("validate", "bad.toml").stderr.startswith("error: bad.toml is not TOML: ")


def test_validate_an_intact_run(call, own_tiny):
    result = call("validate", "tiny")
    assert result.exit_code == 0
    assert result.stdout.endswith("OK: runs/tiny is intact, 1 rounds\n")
    assert len([line for line in result.stdout.splitlines() if line.rstrip().endswith(" intact")]) == 13


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("checkpoints/round-00000001/state.safetensors", "round-00000001"),
        ("checkpoints/round-00000001/manifest.json", "round-00000001"),
        ("partition.safetensors", "partition.safetensors"),
        ("environment.json", "environment.json"),
        ("metrics.jsonl", "metrics.jsonl"),
    ],
)
def test_validate_finds_a_flipped_bit(call, own_tiny, file, named):
    spoil(own_tiny / file)
    result = call("validate", own_tiny)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {own_tiny} is damaged: {named}")
    assert "; resuming it starts from round-0000000" in result.stderr


def test_validate_finds_an_unreadable_model_and_a_changed_config(call, own_tiny):
    (own_tiny / "models" / "best.safetensors").write_bytes(b"nothing")
    set_rounds(own_tiny, 2)
    message = (
        f"error: {own_tiny} is damaged: config.toml, models/best; resuming it starts from round-00000001 "
        "and rewrites metrics, partition and models, with their copies; snapshots are left unchanged\n"
    )
    assert call("validate", own_tiny).stderr == message


def test_validate_without_any_intact_checkpoint(call, own_tiny):
    for manifest in own_tiny.glob("checkpoints/*/manifest.json"):
        spoil(manifest)
    result = call("validate", own_tiny)
    assert f"{own_tiny} has no intact checkpoint" in result.stderr
