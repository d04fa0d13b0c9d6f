"""proxyfl comm: the communication table as it is printed."""

from __future__ import annotations

import pytest

from proxyfl.models import registry

DIGITS = ("--width", 1, "--classes", 10, "--channels", 1, "--per-round", 4)


def cells(table: str, key: str) -> list[str]:
    """The words of the row that begins so."""
    return next(line.split() for line in table.splitlines() if line.startswith(f"{key}  "))


def test_counts_stand_before_the_papers_figures(call):
    result = call("comm")
    assert (result.exit_code, result.stderr) == (0, "")
    first, _, rest = result.stdout.partition("with buffers")
    assert "resnet8 of width 4, 100 classes" in first
    assert cells(first, "parameters only")[-1] == "paper"
    assert cells(first, "FixMatch") == ["FixMatch", *"(M + D)Θ 20.0116 80.05 11.2565 45.03 22.08".split()]
    assert cells(first, "ProxyFL")[-5:] == ["22.1144", "88.46", "12.4394", "49.76", "22.08"]
    assert cells(first, "ProxyFL, local heads")[-5:] == ["20.0132", "80.05", "11.2574", "45.03", "–"]
    assert cells(rest, "FixMatch") == ["FixMatch", "20.0547", "80.22", "11.2808", "45.12"]


@pytest.mark.parametrize(
    "line",
    [
        "22.08 (all but FedMatch and prototypes): 16 × 1.38 = 22.0800",
        "33.12 (FedMatch): 24 × 1.38 = 33.1200",
        "22.90 (prototypes): 22.08 + 0.8192 = 22.8992",
        "0.0016 (ProxyFL's class prior): 16 × 100 / 10⁶ = 0.0016",
        "Θ = 1,250,724: trunk 1,225,024, classifier 25,700",
        "buffers = 2,697: batch-norm statistics and counters",
        "ProxyFL sends 10.5 % more than FixMatch; 0.008 % with heads that stay on the clients",
    ],
)
def test_what_figures_assume_and_symbols_mean(call, line):
    for words in (("comm",), ("comm", "--markdown")):
        assert f"\n{'- ' * (len(words) - 1)}{line}" in call(*words).stdout


@pytest.mark.parametrize(
    "other",
    [("--classes", 10), ("--width", 2), ("--channels", 1), ("--per-round", 9)],
    ids=lambda words: words[0],
)
def test_other_settings_leave_the_papers_figures_out(call, other):
    for form in ((), ("--markdown",)):
        told = call("comm", *other, *form).stdout
        assert not any(figure in told for figure in ("22.08", "33.12", "22.90", "0.0016"))
        assert "they are for resnet8 of width 4" in told
        heading = next(line for line in told.splitlines() if "D = 1" in line and "D = M" in line[:80])
        assert "paper" not in heading


def test_a_small_network(call):
    first, _, rest = call("comm", *DIGITS).stdout.partition("with buffers")
    assert cells(first, "SAGE")[-4:] == [
        f"{8 * 77_754 / 1e6:.4f}",
        f"{8 * 77_754 * 4 / 1e6:.2f}",
        f"{5 * 77_754 / 1e6:.4f}",
        f"{5 * 77_754 * 4 / 1e6:.2f}",
    ]
    assert cells(rest, "SAGE")[1] == f"{8 * (77_754 + 681) / 1e6:.4f}"
    assert "M = 4 clients; D = 4 or 1 downloads" in rest


@pytest.mark.parametrize(("words", "columns"), [((), 11), (DIGITS, 10)])
def test_markdown_is_a_table(call, words, columns):
    told = call("comm", "--markdown", *words).stdout
    table = [line for line in told.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 10
    assert {len(line.strip("|").split("|")) for line in table} == {columns}
    assert table[1].split()[1:4] == ["---", "|", "---"]
    assert not any(line != line.rstrip() for line in told.splitlines())


def test_it_fits_a_narrow_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = call("comm").stdout
    assert max(map(len, told.splitlines())) <= 80
    assert cells(told, "FedMatch + helpers")[-5:] == ["59.9463", "239.79", "42.4557", "169.82", "33.12"]


def test_networks_without_features_say_what_is_missing(call, monkeypatch):
    import torch

    def plain(classes: int, channels: int, width: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, classes))

    monkeypatch.setitem(registry._factories, "plain", plain)
    told = call("comm", "--model", "plain").stdout
    assert "model 'plain' cannot carry projection heads" in told
    assert "projection heads; d =" not in told
    assert not any(line.startswith("ProxyFL") for line in told.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "resnet"), "error: unknown model 'resnet'; did you mean 'resnet8'?"),
        (("--classes", 0), "error: classes = 0 is too small for a model; use 1 or more"),
    ],
)
def test_errors_are_one_line(call, words, message):
    result = call("comm", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stdout == ""


def test_no_clients_are_refused_and_help_has_examples(call):
    assert call("comm", "--per-round", 0).exit_code == 2
    told = call("comm", "--help").stdout
    assert "proxyfl comm --classes 10 --per-round 20" in told.partition("Examples")[2]
    panel = call("--help").stdout.partition("─ Methods, data, settings ─")[2]
    assert "│ comm " in panel


def test_a_scenario_lists_every_method_that_is_defined_there(call):
    told = call("comm", *DIGITS, "--scenario", "server").stdout
    assert "with labels.where = server: resnet8 of width 1, 10 classes" in told
    # ResNet-8 of width 1: trunk 77,785 and classifier 650, buffers included; SemiFL adds the size of its set.
    assert cells(told, "semifl") == "semifl 78,436 78,435 2.51 1.57".split()
    assert cells(told, "fixmatch-gpl") == "fixmatch-gpl 78,435 78,435 2.51 1.57".split()
    assert cells(told, "server-only")[:5] == "server-only 0 0 0.00 0.00".split()
    assert "fedprox  " not in told
    assert "cause no traffic" in told
    wrong = call("comm", "--scenario", "sever")
    assert (wrong.exit_code, "did you mean 'server'" in wrong.stderr) == (2, True)
    markdown = call("comm", *DIGITS, "--scenario", "partial", "--markdown").stdout
    assert "| fedavg | 78,435 | 78,435 | 2.51 | 1.57 |  |\n" in markdown
