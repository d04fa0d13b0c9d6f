"""The Ray engine on real clusters: the same bits as one process, whoever dies."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyfl import Experiment, RayEngine, Run
from proxyfl.core import plugins
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.engines.cluster import connection
from proxyfl.engines.cluster.connection import Cluster, Needs, _private_cluster, _token
from proxyfl.engines.cluster.engine import ClusterEngine
from proxyfl.engines.cluster.witness import Witness
from proxyfl.engines.crew import Job
from proxyfl.runs import build
from proxyfl.runs.cluster import train_on_cluster
from proxyfl.runs.federation import Federation
from proxyfl.runs.sweep import Grid, jobs_of
from toybox import make_simulation, play, same_state, tiny_config

pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'proxyfl[ray]'")
SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))
DEADLY = """
import os
from proxyfl import Recipe, register_method
from proxyfl.methods.fedavg import FedAvg

class Deadly(FedAvg):
    name = "deadly"

    def begin(self, ctx):
        if ctx.task.client == 2:
            os._exit(1)
        return super().begin(ctx)

register_method(Recipe("deadly", "ends the process of client 2", Deadly))
"""


def federation_of(config: Any, engine: RayEngine, folder: Path) -> Federation:
    federation = build.assemble(config, SIMULATION, engine=engine)
    federation.settle(folder)
    return federation


@pytest.mark.parametrize(
    ("method", "momentum"),
    [("fedloke", "none"), pytest.param("fedavg", "clients", marks=pytest.mark.slow)],
)
def test_the_cluster_of_a_run_gives_the_same_bits_and_ends_with_it(
    tmp_path: Path, method: str, momentum: str
) -> None:
    """What is kept for each client travels, and lies with the run, not on a node."""
    config = tiny_config(method, rounds=2, per_round=3, train__keep_momentum=momentum)
    here = play(config, SIMULATION, tmp_path / "inline")
    federation = federation_of(config, RayEngine("local", workers=1), tmp_path / "ray")
    (report, *_) = federation.run().history
    assert same_state(here, federation.state)
    assert report.timing["cpu"] > 0
    assert not Cluster._open
    assert federation.scratch is not None
    ours, theirs = (
        sorted(file.name for file in folder.rglob("*.safetensors"))
        for folder in (federation.scratch, tmp_path / "inline")
    )
    assert ours == theirs != []


def test_private_clusters_of_a_process_share_a_token_that_ends_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray keeps the first token that it reads: with another one, the second cluster would refuse us."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    seen = []
    for _ in range(2):
        with _private_cluster():
            seen.append(os.environ["RAY_AUTH_TOKEN"])
        assert "RAY_AUTH_TOKEN" not in os.environ
    assert seen[0] == seen[1]
    assert len(seen[0]) == 64


def test_what_a_client_takes_of_its_node() -> None:
    node = {"CPU": 8.0, "GPU": 2.0, "memory": 16e9}
    assert Needs().fitting(node) == 8
    assert Needs(2).fitting(node) == 4
    assert Needs(1, 0.3).fitting(node) == 6
    assert Needs(1, 0, 5).fitting(node) == 3
    assert Needs(1, 1).fitting({"CPU": 8.0}) == 0
    assert str(Needs(2, 0.5, 4)) == "2 CPUs, 0.5 GPU and 4 GB of memory"
    assert RayEngine().needs("cuda", 2) == Needs(2, 0.5)
    assert RayEngine(cpus=1, gpus=0).needs("cuda", 2) == Needs(1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "ray://head:10001"}, "give HOST:PORT, 'auto'"),
        ({"workers": 0}, "workers = 0 must be a number of clients, at least 1"),
        ({"cpus": 0}, "cpus = 0 must be a number above 0"),
        ({"gpus": 1.5}, "a share below 1 or a whole number"),
        ({"memory": float("nan")}, "memory = nan must be a number from 0"),
    ],
)
def test_what_no_cluster_can_give_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RayEngine(**options)


def test_an_address_at_which_nothing_answers_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"127\.0\.0\.1:1; start Ray"):
        federation_of(tiny_config(), RayEngine("127.0.0.1:1"), tmp_path)
    assert not Cluster._open


def test_a_silent_head_node_ends_the_run_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE", 0.0)
    monkeypatch.setattr(connection, "LOOK_ROUND", 0.01)
    cluster = Cluster.__new__(Cluster)
    cluster.address, cluster._looked = "auto", 0.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster.head = f"127.0.0.1:{server.getsockname()[1]}"
        cluster.require_head()
    time.sleep(0.02)
    for ask in (lambda: cluster.first([], 0), lambda: cluster.room(Needs())):
        with pytest.raises(RunError, match=rf"{cluster.head} does not respond; .*proxyfl resume RUN"):
            ask()


def test_ray_without_its_process_on_this_machine_is_no_error_of_the_disk() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise BrokenPipeError(32, "Broken pipe")

    cluster = Cluster.__new__(Cluster)
    cluster.ray, cluster.address = importlib.import_module("ray"), "auto"
    cluster.head, cluster._looked = "", 0.0
    with pytest.raises(RunError, match=r"this machine does not respond .*Broken pipe.*proxyfl resume RUN"):
        cluster.ask(Broken(), "train")


@pytest.mark.parametrize(
    ("ending", "listening", "said"),
    [
        ("import os; os._exit(1)", False, "error: start Ray again\n"),
        ("import os; os._exit(1)", True, ""),
        ("witness.end()", False, ""),
    ],
)
def test_a_process_that_ray_ends_is_survived_by_an_error(ending: str, listening: bool, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        start = f"from {Witness.__module__} import Witness; witness = Witness('start Ray again', [{place!r}])"
        done = subprocess.run([sys.executable, "-c", f"{start}; {ending}"], stderr=subprocess.PIPE, text=True)
    assert done.stderr == said


WITHOUT_TOKEN = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_process_can_use_a_private_cluster_then_one_without_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps the mode and the token of the first, unless it is asked to read them again."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    config = tiny_config("fedavg", rounds=1, per_round=2)
    here = play(config, SIMULATION, tmp_path / "inline")
    command, pipe = [sys.executable, "-c", WITHOUT_TOKEN], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as other:
        assert other.stdout is not None
        for address in ("local", other.stdout.readline().strip()):
            federation = federation_of(config, RayEngine(address, workers=1), tmp_path / address[:5])
            assert same_state(here, federation.run().state)
        other.communicate()


@contextlib.contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch, head: int) -> Iterator[Any]:
    """A head, which this process is on, with room for so many clients, and a node with room for one."""
    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", _token())
    connection._authentication_read_again()  # the environment was read when Ray was imported
    cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False})
    try:
        cluster.second = cluster.add_node(num_cpus=1)  # type: ignore[attr-defined]
        yield cluster
    finally:  # one that is left behind is joined by whoever looks for a cluster on this machine
        cluster.shutdown()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with two_nodes(monkeypatch, head=1) as cluster:
        yield cluster


def power_off(cluster: Any) -> None:
    """End the second node and, as Ray itself does only after a while, the processes of its actors."""
    (raylet,) = cluster.second.all_processes["raylet"]
    actors = children(raylet.process.pid)
    assert actors
    cluster.remove_node(cluster.second, allow_graceful=False)
    cluster.second = None
    for pid in actors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(parent: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{parent}\n" in place.read_text(encoding="utf-8"):
                found.append(int(place.parent.name))
    return found


@pytest.mark.slow
def test_clients_of_a_node_that_dies_in_a_round_are_trained_by_another(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Job] = []
    again, give, suits = ClusterEngine._again, ClusterEngine._give, ClusterEngine._suits

    def give_and_kill(self: Any, worker: Any, job: Job) -> None:
        give(self, worker, job)
        if nodes.second is not None and worker.node == nodes.second.node_id:
            power_off(nodes)

    def when_both_are_ready(self: Any, worker: Any, job: Job) -> bool:
        ready = sum(hired.ready for hired in self.workers)
        return suits(self, worker, job) and (ready == 2 or nodes.second is None)

    monkeypatch.setattr(
        ClusterEngine, "_again", lambda self, job, reason: (lost.append(job), again(self, job, reason))
    )
    monkeypatch.setattr(ClusterEngine, "_give", give_and_kill)
    monkeypatch.setattr(ClusterEngine, "_suits", when_both_are_ready)
    config = tiny_config("fedavg", rounds=2, per_round=4)
    here = play(config, SIMULATION, tmp_path / "inline")
    federation = federation_of(config, RayEngine(nodes.address), tmp_path / "ray")
    assert federation.server.engine.count == 2  # type: ignore[attr-defined]
    reports = federation.run().history
    assert len(lost) == 1
    assert lost[0].avoid
    assert [len(report.clients) for report in reports] == [4, 4]
    assert same_state(here, federation.state)


@pytest.mark.slow
def test_a_client_that_ends_its_actor_twice_fails_and_the_run_goes_on(nodes: Any, tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    file.write_text(DEADLY, encoding="utf-8")
    plugins.load_plugin(str(file))
    config = tiny_config("deadly", rounds=2, per_round=4)
    federation = federation_of(config, RayEngine(nodes.address), tmp_path / "ray")
    reports = federation.run().history
    for report in reports:
        assert report.clients == [client for client in report.clients if client != 2]
        assert len(report.clients) == 3
        assert "its actor on the Ray cluster died 2 times" in report.metrics["failed"]["2"]


WITHOUT_PROXYFL = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "proxyfl":
            raise ModuleNotFoundError("No module named 'proxyfl'", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.slow
def test_a_node_without_proxyfl_is_left_out_with_a_warning(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PROXYFL, encoding="utf-8")
    bad = nodes.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
    avoided: list[set[str]] = []
    hire = Cluster.hire
    monkeypatch.setattr(Cluster, "hire", lambda *given: (avoided.append(set(given[3])), hire(*given))[1])
    federation = federation_of(
        tiny_config("fedavg", rounds=3, per_round=4), RayEngine(nodes.address), tmp_path
    )
    assert [len(report.clients) for report in federation.run().history] == [4, 4, 4]
    assert set().union(*avoided) <= {bad.node_id}
    assert len(avoided) <= 4
    assert capsys.readouterr().err.count("No module named 'proxyfl'") == 1


def marked(word: str) -> list[int]:
    """Processes whose environment holds a word."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


SHORT = "--rounds 6 --clients 4 --per-round 2 --width 1 --subset 300 --set train.epochs=2 -q".split()
PROXYFL = [sys.executable, "-m", "proxyfl"]
RUN = [*PROXYFL, "run", "digits", "--method", "flexmatch", *SHORT]


def in_the_third_round(folder: Path, address: str, **environment: str) -> subprocess.Popen[str]:
    """The process of the run ``ray`` on a cluster, which has trained for two rounds."""
    cluster = ["--engine", "ray", "--address", address, "--runs", str(folder), "--name", "ray"]
    process = subprocess.Popen(
        [*RUN, *cluster], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 200
    while not (folder / "ray" / "checkpoints" / "round-00000002").is_dir():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    return process


def kill_in_the_third_round(folder: Path, address: str, **environment: str) -> None:
    with in_the_third_round(folder, address, **environment) as process:
        process.send_signal(signal.SIGKILL)


def wait_until_gone(left: Callable[[], list[int]]) -> None:
    until = time.monotonic() + 100
    while found := left():
        assert time.monotonic() < until, found
        time.sleep(0.5)


def assert_resumed_to_the_same_bits(folder: Path, *engine: str) -> None:
    assert not Run(folder / "ray").finished
    subprocess.run([*PROXYFL, "resume", str(folder / "ray"), "-q", *engine], check=True)
    subprocess.run([*RUN, "--runs", str(folder), "--name", "inline", "--workers", "0"], check=True)
    ours, theirs = (Run(folder / name) for name in ("ray", "inline"))
    assert ours.metrics == theirs.metrics
    last = "models/last.safetensors"
    assert (ours.path / last).read_bytes() == (theirs.path / last).read_bytes()


def actors(nodes: Any) -> list[int]:
    """The processes that train, on both nodes."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in (nodes.head_node, nodes.second)]
    return [pid for raylet in raylets for pid in children(raylet) if b"ClientActor" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["gcs_server", "all"])
def test_a_run_whose_head_node_dies_ends_with_what_to_do_and_resumes_to_the_same_bits(
    nodes: Any, tmp_path: Path, victims: str
) -> None:
    """Ray may end the command at once, or leave it to us to notice. Where a call of Ray was waiting for the
    head node, Ray ends the command after a minute and says so; the last word is ours.
    """
    mark = f"mark-{uuid.uuid4().hex}"
    with in_the_third_round(tmp_path, nodes.address, MARK=mark) as process:
        training = actors(nodes)
        assert len(training) == 2
        head = nodes.head_node.all_processes
        (raylet,) = head["raylet"]
        doomed = [each.process.pid for kind in head for each in head[kind] if victims in ("all", kind)]
        for pid in doomed + (children(raylet.process.pid) if victims == "all" else []):
            os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=150)  # a call of Ray that was waiting then ends after a minute
    assert process.returncode in (1, 2)
    *of_ray, line = said.splitlines()
    assert all("Failed to connect to GCS" in each for each in of_ray), said
    assert line.startswith(f"error: the Ray cluster '{nodes.address}' is lost")
    assert "'proxyfl resume RUN'" in line
    wait_until_gone(lambda: marked(mark) + [pid for pid in training if b"ClientActor" in command_of(pid)])
    assert_resumed_to_the_same_bits(tmp_path, "--workers", "0")


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_behind_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    kill_in_the_third_round(tmp_path, "local", MARK=mark)
    wait_until_gone(lambda: marked(mark))
    assert_resumed_to_the_same_bits(tmp_path, "--workers", "0")


@pytest.mark.slow
def test_a_cluster_that_outlives_a_killed_run_trains_it_to_the_end(nodes: Any, tmp_path: Path) -> None:
    kill_in_the_third_round(tmp_path, nodes.address)
    wait_until_gone(lambda: actors(nodes))
    assert_resumed_to_the_same_bits(tmp_path, "--engine", "ray", "--address", nodes.address)


@pytest.mark.slow
def test_a_run_of_a_sweep_whose_node_dies_is_finished_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {
        "partition": {"clients": 4},
        "federation": {"per_round": 2, "rounds": 30},
        "data": {"subset": 300.0},
        "train": {"epochs": 2},
        "model": {"width": 1},
    }
    (job,) = jobs_of(Grid(("fedavg",), common=common), tmp_path / "ray")
    with two_nodes(monkeypatch, head=0) as nodes:

        def kill(failed: dict[Path, str]) -> None:
            if nodes.second is not None and any((job.path / "checkpoints").glob("round-*[1-9]*")):
                power_off(nodes)
                nodes.add_node(num_cpus=1)

        assert train_on_cluster([job], RayEngine(nodes.address), kill) == {}
        assert nodes.second is None
    assert [event for event in Run(job.path).events if event["event"] == "resumed"]
    here = Experiment(config=job.config).run(tmp_path / "here", workers=0)
    assert Run(job.path).metrics == here.metrics
    assert [path.name for path in (tmp_path / "ray").iterdir() if path.name.startswith(".")] == []
