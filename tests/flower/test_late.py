"""Updates that miss their round count in the next one, where the federation says so, with less weight."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import MessageType
from loopback import deployment, experiment, loopback, wait_for
from serving import connect, newest, server, texts

from proxyfl.core.errors import ConfigError
from proxyfl.core.state import ServerState, Update
from proxyfl.deploy.explain import explain
from proxyfl.engines.flower import codec
from proxyfl.engines.flower.late import LateUpdates
from proxyfl.federation.loop import RoundReport
from proxyfl.runs import checkpoint, manifests
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run
from toybox import same_state

pytestmark = pytest.mark.usefixtures("quick")
SLOW = 2
FEW = {
    "clients": 3,
    "per_round": 3,
    "rounds": 4,
    "subset": 60,
    "labels__per_class": 3,
    "keep__checkpoints": 9,
    "model__name": "little",
}


def slow(net, until, rounds=(2,)):
    """The third site does not answer tasks of these rounds before ``until()`` is true. What it is asked."""
    node = net.nodes[50 + SLOW]
    honest, asked = node.handler, []

    def handler(kind, records):
        round = codec.header_of(records).get("round")
        if kind == MessageType.TRAIN and round not in asked:
            asked.append(round)
        return (
            None if kind == MessageType.TRAIN and round in rounds and not until() else honest(kind, records)
        )

    node.handler = handler
    return asked


def late_run(folder, method="fedavg", late="next", killed=False, **settings):
    """The third site answers round 2 in round 3. ``killed``: the server, after that answer and before the
    round's checkpoint.
    """
    config = experiment(method, **{**FEW, **settings}, federation__late=late)
    deployed = deployment(folder, config)
    net = connect(deployed, config)
    one = server(deployed, net)
    updates = []
    asked = slow(net, lambda: one.live.round > 2)
    usual = one.live.answered

    def answered(answer):
        usual(answer)
        updates.append((one.live.round, answer))
        if killed and isinstance(answer, Update) and answer.client == SLOW and one.live.round == 3:
            raise KeyboardInterrupt

    one.live.answered = answered
    if killed:
        with pytest.raises(KeyboardInterrupt):
            one.run()
        again = server(deployed, net)
        again.run()
    else:
        one.run()
    return deployed, updates, asked


def test_a_late_update_counts_in_the_next_round_with_a_square_root_of_its_weight(tmp_path):
    deployed, updates, asked = late_run(tmp_path / "f")
    lines = Run(deployed.run).metrics
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert lines[2]["clients"][-1] == SLOW
    assert [line.get("late") for line in lines] == [None, None, [SLOW], None]
    assert [list(line["failed"]) for line in lines] == [[], ["2"], [], []]
    assert asked == [1, 2, 4], "while its update is awaited, a site is asked for nothing new"
    third = {answer.client: answer for round, answer in updates if round == 3}
    assert [third[client].round for client in range(3)] == [3, 3, 2]
    weights = [third[0].samples, third[1].samples, third[SLOW].samples * 0.5**0.5]
    for name, value in states(deployed.run)[3].weights.items():
        parts = [weight * third[k].weights[name].double() for k, weight in enumerate(weights)]
        if value.is_floating_point():
            assert torch.allclose(value.double(), sum(parts) / sum(weights), rtol=1e-6, atol=1e-7), name
    assert any("site-03 of round 2 arrived" in text for text in texts(deployed))
    assert not (deployed.run / "late").exists(), "updates of single sites do not outlive their use"
    rows = [row for row in Run(deployed.run).client_rows if row["client"] == SLOW]
    assert [row["round"] for row in rows] == [1, 3, 4]


def states(run):
    found = map(checkpoint.read, manifests.folders(RunDirectory(run)))
    return {saved.state.round: saved.state for saved in found}


def test_late_updates_are_refused_unless_the_federation_says_otherwise(tmp_path):
    deployed, _, asked = late_run(tmp_path / "f", late="refuse")
    lines = Run(deployed.run).metrics
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert all("late" not in line for line in lines)
    assert asked == [1, 2, 3, 4]
    assert not (deployed.run / "late").exists()


@pytest.mark.parametrize(
    "method", ["fedavg", "fedavg+momentum", pytest.param("flexmatch", marks=pytest.mark.slow)]
)
def test_a_server_killed_after_a_late_update_arrived_uses_it_again(tmp_path, method):
    name, _, momentum = method.partition("+")
    more = {"train__keep_momentum": "clients"} if momentum else {}
    (straight, *_), (killed, *_) = (
        late_run(tmp_path / word, name, killed=word == "killed", **more) for word in ("straight", "killed")
    )
    assert same_state(newest(straight.run), newest(killed.run))
    kept = ("round", "clients", "late", "accuracy", "losses")
    found = [[{k: line.get(k) for k in kept} for line in Run(one.run).metrics] for one in (straight, killed)]
    assert found[0] == found[1]
    assert sorted(found[0][3]["clients"]) == [0, 1, SLOW], "it continues from the state that round 2 wrote"


def test_an_update_that_misses_the_next_round_too_is_given_up(tmp_path):
    config = experiment("fedavg", **FEW, federation__late="next")
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    one = server(deployed, net)
    asked = slow(net, lambda: one.live.round > 3)
    one.run()
    lines = Run(deployed.run).metrics
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2]]
    assert "update of round 2" in lines[2]["failed"]["2"]
    assert asked == [1, 2, 4]


def test_what_the_server_was_owed_when_it_was_restarted_is_lost_and_the_run_continues(tmp_path):
    config = experiment("fedavg", **FEW, federation__late="next")
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    one = server(deployed, net)
    asked = slow(net, lambda: False)
    usual = one.live.round_finished

    def finished(report):
        usual(report)
        if report.number == 2:
            raise KeyboardInterrupt

    one.live.round_finished = finished
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert newest(deployed.run).owed == (SLOW,)
    net.waiting.clear()  # Flower's run has ended, and with it its messages
    server(deployed, net).run()
    lines = Run(deployed.run).metrics
    assert "lost" in lines[2]["failed"]["2"]
    assert asked == [1, 2, 4]


def test_a_site_whose_late_update_was_lost_can_make_the_quorum(tmp_path):
    """The second site is gone for good when the server is back."""
    config = experiment("fedavg", **{**FEW, "rounds": 3}, federation__late="next")
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    one = server(deployed, net)
    slow(net, lambda: False)
    usual = one.live.round_finished

    def finished(report):
        usual(report)
        if report.number == 2:
            raise KeyboardInterrupt

    one.live.round_finished = finished
    with pytest.raises(KeyboardInterrupt):
        one.run()
    net.waiting.clear()
    net.nodes[51].online = False
    server(deployed, net).run()
    line = Run(deployed.run).metrics[2]
    assert (sorted(line["clients"]), line["attempt"], "late" in line) == ([0, SLOW], 2, False)


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("proxyfl", {}, "sends more than weights|reads single updates"),
        ("fedavg", {"aggregation__rule": "median"}, "median"),
        ("fedavg", {"privacy__clip": 1.0, "federation__weighting": "uniform"}, "differential privacy"),
    ],
)
def test_late_updates_are_refused_where_they_make_no_sense(method, settings, why):
    with pytest.raises(ConfigError, match=why):
        experiment(method, **FEW, **settings, federation__late="next")


def test_explain_says_that_late_updates_are_used(tmp_path):
    said = [
        [remark for remark in explain(deployment(tmp_path / late, config)).remarks if "misses" in remark]
        for late in ("refuse", "next")
        for config in [experiment("fedavg", **FEW, federation__late=late)]
    ]
    assert [len(remarks) for remarks in said] == [0, 1]


def test_what_is_owed_survives_a_checkpoint_and_costs_nothing_where_nothing_is():
    state = ServerState(3, {"w": torch.ones(2)})
    assert "owed" not in state.to_tensors()
    owing = ServerState(3, {"w": torch.ones(2)}, owed=(1, 4))
    assert ServerState.from_tensors(owing.to_tensors()).owed == (1, 4)


def test_kept_updates_come_back_whole_or_not_at_all(tmp_path):
    late = LateUpdates(tmp_path / "late", rounds=2)
    late.round_finished(finished(1))
    for round, client in itertools.product((1, 2, 5), (0, 7)):
        late.save(Update(round, client, 9, {"w": torch.full((2,), float(round))}, metrics={"steps": 3.0}))
    late.round_finished(finished(4))
    assert [late.load(round, 0) is None for round in (1, 2)] == [True, False], "no checkpoint asks for it"
    found = late.load(5, 7)
    assert (found.samples, found.metrics, found.weights["w"].tolist()) == (9, {"steps": 3.0}, [5.0, 5.0])
    late.back_to(4)
    assert late.load(5, 7) is None
    late.save(found)
    file = next(tmp_path.glob("late/*0005-client*7*"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert late.load(5, 7) is None
    late.run_finished()
    assert not (tmp_path / "late").exists()


def finished(round):
    return RoundReport(ServerState(round, {}), {}, {}, {}, [])


WAITS = """
import time
from pathlib import Path

from proxyfl.federation.client import ClientTrainer

train = ClientTrainer.train


def patient(self, task, *more, **rest):
    go = Path({folder!r}) / f"hold-{{task.round}}"
    while go.exists():
        time.sleep(0.2)
    return train(self, task, *more, **rest)


ClientTrainer.train = patient
"""
"""A site that does not train in a round before a file is gone."""

HESITATES = """
import time
from pathlib import Path

from proxyfl.engines.flower.late import LateUpdates

save = LateUpdates.save


def patient(self, update):
    save(self, update)
    while (Path({folder!r}) / "hold-server").exists():
        time.sleep(0.2)


LateUpdates.save = patient
"""
"""A server that does not go on after a late update before a file is gone."""


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux")
def test_the_real_server_killed_after_a_late_update_arrived_uses_it_again(tmp_path):
    """Sites keep state between rounds. The bits are those of a run without networks and without a kill."""
    few = {**FEW, "model__name": "resnet8"}  # programs of their own do not know the little one
    straight, *_ = late_run(tmp_path / "straight", "flexmatch", **few)
    config = experiment("flexmatch", **few, federation__late="next")
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=150.0)
    waits, hesitates = tmp_path / "waits.py", tmp_path / "hesitates.py"
    waits.write_text(WAITS.format(folder=str(tmp_path)))
    hesitates.write_text(HESITATES.format(folder=str(tmp_path)))
    for name in ("hold-2", "hold-server"):
        (tmp_path / name).touch()
    with loopback(made) as federation:
        program = federation.server(plugin=hesitates)
        federation.sites([0, 1])
        federation.site(SLOW, plugin=waits)
        first = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round" and line["round"] == 2)
        (tmp_path / "hold-2").unlink()
        wait_for(lambda: [*made.run.glob("late/round-*")], "the late update")
        assert federation.checkpoint() == 2
        program.kill()
        (tmp_path / "hold-server").unlink()
        first.process.wait()
        federation.server()
        federation.finish(federation.run())
    assert same_state(newest(straight.run), newest(made.run))
    kept = ("round", "clients", "late", "accuracy", "losses")
    found = [[{k: line.get(k) for k in kept} for line in Run(one.run).metrics] for one in (straight, made)]
    assert found[0] == found[1]
    assert found[1][2]["late"] == [SLOW]
    assert not (made.run / "late").exists()
