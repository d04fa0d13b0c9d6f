"""Counting a method's decisions: literal counts, with and without the truth."""

from __future__ import annotations

import pytest
import torch

from proxyfl.federation.pseudo_metrics import DecisionCounter, shares

CPU = torch.device("cpu")


def bools(text: str) -> torch.Tensor:
    return torch.tensor([letter == "1" for letter in text])


def watched(truth: bool = True) -> DecisionCounter:
    """A pool of 6 images of classes 0 1 2 0 1 2, visited in two batches; image 1 comes twice."""
    watcher = DecisionCounter(6, torch.tensor([0, 1, 2, 0, 1, 2]) if truth else None, CPU)
    #          image 0     1     3     5
    # label          0     2     0     2
    # trusted        yes   no    no    yes
    watcher.labels(torch.tensor([0, 1, 3, 5]), torch.tensor([0, 2, 0, 2]), bools("1001"))
    # image 1 again with label 1, trusted; image 2 wrongly labelled 0, trusted; image 1 excluded above
    watcher.labels(torch.tensor([1, 2]), torch.tensor([1, 0]), bools("11"))
    return watcher


def test_sums() -> None:
    assert watched().metrics() == {
        "pseudo/visits": 6.0,
        "pseudo/selected": 4.0,
        "pseudo/right": 4.0,  # images 0, 3, 5 and the second visit of 1
        "pseudo/selected_right": 3.0,
        "pseudo/excluded_images": 2.0,  # 1 and 3
    }


def test_an_image_excluded_twice_counts_once() -> None:
    watcher = DecisionCounter(3, None, CPU)
    for _ in range(2):
        watcher.labels(torch.tensor([2, 0]), torch.tensor([0, 0]), bools("01"))
    assert watcher.metrics()["pseudo/excluded_images"] == 1.0
    assert watcher.metrics()["pseudo/visits"] == 4.0


def test_shares() -> None:
    found = shares(watched().metrics())
    assert found == {
        "visits": 6.0,
        "selected": 4.0,
        "selected_share": pytest.approx(4 / 6),
        "excluded_visits": 2.0,
        "excluded_images": 2.0,
        "accuracy": pytest.approx(4 / 6),
        "selected_accuracy": pytest.approx(3 / 4),
        "low_accuracy": pytest.approx(1 / 2),
    }


def test_category_sets() -> None:
    watcher = watched()
    sets = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 0, 1]]).bool()
    #  images 0 (low), 1 (low, its class 1 is outside), 3 (low), 5 (sure, does not count)
    watcher.sets(torch.tensor([0, 1, 3, 5]), sets, bools("1110"))
    sums = watcher.metrics()
    assert (sums["pseudo/low"], sums["pseudo/set_size"], sums["pseudo/set_right"]) == (3.0, 7.0, 2.0)
    found = shares(sums)
    assert found["set_size"] == pytest.approx(7 / 3)
    assert found["set_recall"] == pytest.approx(2 / 3)


def test_without_the_truth_only_counts_remain() -> None:
    watcher = watched(truth=False)
    watcher.sets(torch.tensor([0]), torch.tensor([[True, True, False]]), bools("1"))
    assert shares(watcher.metrics()) == {
        "visits": 6.0,
        "selected": 4.0,
        "selected_share": pytest.approx(4 / 6),
        "excluded_visits": 2.0,
        "excluded_images": 2.0,
        "set_size": 2.0,
    }


def test_sums_of_several_clients_add_up() -> None:
    one = watched().metrics()
    both = {name: 2 * value for name, value in one.items()}
    assert shares(both)["accuracy"] == shares(one)["accuracy"]
    assert shares(both)["excluded_images"] == 4.0


def test_nothing_shown() -> None:
    assert DecisionCounter(6, torch.zeros(6), CPU).metrics() == {}
    assert shares({"steps": 3.0}) == {}


def test_all_or_none_selected_gives_no_division_by_zero() -> None:
    watcher = DecisionCounter(2, torch.tensor([0, 0]), CPU)
    watcher.labels(torch.tensor([0, 1]), torch.tensor([0, 1]), bools("11"))
    assert "low_accuracy" not in shares(watcher.metrics())
    watcher = DecisionCounter(2, torch.tensor([0, 0]), CPU)
    watcher.labels(torch.tensor([0, 1]), torch.tensor([0, 1]), bools("00"))
    assert "selected_accuracy" not in shares(watcher.metrics())
    assert shares(watcher.metrics())["low_accuracy"] == 0.5
