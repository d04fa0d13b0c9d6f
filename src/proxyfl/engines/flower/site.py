"""A site's side: what a message asks for is computed from the site's own images, and records go back.

Only weights, the method's declared extras, metrics and counts leave a site. What went wrong is reported
in full where the site's operator reads it; the server hears the kind of it, since the words may name files.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from flwr.app import RecordDict

from proxyfl.core.config import Config, read_config
from proxyfl.core.errors import ConfigError, DataError, MethodError, ProxyFLError
from proxyfl.core.state import STATISTICS, Failure, size_in_bytes
from proxyfl.data.dataset import Split
from proxyfl.data.stream import ClientData, ViewSettings
from proxyfl.encoders import load_encoder
from proxyfl.encoders.encoding import FOLDER, Part, encode_parts
from proxyfl.encoders.views import views_of
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
from proxyfl.engines.flower.limits import Limits
from proxyfl.engines.flower.protocol import spoken
from proxyfl.engines.serialization import Header
from proxyfl.engines.setup import trainer_of
from proxyfl.federation.client import ClientTrainer, autocast, numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import eval_batch, evaluate
from proxyfl.federation.score_counts import counts_scores
from proxyfl.methods import registry
from proxyfl.models import Network

CURE = "restore it from a copy of this site's state; without it the site cannot continue this run"
RUN_NAME = re.compile(r"[0-9a-f]{16}")
FORM = ("classes", "channels", "image_size", "encoded", "mean", "std", "flip", "scenario")
"""What server and site must agree on, by name, in the site's settings and in a message's header."""
LATER = {"encoded": 0}
"""What came later, and what it means where it is not said."""


@dataclass(frozen=True)
class SiteImages:
    """A site's own images: what it trains on, and what it holds out to measure accuracy."""

    client: ClientData
    heldout: Split


@dataclass(frozen=True)
class SiteSide:
    """Answers messages. ``form`` is what the site was set up with, ``state`` is on its disk.
    ``encoder`` is where the frozen encoder lies at this site, if that is not where the experiment says.
    ``scores`` and ``shares`` are what its people allow: counts of scores may be sent, and the models that
    it trains may be measured at the other sites. ``limits`` are what they let it use of the machine.
    """

    name: str
    form: Header
    images: Callable[[], SiteImages]
    state: Path
    device: str = ""
    encoder: str = ""
    scores: bool = True
    shares: bool = False
    limits: Limits = field(default_factory=Limits)

    def enrol(self, records: RecordDict) -> RecordDict:
        """Names and numbers of images, after the data was checked against the class list."""
        return self._guarded(records, self._enrol)

    def train(self, records: RecordDict) -> RecordDict:
        return self._guarded(records, lambda header: self._train(records, header))

    def evaluate(self, records: RecordDict) -> RecordDict:
        """Counts of (true class, predicted class) over the images held out, and of scores where they may
        be.
        """
        return self._guarded(records, lambda header: self._evaluate(records))

    def _enrol(self, header: Header) -> RecordDict:
        self._require_agreement(header)
        images = self._seen(self._config(header)) if self.encoded else self.images()
        counts = {
            "labelled": len(images.client.labelled),
            "unlabelled": len(images.client.unlabelled),
            "heldout": len(images.heldout),
        }
        if self.shares and not self._config(header).privacy.is_on:
            counts["shares"] = True
        versions = {name: metadata.version(name) for name in ("proxyfl", "torch")}
        return content({"kind": "enrolled", "name": self.name, **counts, **spoken(), "versions": versions})

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
        steps = self.limits.steps()
        data = self._seen(self._config(header)).client
        if not measures:
            self.limits.require_disk(self.state, size_in_bytes(task.weights) * trainer.keeps_state)
            self.limits.require_memory(trainer)
        with numerics(trainer.compute):
            answer = answer_records(trainer.train(task, data, steps=steps))
        seconds = time.monotonic() - began
        self._say(f"round {task.round}: {done} in {seconds:.1f} s, sending {_size(answer)}")
        return answer

    def _evaluate(self, records: RecordDict) -> RecordDict:
        heed = self.limits.timer("evaluation", "fewer held-out images (holdout) or a larger limit")
        task, header = read_task(records)
        config = self._config(header)
        trainer, images = self._trainer(header, records), self._seen(config)
        compute, views = trainer.compute, trainer.views
        batch = eval_batch(compute.eval_batch, trainer.factory.image_size, trainer.device)
        self.limits.require_memory_to_evaluate(trainer, min(batch, len(images.heldout)))
        weights, strict = trainer.method.model(task.weights), not trainer.method.all_private
        trainer.network.load_state_dict(weights, strict=strict)
        with numerics(compute):
            result = evaluate(
                trainer.network,
                images.heldout,
                views.mean,
                views.std,
                batch=batch,
                autocast=lambda: autocast(compute, trainer.device),
                counts=self.scores and counts_scores(config),
                heed=heed,
            )
        header = {"kind": "evaluation", "shares": self.shares}  # an owner may withdraw it at any time
        return content(header, {OWN: packed({"confusion": result.confusion, **result.counts})})

    def _trainer(self, header: Header, records: RecordDict) -> ClientTrainer:
        self._require_agreement(header)
        config = self._config(header)
        method = registry.method_of(config)
        run, versions = header.get("run"), whole(header, "versions")
        if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
            raise Malformed("it names no run")
        kept = self.state / self.name / run
        trainer = trainer_of(
            config,
            method,
            Network.configured(config.model, len(self.form["classes"]), *self._taken),
            ViewSettings(
                self.form["flip"],
                tuple(self.form["mean"]),
                tuple(self.form["std"]),
                config.vectors,
                config.encoder.weak if self.encoded else 0,
            ),
            ClientStore(kept, versions, CURE),
        )
        if trainer.factory.is_partial:
            settle_frozen(trainer, header, records, kept / "frozen.safetensors")
        return trainer

    @property
    def encoded(self) -> int:
        """Features of the frozen encoder; 0 where there is none."""
        return int(self.form.get("encoded", 0))

    @property
    def _taken(self) -> tuple[int, int]:
        """Channels and size of what the network takes."""
        return (self.encoded, 0) if self.encoded else (self.form["channels"], self.form["image_size"])

    def _seen(self, config: Config) -> SiteImages:
        """What the network is given: the site's images, or what the frozen encoder makes of them here."""
        if bool(config.model.encoder) != bool(self.encoded):
            raise ConfigError("the experiment and 'encoded' of federation.toml disagree about an encoder")
        images = self.images()
        if not self.encoded:
            return images
        return encoded_images(images, config, self.encoder, self.form, self.state / FOLDER)

    def _config(self, header: Header) -> Config:
        tree = header.get("config")
        if not isinstance(tree, dict) or not isinstance(tree.get("fidelity"), str):
            raise Malformed("it carries no settings")
        config = read_config(tree, tree["fidelity"])
        return dataclasses.replace(config, compute=self.limits.compute(config.compute, self.device))

    def _require_agreement(self, header: Header) -> None:
        for name in FORM:
            usual = LATER.get(name)
            if header.get(name, usual) != self.form.get(name, usual):
                raise ConfigError(
                    f"server and site disagree on '{name}'; send the site its folder again, or "
                    "restore federation.toml"
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


def encoded_images(images: SiteImages, config: Config, place: str, form: Header, folder: Path) -> SiteImages:
    """Features of a site's images or texts, made once and kept in a folder. ``place`` is where the encoder
    lies here; its hash must be the one that the federation began with.
    """
    try:
        encoder = load_encoder(place or config.model.encoder, config.model.encoder_hash)
    except ConfigError as error:  # whose words name this machine's files
        raise DataError(str(error)) from error
    client, counts = images.client, config.encoder
    views = views_of(client.images, counts.weak, counts.strong, flip=form["flip"], drawing=config.texts)
    parts = {"training": Part(client.images, views), "test": Part(images.heldout.images, views.none())}
    features = encode_parts(encoder, parts, folder)
    if features["training"].shape[2] != form["encoded"]:
        count = features["training"].shape[2]
        raise DataError(f"the encoder makes {count} features, not the {form['encoded']} of federation.toml")
    trained = dataclasses.replace(client, images=features["training"])
    return SiteImages(trained, Split(features["test"][:, 0], images.heldout.labels))


def _size(records: RecordDict) -> str:
    """How much is sent, in words."""
    sizes = [len(array.data) for part in records.array_records.values() for array in part.values()]
    return f"{max(1, sum(sizes) // 1000):,} kB"


def _discreet(error: Exception) -> str:
    """What the server learns of an error: in full only what is about the server's own settings."""
    if isinstance(error, (ConfigError, MethodError, Malformed)):
        return str(error)
    what = "its images cannot be used" if isinstance(error, DataError) else "training failed there"
    return f"{what} ({type(error).__name__}); the site's own output says why"
