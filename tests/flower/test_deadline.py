"""How long a round waits, where the deadline adapts to what sites need."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import MessageType
from loopback import deployment, experiment
from wireless import Clock, Known, Node, WirelessGrid, handled_by, sides

from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Failure, Task
from proxyfl.engines.flower import grid
from proxyfl.engines.flower.deadline import LEAST, ROUNDS, Deadline
from proxyfl.engines.flower.grid import Courier, FlowerEngine
from proxyfl.runs.simulation import prepare


def after(deadline, *rounds):
    for seconds in rounds:
        deadline.took(seconds, late=False)
    return deadline.seconds()


def test_nothing_is_shortened_unless_it_is_asked_for_and_known():
    assert after(Deadline(600), *[20.0] * 50) == 600
    assert after(Deadline(600, 3), *[20.0] * (ROUNDS - 1)) == 600
    assert after(Deadline(600, 3), *[20.0] * ROUNDS) == 60


def test_the_slowest_of_the_last_rounds_counts_between_two_bounds():
    assert after(Deadline(600, 3), 20, 50, *[20] * (ROUNDS - 1)) == 150
    assert after(Deadline(600, 3), 50, *[20] * ROUNDS) == 60
    assert after(Deadline(100, 3), *[50] * ROUNDS) == 100
    assert after(Deadline(100, 3), *[0.1] * ROUNDS) == LEAST


def test_who_is_late_by_a_shorter_deadline_gets_the_whole_one():
    deadline = Deadline(600, 3)
    after(deadline, *[20] * ROUNDS)
    deadline.took(20, late=True)
    assert deadline.seconds() == 600
    hung = Deadline(600, 3)
    for _ in range(ROUNDS):
        hung.took(20, late=True)  # by the whole deadline: waiting longer would not help
    assert hung.seconds() == 60


def test_an_engine_waits_as_long_as_its_sites_need(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(grid, "time", clock)
    config = experiment("fedavg", rounds=9, per_round=2, clients=2, subset=40, labels__per_class=2)
    simulation = prepare(config)
    silent = [False]
    nodes = {}
    for number, side in enumerate(sides(simulation, tmp_path)):
        answer = handled_by(side)

        def slowly(kind, records, answer=answer, number=number):
            if silent[0] and number == 1:
                return None
            clock.sleep(7)
            return answer(MessageType.QUERY, records)  # an answer of the wrong kind is an answer, too

        nodes[100 + number] = Node(slowly)
    engine = FlowerEngine(Courier(net := WirelessGrid(nodes), Known(net)), {}, 500.0, adapt=2.0)

    def play(round):
        began = clock.now
        answers = list(engine.run(Task(round, client, {}) for client in (0, 1)))
        return answers, clock.now - began

    for round in range(1, ROUNDS + 1):
        play(round)
    assert engine.deadline.seconds() == pytest.approx(28, abs=1)
    silent[0] = True
    answers, took = play(ROUNDS + 1)
    assert isinstance(answers[1], Failure)
    assert "did not answer within 28 s" in answers[1].reason
    assert took < 40
    assert engine.deadline.seconds() == 500


def test_a_factor_that_shuts_sites_out_is_refused(tmp_path):
    deployed = deployment(tmp_path / "f", experiment("fedavg", rounds=1, subset=40, labels__per_class=2))
    dataclasses.replace(deployed, adapt=2.0).write()
    with pytest.raises(ConfigError, match=r"adapt = 1.1 .*1.5"):
        dataclasses.replace(deployed, adapt=1.1).write()
