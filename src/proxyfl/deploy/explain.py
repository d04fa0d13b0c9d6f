"""What leaves a site, what comes to it and what stays: observed in a dry run, not recited.

One made-up client plays a round with the federation's own settings. What its task and its update hold is
what real ones hold, but for values.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl.aggregation.coverage import uncovered
from proxyfl.core.config import Config, PrivacySettings
from proxyfl.core.dealing import SERVER
from proxyfl.core.errors import RunError
from proxyfl.core.rng import rng
from proxyfl.core.state import STATISTICS, TRAIN, ServerState, Task, Tensors, Update, size_in_bytes
from proxyfl.data.stream import ClientData, ViewSettings
from proxyfl.deploy import validation
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.texts import labels_are, measured_on
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.setup import server_of, trainer_of
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import Evaluation
from proxyfl.federation.own_training import OwnImages
from proxyfl.federation.records import unsupported
from proxyfl.federation.sampling import Population
from proxyfl.federation.score_counts import BINS, blank, counts_scores
from proxyfl.federation.traffic import PARTS, by_part, numbers_by_part
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.models import Network, frozen_tensors

BATCH, IMAGES = 4, 8
"""Of the dry run: what is sent does not depend on them."""


@dataclass(frozen=True)
class Item:
    """Something that travels: what it is, how many numbers and bytes it has, a single tensor's shape."""

    what: str
    numbers: int
    bytes: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What ``proxyfl deploy explain`` prints."""

    method: str
    labels: str
    """Who has labels."""
    enrols: tuple[str, ...]
    up: tuple[Item, ...]
    metrics: tuple[str, ...]
    down: tuple[Item, ...]
    declared: tuple[str, ...]
    """What the method's parts say in words that they send, some of it not in every round."""
    measured: str
    """Where accuracy comes from and what is sent for it."""
    noted: str
    """What the server writes down of single sites."""
    stays: tuple[str, ...]
    remarks: tuple[str, ...]
    privacy: dict[str, Any]
    """The differential-privacy settings; empty where there is none."""

    @property
    def bytes_up(self) -> int:
        return sum(item.bytes for item in self.up)

    @property
    def bytes_down(self) -> int:
        return sum(item.bytes for item in self.down)


def explain(deployment: Deployment) -> Explanation:
    """What the deployment's method sends. Combinations that cannot be right raise with the reason."""
    method = registry.method_of(deployment.config)
    task, update = dry_run(deployment)
    classes = len(deployment.classes)
    up = (*_parts(update.weights), *_again(update.again), *_extras(update.extras))
    static_up, static_down = _statistics(deployment)
    return Explanation(
        method=deployment.config.method.name,
        labels=labels_are(deployment),
        enrols=(
            "the site's name",
            f"how many {deployment.called} it has: labelled, unlabelled, held out",
            "its versions of proxyfl, of torch and of messages",
            "whether it shares its best model",
        ),
        up=(*up, *static_up, Item(f"number of {deployment.called}, seconds", 2, 16)),
        metrics=tuple(sorted(update.metrics)),
        down=(*_parts(task.weights), *_extras(task.extras), *_extras(task.personal), *static_down),
        declared=tuple(f"{part.name}: {part.sends}" for part in method.parts if part.sends),
        measured=_measured(deployment, classes),
        noted=_noted(deployment),
        stays=_stays(deployment, method),
        remarks=_remarks(deployment, method, update, classes),
        privacy=_privacy(deployment.config),
    )


def dry_run(deployment: Deployment, purpose: str = TRAIN) -> tuple[Task, Update]:
    """The task and the update of a made-up client in the first round."""
    full = deployment.config
    train = dataclasses.replace(full.train, batch=BATCH, epochs=1)
    config = _trusting(dataclasses.replace(full, train=train))
    with tempfile.TemporaryDirectory() as folder:
        method, views = (
            registry.method_of(config),
            ViewSettings(False, deployment.mean, deployment.std, config.vectors),
        )
        classes, store = len(deployment.classes), ClientStore(Path(folder) / "client")
        network = Network.configured(config.model, classes, *deployment.taken)
        trainer = trainer_of(config, method, network, views, store)
        own, data = _made_up(deployment)
        engine = InlineEngine(trainer, lambda client: data)
        counts = [np.full(len(deployment.sites), len(held)) for held in (data.labelled, data.unlabelled)]
        people, store = Population(*counts), ClientStore(Path(folder) / "server")
        mine = None if own is None else OwnImages(trainer, own)
        server = server_of(config, method, people, engine, _no_evaluation, classes, store=store, own=mine)
        state = server.start(trainer.initial_weights())
        broadcast = {name: value for name, value in state.extras.items() if "/_" not in name}
        personal = method.task_extras_all(server.context(state), 0)
        task = Task(1, 0, state.weights, broadcast, personal, times=method.most_trainings)
        if purpose != TRAIN:
            task = Task(1, 0, state.weights, purpose=purpose)
        answer = next(iter(engine.run([task])))
    if not isinstance(answer, Update):
        raise RunError(f"the dry run of {config.method.name} failed: {answer.reason}")
    return task, answer


def _trusting(config: Config) -> Config:
    """Without labels a client that trusts no prediction has nothing to train on: let it trust all."""
    if config.labels.where != SERVER or not hasattr(registry.method_of(config).parameters, "tau"):
        return config
    trusting = dataclasses.replace(config.method, parameters={**config.method.parameters, "tau": 0.0})
    return dataclasses.replace(config, method=trusting)


def _statistics(deployment: Deployment) -> tuple[list[Item], list[Item]]:
    """What goes up and down after the mean for the statistics of static batch norm."""
    if deployment.config.model.norm != "static":
        return [], []
    task, update = dry_run(deployment, STATISTICS)
    count = sum(value.numel() for value in update.extras.values())
    what = "sums for static batch norm: of activations and their squares"
    sums = Item(what, count, size_in_bytes(update.extras))
    weights = sum(value.numel() for value in task.weights.values())
    return [sums], [Item("the new weights once more, for these sums", weights, size_in_bytes(task.weights))]


def _no_evaluation(state: ServerState) -> Evaluation:
    raise NotImplementedError("a dry run measures no accuracy")


def _made_up(deployment: Deployment) -> tuple[ClientData | None, ClientData]:
    """The samples of the server, where it has some, and of a client."""
    (channels, size), generator = deployment.taken, rng(0, 0, 0, "dry run")
    if size:
        shape = (2 * IMAGES, channels, size, size)
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    else:
        images = torch.randn((2 * IMAGES, channels), generator=generator)
    labels = torch.arange(IMAGES) % len(deployment.classes)
    first, second, none = torch.arange(IMAGES), torch.arange(IMAGES, 2 * IMAGES), torch.arange(0)
    if deployment.scenario == SERVER:
        return ClientData(images, first, labels, none), ClientData(images, none, none, second)
    return None, ClientData(images, first, labels, second)


def _parts(weights: Tensors) -> list[Item]:
    numbers, sizes = numbers_by_part(weights), by_part(weights)
    return [Item(f"weights: {part}", numbers[part], sizes[part]) for part in PARTS if numbers[part]]


def _again(again: Sequence[Tensors]) -> list[Item]:
    numbers = sum(value.numel() for weights in again for value in weights.values())
    size = sum(map(size_in_bytes, again))
    return [Item(f"weights of up to {len(again)} further trainings", numbers, size)] if again else []


def _extras(extras: Tensors) -> list[Item]:
    return [
        Item(name, value.numel(), size_in_bytes({name: value}), tuple(value.shape))
        for name, value in sorted(extras.items())
    ]


def _measured(deployment: Deployment, classes: int) -> str:
    if not deployment.sites_measure:
        return f"on {measured_on(deployment)}: sites send nothing for it"
    counts = (
        f"on the {deployment.holdout:.0%} of its labelled {deployment.called} that each site holds out: it "
        f"sends a confusion matrix of {classes} × {classes} counts, and the server adds these up"
    )
    return ", ".join([counts, *_scores(deployment, classes), *_shared(deployment)])


def _scores(deployment: Deployment, classes: int) -> list[str]:
    """What is sent for AUROC, calibration error and top-5 accuracy."""
    config = deployment.config
    if not counts_scores(config):
        return []
    size = size_in_bytes(blank(classes)) / 1000
    return [
        f"and counts of scores ({size:.0f} kB): for AUROC, histograms of {classes} × 2 × {BINS} counts; for "
        f"the calibration error, counts and mean confidences in bins; from 20 classes on, a count for top-5. "
        f"If there are few {deployment.called}, they reveal how confident the model is about each. With "
        'send_scores = false in its site.toml a site does not send them; with metrics = "accuracy" in '
        "[experiment.keep] they are not requested"
    ]


def _shared(deployment: Deployment) -> list[str]:
    """What sites may allow: their models measured elsewhere."""
    if not deployment.notes_sites:
        return []
    return [
        "and the same for the best model of every site that allows it (share_model = true in its site.toml; "
        "off by default): such a site evaluates its own model in every evaluated round, and the server sends "
        "the best one to all sites after the last round, unless the site has withdrawn it since"
    ]


def _noted(deployment: Deployment) -> str:
    """Nothing more is sent for it: norm and cosine follow from the update."""
    config = deployment.config
    if config.privacy.is_on:
        return "nothing about individual sites: differential privacy forbids it"
    if not config.keep.watches(config.federation.per_round):
        return "nothing about individual sites: keep.clients of the experiment is 'none'"
    own = ", accuracy on what it holds out" if deployment.sites_measure else ""
    what = deployment.called
    return (
        f"for every site and round (clients.jsonl): {what}, labelled share, losses, share of confident "
        f"{what}, seconds, norm of its update and its cosine similarity to the mean{own}; nothing more is "
        'sent for this, and clients = "none" in [experiment.keep] turns it off'
    )


def _stays(deployment: Deployment, method: Method) -> tuple[str, ...]:
    kept = [f"{part.name}: {part.keeps}" for part in method.parts if part.keeps]
    private = [f"{part.name}: weights of {', '.join(part.private)}" for part in method.parts if part.private]
    if deployment.config.train.keeps_momentum("clients"):
        kept.append("the momentum of its training (as many numbers as are trained)")
    return (f"{deployment.called}, labels and file names", *kept, *private)


def _remarks(deployment: Deployment, method: Method, update: Update, classes: int) -> tuple[str, ...]:
    """What can be learned from what is sent."""
    remarks, what = _frozen_remarks(deployment), deployment.called
    if deployment.config.model.norm == "static":
        remarks.append(
            "sums for static batch norm reveal, layer by layer, the mean and the spread of the network's "
            f"activations on a site's {what}"
        )
    if by_part(update.weights)["classifier"]:
        remarks.append(
            "classifier rows and biases move towards the classes a site has: the server can estimate the "
            "site's label shares from them"
        )
    for name, value in sorted(update.extras.items()):
        if value.dim() and value.shape[0] == classes:
            rows = f", and what a class's {what} have in common" if value.dim() > 1 else ""
            remarks.append(f"{name} has an entry for every class: it reveals label shares{rows}")
    if deployment.sites_measure:
        remarks.append(f"the confusion matrix reveals the label shares of the held-out {what}")
    labelled = "" if deployment.scenario == SERVER else ", and how much of it is labelled"
    remarks.append(f"the numbers of {what} reveal how large a site is{labelled}")
    remarks.append(validation.open_updates(method))
    remarks.append(
        "encryption protects the connection to the server, not against the server: trained weights can "
        f"reveal which {what} were trained on, and at worst what they look like"
    )
    if deployment.config.federation.late == "next":
        remarks.append("an update that misses its round is not discarded, but used in the next round")
    remarks.extend(_privacy_remarks(deployment, method))
    return tuple(remarks)


def _frozen_remarks(deployment: Deployment) -> list[str]:
    model = deployment.config.model
    if deployment.encoded:
        return [
            f"the frozen encoder is not sent: every site has its own copy, with the hash "
            f"{model.encoder_hash[:16]}, and encodes its {deployment.called} on its own machine"
        ]
    network = Network.configured(model, len(deployment.classes), *deployment.taken)
    if not network.is_partial:
        return []
    with torch.device("meta"):  # shapes without memory
        frozen = dict(frozen_tensors(network.adapt(network())))
    count = sum(value.numel() for value in frozen.values())
    size = f"{count:,} numbers ({size_in_bytes(frozen) / 1e6:.2f} MB)"
    how = "they are sent to a site once" if model.weights else "a site computes them from the seed"
    return [f"{size} of the network are not trained and not sent in a round: {how}"]


def _privacy_remarks(deployment: Deployment, method: Method) -> list[str]:
    config = deployment.config
    counts = ", the confusion matrix" if deployment.sites_measure else ""
    bare = f"numbers of {deployment.called}{counts} and seconds of training"
    scores = "counts of scores are not requested, and nothing about individual sites is recorded"
    if config.privacy.record_clip:
        return [
            f"differential privacy of single {deployment.called} (DP-SGD): the weights that leave a site are "
            "computed only from clipped and noised gradients, so it also holds against the server; no "
            f"losses are sent, {scores}; it does not cover {bare}, nor what all {deployment.called} of a "
            "site have in common"
        ]
    if not config.privacy.clip:
        levels = (
            ("whole sites", "clip", uncovered(method)),
            (f"single {deployment.called}", "record_clip", unsupported(method)),
        )
        return [
            f"no differential privacy of {what}: "
            + (f"not available with this method, since {reason}" if reason else f"privacy.{name} adds it")
            for what, name, reason in levels
        ]
    if config.privacy.where == "server":
        covered = (
            "differential privacy is applied by the server: it receives updates without noise, and only what "
            "leaves it, the global model of each round, is bounded as described below"
        )
    else:
        share = f"1/sqrt({config.federation.per_round})"
        covered = (
            f"differential privacy holds for the sum of a round: each update has only {share} of the noise, "
            "so anyone who reads individual updates, as the server can, learns more than epsilon states"
        )
    return [
        covered,
        f"differential privacy does not cover {bare}, nor losses and other metrics of training: they are "
        f"sent without noise; {scores}",
    ]


def _privacy(config: Config) -> dict[str, Any]:
    settings: PrivacySettings = config.privacy
    shown = dataclasses.asdict(settings)
    if settings.record_clip:
        return {name: shown[name] for name in ("record_clip", "record_noise", "delta", "draw")}
    return {name: value for name, value in shown.items() if "record" not in name} if settings.clip else {}
