"""The Ray engine without Ray: actors of a pretended cluster live in this process, and die when told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxyfl import RayEngine
from proxyfl.core.errors import RunError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.engines.cluster import actor as actor_module
from proxyfl.engines.cluster import engine as engine_module
from proxyfl.engines.cluster.connection import Lost, Needs
from proxyfl.engines.cluster.engine import ClusterEngine
from proxyfl.engines.crew import Job
from proxyfl.runs import build
from toybox import Stopped, Told, little_config, make_simulation, play, same_state

SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))


class Pretended:
    """An actor: its answers are computed when they are asked for. One that is dead gives none."""

    def __init__(self, cluster: PretendedCluster, kind: type, node: str) -> None:
        self.cluster, self.thing, self.node, self.dead = cluster, kind(), node, False

    def __getattr__(self, name: str) -> Any:
        return Asked(self, name)


class Asked:
    def __init__(self, actor: Pretended, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *parts: Any) -> Callable[[], bytes]:
        def answer() -> bytes:
            self.actor.cluster.asked.append((self.name, self.actor.node))
            self.actor.cluster.about_to(self.actor, self.name)
            if self.actor.dead:
                raise Lost("the process or its node ended")
            self.actor.cluster.here = self.actor.node
            said: bytes = getattr(self.actor.thing, self.name)(*parts)
            return said

        answer.asked = self.name  # type: ignore[attr-defined]
        return answer


class PretendedCluster:
    """``rooms`` is what each node has room for; ``about_to`` is called before an actor does something."""

    rooms: dict[str, int]
    about_to: Callable[[Pretended, str], None]
    latest: PretendedCluster

    def __init__(self, address: str) -> None:
        self.actors: list[Pretended] = []
        self.asked: list[tuple[str, str]] = []
        self.here = ""
        type(self).latest = self

    def require_room(self, needs: Needs, what: str) -> int:
        return sum(self.rooms.values())

    room = require_room

    def hire(self, kind: type, needs: Needs) -> Pretended:
        living = [actor.node for actor in self.actors]
        (node, *_) = [node for node, room in self.rooms.items() if living.count(node) < room] or ["full"]
        self.actors.append(Pretended(self, kind, node))
        return self.actors[-1]

    def dismiss(self, actor: Pretended) -> None:
        self.actors.remove(actor)

    def ask(self, actor: Pretended, what: str, *given: Any) -> Any:
        return getattr(actor, what).remote(*given)

    def put(self, thing: Any) -> Any:
        return thing

    def first(self, refs: list[Any], seconds: float) -> set[Any]:
        """Whoever is starting is quicker than who trains."""
        return {min(refs, key=lambda ref: ref.asked == "train")}

    def answer(self, ref: Callable[[], bytes]) -> bytes:
        return ref()

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[PretendedCluster]:
    kind = type("TwoNodes", (PretendedCluster,), {"rooms": {"a": 1, "b": 1}, "about_to": lambda *_: None})
    monkeypatch.setattr(engine_module, "Cluster", kind)
    monkeypatch.setattr(actor_module, "this_node", lambda: kind.latest.here)
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


def test_a_node_with_another_kind_of_processor_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(actor_module, "instructions", lambda: "riscv64 DEFAULT")
    answers(*engine_of())
    assert capsys.readouterr().err.count("(riscv64 DEFAULT instead of") == 1
