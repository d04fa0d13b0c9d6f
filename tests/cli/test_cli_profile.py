"""proxyfl profile: the table as it is printed, and the picture."""

from __future__ import annotations

import pytest

from proxyfl.cli.profile import _bar

FOUR = ("--set", "partition.clients=4", "--set", "federation.per_round=2")
SMALL = ("--subset", 150, "--dtype", "fp32", *FOUR)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    from proxyfl.profiling import profile

    monkeypatch.setattr(profile, "matrix_peak", lambda dtype, device: 100.0)


def test_the_table_and_the_picture(call, tmp_path):
    result = call("profile", *SMALL, "--steps", 2, "--client", 1, "--output", "pictures/step")
    assert (result.exit_code, result.stderr) == (0, "")
    told = result.stdout
    lines = {line.partition("  ")[0]: line.split() for line in told.splitlines()}
    assert "A step of proxyfl on digits: " in told
    assert "resnet8 of width 1, fp32, 1 thread on cpu" in told
    assert "mean of 2 of" in told
    phases = ("weak views", "strong views", "teacher", "forward", "backward", "optimiser", "rest")
    losses = ("loss: supervised", "loss: unlabelled", "loss: icpl")
    assert set(lines) >= {*phases, *losses, "together", "server: gpt", "server: prior", "evaluation"}
    total = float(lines["together"][1])
    each = [float(lines[name][len(name.split())]) for name in lines if name in phases + losses]
    rare = [float(lines[name][1]) for name in ("pseudo-labels", "observe") if name in lines]
    assert sum(each + rare) == pytest.approx(total, abs=0.6)  # rounded to a tenth
    assert "% of a plain matrix product here (100 in fp32)" in told
    assert "convolutions are " in told
    assert "check and fold updates" in told
    assert "server, 2 updates like this one" in told
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / "pictures" / f"step.{kind}").is_file()
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_meant_is_told_on_one_line(call):
    result = call("profile", *SMALL, "--client", 4)
    assert result.exit_code == 2
    assert result.stderr == "error: client 4 does not exist; there are 0 to 3\n"
    assert call("profile", "--steps", 0).exit_code == 2
    result = call("profile", "--width", 2, "--set", "model.width=1")
    assert "'model.width' is given twice" in result.stderr


def test_help_has_examples(call):
    told = call("profile", "--help").stdout
    assert "proxyfl profile cifar10 --method sage --width 1" in told.partition("Examples")[2]


def test_bars_go_by_eighths():
    assert (_bar(0), _bar(1), _bar(0.5), _bar(1 / 24 + 1 / 48)) == ("", "█" * 24, "█" * 12, "█▌")
