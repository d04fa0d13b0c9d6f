"""One measurement of ``peers.py``: the same rounds in one framework, in this process and those it starts.

    python benchmarks/peers_run.py NAME FOLDER ROUNDS ANSWER

Plays the rounds with the images in FOLDER and writes when each ended to the file ANSWER.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peers_work import (
    LR,
    MEAN,
    MOMENTUM,
    SEED,
    STD,
    WEIGHT_DECAY,
    Notes,
    Work,
    accuracy,
    casting,
    kept,
    new_network,
    optimiser_of,
    seen,
    train_client,
)
from torch import Tensor

FOLDER = "PEERS_FOLDER"
"""The environment variable that tells Flower's actors where the images are."""


def plain(work: Work, rounds: int, *, tuned: bool = False, threads: int = 1) -> str:
    """FedAvg as a loop over clients, without any framework."""
    torch.set_num_threads(threads)
    notes, chance = Notes(), random.Random(SEED)
    network = new_network(tuned)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    for round in range(1, rounds + 1):
        total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in weights.items()}
        steps = 0
        for client in chance.sample(range(work.size.clients), work.size.per_round):
            network.load_state_dict(weights)
            steps += train_client(network, work, client, round, tuned)
            for name, value in network.state_dict().items():
                total[name] += value / work.size.per_round  # all hold as many images
        weights = {name: value.to(weights[name].dtype) for name, value in total.items()}
        notes.round_ended(steps)
    network.load_state_dict(weights)
    return notes.answer(accuracy(network, work), version("torch"))


class Steps:
    """An observer of proxyfl's rounds: how many steps the clients of the last one took."""

    taken = 0

    def round_started(self, round: int, clients: list[int]) -> None:
        self.taken = 0

    def answered(self, answer: Any) -> None:
        self.taken += int(answer.metrics["steps"])

    def round_finished(self, report: Any) -> None: ...


def ours(work: Work, rounds: int, *, workers: int = 0, ray: bool = False) -> str:
    """The same as a federation of proxyfl."""
    import proxyfl
    from proxyfl.data.ragged import Ragged

    size, test = work.size, (work.test_images, work.test_labels)
    data = proxyfl.Dataset.of(work.images, work.labels, test=test, flip=True, mean=MEAN, std=STD)
    offsets = torch.arange(size.clients + 1).mul(size.held).numpy()
    held = Ragged(work.index.flatten().numpy(), offsets[:-1], offsets[1:])
    train = proxyfl.Train(epochs=1, batch=size.batch, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    # Accuracy is measured in the last round if not before, and that one is never played.
    federation = proxyfl.Federation(
        data, proxyfl.Partition(held, Ragged.empty(size.clients)), network="resnet8", width=1,
        method="fedavg-sl", train=train, rounds=rounds + 1, evaluate_every=rounds + 1,
        per_round=size.per_round, seed=SEED, workers=workers,
        engine=proxyfl.RayEngine("local", workers=workers) if ray else None,
    )  # fmt: skip
    notes, counted = Notes(), Steps()
    for _ in federation.rounds(rounds, observers=[counted]):
        notes.round_ended(counted.taken)
    return notes.answer(100 * federation.evaluate().accuracy, version("proxyfl"))


def flower(work: Work, rounds: int, *, tuned: bool = False) -> str:
    """The same in Flower's simulation, a client per core at a time."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_ADDRESS": "local"}  # no cluster that is there already
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    notes, size, folder = Notes(), work.size, os.environ[FOLDER]
    client_app, server_app, network = ClientApp(), ServerApp(), new_network(tuned)

    @client_app.train()
    def train(message: Message, context: Any) -> Message:
        own, local = kept(folder, tuned)
        local.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client, number = context.node_config["partition-id"], message.content["config"]["server-round"]
        steps = train_client(local, own, client, number, tuned)
        metrics = MetricRecord({"num-examples": own.size.held, "steps": steps})
        content = RecordDict({"arrays": ArrayRecord(local.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    class Noted(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            answers = list(replies)
            if failed := [answer.error for answer in answers if answer.has_error()]:
                raise SystemExit(f"{len(failed)} clients failed: {failed[0]}")
            result = super().aggregate_train(server_round, answers)
            notes.round_ended(sum(int(answer.content["metrics"]["steps"]) for answer in answers))
            return result

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        # The share is one of the clients known so far, which in the first round may not be all.
        strategy = Noted(
            fraction_train=size.per_round / size.clients, fraction_evaluate=0.0,
            min_train_nodes=size.per_round, min_available_nodes=size.clients,
        )  # fmt: skip
        result = strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds)
        network.load_state_dict(result.arrays.to_torch_state_dict())

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, num_supernodes=size.clients, backend_config=resources)
    return notes.answer(accuracy(network, work), version("flwr"))


def pfl(work: Work, rounds: int, *, tuned: bool = False) -> str:
    """The same in pfl-research; started by torchrun, its processes share the clients of a round."""
    torch.set_num_threads(1)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    size, chance = work.size, random.Random(SEED)
    generator = torch.Generator().manual_seed(SEED)
    network = new_network(tuned)
    taken = 0

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        nonlocal taken
        taken += 1
        network.train()
        with casting(tuned):
            return F.cross_entropy(network(seen(images, generator, tuned)), labels)

    def dataset(client: int) -> Dataset:
        images, labels = work.of_client(client)
        order = torch.randperm(len(images), generator=generator)
        return Dataset([images[order], labels[order]], user_id=str(client))

    class Model(PyTorchModel):
        def evaluate(self, *_: Any, **__: Any) -> Metrics:
            return Metrics()  # nobody else measures clients in the first round

    class Noted(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            notes.round_ended(size.per_round * size.steps)
            return False, Metrics()

    together = "TORCHELASTIC_RUN_ID" in os.environ
    notes = Notes(os.getppid() if together else None)
    network.loss, network.metrics = loss, None
    chosen = itertools.chain.from_iterable(
        chance.sample(range(size.clients), size.per_round) for _ in itertools.count()
    )
    data = FederatedDataset(dataset, lambda: next(chosen))
    model = Model(network, optimiser_of, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds + 1,
            train_cohort_size=size.per_round, val_cohort_size=None,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=size.steps, local_learning_rate=LR,
            local_batch_size=size.batch,
        ),
        callbacks=[Noted()],
        send_metrics_to_platform=False,
    )  # fmt: skip
    expected = notes.steps / int(os.environ.get("WORLD_SIZE", "1"))
    if taken != expected:
        raise SystemExit(f"pfl took {taken} steps instead of {expected:g}")
    return notes.answer(accuracy(network, work), version("pfl"))


RUNS = {
    "plain": plain,
    "plain-2": lambda work, rounds: plain(work, rounds, threads=2),
    "plain-tuned": lambda work, rounds: plain(work, rounds, tuned=True),
    "proxyfl": ours,
    "proxyfl-2": lambda work, rounds: ours(work, rounds, workers=2),
    "proxyfl-ray": lambda work, rounds: ours(work, rounds, workers=2, ray=True),
    "flower": flower,
    "flower-tuned": lambda work, rounds: flower(work, rounds, tuned=True),
    "pfl": pfl,
    "pfl-tuned": lambda work, rounds: pfl(work, rounds, tuned=True),
    "pfl-2": lambda work, rounds: pfl(work, rounds, tuned=True),
}


def main() -> None:
    name, folder, rounds, answer = sys.argv[1:]
    os.environ[FOLDER] = folder
    found = RUNS[name](Work.load(Path(folder)), int(rounds))
    if os.environ.get("RANK", "0") == "0":
        Path(answer).write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
