"""Nodes that cannot be used, as an engine and a sweep find them: left out, as long as there is another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pretended import Pretended, PretendedCluster
from proxyfl import RayEngine
from proxyfl.core.errors import RunError
from proxyfl.core.state import Task, Update
from proxyfl.engines.cluster import actor as actor_module
from proxyfl.engines.cluster import connection
from proxyfl.engines.cluster import engine as engine_module
from proxyfl.engines.cluster.connection import Cluster, Lost, Needs
from proxyfl.engines.cluster.engine import ClusterEngine
from proxyfl.engines.cluster.frames import framed
from proxyfl.engines.cluster.watch import Watch
from proxyfl.engines.crew import TRIES, Job
from proxyfl.runs import batch, build
from proxyfl.runs import cluster as sweeps
from toybox import little_config, make_simulation

SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))
CAUSE = "node b cannot start an actor: ModuleNotFoundError: No module named 'proxyfl'"


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[PretendedCluster]:
    kind = type("TwoNodes", (PretendedCluster,), {"rooms": {"a": 1, "b": 1}, "about_to": lambda *_: None})
    for module in (engine_module, sweeps):
        monkeypatch.setattr(module, "Cluster", kind)
    for module in (actor_module, sweeps):
        monkeypatch.setattr(module, "this_node", lambda: kind.latest.here)
    return kind


def engine_of(**options: Any) -> tuple[ClusterEngine, Any]:
    federation = build.assemble(little_config("fedavg"), SIMULATION, engine=RayEngine(**options))
    engine = federation.server.engine
    assert isinstance(engine, ClusterEngine)
    return engine, federation


def rounds(engine: ClusterEngine, federation: Any, clients: int = 4, count: int = 3) -> list[Any]:
    weights, extras = federation.trainer.initial_weights(), dict[str, Any]()
    return [
        answer
        for number in range(1, count + 1)
        for answer in engine.run([Task(number, client % 4, weights, extras) for client in range(clients)])
    ]


def cannot_start(named: bool, *nodes: str) -> Any:
    """Actors end in their creation on these nodes; whether Ray says on which."""
    began: list[str] = []

    def about_to(actor: Pretended, name: str) -> None:
        if name in ("open", "make"):
            began.append(actor.node)
        if actor.node in nodes:
            actor.cluster.dismiss(actor)
            raise connection.Unfit(CAUSE.replace("node b", f"node {actor.node}"), actor.node * named)

    about_to.began = began  # type: ignore[attr-defined]
    return staticmethod(about_to)


def test_an_actor_that_its_node_cannot_start_is_told_with_node_and_cause() -> None:
    ray = pytest.importorskip("ray")
    errors = ray.exceptions
    trace = "Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named 'proxyfl'\n"
    theirs = errors.RayTaskError("__init__", trace, RuntimeError(), "ray::A", 7, "192.0.2.7", actor_id="ab")
    one = object.__new__(Cluster)

    class Ray:
        exceptions = errors

        @staticmethod
        def get(ref: object) -> bytes:
            raise errors.ActorDiedError.from_task_error(theirs)

    one.ray, one.address = Ray, "auto"
    with pytest.raises(Lost, match=r"node 192\.0\.2\.7 .*ModuleNotFoundError: No module named 'proxyfl'; "):
        one.answer(None)


def test_a_node_that_cannot_start_actors_is_left_out_and_named_once(
    cluster: type[PretendedCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.about_to = cannot_start(True, "b")
    engine, federation = engine_of()
    answers = rounds(engine, federation)
    assert [type(answer) for answer in answers] == [Update] * 12
    assert cluster.about_to.began.count("b") == 1  # type: ignore[attr-defined]
    assert capsys.readouterr().err.count("No module named 'proxyfl'") == 1


def test_where_ray_names_no_node_no_more_than_so_many_actors_of_a_round_are_started(
    cluster: type[PretendedCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.about_to = cannot_start(False, "b")
    engine, federation = engine_of()
    assert [type(answer) for answer in rounds(engine, federation, clients=40, count=2)] == [Update] * 80
    assert cluster.about_to.began.count("b") <= 2 * (2 * TRIES + 1)  # type: ignore[attr-defined]
    assert capsys.readouterr().err.count("No module named 'proxyfl'") == 1


@pytest.mark.parametrize("named", [True, False])
def test_where_no_node_can_start_actors_the_run_ends_with_node_and_cause(
    cluster: type[PretendedCluster], named: bool
) -> None:
    cluster.about_to = cannot_start(named, "a", "b")
    engine, federation = engine_of()
    with pytest.raises(RunError, match=r"node [ab] .*No module named 'proxyfl'"):
        rounds(engine, federation)
    assert all(hired.pending is not None for hired in engine.workers), "the others are still starting"


def test_a_node_that_comes_later_with_other_versions_is_left_out(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = actor_module.versions()
    theirs = {**ours, "torch": "1.0"}
    monkeypatch.setattr(actor_module, "versions", lambda: theirs if cluster.latest.here == "b" else ours)
    cluster.rooms = {"a": 1}
    engine, federation = engine_of()
    rounds(engine, federation, count=1)
    cluster.rooms = {"a": 1, "b": 1}
    assert [type(answer) for answer in rounds(engine, federation)] == [Update] * 12
    assert capsys.readouterr().err.count("torch 1.0 instead of") == 1
    assert [hired.node for hired in engine.workers] == ["a"]
    cluster.rooms = {"b": 1}
    cluster.latest.actors[0].dead = True
    with pytest.raises(RunError, match=r"is left .*torch 1\.0 instead of"):
        rounds(engine, federation)


def test_an_actor_that_cannot_be_opened_is_not_kept(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_module, "tensors_in", lambda *_: 1 / 0)
    cluster.rooms = {"a": 1}
    engine, federation = engine_of()
    with pytest.raises(RuntimeError, match="division by zero"):
        rounds(engine, federation)
    assert not engine.workers


def test_a_node_on_which_one_actor_failed_and_others_work_is_used_again(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = actor_module.tensors_in, []

    def once(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(actor_module, "tensors_in", once)
    cluster.rooms = {"a": 3}
    engine, federation = engine_of()
    assert [type(answer) for answer in rounds(engine, federation)] == [Update] * 12
    assert [hired.node for hired in engine.workers] == ["a"] * 3


def test_a_good_node_is_found_behind_many_bad_ones(cluster: type[PretendedCluster]) -> None:
    cluster.rooms = dict.fromkeys("abcdef", 1)
    cluster.about_to = cannot_start(True, *"abcde")
    engine, federation = engine_of(workers=1)
    assert [type(answer) for answer in rounds(engine, federation)] == [Update] * 12
    assert [hired.node for hired in engine.workers] == ["f"]


def test_a_retry_does_not_wait_for_an_actor_elsewhere_that_is_at_work(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_of()
    now = 1000.0
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    here, busy = (engine_module._Hired(engine.cluster, None, None) for _ in range(2))
    here.node, busy.node, engine.workers = "a", "b", [here, busy]
    busy.job = Job(Task(1, 5, {}))
    for _ in range(2):
        cluster.latest.hire(list, Needs())
    lost = engine_module._Hired(engine.cluster, None, None)
    lost.node, lost.job = "a", Job(Task(1, 0, {}), tries=1)
    engine.workers.append(lost)
    engine._bury(lost, "it ended")
    assert not engine._suits(here, lost.job)
    now += engine_module.LONG + 1
    assert engine._suits(here, lost.job)
    engine.workers.clear()


def test_the_actor_for_a_second_try_is_hired_on_another_node(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Ray would place it on the same one, which has room again."""
    trained: list[str] = []

    def once(actor: Pretended, name: str) -> None:
        if name == "train":
            trained.append(actor.node)
            actor.dead = len(trained) == 1

    cluster.about_to = staticmethod(once)  # type: ignore[assignment]
    cluster.rooms = {"a": 2, "b": 1}
    engine, federation = engine_of()
    assert [type(answer) for answer in rounds(engine, federation, clients=1, count=1)] == [Update]
    assert trained == ["a", "b"]


def test_an_actor_for_a_second_try_that_finds_no_room_is_given_up(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_of()
    now = 1000.0
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    engine._hire(avoid="a")
    assert len(engine._staff()) == 1
    now += engine_module.LONG + 1
    assert engine._staff() == []
    assert cluster.latest.actors == []


def jobs(folder: Path, count: int = 20) -> list[batch.Job]:
    return [batch.Job(str(i), little_config("fedavg"), folder / str(i), None) for i in range(count)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, cluster: type[PretendedCluster]) -> list[tuple[str, str]]:
    """The runs that were made: name and node."""
    found: list[tuple[str, str]] = []

    def finish(job: batch.Job, *_: Any) -> str:
        found.append((job.name, cluster.latest.here))
        return ""

    monkeypatch.setattr(sweeps, "finish", finish)
    return found


def unseen_on(monkeypatch: pytest.MonkeyPatch, cluster: type[PretendedCluster], *nodes: str) -> list[str]:
    tried: list[str] = []

    def seen(mark: Path) -> None:
        tried.append(cluster.latest.here)
        if tried[-1] in nodes:
            raise RunError(f"node {tried[-1]} does not see {mark.parent}")

    monkeypatch.setattr(sweeps, "_require_seen", seen)
    return tried


def test_a_node_that_cannot_begin_runs_swallows_none_of_a_sweep(
    cluster: type[PretendedCluster],
    made: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried = unseen_on(monkeypatch, cluster, "b")
    assert sweeps.train_on_cluster(jobs(tmp_path), RayEngine()) == {}
    assert {name for name, _ in made} == {str(i) for i in range(20)}
    assert {node for _, node in made} == {"a"}
    assert tried.count("b") <= 2
    assert capsys.readouterr().err.count("node b does not see") == 1


def test_a_node_that_cannot_start_actors_swallows_none_of_a_sweep(
    cluster: type[PretendedCluster], made: list[tuple[str, str]], tmp_path: Path
) -> None:
    cluster.about_to = cannot_start(True, "b")
    assert sweeps.train_on_cluster(jobs(tmp_path), RayEngine()) == {}
    assert cluster.about_to.began.count("b") <= 2  # type: ignore[attr-defined]


def test_a_sweep_of_which_no_node_can_begin_a_run_ends_with_the_cause(
    cluster: type[PretendedCluster],
    made: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tried = unseen_on(monkeypatch, cluster, "a", "b")
    with pytest.raises(RunError, match=r"node [ab] does not see"):
        sweeps.train_on_cluster(jobs(tmp_path), RayEngine())
    assert len(tried) <= 12
    assert made == []


def test_a_run_that_no_node_can_begin_fails_alone(
    cluster: type[PretendedCluster],
    made: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    all_jobs = jobs(tmp_path, 8)
    order = sweeps._order

    def spoilt(job: batch.Job, *rest: Any) -> Any:
        return order(job, *rest) | ({"config": {"method": {"name": "nonesuch"}}} if job.name == "2" else {})

    monkeypatch.setattr(sweeps, "_order", spoilt)
    failed = sweeps.train_on_cluster(all_jobs, RayEngine())
    assert [*failed] == [all_jobs[2].path]
    assert "nonesuch" in failed[all_jobs[2].path]
    assert {name for name, _ in made} == {"0", "1", "3", "4", "5", "6", "7"}
    assert {node for _, node in made} >= {"a", "b"}


def test_data_that_a_node_does_not_see_is_a_failure_of_the_node(
    cluster: type[PretendedCluster], tmp_path: Path
) -> None:
    cluster("auto")
    job = batch.Job("one", little_config("fedavg"), tmp_path / "one", tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "mark").touch()
    order = sweeps._order(job, 0, tmp_path / "mark")
    (tmp_path / "data").rmdir()
    answer, _ = sweeps.unframed(sweeps.RunActor().make(framed(order, {})))
    assert answer["setup"]
    assert "does not see" in answer["error_text"]


def test_the_time_for_actors_that_are_lost_before_they_are_there_begins_anew_with_each_loss(
    cluster: type[PretendedCluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node dies, and an hour later the one that continued the run: Ray still places actors there."""
    now = 1000.0
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: now)
    dying: tuple[str, ...] = ("ping", "make")

    def about_to(actor: Pretended, name: str) -> None:
        if name in dying:
            raise Lost("the process or its node ended")

    cluster.about_to = staticmethod(about_to)  # type: ignore[assignment]
    cluster.rooms = {"a": 1}
    (job,) = jobs(tmp_path, 1)
    pretended: Any = cluster("auto")
    parts = [pretended, job, Needs(), tmp_path / "mark"]
    parts += [sweeps._Nodes(Watch(pretended, Needs(), ""), 1)]
    remote = sweeps._Remote(*parts)
    assert remote.alive, "stillborn on the dead node"
    now += 3600
    dying = ("make",)
    assert remote.alive, "there, and lost at work"
    dying = ("ping", "make")
    assert remote.alive, "stillborn again: no try of the run"
    now += sweeps.LONG + 1
    assert not remote.alive


@pytest.mark.parametrize("repaired", [True, False])
def test_a_run_that_waits_for_a_node_that_has_gone_may_have_the_others_again(
    repaired: bool,
    cluster: type[PretendedCluster],
    made: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It would wait for ever: the cluster has room, but on a node that could not begin this run."""
    now = 1000.0
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: now)
    unseen_on(monkeypatch, cluster, "b")
    pretended: Any = cluster("auto")
    busy = pretended.hire(sweeps.RunActor, Needs())
    nodes = sweeps._Nodes(Watch(pretended, Needs(), ""), 2)
    (job,) = jobs(tmp_path, 1)
    remote = sweeps._Remote(pretended, job, Needs(), tmp_path / "mark", nodes)
    assert remote.alive, "b could not begin it"
    assert (busy.node, remote.actor.node) == ("a", "")
    cluster.rooms = {"b": 1}
    pretended.dismiss(busy)
    for later in (0.0, sweeps.LONG - 1):
        now += later
        assert remote.alive
        assert remote.actor.node == "", "a may come back"
    if repaired:
        unseen_on(monkeypatch, cluster)
    now += 2
    assert remote.alive
    assert remote.actor.node == "b"
    assert not remote.alive
    assert made == [("0", "b")] * repaired
    assert ("node b does not see" in remote.error_text()) is not repaired
