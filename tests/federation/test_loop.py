"""The round loop with a toy engine: failures, quorum, idle clients, observers, going on from any state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.core.config import Config, FederationSettings, TrainSettings
from proxyfl.core.errors import RunError
from proxyfl.core.state import Failure, ServerState, Task, Tensors, Update
from proxyfl.engines.setup import server_of
from proxyfl.federation.evaluate import Evaluation
from proxyfl.federation.loop import Server
from proxyfl.federation.sampling import Population, sample_clients
from proxyfl.methods import create
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext
from toybox import Told, run_rounds, same_state

PEOPLE = Population(np.array([2, 0, 2, 2, 2, 2]), np.array([8, 10, 8, 8, 8, 8]))


def train(task: Task) -> Update | Failure:
    """Adds the client's number and the round, so that the order of rounds shows in the result."""
    weights = {"w": task.weights["w"] * 0.5 + task.client + task.round / 10}
    return Update(task.round, task.client, 10, weights, metrics={"steps": 1.0, "loss/supervised": 2.0})


class ToyEngine:
    def __init__(self, work: Callable[[Task], Update | Failure] = train) -> None:
        self.work = work
        self.tasks: list[Task] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for task in tasks:
            self.tasks.append(task)
            yield self.work(task)


def measure(state: ServerState) -> Evaluation:
    return Evaluation(torch.tensor([[state.round, 1], [0, 2]]))


def federation(
    work: Callable[[Task], Update | Failure] = train,
    method: Method | None = None,
    people: Population = PEOPLE,
    spool: Path | None = None,
    **settings: Any,
) -> Server:
    config = Config(federation=FederationSettings(**{"rounds": 4, "per_round": 3, **settings}))
    chosen, engine = method or create("fixmatch-lpl"), ToyEngine(work)
    return server_of(config, chosen, people, engine, measure, 2, spool=spool)


START = ServerState(0, {"w": torch.zeros(2)})


def test_the_mean_of_what_came_back_is_sent_out_again() -> None:
    fed = federation(rounds=2)
    told = Told()
    end = run_rounds(fed, START, [told])
    w = 0.0
    for round in (1, 2):
        clients = sample_clients(fed.settings, fed.seed, round, PEOPLE)
        assert told.reports[round - 1].metrics["clients"] == clients
        w = sum(w * 0.5 + client + round / 10 for client in clients) / 3
    assert end.weights["w"].tolist() == pytest.approx([w, w])
    assert end.round == 2


def test_rounds_are_counted_from_one_and_played_to_the_end() -> None:
    told = Told()
    assert run_rounds(federation(), START, [told]).round == 4
    assert [report.metrics["round"] for report in told.reports] == [1, 2, 3, 4]
    assert [report.state.round for report in told.reports] == [1, 2, 3, 4]
    assert run_rounds(federation(), dataclasses.replace(START, round=4), [told]).round == 4
    assert len(told.reports) == 4


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_going_on_from_any_state_gives_the_same_end(stop: int) -> None:
    straight = run_rounds(federation(), START)
    told = Told()
    run_rounds(federation(rounds=stop), START, [told])
    middle = ServerState.from_tensors(told.reports[-1].state.to_tensors())
    assert same_state(run_rounds(federation(), middle), straight)


def test_observers_are_told_in_order() -> None:
    first, second = Told(), Told()
    run_rounds(federation(rounds=2), START, [first, second])
    kinds = [kind for kind, _ in first.calls]
    assert kinds == ["started", "answered", "answered", "answered", "finished"] * 2
    assert [kind for kind, _ in second.calls] == kinds
    for report in range(2):
        started = first.calls[5 * report][1]
        answers = [call[1].client for call in first.calls[5 * report + 1 : 5 * report + 4]]
        assert started == (report + 1, answers)


def test_a_client_that_fails_does_not_end_the_run() -> None:
    def work(task: Task) -> Update | Failure:
        return Failure(task.round, task.client, "no battery") if task.client == 3 else train(task)

    told = Told()
    fed = federation(work, per_round=6, rounds=2)
    end = run_rounds(fed, START, [told])
    assert end.round == 2
    for report in told.reports:
        assert report.metrics["failed"] == {"3": "no battery"}
        assert 3 not in report.metrics["clients"]
    first = [client + 0.1 for client in (0, 1, 2, 4, 5)]
    assert told.reports[0].state.weights["w"][0].item() == pytest.approx(sum(first) / 5)


def test_a_bad_update_does_not_reach_the_mean() -> None:
    def work(task: Task) -> Update | Failure:
        update = train(task)
        if task.client == 3:
            update = dataclasses.replace(update, weights={"w": torch.tensor([float("nan"), 1e30])})
        return update

    told = Told()
    end = run_rounds(federation(work, per_round=6, rounds=1), START, [told])
    assert bool(torch.isfinite(end.weights["w"]).all())
    assert told.reports[0].metrics["failed"] == {"3": "refused: 'w' holds values that are not finite"}
    refused = [answer for kind, answer in told.calls if kind == "answered" and isinstance(answer, Failure)]
    assert [answer.client for answer in refused] == [3]
    assert told.reports[0].metrics["traffic"]["bytes_up"] == 6 * 8  # it was sent all the same


def test_below_the_quorum_the_round_does_not_count() -> None:
    def work(task: Task) -> Update | Failure:
        if task.round == 2 and task.client != 5:
            return Failure(task.round, task.client, "no battery")
        return train(task)

    told = Told()
    with pytest.raises(RunError) as caught:
        run_rounds(federation(work, per_round=6, quorum=3), START, [told])
    assert "1 of 6 clients" in str(caught.value)
    assert "(client 0, client 1, client 2 and 2 more: no battery)" in str(caught.value)
    assert len(told.reports) == 1


def test_all_clients_failing_is_below_any_quorum() -> None:
    with pytest.raises(RunError, match="0 of 3 clients"):
        run_rounds(federation(lambda task: Failure(task.round, task.client, "x")), START)


def test_clients_without_labels_are_idle_for_fedavg_only() -> None:
    told = Told()
    run_rounds(federation(method=create("fedavg"), per_round=6, rounds=1), START, [told])
    assert told.reports[0].metrics["idle"] == [1]
    assert told.reports[0].metrics["clients"] == [0, 2, 3, 4, 5]
    for name in ("fixmatch-lpl", "fedavg-sl"):  # the second is an oracle and has all labels
        told = Told()
        run_rounds(federation(method=create(name), per_round=6, rounds=1), START, [told])
        assert told.reports[0].metrics["idle"] == []


def test_a_round_in_which_all_are_idle_changes_nothing(tmp_path: Path) -> None:
    nobody = Population(np.zeros(3, dtype=np.int64), np.full(3, 5))
    told = Told()
    state = dataclasses.replace(START, weights={"w": torch.tensor([3.0, 4.0])})
    fed = federation(method=create("fedavg"), people=nobody, rounds=2, quorum=2, spool=tmp_path)
    end = run_rounds(fed, state, [told])
    assert end.round == 2
    assert end.weights["w"].tolist() == [3.0, 4.0]
    assert told.reports[0].metrics["clients"] == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_report_says() -> None:
    told = Told()
    run_rounds(federation(rounds=1), START, [told])
    report = told.reports[0]
    assert report.metrics["accuracy"] == 3 / 4
    assert report.metrics["per_class"] == [0.5, 1.0]
    assert report.metrics["losses"] == {"supervised": 2.0}
    assert report.metrics["pseudo"] == {}
    assert report.metrics["traffic"]["bytes_down"] == 3 * 8
    assert set(report.timing) == {"train", "serve", "evaluate", "cpu"}
    assert report.snapshots["confusion"].tolist() == [[1, 1], [0, 2]]


def test_a_clients_answer_can_depend_on_the_one_before() -> None:
    """Momentum that leaks: a task is made only after the answer before it was folded."""

    def work(task: Task) -> Update | Failure:
        seen = task.carry.get("n", torch.zeros(1)) + 1
        return dataclasses.replace(train(task), carry={"n": seen})

    fed = federation(work, rounds=2)
    fed.train = TrainSettings(leak_momentum=True)
    end = run_rounds(fed, START)
    assert end.carry["n"].item() == 6
    seen = [task.carry["n"].item() if task.carry else 0 for task in fed.engine.tasks]
    assert seen == [0, 1, 2, 3, 4, 5]


class Keeper(Method):
    name = "keeper"
    keeps = "a number"
    needs_labels = False

    def start(self, ctx: ServerContext) -> Tensors:
        return {"n": torch.tensor(float(ctx.round))}

    def task_extras(self, ctx: ServerContext, client: int) -> Tensors:
        return {"hello": torch.tensor(100 * ctx.round + client)}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        return {"n": ctx.extras["keeper/n"] + len(kept)}


def test_tasks_name_the_version_to_start_from_and_carry_extras() -> None:
    def work(task: Task) -> Update | Failure:
        return Failure(task.round, task.client, "x") if (task.round, task.client) == (2, 0) else train(task)

    fed = federation(work, method=Keeper(Keeper.Parameters()), per_round=6, rounds=3)
    end = run_rounds(fed, fed.start(START.weights))
    versions = {(task.round, task.client): task.version for task in fed.engine.tasks}
    assert [versions[round, 1] for round in (1, 2, 3)] == [0, 1, 2]
    assert [versions[round, 0] for round in (1, 2, 3)] == [0, 1, 1]  # what failed in round 2 does not count
    assert end.versions == dict.fromkeys(range(6), 3)
    assert [task.extras["keeper/n"].item() for task in fed.engine.tasks[::6]] == [1.0, 7.0, 12.0]
    assert fed.engine.tasks[7].personal["keeper/hello"].item() == 201


def test_without_client_state_no_versions_are_kept() -> None:
    assert run_rounds(federation(), START).versions == {}


def test_the_state_given_is_not_changed() -> None:
    start = ServerState(0, {"w": torch.zeros(2)}, {"a/b": torch.ones(1)})
    run_rounds(federation(method=create("fixmatch-lpl")), start)
    assert start.weights["w"].tolist() == [0.0, 0.0]
    assert list(start.extras) == ["a/b"]
