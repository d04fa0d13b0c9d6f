"""The Ray engine without Ray: actors of a pretended cluster live in this process, and die when told to."""

from __future__ import annotations

import gc
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from pretended import Pretended, PretendedCluster
from proxyfl import RayEngine
from proxyfl.core import provenance
from proxyfl.core.config import ComputeSettings
from proxyfl.core.errors import RunError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.engines.cluster import actor as actor_module
from proxyfl.engines.cluster import engine as engine_module
from proxyfl.engines.cluster import watch as watching
from proxyfl.engines.cluster.connection import Cluster, Needs
from proxyfl.engines.cluster.engine import ClusterEngine
from proxyfl.engines.cluster.frames import framed, unframed
from proxyfl.engines.crew import Job
from proxyfl.runs import batch, build, experiment
from proxyfl.runs import cluster as sweeps
from proxyfl.runs.directory import RunDirectory, read_json_lines
from proxyfl.runs.exact import OTHER
from toybox import Stopped, Told, little_config, make_simulation, play, same_state

SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[PretendedCluster]:
    kind = type("TwoNodes", (PretendedCluster,), {"rooms": {"a": 1, "b": 1}, "about_to": lambda *_: None})
    monkeypatch.setattr(engine_module, "Cluster", kind)
    monkeypatch.setattr(actor_module, "this_node", lambda: kind.latest.here)
    monkeypatch.setattr(sweeps, "this_node", lambda: "a")
    return kind


def engine_of(method: str = "fedavg", **options: Any) -> tuple[ClusterEngine, Any]:
    config = little_config(method)
    federation = build.assemble(config, SIMULATION, engine=RayEngine(**options))
    engine = federation.server.engine
    assert isinstance(engine, ClusterEngine)
    return engine, federation


def answers(
    engine: ClusterEngine, federation: Any, clients: tuple[int, ...] = (1, 0, 3, 2)
) -> list[Update | Failure]:
    weights, extras = federation.trainer.initial_weights(), dict[str, Any]()
    return list(engine.run([Task(1, client, weights, extras) for client in clients]))


def test_answers_come_in_the_order_of_the_tasks_and_no_actor_is_hired_for_nothing(
    cluster: type[PretendedCluster],
) -> None:
    cluster.rooms = {"a": 100}
    engine, federation = engine_of()
    assert [answer.client for answer in answers(engine, federation)] == [1, 0, 3, 2]
    assert len(engine.workers) == 4


def test_momentum_that_clients_keep_travels_and_lies_with_the_run(tmp_path: Path) -> None:
    config = little_config("fedavg", rounds=3, per_round=3, train__keep_momentum="clients")
    here = play(config, SIMULATION, tmp_path / "inline")
    cut = build.assemble(config, SIMULATION, engine=RayEngine()).record(tmp_path / "ray")
    with pytest.raises(Stopped):
        cut.run([Told(stop_after=2)])
    again = build.assemble(config, SIMULATION, engine=RayEngine()).resume(tmp_path / "ray")
    assert same_state(again.run().state, here)
    assert list((tmp_path / "ray" / "clients").rglob("*.safetensors"))


def test_a_client_whose_actor_dies_is_tried_once_on_another_node(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []
    lost: list[Job] = []
    given: dict[int, list[str]] = {}
    again, give = ClusterEngine._again, ClusterEngine._give

    def noted(self: ClusterEngine, job: Job, reason: str) -> None:
        lost.append(job)
        again(self, job, reason)

    def told(self: ClusterEngine, worker: Any, job: Job) -> None:
        given.setdefault(job.task.client, []).append(worker.node)
        give(self, worker, job)

    monkeypatch.setattr(ClusterEngine, "_again", noted)
    monkeypatch.setattr(ClusterEngine, "_give", told)

    def once(actor: Pretended, name: str) -> None:
        if name == "train" and not died:
            died.append(actor.node)
            actor.dead = True

    cluster.about_to = staticmethod(once)  # type: ignore[assignment]
    cluster.rooms = {"a": 2, "b": 1}
    engine, federation = engine_of()
    assert all(isinstance(answer, Update) for answer in answers(engine, federation))
    assert (died, [job.avoid for job in lost]) == (["a"], ["a"])
    assert given[lost[0].task.client] == ["a", "b"]


def test_a_client_that_ends_every_actor_has_failed_and_the_others_have_not(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    give = ClusterEngine._give

    def watched(self: ClusterEngine, worker: Any, job: Any) -> None:
        give(self, worker, job)
        if job.task.client == 3:
            tried.append(worker.actor.node)
            worker.actor.dead = True

    monkeypatch.setattr(ClusterEngine, "_give", watched)
    engine, federation = engine_of()
    found = answers(engine, federation)
    assert [type(answer) for answer in found] == [Update, Update, Failure, Update]
    assert "died 2 times" in found[2].reason  # type: ignore[union-attr]
    assert sorted(tried) == ["a", "b"], "the second try is on the other node"


def test_actors_that_died_between_two_rounds_cost_no_client_a_try(cluster: type[PretendedCluster]) -> None:
    cluster.rooms = {"a": 3}
    engine, federation = engine_of()
    answers(engine, federation)
    for actor in cluster.latest.actors:
        actor.dead = True
    assert [type(answer) for answer in answers(engine, federation, (1,))] == [Update]


def test_a_node_with_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, federation = engine_of()
    given = engine._opening()
    theirs = {**actor_module.versions(), "torch": "1.0"}
    monkeypatch.setattr(actor_module, "versions", lambda: theirs)
    engine._given = given
    with pytest.raises(RunError, match=r"torch 1\.0 instead of .*same versions"):
        answers(engine, federation)


def test_actors_that_never_come_up_end_the_run_with_a_sentence(cluster: type[PretendedCluster]) -> None:
    def stillborn(actor: Pretended, name: str) -> None:
        actor.dead = name == "open"

    cluster.about_to = staticmethod(stillborn)  # type: ignore[assignment]
    engine, federation = engine_of()
    with pytest.raises(RunError, match="before they are ready"):
        answers(engine, federation)


def test_where_all_others_are_on_that_node_one_more_is_hired_for_the_second_try(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node b has room, but nobody is there: who has nothing to do on node a does not get it."""
    began: list[str] = []
    given: dict[int, list[str]] = {}
    give = ClusterEngine._give

    def noted(self: ClusterEngine, worker: Any, job: Job) -> None:
        given.setdefault(job.task.client, []).append(worker.node)
        give(self, worker, job)

    def once(actor: Pretended, name: str) -> None:
        began.extend([actor.node] * (name == "train"))
        if name == "train" and len(began) == 2:
            actor.dead, cluster.rooms = True, {"a": 1, "b": 2}

    monkeypatch.setattr(ClusterEngine, "_give", noted)
    cluster.about_to = staticmethod(once)  # type: ignore[assignment]
    cluster.rooms = {"a": 4}
    engine, federation = engine_of()
    assert all(isinstance(answer, Update) for answer in answers(engine, federation, (1, 0)))
    assert began == ["a", "a", "b"]
    assert sorted(given.values()) == [["a"], ["a", "b"]]


def test_a_retry_waits_no_longer_than_this_for_an_actor_elsewhere(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_of()
    now = 1000.0
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    here, coming = (engine_module._Hired(engine.cluster, None, None) for _ in range(2))
    here.node, engine.workers = "a", [here, coming]
    job = Job(Task(1, 0, {}), avoid="a", lost=now)
    assert not engine._suits(here, job)
    coming.node = "b"
    assert not engine._suits(here, job)
    now += engine_module.LONG + 1
    assert engine._suits(here, job)
    assert engine._suits(coming, job)
    engine.workers.clear()


def test_an_engine_that_cannot_be_made_or_is_dropped_leaves_no_connection(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(cluster, "close", lambda self: closed.append("closed"))

    def full(self: PretendedCluster, needs: Needs, what: str) -> int:
        raise RunError("no node has that")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "require_room", full)
        with pytest.raises(RunError, match="no node has that"):
            engine_of()
        gc.collect()
    assert closed
    made = engine_of()
    closed.clear()
    del made
    gc.collect()
    assert closed == ["closed"]


def test_resuming_exactly_a_node_that_rounds_otherwise_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = little_config("fedavg", rounds=2)
    with pytest.raises(Stopped):
        build.assemble(config, SIMULATION).record(tmp_path / "run").run([Told(stop_after=1)])
    monkeypatch.setattr(actor_module, "instructions", lambda *_: "riscv64 DEFAULT")
    with pytest.raises(RunError, match=r"riscv64 DEFAULT instead of .* --exact"):
        answers(*engine_of(exact=True))
    kept: list[bool] = []
    monkeypatch.setattr(experiment, "_restored", lambda *parts: kept.append(parts[-1].exact) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        experiment.resume(tmp_path / "run", engine=RayEngine(), exact=True)
    assert kept == [True]


def test_a_run_whose_creation_was_cut_short_resumes_exactly_on_such_nodes_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    build.assemble(little_config("fedavg", rounds=2), SIMULATION).record(run.path)
    run.path.rename(run.aside)
    kept: list[bool] = []
    monkeypatch.setattr(
        experiment.Experiment, "run", lambda *parts, engine, **more: kept.append(engine.exact) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        experiment.resume(run.path, engine=RayEngine(), exact=True)
    assert kept == [True]


def test_an_error_of_a_disk_on_a_node_is_that_nodes_and_not_the_clusters() -> None:
    ray = pytest.importorskip("ray")
    errors = ray.exceptions
    theirs = errors.RayTaskError("open", "Traceback", PermissionError(13, "no")).as_instanceof_cause()
    assert isinstance(theirs, OSError)
    one = object.__new__(Cluster)

    class Ray:
        exceptions = errors

        @staticmethod
        def get(ref: object) -> bytes:
            raise theirs

    one.ray, one.address = Ray, "auto"
    with pytest.raises(RunError, match="an actor failed"):
        one.answer(None)


def test_a_run_whose_node_fails_before_it_begins_is_reported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = batch.Job("one", little_config("fedavg"), tmp_path / "one", None)
    order = framed(sweeps._order(job, 0, tmp_path / "mark"), {})

    def stale(self: Path) -> bool:
        raise PermissionError(13, "stale")

    monkeypatch.setattr(Path, "exists", stale)
    told = unframed(sweeps.RunActor().make(order))[0]["error_text"]
    assert "PermissionError" in told
    assert told.startswith("node ")


def test_where_no_node_is_left_a_sweep_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = 1

    class Alone:
        def room(self, needs: Needs, without: Collection[str] = ()) -> int:
            return room

    watch = watching.Watch(Alone(), Needs(), "run it again")  # type: ignore[arg-type]

    def look(now: float, anybody: bool = False) -> str:
        monkeypatch.setattr(watching.time, "monotonic", lambda: now)
        watch.look(anybody)
        return capsys.readouterr().err

    assert [look(1), look(20), look(20, anybody=True), look(21), look(50)] == [""] * 5
    assert "still waiting" in look(52)
    room = 0
    with pytest.raises(RunError, match="1 CPU is left; run it again"):
        look(90)


def test_a_node_with_another_kind_of_processor_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(actor_module, "instructions", lambda *_: "riscv64 DEFAULT")
    answers(*engine_of())
    assert capsys.readouterr().err.count("(riscv64 DEFAULT instead of") == 1


def test_rounds_on_mixed_nodes_are_recorded_and_resuming_exactly_refuses_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = little_config("fedavg", rounds=3)

    def mixed() -> Any:
        return build.assemble(config, SIMULATION, engine=RayEngine())

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(actor_module, "instructions", lambda *_: "riscv64 DEFAULT")
        unrecorded = mixed()
        next(unrecorded.rounds(1))
        with pytest.raises(Stopped):
            mixed().record(run).run([Told(stop_after=2)])
    lines = [line for line in read_json_lines(run / "events.jsonl") if line["event"] == OTHER]
    assert [(line["round"], "riscv64 DEFAULT" in line["reason"]) for line in lines] == [(0, True)]
    with pytest.raises(RunError, match="riscv64 DEFAULT"):
        mixed().resume(run, exact=True)
    mixed().resume(run)
    with pytest.raises(RunError, match="riscv64 DEFAULT"):
        unrecorded.record(tmp_path / "late") and mixed().resume(tmp_path / "late", exact=True)


def test_a_federation_that_resumes_exactly_refuses_other_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = little_config("fedavg", rounds=2)
    with pytest.raises(Stopped):
        build.assemble(config, SIMULATION).record(tmp_path / "run").run([Told(stop_after=1)])
    monkeypatch.setattr(actor_module, "instructions", lambda *_: "riscv64 DEFAULT")
    again = build.assemble(config, SIMULATION, engine=RayEngine()).resume(tmp_path / "run", exact=True)
    with pytest.raises(RunError, match=r"riscv64 DEFAULT instead of .* --exact"):
        again.run()


def test_a_federation_that_used_other_nodes_does_not_resume_exactly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its actors there are still at hand: they would not be compared again."""
    config = little_config("fedavg", rounds=3)
    with pytest.raises(Stopped):
        build.assemble(config, SIMULATION).record(tmp_path / "run").run([Told(stop_after=1)])
    monkeypatch.setattr(actor_module, "instructions", lambda *_: "riscv64 DEFAULT")
    mixed = build.assemble(config, SIMULATION, engine=RayEngine())
    next(mixed.rounds(1))
    with pytest.raises(RunError, match=r"riscv64 DEFAULT instead of .* exact"):
        mixed.resume(tmp_path / "run", exact=True)
    mixed.resume(tmp_path / "run").run()


def test_what_a_node_is_compared_by_follows_from_the_runs_precision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def theirs(compute: ComputeSettings) -> str:
        return provenance.instructions(compute) + " bf16=riscv" * (compute.dtype == "bf16")

    monkeypatch.setattr(actor_module, "instructions", theirs)
    answers(*engine_of())
    assert "bf16" not in capsys.readouterr().err
    federation = build.assemble(little_config("fedavg", dtype="bf16"), SIMULATION, engine=RayEngine())
    answers(federation.server.engine, federation, (0,))
    assert capsys.readouterr().err.count("bf16=riscv instead of") == 1
