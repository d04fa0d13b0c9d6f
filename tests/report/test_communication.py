"""The communication table against hand counts, the paper's figures and what real runs record."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl import Run
from proxyfl.core.errors import ConfigError
from proxyfl.models import registry
from proxyfl.report.communication import PAPER, Count, Row, Setting, measure, method_rows, printed_figures
from toybox import LITTLE, Told, make_simulation, play, tiny_config

DIGITS = Setting("resnet8", width=1, classes=10, channels=1, per_round=2)


def by_hand(width: int, classes: int, channels: int) -> dict[str, int]:
    """ResNet-8 layer by layer, as its definition lists them."""
    a, b, c = 16 * width, 32 * width, 64 * width
    first, second, third = 2 * 9 * a * a, 9 * a * b + 9 * b * b + a * b, 9 * b * c + 9 * c * c + b * c
    convolutions = 9 * channels * a + first + second + third
    channels_normed = 3 * a + 3 * b + 3 * c
    return {
        "trunk": convolutions + 2 * channels_normed,
        "classifier": c * classes + classes,
        "heads": c * c + c + c * c,
        "buffers": 2 * channels_normed + 9,
        "split": convolutions + c * classes,
        "dim": c,
        "classes": classes,
    }  # fmt: skip


def found(setting: Setting) -> dict[str, int]:
    sizes = measure(setting)
    return {name: getattr(sizes, name) for name in by_hand(1, 1, 1)}


def test_the_papers_network():
    sizes = measure(PAPER)
    assert (sizes.trunk, sizes.classifier, sizes.theta) == (1_225_024, 25_700, 1_250_724)
    assert (sizes.heads, sizes.headed) == (131_328, 1_382_052)
    assert (sizes.buffers, sizes.dim, sizes.no_heads) == (2_688 + 9, 256, "")
    assert measure(Setting("resnet8", 4, 10, 3, 8)).theta == 1_227_594
    assert found(PAPER) == by_hand(4, 100, 3)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 30), st.integers(1, 4))
def test_every_network_is_counted_as_by_hand(width, classes, channels):
    assert found(Setting("resnet8", width, classes, channels, 5)) == by_hand(width, classes, channels)


THETA, HEADS, PSI, C, D = 1_250_724, 131_328, 1_247_936, 100, 256
HONEST = {
    "FixMatch": (16 * THETA, 9 * THETA),
    "FedMatch": (16 * (THETA + PSI) + 8 * C, 9 * (THETA + PSI) + 8 * C),
    "FedMatch + helpers": (16 * (THETA + PSI) + 8 * C + 16 * PSI, 9 * (THETA + PSI) + 8 * C + 16 * PSI),
    "FedLabel": (16 * THETA, 9 * THETA),
    "FedDure": (16 * THETA, 9 * THETA),
    "FedDB": (16 * THETA + 8 * C, 9 * THETA + 8 * C),
    "SAGE": (16 * THETA, 9 * THETA),
    "prototypes": (16 * (THETA + C * D + C), 9 * (THETA + C * D + C)),
    "ProxyFL": (16 * (THETA + HEADS + C), 9 * (THETA + HEADS + C)),
    "ProxyFL, local heads": (16 * (THETA + C), 9 * (THETA + C)),
}


def test_honest_counts_in_both_conventions():
    counts = {row.method: row.count(8) for row in method_rows(measure(PAPER))}
    assert {name: (each.per_client_download, each.one_download) for name, each in counts.items()} == HONEST
    assert list(counts) == list(HONEST)
    millions = {name: f"{count.per_client_download / 1e6:.2f}" for name, count in counts.items()}
    assert (millions["FixMatch"], millions["ProxyFL"]) == ("20.01", "22.11")
    once = {name: f"{count.one_download / 1e6:.2f}" for name, count in counts.items()}
    assert (once["FixMatch"], once["ProxyFL"]) == ("11.26", "12.44")


def test_formulas_say_what_is_counted():
    """Each printed formula, read as arithmetic, gives the count beside it."""
    sizes = measure(PAPER)
    values = {"Θ": sizes.theta, "ψ": sizes.split, "P": sizes.heads, "C": 100, "d": 256, "M": 8, "H": 2}
    for row in method_rows(sizes):
        count = row.count(8)
        assert arithmetic(row.formula, values | {"D": 8}) == count.per_client_download, row.method
        assert arithmetic(row.formula, values | {"D": 1}) == count.one_download, row.method


def arithmetic(formula: str, values: dict[str, int]) -> int:
    """Sums of products: letters and brackets that stand side by side are multiplied."""
    place = 0

    def total() -> int:
        nonlocal place
        result = product()
        while formula[place : place + 3] == " + ":
            place += 3
            result += product()
        return result

    def product() -> int:
        nonlocal place
        result = 1
        while place < len(formula) and formula[place] not in " )":
            letter = formula[place]
            place += 1
            if letter == "(":
                result *= total()
                place += 1
            else:
                result *= values[letter]
        return result

    result = total()
    assert place == len(formula)
    return result


@given(
    st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50), st.integers(0, 99)
)
def test_a_round_is_its_clients(up, down, personal, clients, buffers):
    count = Row("any", "", up, down, personal).count(clients, buffers)
    tasks = [(down + buffers, personal) for _ in range(clients)]
    assert count.up == sum(up + buffers for _ in tasks)
    assert count.down == sum(everyone + alone for everyone, alone in tasks)
    assert count.down_once == tasks[0][0] + sum(alone for _, alone in tasks)
    assert count.one_download <= count.per_client_download


def test_one_client_needs_no_convention():
    count = Row("any", "", up=7, down=5, personal=2).count(1, buffers=1)
    assert count == Count(up=8, down=8, down_once=8)


def test_the_papers_figures_follow_from_their_assumptions():
    figures = {each.figure: each for each in printed_figures(measure(PAPER), 8)}
    for figure, each in figures.items():
        assert f"{each.millions:.{len(figure) - figure.index('.') - 1}f}" == figure
    assert list(figures) == ["22.08", "33.12", "22.90", "0.0016"]
    assert {each.arithmetic for each in figures.values()} == {
        "16 × 1.38", "24 × 1.38", "22.08 + 0.8192", "16 × 100 / 10⁶",
    }  # fmt: skip
    for text in ("22.11 with heads", "20.01 without", "12.44 with heads", "11.26 without"):
        assert text in figures["22.08"].instead
    assert "1,382,052 numbers rounded to 1.38 million first" in figures["22.08"].assumes
    assert "d = 512" in figures["22.90"].assumes
    assert "d = 256, which adds 0.4096" in figures["22.90"].instead
    assert "M × C + C, gives 0.0009" in figures["0.0016"].instead


def test_printed_figures_stand_at_the_methods_they_are_of():
    printed = {row.method: row.printed for row in method_rows(measure(PAPER))}
    assert printed == dict.fromkeys(HONEST, "22.08") | {
        "FedMatch": "",
        "FedMatch + helpers": "33.12",
        "prototypes": "22.90",
        "ProxyFL, local heads": "",
    }


def test_counting_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    measure(DIGITS)
    assert torch.equal(torch.random.get_rng_state(), before)


class Plain(torch.nn.Module):
    """A network without features, whose two layers share a weight."""

    def __init__(self, classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(6, classes)
        self.register_buffer("scale", torch.ones(5))
        self.register_buffer("scratch", torch.ones(50), persistent=False)


def test_a_network_that_cannot_carry_heads(monkeypatch):
    monkeypatch.setitem(registry._factories, "plain", Plain)
    sizes = measure(Setting("plain", 1, 3, 1, 8))
    # A shared weight is sent under both of its names; what is not in the state is not sent.
    assert (sizes.trunk, sizes.classifier, sizes.buffers) == (36 + 36 + 18 + 3, 0, 5)
    assert (sizes.heads, sizes.dim) == (0, 0)
    assert sizes.no_heads.startswith("model 'plain' cannot carry projection heads")
    methods = [row.method for row in method_rows(sizes)]
    assert methods == list(HONEST)[:7]


def test_unknown_models_and_sizes_are_refused():
    with pytest.raises(ConfigError, match="unknown model 'resnet9'"):
        measure(Setting("resnet9", 4, 100, 3, 8))
    with pytest.raises(ConfigError, match="width = 0"):
        measure(Setting("resnet8", 0, 100, 3, 8))


def assert_as_counted(line: dict[str, Any], method: str, setting: Setting = DIGITS) -> None:
    """A round's record of traffic equals the row of the table, buffers included."""
    sizes, clients, traffic = measure(setting), len(line["clients"]), line["traffic"]
    assert clients >= 2
    assert not line["failed"]
    (row,) = [row for row in method_rows(sizes) if row.method == method]
    ways = {way: traffic[f"numbers_{way}"] for way in ("up", "down", "down_once")}
    assert Count(**ways) == row.count(clients, sizes.buffers)


@pytest.mark.parametrize(("method", "row"), [("fedavg", "FixMatch"), ("proxyfl", "ProxyFL")])
def test_real_runs_record_what_the_table_counts(runs: dict[str, list[Run]], method: str, row: str):
    setting = dataclasses.replace(DIGITS, model=LITTLE["model__name"])
    for line in runs[method][0].metrics:
        assert_as_counted(line, row, setting)


METHODS = [
    ("fixmatch-lpl", "FixMatch"),
    pytest.param("fedprox", "FixMatch", marks=pytest.mark.slow),
    pytest.param("flexmatch", "FixMatch", marks=pytest.mark.slow),
    ("fedloke", "FixMatch"),
    ("fedlabel", "FedLabel"),
    pytest.param("feddure", "FedDure", marks=pytest.mark.slow),
    ("feddb", "FedDB"),
    ("sage", "SAGE"),
    ("fixmatch-gpl+proto", "prototypes"),
]


def played(folder: Path, method: str, **settings: Any) -> list[dict[str, Any]]:
    for module in (
        "flexmatch",
        "fedloke",
        "fedlabel",
        "feddure",
        "feddb",
        "sage",
        "fedmatch",
        "addons.proto",
    ):
        importlib.import_module(f"proxyfl.methods.{module}")
    told = Told()
    play(tiny_config(method, per_round=4, **settings), make_simulation(), folder, observers=[told])
    return [report.metrics for report in told.reports]


@pytest.mark.parametrize(("method", "row"), METHODS)
def test_every_row_is_what_its_method_sends(tmp_path: Path, method: str, row: str):
    for line in played(tmp_path, method, rounds=1):
        assert_as_counted(line, row)


def test_heads_that_stay_on_the_clients_are_not_sent(tmp_path: Path):
    for line in played(tmp_path, "proxyfl", method__icpl__keep_heads=True):
        assert_as_counted(line, "ProxyFL, local heads")


def test_fedmatch_without_and_with_helpers(tmp_path: Path):
    first, second = played(tmp_path, "fedmatch", method__helper_every=2)
    assert_as_counted(first, "FedMatch")
    assert_as_counted(second, "FedMatch + helpers")
