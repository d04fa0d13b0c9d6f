"""Worker processes: the same bits as one process, and nothing is lost when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from proxyfl.core import plugins
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import Failure, ServerState, Task, Update
from proxyfl.engines import forkserver, pool
from proxyfl.engines.crew import SLACK
from proxyfl.engines.forkserver import ForkServer, tuned_environment
from proxyfl.engines.pool import PoolEngine, default_workers
from toybox import (
    Stopped,
    Told,
    assemble,
    gone,
    make_simulation,
    play,
    same_bits,
    same_state,
    tiny_config,
)

SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))


def engine_of(folder: Path, workers: int, method: str = "proxyfl", **settings: object) -> PoolEngine:
    config = tiny_config(method, **settings)
    federation, _ = assemble(folder, config, SIMULATION, workers)
    assert isinstance(federation.engine, PoolEngine)
    return federation.engine


@pytest.fixture
def tasks() -> list[Task]:
    trainer = assemble("unused", tiny_config("fedavg"), SIMULATION, 0)[1]
    weights, extras = trainer.initial_weights(), {}  # type: ignore[var-annotated]
    return [Task(1, client, weights, extras) for client in (1, 0, 3, 2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolEngine]:
    """Two workers for several tests: to start one takes longer than most of what is asked of it."""
    with closing(engine_of(tmp_path_factory.mktemp("pair"), 2, "fedavg")) as engine:
        yield engine


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


def pids(engine: PoolEngine) -> list[int]:
    return [worker.process.pid for worker in engine.workers]


@pytest.mark.parametrize(
    ("method", "dtype", "workers"),
    [
        ("proxyfl", "fp32", 2),
        pytest.param("proxyfl", "fp32", 1, marks=pytest.mark.slow),
        pytest.param("proxyfl", "bf16", 2, marks=pytest.mark.slow),
        pytest.param("fedloke", "fp32", 1, marks=pytest.mark.slow),
        pytest.param("fedloke", "fp32", 2, marks=pytest.mark.slow),
        pytest.param("fedmatch", "fp32", 2, marks=pytest.mark.slow),
        pytest.param("feddb", "fp32", 2, marks=pytest.mark.slow),
    ],
)
def test_with_workers_and_without_the_bits_are_the_same(
    tmp_path: Path, method: str, dtype: str, workers: int
) -> None:
    config = tiny_config(method, rounds=2, per_round=3, dtype=dtype)
    here = play(config, SIMULATION, tmp_path / "inline")
    federation, trainer = assemble(tmp_path / "workers", config, SIMULATION, workers)
    with closing(federation.engine) as engine:
        there = play(config, SIMULATION, tmp_path / "workers", engine=lambda _: engine)
    assert same_state(here, there)
    assert trainer.method.keeps_state == (tmp_path / "workers" / "clients").exists()


@pytest.mark.slow
def test_momentum_that_clients_keep_is_the_same_with_workers_and_when_a_run_goes_on(tmp_path: Path) -> None:
    config = tiny_config("fedavg", rounds=3, per_round=3, train__keep_momentum="clients")
    here, cut = play(config, SIMULATION, tmp_path / "inline"), Told(stop_after=2)

    def with_workers(*observers: Told, state: ServerState | None = None) -> ServerState:
        federation, _ = assemble(tmp_path / "workers", config, SIMULATION, 2)
        with closing(federation.engine) as engine:
            folder = tmp_path / "workers"
            return play(config, SIMULATION, folder, state=state, observers=observers, engine=lambda _: engine)

    with pytest.raises(Stopped):
        with_workers(cut)
    assert same_state(with_workers(state=cut.reports[-1].state), here)


def test_answers_come_in_the_order_of_the_tasks(tmp_path: Path, tasks: list[Task]) -> None:
    with closing(engine_of(tmp_path, 2, "fedavg")) as engine:
        assert [answer.client for answer in engine.run(tasks)] == [1, 0, 3, 2]
        first = pids(engine)
        assert [answer.client for answer in engine.run(tasks[:1])] == [1]
        assert pids(engine) == first, "workers live on from round to round"
    assert all(gone(pid) for pid in first)


def test_tasks_are_drawn_only_as_the_window_allows(
    pair: PoolEngine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def counted() -> Iterator[Task]:
        for task in tasks * 3:
            drawn.append(task.client)
            yield task

    pair._brief = False
    monkeypatch.setattr(pool, "BRIEF", 0.0)
    for count, _ in enumerate(pair.run(counted()), 1):
        assert len(drawn) <= count + len(pair.workers) + SLACK
    assert len(drawn) == 12
    monkeypatch.setattr(pool, "BRIEF", 60.0)
    drawn.clear()
    for count, _ in enumerate(pair.run(counted()), 1):
        assert len(drawn) <= count + 2 * len(pair.workers) + SLACK
    assert len(drawn) == 12


def test_a_killed_worker_is_replaced_and_its_client_tried_again(pair: PoolEngine, tasks: list[Task]) -> None:
    wanted = list(pair.run(tasks))
    before = pids(pair)
    answers = pair.run(tasks)
    got = [next(answers)]
    os.kill(before[0], signal.SIGKILL)
    os.kill(before[1], signal.SIGKILL)
    got += list(answers)
    list(pair.run(tasks))  # a death whose answer had come already is noticed with the next task
    assert not set(pids(pair)) & set(before)
    for ours, theirs in zip(got, wanted, strict=True):
        assert isinstance(ours, Update)
        assert isinstance(theirs, Update)
        assert same_bits(ours.weights, theirs.weights)


def given_ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients whose tasks were sent to workers that were at work."""
    found, give = list[int](), PoolEngine._give

    def noted(self: PoolEngine, worker: Any, job: Any) -> None:
        if job is worker.next:
            found.append(job.task.client)
        give(self, worker, job)

    monkeypatch.setattr(PoolEngine, "_give", noted)
    return found


@pytest.mark.parametrize(("seconds", "ahead"), [(60.0, True), (0.0, False)])
def test_brief_tasks_are_given_ahead_and_the_bits_are_the_same(
    pair: PoolEngine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch, seconds: float, ahead: bool
) -> None:
    monkeypatch.setattr(pool, "BRIEF", seconds)
    wanted = list(pair.run(tasks)) * 4
    early = given_ahead(monkeypatch)
    got = list(pair.run(tasks * 4))
    assert bool(early) == ahead
    for ours, theirs in zip(got, wanted, strict=True):
        assert isinstance(ours, Update)
        assert isinstance(theirs, Update)
        assert ours.client == theirs.client
        assert same_bits(ours.weights, theirs.weights)


def test_tasks_given_ahead_with_other_weights_do_not_mix(
    pair: PoolEngine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BRIEF", 60.0)
    list(pair.run(tasks))
    mixed = [*tasks, *(Task(1, task.client, dict(task.weights), {}) for task in tasks * 3)]
    with pytest.raises(RunError, match="same weights"):
        list(pair.run(mixed))
    assert [answer.client for answer in pair.run(tasks)] == [1, 0, 3, 2]


def test_a_task_given_ahead_costs_no_try_when_its_worker_dies(
    pair: PoolEngine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BRIEF", 60.0)
    list(pair.run(tasks))
    tries, bury, give = list[tuple[int, int]](), PoolEngine._bury, PoolEngine._give

    def noted(self: PoolEngine, worker: Any) -> None:
        tries.append((worker.job.tries, worker.next.tries if worker.next else 0))
        bury(self, worker)

    def end(self: PoolEngine, worker: Any, job: Any) -> None:
        give(self, worker, job)
        if job is worker.next and not tries:
            worker.process.kill()
            worker.process.wait()
            while not tries:  # an answer may have come before
                self._hear(worker)

    monkeypatch.setattr(PoolEngine, "_bury", noted)
    monkeypatch.setattr(PoolEngine, "_give", end)
    answers = list(pair.run(tasks * 4))
    assert tries == [(1, 0)]
    assert all(isinstance(answer, Update) for answer in answers)


@linux
def test_workers_share_what_was_imported_once_and_a_lost_fork_server_is_replaced(
    pair: PoolEngine, tasks: list[Task]
) -> None:
    assert all(isinstance(answer, Update) for answer in pair.run(tasks))
    assert pair._server is not None
    server = pair._server.process
    assert sorted(children(server.pid)) == sorted(pids(pair))
    before = pids(pair)
    server.kill()
    server.wait()
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(isinstance(answer, Update) for answer in pair.run(tasks))
    list(pair.run(tasks))  # a death whose answer had come already is noticed with the next task
    assert pair._server.process.pid != server.pid
    assert sorted(children(pair._server.process.pid)) == sorted(pids(pair))


@pytest.mark.slow
def test_a_fork_server_killed_while_it_starts_is_replaced_but_not_for_ever(
    pair: PoolEngine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.close()
    killed = [ForkServer()]
    killed[0].process.kill()
    monkeypatch.setattr(forkserver, "_early", [*killed])
    assert all(isinstance(answer, Update) for answer in pair.run(tasks))
    pair.close()
    killed = [ForkServer() for _ in range(5)]
    for server in killed:
        server.process.kill()
    monkeypatch.setattr(forkserver, "_early", [*killed])
    with pytest.raises(RunError, match=r"signal 9.*--workers 0"):
        list(pair.run(tasks))


@pytest.mark.slow
def test_workers_that_died_while_idle_cost_no_client_a_try(tmp_path: Path, tasks: list[Task]) -> None:
    with closing(engine_of(tmp_path, 1, "fedavg")) as engine:
        list(engine.run(tasks[:2]))
        for _ in range(2):
            for pid in pids(engine):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
            assert all(isinstance(answer, Update) for answer in engine.run(tasks))


class Deadly:
    """A fork server whose process ends before it can have heard what it is to do."""

    def __init__(self, server: Any, killed: list[int]) -> None:
        self.server, self.killed = server, killed

    def fork(self, fds: tuple[int, ...]) -> Any:
        process = self.server.fork(fds)
        process.kill()
        self.killed.append(process.wait())
        return process


@pytest.mark.slow
def test_a_replacement_that_dies_while_starting_is_replaced_again(
    tmp_path: Path, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(engine_of(tmp_path, 1, "fedavg")) as engine:
        list(engine.run(tasks[:1]))
        real, killed = pool._Worker, []

        def stillborn(*arguments: Any) -> pool._Worker:
            *usual, server, fds = arguments
            return real(*usual, server if killed else Deadly(server, killed), fds)

        monkeypatch.setattr(pool, "_Worker", stillborn)
        os.kill(pids(engine)[0], signal.SIGKILL)
        assert all(isinstance(answer, Update) for answer in engine.run(tasks))
        assert killed


def test_a_round_that_ends_early_leaves_nothing_for_the_next(pair: PoolEngine, tasks: list[Task]) -> None:
    answers = pair.run(tasks)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    again = [Task(2, task.client, dict(task.weights), {}) for task in tasks]
    assert [(answer.round, answer.client) for answer in pair.run([
        Task(2, task.client, again[0].weights, again[0].extras) for task in again
    ])] == [(2, 1), (2, 0), (2, 3), (2, 2)]  # fmt: skip


def test_tasks_with_other_weights_do_not_mix(pair: PoolEngine, tasks: list[Task]) -> None:
    mixed = [tasks[0], Task(1, 0, dict(tasks[0].weights), {})]
    with pytest.raises(RunError, match="same weights"):
        list(pair.run(mixed))
    assert [answer.client for answer in pair.run(tasks)] == [1, 0, 3, 2]


@pytest.mark.slow
def test_a_method_registered_elsewhere_and_found_in_the_current_folder(tmp_path: Path) -> None:
    """As in a notebook: the search path begins with the current folder, and a recipe names our class."""
    (tmp_path / "mine.py").write_text(
        "from proxyfl.methods.fedavg import FedAvg\n"
        "from proxyfl.methods.registry import Recipe, register\n"
        "register(Recipe('mine-too', 'FedAvg again', FedAvg))\n",
        encoding="utf-8",
    )
    code = (
        "import mine; from proxyfl import Experiment;"
        "Experiment('mine-too', 'digits', rounds=1, clients=2, per_round=2).run('run', workers=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_client_whose_worker_dies_twice_is_reported_as_failed(tmp_path: Path, tasks: list[Task]) -> None:
    """A method in a plug-in ends its process for one client, as the out-of-memory killer would."""
    plugin = tmp_path / "deadly.py"
    plugin.write_text(
        "import os, signal\n"
        "from proxyfl.methods.fedavg import FedAvg\n"
        "from proxyfl.methods.registry import Recipe, register\n"
        "class Deadly(FedAvg):\n"
        "    name = 'deadly'\n"
        "    def begin(self, ctx):\n"
        "        if ctx.task.client == 0:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "register(Recipe('deadly', 'kills its process', Deadly))\n",
        encoding="utf-8",
    )
    plugins.load_plugin(str(plugin))
    with closing(engine_of(tmp_path, 1, "deadly")) as engine:
        answers = list(engine.run(tasks))
    assert [isinstance(answer, Failure) for answer in answers] == [False, True, False, False]
    assert "died 2 times (signal 9)" in answers[1].reason  # type: ignore[union-attr]


def test_what_is_no_clients_fault_is_raised_here(tmp_path: Path, tasks: list[Task]) -> None:
    missing = [Task(2, 1, tasks[0].weights, {}, version=1)]
    with closing(engine_of(tmp_path, 1, "fedloke")) as engine, pytest.raises(RunError, match="is gone"):
        list(engine.run(missing))


def test_a_worker_that_cannot_start_says_why(tmp_path: Path, tasks: list[Task]) -> None:
    with closing(engine_of(tmp_path, 1, "fedavg")) as engine:
        engine._setup = {**engine._describe(), "plugins": ["nowhere_to_be_found"]}
        with pytest.raises(ConfigError, match="nowhere_to_be_found"):
            list(engine.run(tasks))


def test_momentum_that_leaks_keeps_clients_in_one_process(tmp_path: Path) -> None:
    config = tiny_config("fedavg", train__leak_momentum=True)
    federation, _ = assemble(tmp_path, config, SIMULATION, 2)
    assert not isinstance(federation.engine, PoolEngine)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "usable_cores", lambda: 8)
    assert default_workers(tiny_config("fedavg", per_round=3)) == 3
    assert default_workers(tiny_config("fedavg", clients=20, per_round=20)) == 8
    assert default_workers(tiny_config("fedavg", clients=20, per_round=20, compute__threads=4)) == 2
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert default_workers(tiny_config("fedavg", clients=20, per_round=20, device="cuda")) == 4
    assert pool.devices("cuda") == ["cuda:0", "cuda:1"]
    assert pool.devices("cuda:1") == ["cuda:1"]


def test_the_users_allocator_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1")
    words = tuned_environment()["GLIBC_TUNABLES"].split(":")
    assert "glibc.malloc.hugetlb=0" in words
    assert "glibc.malloc.arena_max=1" in words
    assert f"glibc.malloc.mmap_threshold={4 << 30}" in words


SLEEPY = """
import time
from pathlib import Path
from typing import Any
from proxyfl.methods.fedavg import FedAvg
from proxyfl.methods.registry import Recipe, register
class Sleepy(FedAvg):
    name = "sleepy"
    def begin(self, ctx):
        Path(f"asleep-{ctx.task.client}").touch()
        time.sleep(120)
register(Recipe("sleepy", "never ends a client", Sleepy))
"""
SCRIPT = """
import sleepy
from proxyfl import Experiment
Experiment("sleepy", "digits", rounds=1, clients=2, per_round=2).run("run", workers=2)
"""


def started(folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A script without any main guard and with a method of its own: two workers, each inside a client."""
    (folder / "sleepy.py").write_text(SLEEPY, encoding="utf-8")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len([*folder.glob("asleep-*")]) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    (server,) = children(process.pid)
    assert len(children(server)) == 2
    return process, [server, *children(server)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@linux
def test_workers_end_by_themselves_when_the_parent_is_killed(tmp_path: Path) -> None:
    process, below = started(tmp_path)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while not all(gone(pid) for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(gone(pid) for pid in below)


@linux
@pytest.mark.slow
def test_ctrl_c_stops_everything_within_two_seconds(tmp_path: Path) -> None:
    """The clock stops when the last worker is gone: unloading Python is the machine's affair."""
    process, below = started(tmp_path)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    while not all(gone(pid) for pid in below) and time.monotonic() < begun + 10:
        time.sleep(0.02)
    assert time.monotonic() - begun < 2
    assert process.wait(30) == -signal.SIGINT
