"""The published numbers: as printed, and each in a place that the catalogue has."""

from __future__ import annotations

import pytest

from proxyfl.paper.catalogue import ITEMS
from proxyfl.paper.published import NOTHING, published
from proxyfl.paper.scales import TARGETS
from proxyfl.paper.tables import MEASURES


@pytest.mark.parametrize(
    ("item", "row", "column", "value"),
    [
        ("table1", "FedAvg", "cifar10@0.1", 69.60),
        ("table1", "FedProx", "svhn@1", 83.77),
        ("table1", "FedMatch", "cinic10@0.1", 51.94),
        ("table1", "ProxyFL", "cifar100@0.1", 57.50),
        ("table2", "GPT", "cinic10@0.5", 79.03),
        ("table2", "ICPL", "cifar100@1", 57.74),
        ("table2", "GPT + ICPL", "cifar10@0.1", 88.56),
        ("table3", "LPL", "cifar100@0.1:50", 562),
        ("table3", "ProxyFL", "cifar100@0.1:30", 45),
        ("table4", "LPL-ALL", "svhn@0.1", 83.99),
        ("table4", "ICPL-P", "cifar100@0.1", 57.21),
        ("table5", "PROTO-ALL", "svhn@0.1", 19.59),
        ("table6", "FedAvg+FlexMatch", "cifar10@0.1", 76.36),
        ("table6", "SAGE", "cinic10@1", 78.77),
        ("table7", "FedMatch", "millions", 33.12),
        ("table8", "FedDB", "cifar100@0.5:50", 492),
        ("table8", "SAGE", "cifar100@1:40", 112),
        ("table9", "FedLabel + ProxyFL", "cifar10@0.1", 88.55),
        ("fig1b", "ProxyFL", "cifar10@10:pseudo", 90.6),
        ("fig2b", "w/o low-confidence", "cifar10@0.1", 22_700),
        ("fig7", "Q = 10", "cifar100@0.1", 54.9),
    ],
)
def test_numbers_are_as_printed(item: str, row: str, column: str, value: float) -> None:
    assert published(item).get(row, column) == value
    assert published(item).source.startswith("ProxyFL (Chen and Wang, CVPR 2026")


def test_how_many_numbers_there_are() -> None:
    counts = {name: len(published(name).values) for name in ITEMS if published(name) is not NOTHING}
    assert counts == {
        "table1": 168, "table2": 48, "table3": 20, "table4": 32, "table5": 16, "table6": 168, "table7": 8,
        "table8": 42, "table9": 24, "fig1b": 18, "fig2b": 3, "fig7": 20,
    }  # fmt: skip


def test_a_target_that_is_never_reached_has_no_number() -> None:
    assert published("table3").get("FedDB", "cifar100@0.1:40") == 206
    assert published("table3").get("FedDB", "cifar100@0.1:50") is None


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.rows])
def test_every_number_has_a_place_in_the_catalogue(name: str) -> None:
    item = ITEMS[name]
    endings = [MEASURES[each].suffix for each in item.measures]
    if item.kind == "rounds":
        endings = [f":{100 * target:.0f}" for target in TARGETS]
    places = {
        (row.label, column.key + ending) for row in item.rows for column in item.columns for ending in endings
    }
    assert set(published(name).values) <= places
