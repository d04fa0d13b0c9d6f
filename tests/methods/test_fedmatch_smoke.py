"""FedMatch in real rounds: what each half learns from, what is lent, sent, counted and kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import proxyfl
import toyclient
from proxyfl.core.errors import MethodError
from proxyfl.core.state import Failure, ServerState, Task, Tensors, Update, namespace
from proxyfl.data.stream import Batch
from proxyfl.federation.loop import Engine
from proxyfl.methods import create, fedmatch
from proxyfl.methods.fedmatch import FedMatch, nearest_clients
from proxyfl.methods.halves import compose, sparse_delta
from proxyfl.models import build
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.simulation import prepare
from toybox import TINY, Stopped, Told, assemble, make_simulation, play, same_bits, same_state, tiny_config


class Listening:
    """Passes tasks and answers on, and remembers both."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.updates: list[Update] = []

    def around(self, engine: Engine) -> Listening:
        self.engine = engine
        return self

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        def noted() -> Iterator[Task]:
            for task in tasks:
                self.tasks.append(task)
                yield task

        for answer in self.engine.run(noted()):
            assert isinstance(answer, Update), answer
            self.updates.append(answer)
            yield answer

    def of(self, round: int) -> dict[int, tuple[Task, Update]]:
        pairs = zip(self.tasks, self.updates, strict=True)
        return {task.client: (task, update) for task, update in pairs if task.round == round}


def halves(weights: Tensors) -> tuple[Tensors, Tensors]:
    sigma = {name[6:]: value for name, value in weights.items() if name.startswith("sigma.")}
    return sigma, {name[4:]: value for name, value in weights.items() if name.startswith("psi.")}


def played(
    folder: Path, simulation: Any = None, **settings: Any
) -> tuple[ServerState, list[dict[str, Any]], Listening]:
    config = tiny_config("fedmatch", **{"per_round": 4, "subset": 120, **settings})
    told, listening = Told(), Listening()
    simulation = simulation or prepare(config)
    state = play(config, simulation, folder, observers=[told], engine=listening.around)
    return state, [report.metrics for report in told.reports], listening


@pytest.fixture(scope="module")
def lending(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServerState, list[dict[str, Any]], Listening]:
    """Two rounds of all four clients on digits; helpers are lent in every round."""
    return played(tmp_path_factory.mktemp("lending"), method__helper_every=1, method__lr=0.01)


def test_the_network_starts_at_1_2_times_its_weights(lending: Any) -> None:
    sigma, psi = halves(lending[2].tasks[0].weights)
    network = build("resnet8", 10, 1, 1)
    assert sigma.keys() == network.state_dict().keys()
    assert set(psi) == {name for name, value in network.named_parameters() if value.ndim >= 2}
    assert {"trunk.stem.conv.weight", "classifier.weight"} <= set(psi)
    found = create("fedmatch").model(lending[2].tasks[0].weights)
    weight = "classifier.weight"
    torch.testing.assert_close(found[weight], 1.2 * sigma[weight])
    assert torch.equal(found["classifier.bias"], sigma["classifier.bias"])
    assert found["trunk.stem.norm.num_batches_tracked"].dtype == torch.int64
    network.load_state_dict(found)


def test_helpers_are_the_nearest_other_clients_psi(lending: Any) -> None:
    state, _, listening = lending
    first, second = listening.of(1), listening.of(2)
    assert all(not task.personal for task, _ in first.values())
    clients = torch.tensor(sorted(first))
    vectors = torch.stack([first[k][1].extras["fedmatch/embedding"] for k in clients.tolist()])
    torch.testing.assert_close(vectors.sum(1), torch.ones(4))
    for client, (task, _) in second.items():
        expected = nearest_clients(clients, vectors, client, 2)
        assert len(expected) == 2
        for place, helper in enumerate(expected):
            lent = namespace(task.personal, f"fedmatch/{place}")
            assert same_bits(lent, halves(first[helper][1].weights)[1])
        assert task.extras == {}  # the table of embeddings stays on the server
    assert state.extras["fedmatch/_clients"].tolist() == [0, 1, 2, 3]
    latest = [second[k][1].extras["fedmatch/embedding"] for k in range(4)]
    assert torch.equal(state.extras["fedmatch/_embeddings"], torch.stack(latest))


def test_helpers_are_lent_only_every_so_many_rounds(tmp_path: Path) -> None:
    _, metrics, listening = played(tmp_path, rounds=3, method__helper_every=3, method__helpers=1)
    assert [bool(listening.of(round)[0][0].personal) for round in (1, 2, 3)] == [False, False, True]
    assert [line["counts"]["down_helpers"] > 0 for line in metrics] == [False, False, True]


def test_a_helper_predicts_with_the_received_sigma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def vote(self: FedMatch, weak: Tensor, batch: Any, ctx: Any) -> Any:
        pseudo, helpers = original(self, weak, batch, ctx)
        seen.append((ctx.task, batch.u_weak, helpers))
        return pseudo, helpers

    original = FedMatch._vote
    monkeypatch.setattr(FedMatch, "_vote", vote)
    played(tmp_path, method__helper_every=1)
    task, images, helpers = seen[-1]  # the last step: sigma has moved since it was received
    assert [len(found) for _, _, found in (seen[0], seen[-1])] == [0, 2]
    network = build("resnet8", 10, 1, 1).eval()
    for place, found in enumerate(helpers):
        lent = namespace(task.personal, f"fedmatch/{place}")
        network.load_state_dict(compose(halves(task.weights)[0], lent))
        with torch.no_grad():
            torch.testing.assert_close(network(images).softmax(1), found, rtol=1e-3, atol=1e-5)


def test_only_moved_entries_are_sent_and_they_are_counted(lending: Any) -> None:
    _, metrics, listening = lending
    total: dict[str, int] = {}
    for client, (task, update) in listening.of(2).items():
        last = listening.of(1)[client][1].weights
        for name, sent in update.weights.items():
            change = (sent - task.weights[name]).abs()
            assert bool(((change == 0) | (change > 4.9e-5)).all())
            half = name.split(".")[0]
            total[f"up_{half}"] = total.get(f"up_{half}", 0) + int((change > 0).sum())
            down = sparse_delta(task.weights[name], last[name], 5e-5)[1]
            total[f"down_{half}"] = total.get(f"down_{half}", 0) + down
        lent = sum(int((value.abs() >= 5e-6).sum()) for value in task.personal.values())
        total["down_helpers"] = total.get("down_helpers", 0) + lent
    assert metrics[1]["counts"] == total
    entries = sum(value.numel() for value in halves(listening.tasks[0].weights)[0].values())
    assert metrics[0]["counts"]["down_sigma"] == 4 * entries  # nothing is known yet: all of it
    assert 0 < total["up_sigma"] < 4 * entries


def test_the_mean_is_uniform_unless_told_otherwise(tmp_path: Path) -> None:
    simulation = make_simulation(labelled=(4, 4, 4, 4), unlabelled=(60, 4, 4, 4))
    for uniform, weights in ((True, [1.0] * 4), (False, [64.0, 8.0, 8.0, 8.0])):
        folder = tmp_path / str(uniform)
        state, _, listening = played(folder, simulation, rounds=1, method__uniform=uniform)
        updates = {client: update for client, (_, update) in listening.of(1).items()}
        for name in ("sigma.classifier.weight", "psi.classifier.weight"):
            terms = [weights[client] * updates[client].weights[name].double() for client in range(4)]
            expected = torch.stack(terms).sum(0) / sum(weights)
            torch.testing.assert_close(state.weights[name].double(), expected, rtol=1e-6, atol=1e-9)


def test_each_half_learns_from_its_own_images_only(tmp_path: Path) -> None:
    simulation = make_simulation(labelled=(8, 0, 8, 8), unlabelled=(24, 32, 0, 24))
    _, _, listening = played(tmp_path, simulation, rounds=1, train__pool="unlabelled")
    moved = {}
    for client, (task, update) in listening.of(1).items():
        before, after = halves(task.weights), halves(update.weights)
        moved[client] = [not same_bits(old, new) for old, new in zip(before, after, strict=True)]
    assert moved == {0: [True, True], 1: [False, True], 2: [True, False], 3: [True, True]}


@pytest.mark.parametrize(("lr", "factor"), [(0.01, 0.8), (0.1, -1.0)])
def test_psi_is_drawn_to_sigma_by_one_minus_twice_lr_l2(tmp_path: Path, lr: float, factor: float) -> None:
    """At the common learning rate 0.1 the distance only changes its sign: why FedMatch has one of its own."""
    simulation = make_simulation(labelled=(8, 8, 8, 8), unlabelled=(16, 16, 16, 16))
    options = {"lr": lr, "supervised": 0.0, "agreement": 0.0, "l1": 0.0, "delta": 0.0}
    settings = {f"method__{name}": value for name, value in options.items()}
    _, _, listening = played(tmp_path, simulation, rounds=1, **settings)
    task, update = listening.of(1)[0]
    steps = int(update.metrics["steps"])
    assert steps == 3  # 24 images of the pool, 8 a step
    (sigma, psi), (_, moved) = halves(task.weights), halves(update.weights)
    for name, value in moved.items():
        expected = sigma[name] + factor**steps * (psi[name] - sigma[name])
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


def test_statistics_belong_to_the_labelled_pass(tmp_path: Path) -> None:
    """One pass a step: were the psi pass to move them, the counter would show two."""
    _, _, listening = played(tmp_path, rounds=1)
    task, update = listening.of(1)[0]
    counter = "sigma.trunk.stem.norm.num_batches_tracked"
    assert int(update.weights[counter] - task.weights[counter]) == int(update.metrics["steps"])


@pytest.mark.slow
def test_stopped_and_resumed_with_helpers_gives_the_same_bits(tmp_path: Path) -> None:
    settings = {**TINY, "rounds": 3, "per_round": 3, "subset": 120, "method__helper_every": 1}
    states, metrics = [], []
    for folder, stop in ((tmp_path / "whole", None), (tmp_path / "stopped", 2)):
        experiment = proxyfl.Experiment("fedmatch", "digits", **settings)
        if stop is None:
            experiment.run(folder)
        else:
            with pytest.raises(Stopped):
                experiment.run(folder, [Told(stop_after=stop)])
            proxyfl.resume(folder)
        states.append(checkpoint.load_newest(RunDirectory(folder))[0].state)
        metrics.append(proxyfl.Run(folder).metrics)
    assert states[0].round == 3
    assert same_state(*states)
    assert metrics[0] == metrics[1]  # losses too: a checkpoint orders tensors by name, the network does not


def test_bf16_and_momentum_play(tmp_path: Path) -> None:
    state, _, _ = played(tmp_path, rounds=1, compute__dtype="bf16", method__momentum=0.9)
    assert all(bool(torch.isfinite(value).all()) for value in state.weights.values())


def test_the_presets_threshold_is_not_taken_for_its_own() -> None:
    config = tiny_config("fedmatch")
    assert config.method.parameters["confidence"] == 0.75
    assert "tau" not in config.method.parameters


@pytest.mark.parametrize("addon", ["icpl", "gpt", "prox", "prior"])
def test_addons_are_refused_with_the_reason(addon: str) -> None:
    with pytest.raises(MethodError, match=r"cannot carry \+\w+: .*no single loss"):
        create(f"fedmatch+{addon}")


def test_a_buffer_that_looks_like_a_weight_is_named() -> None:
    network = nn.Linear(2, 2)
    network.register_buffer("grid", torch.ones(2, 2))
    method = create("fedmatch")
    ctx: Any = SimpleNamespace(
        model=network, task=Task(1, 0, method.initial(network.state_dict())), memory={}
    )
    with pytest.raises(MethodError, match="'grid'"):
        method.begin(ctx)


def test_the_embedding_image_is_truncated_noise_of_the_seed() -> None:
    image = fedmatch.embedding_image((3, 64, 64), 1)
    assert image.shape == (1, 3, 64, 64)
    assert 0 <= float(image.min()) < 0.01
    assert 0.99 < float(image.max()) <= 1
    # the truncated normal's mean: 125 + 125 (phi(-1) - phi(1.04)) / (Phi(1.04) - Phi(-1))
    assert float(image.mean()) == pytest.approx(0.4970, abs=0.01)
    assert torch.equal(image, fedmatch.embedding_image((3, 64, 64), 1))
    assert not torch.equal(image, fedmatch.embedding_image((3, 64, 64), 2))


def test_an_update_without_its_embedding_is_refused(lending: Any) -> None:
    update = replace(lending[2].updates[0], extras={})
    with pytest.raises(KeyError, match="embedding"):
        create("fedmatch").receive(update)


def test_with_labels_at_the_server_sigma_learns_there_and_psi_at_the_clients(tmp_path: Path) -> None:
    options = {"scenario": "server", "subset": 160, "method__confidence": 0.1, "method__lr": 0.01}
    state, metrics, listening = played(tmp_path, **options)
    config = tiny_config("fedmatch", per_round=4, **options)
    start = assemble(tmp_path, config, prepare(config), workers=0)[1].initial_weights()
    sent = [listening.tasks[0].weights, listening.of(2)[0][0].weights, state.weights]
    (sigma, psi), *later = [halves(weights) for weights in (start, *sent)]
    assert same_bits(later[0][1], psi)  # before round 1 the server trains, and sigma alone
    assert not torch.equal(later[0][0]["classifier.weight"], sigma["classifier.weight"])
    for task, update in zip(listening.tasks, listening.updates, strict=True):
        theirs, received = halves(update.weights), halves(task.weights)
        assert same_bits(theirs[0], received[0])  # statistics of batch norm, too
        assert not torch.equal(theirs[1]["classifier.weight"], received[1]["classifier.weight"])
    means = [halves(update.weights)[1] for _, update in listening.of(1).values()]
    for name, value in later[1][1].items():
        torch.testing.assert_close(value, torch.stack([each[name] for each in means]).mean(0))
    assert not torch.equal(later[1][0]["classifier.weight"], later[0][0]["classifier.weight"])
    assert all(line["counts"]["up_sigma"] == 0 < line["counts"]["up_psi"] for line in metrics)
    assert all(line["server"]["steps"] > 0 for line in metrics)


def test_a_step_of_the_server_in_numbers() -> None:
    """sigma <- sigma - lr lambda_s grad H(y, p), psi as it was: one image, two classes, one linear map."""
    method = FedMatch(lr=0.1, supervised=10.0)
    network = nn.Linear(2, 2, bias=False)
    weights = {"sigma.weight": torch.tensor([[0.5, 0.0], [0.0, 0.5]]), "psi.weight": torch.full((2, 2), 0.25)}
    ctx = toyclient.context(method)
    ctx.model, ctx.task, ctx.classes = network, Task(1, 0, weights), 2
    x, none = torch.tensor([[1.0, 0.0]]), torch.zeros(0, 2)
    batch = Batch(x, torch.tensor([0]), none, none, none, torch.zeros(0, dtype=torch.int64))
    method.learn(batch, ctx)
    found = method.learned(ctx)
    # logits (0.75, 0.25), p = (0.622459, 0.377541): the gradient is (p - e_0) x^T, times 0.1 * 10
    expected = torch.tensor([[0.5 + 0.377541, 0.0], [0.0 - 0.377541, 0.5]])
    torch.testing.assert_close(found["sigma.weight"], expected, atol=1e-5, rtol=0)
    assert torch.equal(found["psi.weight"], weights["psi.weight"])
