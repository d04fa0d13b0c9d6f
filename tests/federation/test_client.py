"""A client's round against the same steps written out, and what the inline engine makes of trouble."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.config import ComputeSettings, Config
from proxyfl.core.errors import DataError, RunError
from proxyfl.core.rng import rng
from proxyfl.core.state import Failure, Task, Tensors, Update
from proxyfl.data.stream import ClientData, Stream
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.setup import trainer_of
from proxyfl.federation import client
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.methods import create
from proxyfl.models import Network, build
from toybox import Told, make_simulation, play, same_bits, tiny_config

SIMULATION = make_simulation()


def trainer(config: Config, folder: Path) -> ClientTrainer:
    method = create(config.method.name, config.method.parameters, config.fidelity)
    network = Network.of(config.model.name, 10, 1, config.model.width)
    return trainer_of(config, method, network, SIMULATION.train_views, ClientStore(folder))


def by_hand(
    config: Config, start: Tensors, round: int, client: int, momentum: Tensors | None = None
) -> tuple[Tensors, Tensors]:
    """FedAvg or FixMatch-GPL, momentum written out: v <- m v + g + decay w, then w <- w - lr v."""
    train = config.train
    network, teacher = (build("resnet8", 10, 1, 1) for _ in range(2))
    for net in (network, teacher):
        net.load_state_dict(start)
        net.to(memory_format=torch.channels_last)
    network.train()
    teacher.eval()
    wants = {"x"} if config.method.name == "fedavg" else {"x", "u_weak", "u_strong"}
    stream = Stream(
        SIMULATION.holdings.client(client), train, SIMULATION.train_views, frozenset(wants),
        rng(config.seed, round, client, "batches"), torch.device("cpu"),
    )  # fmt: skip
    velocity = {name: (momentum or {}).get(name) for name, _ in network.named_parameters()}
    for _ in range(train.epochs):
        for batch in stream.epoch():
            logits = network(torch.cat([batch.x, batch.u_weak, batch.u_strong]))
            loss = F.cross_entropy(logits[: len(batch.x)], batch.y)
            if "u_weak" in wants:
                with torch.no_grad():
                    confidence, label = teacher(batch.u_weak).softmax(1).max(1)
                strong = F.cross_entropy(logits[-len(batch.u_strong) :], label, reduction="none")
                loss = loss + (strong * (confidence >= config.method.parameters["tau"])).mean()
            network.zero_grad()
            loss.backward()
            with torch.no_grad():
                for name, weight in network.named_parameters():
                    # Rounded as optimisers do: another last bit may turn a ReLU, and then much is different.
                    gradient = weight.grad.add(weight, alpha=train.weight_decay)
                    before = velocity[name]
                    velocity[name] = gradient if before is None else train.momentum * before + gradient
                    weight.add_(velocity[name], alpha=-train.lr)
    return dict(network.state_dict()), {name: value for name, value in velocity.items() if value is not None}


def close(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n].float(), b[n].float(), atol=2e-5) for n in a)


# 0.1308 lies in a gap of the confidences: no processor's last bits decide which images are sure.
@pytest.mark.parametrize(("method", "tau"), [("fedavg", 0.95), ("fixmatch-gpl", 0.1308)])
def test_local_training_written_out(tmp_path: Path, method: str, tau: float) -> None:
    config = tiny_config(method, method__tau=tau, train__epochs=2)
    made = trainer(config, tmp_path)
    start = made.initial_weights()
    update = made.train(Task(3, 1, start), SIMULATION.holdings.client(1))
    expected, _ = by_hand(config, start, 3, 1)
    assert close(update.weights, expected)
    assert (update.round, update.client, update.samples) == (3, 1, 32)
    assert update.metrics["steps"] == 8.0  # 32 // 8 in each of two epochs
    assert update.carry == {}
    assert all(not value.requires_grad and value.is_contiguous() for value in update.weights.values())


def test_trainings_of_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with the weights received and draws numbers of its own; what a client keeps goes on."""
    made = trainer(tiny_config("rscfed", scenario="partial", method__warmup=0), tmp_path)
    start, data = made.initial_weights(), SIMULATION.holdings.client(1)
    data = ClientData(data.images, data.labelled[:0], data.labels[:0], data.unlabelled)
    once, thrice = (made.train(Task(1, 1, start, times=times), data) for times in (1, 3))
    assert same_bits(once.weights, thrice.weights)
    assert [same_bits(once.weights, again) for again in thrice.again] == [False, False]
    assert thrice.metrics["steps"] == 3 * once.metrics["steps"] == int(made.store.load(1, 1)["steps"])
    assert [each.weights for each in thrice.each()] == [thrice.weights, *thrice.again]

    plain, task = trainer(tiny_config("fedavg"), tmp_path), Task(1, 0, start, times=2)
    twice = plain.train(task, SIMULATION.holdings.client(0))
    assert not same_bits(twice.weights, *twice.again)
    monkeypatch.setattr(client, "turn_of", lambda purpose, turn: purpose)
    twice = plain.train(task, SIMULATION.holdings.client(0))
    assert same_bits(twice.weights, *twice.again)  # but for the draws, one is as the other


def test_the_momentum_that_leaks(tmp_path: Path) -> None:
    config = tiny_config("fedavg", train__leak_momentum=True)
    made = trainer(config, tmp_path)
    start = made.initial_weights()
    first = made.train(Task(1, 0, start), SIMULATION.holdings.client(0))
    _, momentum = by_hand(config, start, 1, 0)
    assert close(first.carry, momentum)
    second = made.train(Task(1, 1, start, carry=first.carry), SIMULATION.holdings.client(1))
    expected, momentum = by_hand(config, start, 1, 1, momentum)
    assert close(second.weights, expected)
    assert close(second.carry, momentum)
    fresh = made.train(Task(1, 1, start), SIMULATION.holdings.client(1))
    assert not close(fresh.weights, second.weights)


def test_momentum_leaks_from_client_to_client_and_round_to_round(tmp_path: Path) -> None:
    leaking, clean = Told(), Told()
    for told, leak in ((leaking, True), (clean, False)):
        config = tiny_config("fedavg", train__leak_momentum=leak)
        play(config, SIMULATION, tmp_path, observers=[told])
    first = [[answer for kind, answer in told.calls if kind == "answered"] for told in (leaking, clean)]
    assert same_bits(first[0][0].weights, first[1][0].weights)  # the very first client starts without
    assert not same_bits(first[0][1].weights, first[1][1].weights)
    assert leaking.reports[0].state.carry.keys() == dict(build("resnet8", 10, 1, 1).named_parameters()).keys()
    assert clean.reports[0].state.carry == {}


def test_a_client_leaves_nothing_behind_for_the_next(tmp_path: Path) -> None:
    config = tiny_config("proxyfl")
    extras = {"prior/classes": torch.full((10,), 0.1)}
    alone, after = (trainer(config, tmp_path) for _ in range(2))
    start = alone.initial_weights()
    after.train(Task(1, 0, start, extras), SIMULATION.holdings.client(0))
    tasks = Task(1, 1, start, extras)
    assert same_bits(
        alone.train(tasks, SIMULATION.holdings.client(1)).weights,
        after.train(tasks, SIMULATION.holdings.client(1)).weights,
    )


def test_what_was_sent_is_not_changed(tmp_path: Path) -> None:
    made = trainer(tiny_config("fedavg"), tmp_path)
    start = made.initial_weights()
    before = {name: value.clone() for name, value in start.items()}
    made.train(Task(1, 0, start), SIMULATION.holdings.client(0))
    assert same_bits(start, before)


def test_the_first_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    torch.rand(5)
    first = trainer(tiny_config("fedavg"), tmp_path).initial_weights()
    torch.rand(7)
    assert same_bits(trainer(tiny_config("fixmatch-gpl", rounds=9), tmp_path).initial_weights(), first)
    assert not same_bits(trainer(tiny_config("fedavg", seed=2), tmp_path).initial_weights(), first)


def test_bf16_is_close_and_not_the_same(tmp_path: Path) -> None:
    updates = []
    for dtype in ("fp32", "bf16"):
        made = trainer(tiny_config("fedavg", dtype=dtype), tmp_path)
        updates.append(made.train(Task(1, 0, made.initial_weights()), SIMULATION.holdings.client(0)))
    a, b = (update.weights["classifier.weight"] for update in updates)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert (a - b).abs().max() < 0.05


def test_threads_are_put_back() -> None:
    torch.set_num_threads(2)
    deterministic = torch.backends.cudnn.deterministic
    with numerics(ComputeSettings(threads=1)):
        assert torch.get_num_threads() == 1
        assert torch.backends.cudnn.deterministic
    assert torch.get_num_threads() == 2
    assert torch.backends.cudnn.deterministic == deterministic
    torch.set_num_threads(1)


class Troubled:
    """A trainer that raises for client 1."""

    def __init__(self, error: BaseException) -> None:
        self.compute, self.error = tiny_config("fedavg").compute, error

    def train(self, task: Task, data: Any, truth: Any) -> Update:
        if task.client == 1:
            raise self.error
        return Update(task.round, task.client, 1, {})


def answers(error: BaseException) -> list[Update | Failure]:
    engine = InlineEngine(Troubled(error), lambda client: None)  # type: ignore[arg-type,return-value]
    return list(engine.run(Task(1, client, {}) for client in (0, 1, 2)))


def test_a_clients_trouble_is_a_failure_with_its_reason() -> None:
    found = answers(ValueError("bad luck"))
    assert isinstance(found[1], Failure)
    assert found[1].reason == "ValueError: bad luck"
    assert "Traceback" in found[1].detail
    assert isinstance(found[2], Update)
    told = answers(DataError("no images here"))[1]
    assert told == Failure(1, 1, "no images here")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), RunError("state is gone"), KeyboardInterrupt()]
)
def test_trouble_of_the_run_itself_is_not_a_clients_failure(error: BaseException) -> None:
    """A client left out because the disk was full would change the result without a word."""
    with pytest.raises(type(error)):
        answers(error)


def test_only_the_watcher_knows_the_truth(tmp_path: Path) -> None:
    made = trainer(tiny_config("fixmatch-gpl"), tmp_path)
    task = Task(1, 0, made.initial_weights())
    asked: list[Tensor] = []

    def truth(index: Tensor) -> Tensor:
        asked.append(index)
        return SIMULATION.holdings.labels[index]

    knowing = made.train(task, SIMULATION.holdings.client(0), truth)
    blind = made.train(task, SIMULATION.holdings.client(0))
    assert same_bits(knowing.weights, blind.weights)
    assert "pseudo/right" in knowing.metrics
    assert "pseudo/right" not in blind.metrics
    assert blind.metrics["pseudo/visits"] == knowing.metrics["pseudo/visits"]
    data: ClientData = SIMULATION.holdings.client(0)
    assert len(asked) == 1
    assert sorted(asked[0].tolist()) == sorted(data.unlabelled.tolist() + data.labelled.tolist())
