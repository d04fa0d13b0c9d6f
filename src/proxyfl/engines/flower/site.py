"""A site's side: what a message asks for is computed from the site's own images, and records go back.

Only weights, the method's declared extras, metrics and counts leave a site. What went wrong is told in full
where the site's operator reads it; the server hears the kind of it, since the words may name files.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from flwr.app import RecordDict

from proxyfl.core.config import Config, read_config
from proxyfl.core.errors import ConfigError, DataError, MethodError, ProxyFLError
from proxyfl.core.state import STATISTICS, Failure
from proxyfl.data.dataset import Split
from proxyfl.data.stream import ClientData, ViewSettings
from proxyfl.engines.flower.codec import (
    LEFT_OUT,
    OWN,
    Malformed,
    answer_records,
    content,
    header_of,
    packed,
    read_task,
    text,
    whole,
)
from proxyfl.engines.flower.frozen import settle_frozen
from proxyfl.engines.serialization import Header
from proxyfl.engines.setup import trainer_of
from proxyfl.federation.client import ClientTrainer, autocast, numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import eval_batch, evaluate
from proxyfl.methods import registry
from proxyfl.models import Network

CURE = "put it back from a copy of this site's state; without it the site cannot go on in this run"
RUN_NAME = re.compile(r"[0-9a-f]{16}")
FORM = ("classes", "channels", "image_size", "mean", "std", "flip", "scenario")
"""What server and site must agree on, by name, in the site's settings and in a message's header."""


@dataclass(frozen=True)
class SiteImages:
    """A site's own images: what it trains on, and what it keeps back to measure accuracy."""

    client: ClientData
    heldout: Split


@dataclass(frozen=True)
class SiteSide:
    """Answers messages. ``form`` is what the site was told when it was set up, ``state`` is on its disk."""

    name: str
    form: Header
    images: Callable[[], SiteImages]
    state: Path
    device: str = ""

    def enrol(self, records: RecordDict) -> RecordDict:
        """Names and numbers of images, after the data was checked against the class list."""
        return self._guarded(records, self._enrol)

    def train(self, records: RecordDict) -> RecordDict:
        return self._guarded(records, lambda header: self._train(records, header))

    def evaluate(self, records: RecordDict) -> RecordDict:
        """Counts of (true class, predicted class) over the images kept back."""
        return self._guarded(records, lambda header: self._evaluate(records))

    def _enrol(self, header: Header) -> RecordDict:
        self._require_agreement(header)
        images = self.images()
        counts = {
            "labelled": len(images.client.labelled),
            "unlabelled": len(images.client.unlabelled),
            "heldout": len(images.heldout),
        }
        versions = {name: metadata.version(name) for name in ("proxyfl", "torch")}
        return content({"kind": "enrolled", "name": self.name, **counts, "versions": versions})

    def _train(self, records: RecordDict, header: Header) -> RecordDict:
        if why := text(header, LEFT_OUT, 400):
            self._say(f"the server did not use this site's answer, {why}")
        measures = header.get("purpose") == STATISTICS
        doing, done = ("measuring layers", "measured layers") if measures else ("training", "trained")
        self._say(f"round {whole(header, 'round')}: {doing}")
        began = time.monotonic()
        task, header = read_task(records)
        trainer = self._trainer(header, records)
        if trainer.method.oracle:
            raise MethodError(f"{trainer.method.name} needs the true labels of unlabelled images")
        data = self.images().client
        with numerics(trainer.compute):
            answer = answer_records(trainer.train(task, data))
        seconds = time.monotonic() - began
        self._say(f"round {task.round}: {done} in {seconds:.1f} s, sending {_size(answer)}")
        return answer

    def _evaluate(self, records: RecordDict) -> RecordDict:
        task, header = read_task(records)
        trainer, images = self._trainer(header, records), self.images()
        weights, strict = trainer.method.model(task.weights), not trainer.method.all_private
        trainer.network.load_state_dict(weights, strict=strict)
        compute, views = trainer.compute, trainer.views
        with numerics(compute):
            result = evaluate(
                trainer.network,
                images.heldout,
                views.mean,
                views.std,
                batch=eval_batch(compute.eval_batch, whole(header, "image_size"), trainer.device),
                autocast=lambda: autocast(compute, trainer.device),
            )
        return content({"kind": "evaluation"}, {OWN: packed({"confusion": result.confusion})})

    def _trainer(self, header: Header, records: RecordDict) -> ClientTrainer:
        self._require_agreement(header)
        config = self._config(header)
        method = registry.create(config.method.name, config.method.parameters, config.fidelity)
        run, versions = header.get("run"), whole(header, "versions")
        if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
            raise Malformed("it names no run")
        kept = self.state / self.name / run
        trainer = trainer_of(
            config,
            method,
            Network.configured(
                config.model, len(self.form["classes"]), self.form["channels"], self.form["image_size"]
            ),
            ViewSettings(
                self.form["flip"], tuple(self.form["mean"]), tuple(self.form["std"]), config.vectors
            ),
            ClientStore(kept, versions, CURE),
        )
        if trainer.factory.is_partial:
            settle_frozen(trainer, header, records, kept / "frozen.safetensors")
        return trainer

    def _config(self, header: Header) -> Config:
        tree = header.get("config")
        if not isinstance(tree, dict) or not isinstance(tree.get("fidelity"), str):
            raise Malformed("it carries no settings")
        config = read_config(tree, tree["fidelity"])
        if not self.device:
            return config
        return dataclasses.replace(config, compute=dataclasses.replace(config.compute, device=self.device))

    def _require_agreement(self, header: Header) -> None:
        for name in FORM:
            if header.get(name) != self.form[name]:
                raise ConfigError(
                    f"server and site disagree on '{name}'; hand the site its folder again, "
                    "or put federation.toml back"
                )

    def _say(self, words: str) -> None:
        """For the site's own people: 'proxyfl deploy site' shows it."""
        print(f"proxyfl: {self.name}: {words}", file=sys.stderr, flush=True)

    def _guarded(self, records: RecordDict, act: Callable[[Header], RecordDict]) -> RecordDict:
        """An answer in any case: what goes wrong at a site is a failure with a reason."""
        header: Header = {}
        try:
            header = header_of(records)
            return act(header)
        except Exception as error:
            known = isinstance(error, ProxyFLError)
            words = str(error) if known else traceback.format_exc()
            self._say(words.rstrip())
            round, client = header.get("round", 0), header.get("client", 0)
            return answer_records(Failure(round, client, _discreet(error)))


def _size(records: RecordDict) -> str:
    """How much is sent, in words."""
    sizes = [len(array.data) for part in records.array_records.values() for array in part.values()]
    return f"{max(1, sum(sizes) // 1000):,} kB"


def _discreet(error: Exception) -> str:
    """What the server is told of an error: in full only what is about the server's own settings."""
    if isinstance(error, (ConfigError, MethodError, Malformed)):
        return str(error)
    what = "its images cannot be used" if isinstance(error, DataError) else "training failed there"
    return f"{what} ({type(error).__name__}); the site's own output says why"
