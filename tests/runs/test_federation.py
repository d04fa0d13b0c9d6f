"""A federation of objects: the same bits as by name, in one process or several, recorded and resumed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxyfl
from calling import invoke
from proxyfl.aggregation import Aggregator, Clip, FedAdam, FedAvgM, Krum, Mean, Median, TrimmedMean
from proxyfl.core.errors import ConfigError, DataError, MethodError, RunError
from proxyfl.federation.loop import Observer
from proxyfl.methods import registry
from proxyfl.methods.addons import GPT, ICPL
from proxyfl.methods.fixmatch import FixMatch
from proxyfl.methods.proxyfl import ProxyFL
from proxyfl.runs import build, checkpoint, experiment, settings
from toybox import every_method, little_config, make_simulation, same_state

SIMULATION = make_simulation()
TRAIN = proxyfl.Train(epochs=1, batch=8)


class Net(nn.Module):
    """Nobody registered it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.classifier = nn.Linear(16, classes)

    def features(self, images: Tensor) -> Tensor:
        found: Tensor = self.trunk(images)
        return found

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(images))
        return found


def federation(**changes: Any) -> proxyfl.Federation:
    options: dict[str, Any] = {
        "network": Net, "method": "proxyfl", "rounds": 3, "per_round": 2, "train": TRAIN, "dtype": "fp32",
        "workers": 0,
    }  # fmt: skip
    return proxyfl.Federation(SIMULATION.dataset, SIMULATION.partition, **{**options, **changes})


def by_objects(name: str) -> proxyfl.Method:
    """A registered method, put together from its classes and their parameters."""
    recipe = registry.find(name)
    _, tree = registry.resolve(name, {})
    addons = [registry.addons()[part](**tree.pop(part)) for part in registry._with_needs(recipe.addons)]
    return recipe.method(**tree, addons=addons)


@pytest.mark.parametrize("name", every_method())
def test_by_name_and_by_objects_are_the_same_bits(name: str) -> None:
    config = little_config(name, rounds=1)
    named = build.assemble(config, SIMULATION, workers=0).run()
    ours = federation(
        network="little", width=1, method=by_objects(name), rounds=1, train=config.train, seed=config.seed
    ).run()
    assert same_state(named.state, ours.state)
    assert named.history[0].metrics == ours.history[0].metrics
    assert (ours.config.method.name, ours.config.method.parameters) == (
        config.method.name,
        config.method.parameters,
    )


def test_rounds_are_reported_and_the_state_is_a_value() -> None:
    one, two = federation(), federation()
    numbers = [report.number for report in one.rounds(2)]
    assert numbers == [1, 2]
    middle = one.state
    one.run()
    two.state = middle
    assert [report.number for report in two.rounds()] == [3]
    assert same_state(one.state, two.state)
    assert one.evaluate().accuracy == one.history[-1].accuracy
    assert one.model()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_recorded_from_any_round_it_is_the_run_it_would_have_been(tmp_path: Path, before: int) -> None:
    whole = federation(method="fedmatch").record(tmp_path / "whole").run()
    late = federation(method="fedmatch")
    list(late.rounds(before))
    late.record(tmp_path / "late")
    list(late.rounds(2 - before))
    again = federation(method="fedmatch").resume(tmp_path / "late").run()
    assert same_state(whole.state, again.state)
    for name in ("metrics.jsonl", "config.toml", "partition.safetensors", "models/best.safetensors"):
        assert (tmp_path / "late" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert proxyfl.Run(tmp_path / "late").finished


def test_verbs_read_a_run_of_objects_and_resume_names_the_cure(tmp_path: Path) -> None:
    list(federation(rounds=1).record(tmp_path / "done").rounds())
    list(federation().record(tmp_path / "mine").rounds(1))
    place = str(tmp_path / "mine")
    for words in (["ls", str(tmp_path)], ["show", place], ["table", str(tmp_path)], ["validate", place]):
        assert invoke(*words).exit_code == 0, words
    for words in (["eval", place], ["predict", place, "x.png"], ["run", f"{place}/config.toml"]):
        answer = invoke(*words)
        assert answer.exit_code == 2, words
        assert "Python" in answer.output, words
    refused = invoke("resume", str(tmp_path / "mine"))
    assert refused.exit_code != 0
    assert "Federation" in refused.output
    model = proxyfl.Run(tmp_path / "mine").model(network=Net)
    assert model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape == (2, 10)
    with pytest.raises(RunError, match="network="):
        proxyfl.Run(tmp_path / "mine").model()


def test_other_objects_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    list(federation().record(tmp_path / "mine").rounds(1))
    with pytest.raises(RunError, match=r"method\.tau"):
        federation(method=ProxyFL(tau=0.9)).resume(tmp_path / "mine")
    other = make_simulation(seed=5)
    with pytest.raises(RunError, match="data"):
        proxyfl.Federation(
            other.dataset, other.partition, Net, rounds=3, per_round=2, train=TRAIN, dtype="fp32", workers=0
        ).resume(tmp_path / "mine")


class Interrupted(Exception):
    """Raised by an observer."""


class Interrupting:
    """Raises in a round, once."""

    def __init__(self, round: int) -> None:
        self.round = round

    def round_started(self, round: int, clients: list[int]) -> None: ...

    def answered(self, answer: object) -> None: ...

    def round_finished(self, report: Any) -> None:
        if report.number == self.round:
            self.round = 0
            raise Interrupted


def test_an_interrupt_leaves_run_and_state_in_step(tmp_path: Path) -> None:
    whole = federation().record(tmp_path / "whole").run()
    ours = federation().record(tmp_path / "ours")
    with pytest.raises(Interrupted):
        ours.run([Interrupting(2)])
    ours.run()
    assert same_state(ours.state, whole.state)
    assert [report.number for report in ours.history] == [1, 2, 3]
    assert (tmp_path / "ours/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_round_that_could_not_be_written_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = federation().record(tmp_path / "whole").run()
    ours = federation().record(tmp_path / "ours")
    list(ours.rounds(1))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "no space")))
        with pytest.raises(RunError):
            ours.run()
    ours.run()
    assert same_state(ours.state, whole.state)
    assert (tmp_path / "ours/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_recording_begins_outside_of_a_loop_and_nobody_writes_over_another(tmp_path: Path) -> None:
    ours = federation()
    for _ in ours.rounds(1):
        with pytest.raises(RunError, match="loop"):
            ours.record(tmp_path / "run")
    ours.record(tmp_path / "run")
    list(ours.rounds(1))
    federation().resume(tmp_path / "run").run()
    with pytest.raises(RunError, match="another process"):
        ours.run()
    assert [line["round"] for line in proxyfl.Run(tmp_path / "run").metrics] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"workers": -1}, "number of processes"),
        ({"train": {"lr": 0.1}}, "proxyfl.Train"),
        ({"aggregator": "median"}, "Median"),
        ({"method": FixMatch}, "the class FixMatch"),
        ({"weights": "nowhere.safetensors"}, "does not exist"),
        ({"method": "fedmatch", "optimiser": torch.optim.SGD}, "your own optimiser"),
    ],
)
def test_what_is_no_object_of_its_kind_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        federation(**changes)


def test_what_an_aggregator_does_at_clients_is_done_there() -> None:
    @dataclasses.dataclass(frozen=True)
    class Halved(Mean):
        def outgoing(self, update: Any, task: Any, *, per_round: int, seed: int) -> Any:
            halves = {
                name: task.weights[name] + (value - task.weights[name]) / 2
                if value.is_floating_point()
                else value
                for name, value in update.weights.items()
            }
            return dataclasses.replace(update, weights=halves)

    start = federation(method="fedavg").state.weights["classifier.bias"]
    whole, half = (
        federation(method="fedavg", rounds=1, aggregator=rule).run().state.weights["classifier.bias"] - start
        for rule in (Mean(), Halved())
    )
    assert torch.allclose(half, whole / 2, atol=1e-6)


def test_weights_of_a_run_by_its_path(tmp_path: Path) -> None:
    first = federation(method="fedavg").record(tmp_path / "first").run()
    second = federation(method="fedavg", weights=tmp_path / "first")
    assert all(
        torch.equal(second.state.weights[name], first.state.weights[name]) for name in first.state.weights
    )


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import proxyfl
from proxyfl.methods.fixmatch import FixMatch
from toybox import make_simulation, same_state

class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
    def forward(self, images):
        return self.layers(images)

class Bold(FixMatch):
    name = "bold"
    def confident(self, probabilities):
        return probabilities.amax(1) > 0.2

simulation = make_simulation()
def trained(workers):
    return proxyfl.Federation(simulation.dataset, simulation.partition, Net, Bold(), rounds=2, per_round=3,
        train=proxyfl.Train(epochs=1, batch=8), dtype="fp32", workers=workers).run()
print(same_state(trained(0).state, trained(2).state))
"""


def test_objects_of_a_script_train_in_several_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tests)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr
    assert "note" not in done.stderr


def test_what_cannot_be_handed_over_trains_here(capsys: pytest.CaptureFixture[str]) -> None:
    class Locked(FixMatch):
        def __getstate__(self) -> Any:
            raise TypeError("no copies of this")

    assert len(federation(method=Locked(), workers=2, rounds=1).run().history) == 1
    assert "no copies of this" in capsys.readouterr().err


def test_parameters_of_objects_are_checked_like_settings() -> None:
    with pytest.raises(ConfigError, match=r"tau = 2\.0 is above 1"):
        ProxyFL(tau=2)
    with pytest.raises(ConfigError, match="epochs"):
        ProxyFL(addons=[GPT(epoch=3)])
    with pytest.raises(ConfigError, match=r"train\.lr = -1.0 is below 0"):
        proxyfl.Train(lr=-1)
    with pytest.raises(ConfigError, match="quorum"):
        federation(quorum=3)
    with pytest.raises(MethodError, match="twice"):
        ProxyFL(addons=[GPT(), GPT()])
    assert repr(ProxyFL(tau=0.9, addons=[ICPL(weight=0.5), GPT(epochs=5)])) == (
        "ProxyFL(tau=0.9, addons=[Prior(), ICPL(weight=0.5), GPT(epochs=5)])"
    )


@pytest.mark.parametrize(
    ("network", "fault"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), "10 classes"),
        (lambda: nn.Linear(5, 10), "cannot take images"),
        (lambda depth: nn.Identity(), "depth"),
        (3, "3 is not a network"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_any_round(network: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        federation(network=network, method="fedavg")


def test_a_network_itself_is_copied_with_its_weights() -> None:
    torch.manual_seed(5)
    net = Net(10)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    ours = federation(network=net, method="fedavg")
    assert all(torch.equal(ours.state.weights[name], before[name]) for name in before)
    ours.run()
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)


def test_weights_to_start_from() -> None:
    first = federation(method="fedavg").run()
    start = {name: value.clone() for name, value in first.state.weights.items()}
    second = federation(method="fedavg", weights=start)
    assert all(torch.equal(second.state.weights[name], value) for name, value in start.items())
    assert second.config.model.weights_hash
    with pytest.raises(ConfigError, match=r"classifier\.bias"):
        federation(method="fedavg", weights={**start, "classifier.bias": torch.zeros(3)})


def test_an_optimiser_of_ones_own() -> None:
    seen: list[float] = []

    def optimiser(parameters: Any, lr: float, train: proxyfl.Train) -> torch.optim.Optimizer:
        seen.append(lr)
        return torch.optim.Adagrad(parameters, lr=lr)

    train = proxyfl.Train(epochs=1, batch=8, lr=0.5, schedule="step", decay=0.1, decay_every=1)
    ours = federation(train=train, optimiser=optimiser, method="fedavg").run()
    assert seen == [0.5, 0.5, 0.05, 0.05, 0.5 * 0.1**2, 0.5 * 0.1**2]
    assert not same_state(ours.state, federation(train=train, method="fedavg").run().state)


@pytest.mark.parametrize(
    ("rule", "layer"),
    [
        (Mean(), {}),
        (Median(), {"rule": "median"}),
        (TrimmedMean(hostile=0.3), {"rule": "trimmed", "hostile": 0.3}),
        (Clip(0.5, inner=Median()), {"rule": "median", "clip": 0.5}),
        (FedAdam(lr=0.05), {"optimiser": "fedadam", "lr": 0.05}),
        (FedAvgM(momentum=0.5, inner=Clip(2.0, by="median")),
         {"optimiser": "fedavgm", "momentum": 0.5, "lr": 1.0, "clip": 2.0, "clip_by": "median"}),
    ],
)  # fmt: skip
def test_aggregators_by_name_and_by_objects(rule: Aggregator, layer: dict[str, Any]) -> None:
    config = little_config(
        "fixmatch-gpl", per_round=4, **{f"aggregation__{key}": v for key, v in layer.items()}
    )
    named = build.assemble(config, SIMULATION, workers=0)
    assert named.server.aggregator == rule
    ours = federation(
        network="little", width=1, method=by_objects("fixmatch-gpl"), per_round=4, rounds=2,
        train=config.train, seed=config.seed, aggregator=rule,
    )  # fmt: skip
    assert ours.config.aggregation == config.aggregation
    assert same_state(named.run().state, ours.run().state)


def test_an_aggregator_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="krum needs"):
        federation(aggregator=Krum(hostile=0.4))


def test_an_aggregator_of_ones_own_is_named_as_an_object() -> None:
    @dataclasses.dataclass(frozen=True)
    class First(Aggregator):
        def combine(self, updates: Any, weights: Any, old: Any) -> Any:
            return updates[0]

    ours = federation(aggregator=First(), rounds=1)
    assert ours.config.aggregation.rule.startswith("object:")
    assert ours.config.aggregation.rule.endswith("First()")
    assert len(ours.run().history) == 1


class TestUnknownLabels:
    """Labels of -1: nobody knows them."""

    def data(self, hidden: slice = slice(60, None)) -> proxyfl.Dataset:
        dataset = SIMULATION.dataset
        labels = dataset.train.labels.clone()
        labels[hidden] = -1
        return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, labels=labels))

    def test_they_stay_unlabelled_and_nothing_is_compared_with_them(self) -> None:
        data = self.data()
        split = proxyfl.partition(data, clients=4, per_class=3, scheme="iid")
        assert not (data.train.labels[split.labelled.values] < 0).any()
        assert sorted([*split.labelled.values, *split.unlabelled.values]) == list(range(len(data.train)))
        unknown = [int((data.train.labels[split.unlabelled[k]] < 0).sum()) for k in range(4)]
        assert sum(unknown) == 68
        assert max(unknown) - min(unknown) <= 1
        options: dict[str, Any] = {"rounds": 1, "per_round": 2, "train": TRAIN, "workers": 0}
        ours = proxyfl.Federation(data, split, Net, "fixmatch-gpl", **options)
        pseudo = ours.run().history[0].pseudo
        assert "selected_share" in pseudo
        assert not {"accuracy", "selected_accuracy", "low_accuracy"} & pseudo.keys()

    def test_an_oracle_has_nothing_to_ask(self) -> None:
        data = self.data()
        split = proxyfl.partition(data, clients=4, per_class=3, scheme="iid")
        with pytest.raises(DataError, match="-1"):
            proxyfl.Federation(data, split, Net, "fedavg-sl", per_round=2, workers=0)

    def test_a_partition_that_calls_them_labelled_is_refused(self) -> None:
        with pytest.raises(DataError, match="-1"):
            proxyfl.Federation(self.data(slice(0, 5)), SIMULATION.partition, Net, workers=0)


def test_a_partition_of_other_data_is_refused() -> None:
    fewer = dataclasses.replace(SIMULATION.dataset, train=SIMULATION.dataset.train.take(torch.arange(20)))
    with pytest.raises(DataError, match="has 20 training images"):
        proxyfl.Federation(fewer, SIMULATION.partition, Net, workers=0)


def test_a_run_and_a_resume_do_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*given: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return real(*given, **options)

        monkeypatch.setattr(module, name, call)

    counted(checkpoint, "read")
    counted(experiment, "assemble")
    counted(experiment, "prepare")
    counted(settings, "read_config")
    tiny = {"rounds": 2, "clients": 4, "per_round": 2, "width": 1, "subset": 64, "train__epochs": 1}
    run = proxyfl.Experiment("fedavg", "digits", **tiny).run(tmp_path / "run", workers=0)
    assert counts == {"read_config": 1, "assemble": 1, "prepare": 1}
    counts.clear()
    proxyfl.resume(run.path, workers=0)
    assert counts == {"read_config": 1, "read": 1, "assemble": 1, "prepare": 1}
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[-1])["event"] == "finished"
    counts.clear()
    counted(experiment, "load_config")
    words = "--method fedavg --rounds 1 --clients 4 --per-round 2 --width 1 --subset 64 --workers 0".split()
    done = invoke("run", "digits", *words, "--name", "typed", "--runs", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    counts.pop("read_config")  # the list of settings reads the preset and the defaults, to compare with
    assert counts == {"load_config": 1, "assemble": 1, "prepare": 1}
    with pytest.raises(_Stop.Stopped):
        proxyfl.Experiment("fedavg", "digits", **tiny).run(tmp_path / "stopped", [_Stop()], workers=0)
    counts.clear()
    done = invoke("resume", str(tmp_path / "stopped"), "--workers", "0")
    assert done.exit_code == 0, done.stderr
    assert counts == {"read_config": 1, "read": 1, "assemble": 1, "prepare": 1}


class _Stop(Observer):
    """Ends a run after its first round."""

    class Stopped(Exception):
        pass

    def round_finished(self, report: Any) -> None:
        raise self.Stopped
