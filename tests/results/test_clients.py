"""Which clients are unusual, in literal numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from proxyfl.cli.clients import print_clients
from proxyfl.results.clients import rank, scores


def rows(rounds: int = 3, **odd: Any) -> list[dict[str, Any]]:
    """Six clients that hardly differ, but for what is odd about client 4."""
    usual = [
        {"round": number, "client": k, "images": 100 + k, "labelled": 0.2, "norm": 2.0 + k / 100}
        | {"cosine": 0.6 + k / 200, "trusted": 0.5, "losses": {"a": 4.0 / number}, "seconds": 1.0}
        for number in range(1, rounds + 1)
        for k in range(6)
    ]
    return [row | odd if row["client"] == 4 else row for row in usual]


def test_robust_scores() -> None:
    """The median is 3, the median distance from it 1: a spread of 1.4826."""
    values = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 10.0}
    found = scores(values, dict.fromkeys(values, 0.1))
    assert [found[k] for k in (0, 2, 4)] == pytest.approx([-2 / 1.4826, 0.0, 7 / 1.4826])
    assert scores(values, dict.fromkeys(values, 2.0))[4] == pytest.approx(3.5), "the floor"


def test_nobody_is_unusual_among_equals() -> None:
    assert [client.words for client in rank(rows())] == [[]] * 6


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"cosine": 0.1}, "its update is far from the mean direction (0.10, the median is 0.61)"),
        ({"norm": 9.0}, "its update has a large norm (9, the median is 2.02)"),
        ({"norm": 0.5}, "its update has a small norm (0.5, the median is 2.01)"),
        ({"trusted": 0.1}, "few of its pseudo-labels are confident (10.0 %, the median is 50.0 %)"),
        ({"labelled": 0.02}, "it has few labels (2, the median is 20)"),
        ({"losses": {"a": 9.0}}, "its loss is high (9, the median is 2)"),
        ({"seconds": 7.0}, "it is slow (7 s, the median is 1 s)"),
    ],
)
def test_the_odd_one_is_first_and_it_is_said_why(odd: dict[str, Any], words: str) -> None:
    found = rank(rows(**odd), names=["a", "b", "c", "d", "the odd one"])
    assert (found[0].name, found[0].words) == ("the odd one", [words])
    assert not any(client.words for client in found[1:])


def test_good_sides_are_not_unusual() -> None:
    assert not rank(rows(cosine=0.99, trusted=1.0, seconds=0.1, labelled=1.0))[0].words


def test_a_client_of_early_rounds_is_compared_with_early_rounds() -> None:
    """The loss of everyone falls from 4 to 0.1; client 5 was there at the beginning alone."""
    seen = [row for row in rows(rounds=40) if row["client"] != 5 or row["round"] <= 2]
    assert not any(client.words for client in rank(seen))


def test_failures_and_rejections_are_counted() -> None:
    lines = [{"failed": {"2": "asleep", "no number": "?"}}, {"failed": {"2": "asleep"}, "rejected": [3, 0]}]
    found = {client.client: client for client in rank(rows(), lines)}
    assert found[2].words == ["2 of 5 updates failed or were rejected"]
    (words,) = found[3].words
    assert "in 1 of 3 rounds" in words
    assert rank(rows(), lines)[0].client == 2


def test_accuracy_on_few_images_must_differ_by_more() -> None:
    def with_accuracy(held: int) -> list[dict[str, Any]]:
        return [{**row, "held": held, "accuracy": 0.7 if row["client"] == 4 else 0.9} for row in rows()]

    assert rank(with_accuracy(5))[0].words == []
    told = "accuracy on its own held-out images is low (70.0 %, the median is 90.0 %)"
    assert rank(with_accuracy(200))[0].words == [told]


def test_three_clients_are_too_few_to_tell() -> None:
    few = [row for row in rows(norm=99.0) if row["client"] > 2]
    assert [client.words for client in rank(few)] == [[]] * 3


def test_the_table_says_what_it_is_and_no_heading_is_cut_at_80_columns() -> None:
    clients = rank(rows(accuracy=0.5), names=[f"a hospital {k}" for k in range(6)])
    stub = SimpleNamespace(client_rows=rows(accuracy=0.5), metrics=[], client_names=[c.name for c in clients])
    with (console := Console(width=80)).capture() as shown:
        print_clients(stub, console)  # type: ignore[arg-type]
    first, heads, *_ = shown.get().splitlines()
    assert first.startswith("medians over the rounds")
    wanted = "client rounds accuracy loss cosine norm trusted labels images seconds score"
    assert heads.split() == wanted.split()
