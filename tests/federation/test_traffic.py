"""Numbers and bytes up and down by part, counted by hand."""

from __future__ import annotations

import torch

from proxyfl.core.flat import Flat
from proxyfl.core.state import Task, Update
from proxyfl.federation.traffic import Traffic, by_part, numbers_by_part
from proxyfl.models import build

WEIGHTS = {
    "trunk.stem.weight": torch.zeros(4, 3),  # 48 bytes
    "trunk.norm.num_batches_tracked": torch.tensor(0),  # 8
    "classifier.weight": torch.zeros(10, 4),  # 160
    "classifier.bias": torch.zeros(10),  # 40
    "heads.feature.weight": torch.zeros(4, 4),  # 64
}


def test_parts() -> None:
    extras = {"prior/classes": torch.zeros(10), "m/flag": torch.zeros(3, dtype=torch.bool)}
    assert by_part(WEIGHTS, extras) == {"trunk": 56, "classifier": 200, "heads": 64, "extras": 43}
    assert by_part({}, {}) == {"trunk": 0, "classifier": 0, "heads": 0, "extras": 0}
    assert numbers_by_part(WEIGHTS, extras) == {"trunk": 13, "classifier": 50, "heads": 16, "extras": 13}


def test_clients_that_send_the_same_weights_are_counted_alike() -> None:
    traffic, other = Traffic(), Traffic()
    for client, weights in enumerate((WEIGHTS, {**WEIGHTS, "classifier.bias": torch.zeros(7)}, WEIGHTS)):
        traffic.received(Update(1, client, 5, Flat.of(weights), again=(Flat.of(weights),)))
        other.received(Update(1, client, 5, weights, again=(weights,)))
    assert traffic.record() == other.record()
    assert traffic.record()["bytes_up"] == 2 * (320 + 308 + 320)


def test_a_round() -> None:
    traffic = Traffic()
    for client in (1, 2):
        extras = {"prior/classes": torch.zeros(10)}
        traffic.sent(Task(1, client, WEIGHTS, extras, personal={"m/helper": torch.zeros(5)}))
    traffic.received(Update(1, 1, 5, WEIGHTS, {"prior/counts": torch.zeros(10)}))
    assert traffic.record() == {
        "bytes_up": 360,
        "bytes_down": 760,
        "bytes_down_once": 400,
        "numbers_up": 89,
        "numbers_down": 188,
        "numbers_down_once": 99,
        "up": {"trunk": 56, "classifier": 200, "heads": 64, "extras": 40},
        "down": {"trunk": 112, "classifier": 400, "heads": 128, "extras": 120},
        "down_once": {"trunk": 56, "classifier": 200, "heads": 64, "extras": 80},
        "numbers": {
            "up": {"trunk": 13, "classifier": 50, "heads": 16, "extras": 10},
            "down": {"trunk": 26, "classifier": 100, "heads": 32, "extras": 30},
            "down_once": {"trunk": 13, "classifier": 50, "heads": 16, "extras": 20},
        },
    }


def test_what_is_personal_counts_beside_what_all_receive() -> None:
    traffic = Traffic()
    same_name = {"m/x": torch.zeros(5)}
    traffic.sent(Task(1, 1, {}, same_name, personal=same_name))
    assert traffic.bytes["down"]["extras"] == 40
    assert traffic.numbers["down"]["extras"] == 10


def test_what_could_not_be_sent_does_not_count() -> None:
    traffic, both = Traffic(), Traffic()
    personal = {"m/helper": torch.zeros(5)}
    for client in (0, 1):
        both.sent(Task(1, client, WEIGHTS, personal=personal))
    both.unsent(0)
    traffic.sent(Task(1, 1, WEIGHTS, personal=personal))
    assert both.record() == traffic.record()
    assert traffic.bytes["down"]["extras"] == 20


def test_a_round_without_clients() -> None:
    ways = ("up", "down", "down_once")
    nothing = {f"{unit}_{way}": 0 for unit in ("bytes", "numbers") for way in ways}
    empty: dict[str, object] = {way: {} for way in ways}
    assert Traffic().record() == {**nothing, **empty, "numbers": empty}


def test_the_papers_network() -> None:
    """Parameters are 1,358,922 with heads for ten classes; buffers are 2,688 floats and 9 counters."""
    network = build("resnet8", 10, heads=True)
    parts = by_part(network.state_dict(), {})
    assert parts == {
        "trunk": 4 * (1_225_024 + 2_688) + 8 * 9,
        "classifier": 4 * 2_570,
        "heads": 4 * 131_328,
        "extras": 0,
    }
