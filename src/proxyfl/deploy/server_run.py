"""The server's half of a real federation: the project's own rounds in an ordinary run directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.serverapp import Grid

from proxyfl.core.checksum import write_tensors, write_verified
from proxyfl.core.config import Config
from proxyfl.core.dealing import CLIENTS
from proxyfl.core.errors import BelowQuorum, ConfigError, RunError
from proxyfl.core.files import sha256, write_bytes
from proxyfl.core.provenance import describe_machine
from proxyfl.core.state import ServerState
from proxyfl.data.dataset import Encoded, Split
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged
from proxyfl.data.stream import ViewSettings
from proxyfl.deploy import approval
from proxyfl.deploy.crosssite import SharedModels
from proxyfl.deploy.draws import Draws
from proxyfl.deploy.enrolment import LOOK, Enrolment, Registrar, gather
from proxyfl.deploy.live import LIVE_FILE, LiveLog
from proxyfl.deploy.longer import began_with
from proxyfl.deploy.measure import ServerTest, SiteTest, SourceNote
from proxyfl.deploy.roster import SiteRoster
from proxyfl.deploy.server_audit import ServerAudit, Signing
from proxyfl.deploy.server_data import checksum, open_server_data, own_images, require_same
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.site_data import SiteData
from proxyfl.deploy.stopping import StopAsked, stop_asked
from proxyfl.encoders import load_encoder
from proxyfl.encoders.encoding import in_batches
from proxyfl.engines.flower.frozen import frozen_part
from proxyfl.engines.flower.grid import Courier, FlowerEngine
from proxyfl.engines.flower.held import HeldUpdates
from proxyfl.engines.flower.late import LateUpdates
from proxyfl.engines.flower.protocol import spoken
from proxyfl.engines.flower.site import FORM
from proxyfl.engines.setup import server_of, trainer_of
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.loop import Observer, Server, play_round
from proxyfl.federation.own_training import OwnImages
from proxyfl.federation.score_counts import counts_scores
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.models import Network
from proxyfl.runs import checkpoint, exact
from proxyfl.runs.config_file import to_toml
from proxyfl.runs.directory import AT_SITES, FINISHED, RunDirectory
from proxyfl.runs.export import model_card
from proxyfl.runs.metrics_log import Mark
from proxyfl.runs.recorder import Recorder
from proxyfl.runs.repair import lost_clients, repair_models, require_same_frozen
from proxyfl.runs.start import load_start, read_start, settle_start

ENCODED_AT_ONCE = 64
LATE, HELD = "late", "held"
"""Folders of updates below a run."""
RETRY, RETRY_LAST = 5.0, 60.0
"""Seconds between two attempts at a round that had too few answers: fewer at first, then more."""


class DeployedServer:
    """One federation's server, for the time of one Flower run."""

    def __init__(
        self, deployment: Deployment, grid: Grid, test: Callable[[], Split] | None = None, run: str = ""
    ) -> None:
        self.again = f"proxyfl deploy run {deployment.path}"
        self.deployment, self.directory = deployment, RunDirectory(deployment.run, self.again)
        self.live = LiveLog(deployment.state / LIVE_FILE, deployment.sites, run, aloud=True)
        self.roster = SiteRoster(grid, deployment)
        self.audit = ServerAudit(deployment, self.roster)
        self.courier = Courier(grid, self.roster, self.audit)
        self.form = {name: _plain(getattr(deployment, name)) for name in FORM}
        self.registrar = Registrar(
            self.courier, self.roster, self._enrolling(), self.say, deployment.max_images
        )
        self.test = test

    @cached_property
    def own(self) -> SiteData | None:
        """The labelled images that the server itself holds, where labels are there."""
        return open_server_data(self.deployment) if self.deployment.server_data else None

    def _enrolling(self) -> dict[str, Any]:
        """What a site receives when it enrols: what it has to agree with, and what its owner approved."""
        config = json.loads(json.dumps(self.deployment.config.to_tree()))
        return {**self.form, **spoken(), "config": config}

    def say(self, text: str) -> None:
        self.live.tell("note", text=text)

    def run(self) -> None:
        """Begin the run or go on with it, to the end. What stops it is the last line of the live file."""
        try:
            with RunDirectory(self.deployment.state, self.again).locked():
                self.live.tell("began", pid=os.getpid())
                if not self.directory.path.exists():
                    self._create()
                with self.directory.locked():
                    self._continue()
        except StopAsked as asked:
            self.live.tell("stopped", asked=True, reason=str(asked), text=f"{asked}; the checkpoint is kept")
            self.audit.failed(asked)
        except (KeyboardInterrupt, SystemExit):  # by who stops the run, or by the end of the SuperLink
            self.live.tell("interrupted", text="interrupted; the checkpoint is kept")
            raise
        except httpx.HTTPError:  # no end: the server's command starts it again, and the run goes on
            self.live.tell("interrupted", text="the SuperLink does not work; the checkpoint is kept")
            raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self.live.tell("stopped", reason=reason, text=f"stopped: {reason}", full=_is_full(error))
            with contextlib.suppress(OSError, RunError):  # the reason itself, where the disk is full
                self.audit.failed(error)
            raise

    def _create(self) -> None:
        config, form = settle_start(self.deployment.config), self.deployment
        method, start = registry.method_of(config), load_start(config)
        enrolment, own = Enrolment(secrets.token_hex(8), form.sites), self.own
        if own is not None:
            self.say(f"the server has {len(own.labelled):,} labelled {form.called} of its own")
        self._gather(enrolment)

        def build(aside: RunDirectory) -> None:
            write_bytes(aside.environment, json.dumps(describe(config, form), indent=1).encode())
            write_bytes(aside.config, to_toml(config, f"proxyfl deploy run {form.path}").encode())
            held = 0 if own is None else len(own.labelled)
            write_tensors(aside.partition, sizes_only(enrolment, form.scenario, held).to_tensors())
            enrolment.save(aside.path)
            for file in (aside.metrics, aside.metrics_copy, aside.timing, aside.events):
                file.touch()
            if start:
                write_verified(aside.start, start)
            federation, trainer, _ = self._federation(aside, config, method, enrolment)
            state = federation.start(trainer.initial_weights())
            files = {file.name: sha256(file) for file in (aside.partition, aside.environment)}
            files |= {"data": AT_SITES, **trainer.checksums, **(checksum(own) if own is not None else {})}
            checkpoint.save(aside, state, Mark.of(b""), config.keep.checkpoints, files)
            aside.event("created")

        self.directory.create(build)

    def _gather(self, enrolment: Enrolment) -> None:
        form = self.deployment
        gather(self.registrar, enrolment, form.quorum, form.deadline, form.patience, self._heed)

    def _continue(self) -> None:
        run = self.directory
        saved, warnings = checkpoint.load_newest(run)
        config = began_with(self.deployment, run, saved)
        method = registry.method_of(config)
        card = self._card(config, method)
        run.tidy()
        trainer = self._trainer(run, config, method)
        require_same_frozen(run, saved, trainer.checksums)
        if self.own is not None:
            require_same(saved, self.own, self.deployment)
        whole = trainer.whole
        for warning in [*warnings, *lost_clients(run, saved), *repair_models(run, saved, whole, card)]:
            run.event("warning", text=warning)
            self.say(f"warning: {warning}")
        state, rounds = saved.state, config.federation.rounds
        if state.round < rounds:
            run.event("resumed" if state.round else "started", round=state.round)
            for warning in exact.continued(run, state.round, config.compute):
                self.say(f"warning: {warning}")
            self.live.tell("resumed" if state.round else "started", round=state.round, rounds=rounds)
            self.audit.begin("run resumed" if state.round else "run started", round=state.round)
            enrolment = Enrolment.load(run.path, self.deployment.sites)
            if len(enrolment.counts) < min(self.deployment.quorum, len(enrolment.sites)):
                self._gather(enrolment)
                enrolment.save(run.path)
            federation, _, measure = self._federation(run, config, method, enrolment, state.round + 1)
            engine = federation.engine
            kept = (engine.late, engine.held) if isinstance(engine, FlowerEngine) else ()
            recorder = Recorder(run, config, whole, card, saved)
            signing = Signing(self.audit)
            observers: tuple[Observer, ...] = (SourceNote(measure), self.audit, recorder, signing, self.live)
            if (shared := self._shared(run, enrolment)) and isinstance(measure, SiteTest):
                observers = (shared, *observers)
            updates = [one for one in kept if one]
            for one in updates:
                one.back_to(state.round)
            observers = (*observers, *updates)
            with contextlib.closing(engine), numerics(config.compute):
                self._play(federation, state, observers, enrolment)
        self._end(run, rounds)

    def _end(self, run: RunDirectory, rounds: int) -> None:
        """What comes behind the last checkpoint; all of it again where a crash cut it short. The event is
        last: with it the run is over.
        """
        self.audit.sign(round=rounds)
        for updates in (LateUpdates(run.path / LATE, 0), HeldUpdates(run.path / HELD)):
            updates.run_finished()
        self.audit.log.add("run finished", round=rounds)
        run.event(FINISHED, round=rounds)
        self.live.tell("finished", round=rounds, text=f"finished after {rounds} rounds: {run.path}")

    def _play(
        self,
        federation: Server,
        state: ServerState,
        observers: tuple[Observer, ...],
        enrolment: Enrolment,
    ) -> None:
        """The rounds that are left. One with too few answers is played again, up to the patience."""
        until, pause = 0.0, RETRY
        draws = Draws(federation, self.directory, enrolment.sites, self.say, state.round + 1)
        while state.round < federation.settings.rounds:
            self._heed(state.round)
            try:
                self._await_quorum(federation, enrolment, draws)
                state = play_round(federation, state, observers, draws.redraw)
                until, pause = 0.0, RETRY
                draws.begin(state.round + 1)
            except BelowQuorum as error:
                draws.failed(error.failed)
                now, lack = time.monotonic(), error.lack("sites", self.roster.name)
                if any(map(approval.is_missing, error.failed.values())):
                    lack += "; a site's owner approves with: proxyfl deploy approve SITE"
                until = until or now + self.deployment.patience
                if now + pause > until:
                    raise RunError(f"{lack}; the checkpoint is kept; continue with: {self.again}") from error
                self.live.tell("waiting", text=f"{lack}; asking again for {until - now:.0f} s")
                time.sleep(pause)
                pause = min(2 * pause, RETRY_LAST)

    def _await_quorum(self, federation: Server, enrolment: Enrolment, draws: Draws) -> None:
        """Wait quietly while too few of the sites that the round asks are connected for it to count."""
        patience = self.deployment.patience
        until, shown = time.monotonic() + patience, ""
        while True:
            self._heed(draws.round - 1)
            self._admit(federation, enrolment, draws)
            online = self.roster.online().keys() & enrolment.counts.keys()
            lack = draws.lacks(online, time.monotonic(), patience)
            if not lack:
                return
            text = f"round {draws.round}: {lack}"
            if shown != text:
                shown = text
                self.live.tell("waiting", text=f"{text}; waiting")
            if time.monotonic() > until:
                raise RunError(
                    f"{text}; the last checkpoint is kept, continue with '{self.again}' when they are back"
                )
            time.sleep(LOOK)

    def _heed(self, done: int = 0) -> None:
        """Stop between two rounds when 'proxyfl deploy stop' asks for it."""
        if stop_asked(self.deployment):
            raise StopAsked(
                f"stopped after round {done}, as requested"
                if done
                else "stopped before round 1, as requested"
            )

    def _admit(self, federation: Server, enrolment: Enrolment, draws: Draws) -> None:
        """Sites that came late or were added take part from the next round on, those that were removed no
        longer. Not so under differential privacy: its accounting holds for the sites of the first round.
        """
        self._look_for_sites(enrolment, draws)
        before = dict(enrolment.counts)
        for client in [client for client in enrolment.counts if self.roster.removed(client)]:
            enrolment.leave(client)
            enrolment.save(self.directory.path)
            self.directory.event("removed", client=client, site=enrolment.sites[client])
            self.audit.log.add("removed", site=enrolment.sites[client])
            self.say(f"{enrolment.sites[client]} was removed and no longer takes part")
        new = [] if federation.aggregator.private else self.registrar.enrol(enrolment)
        if new:
            enrolment.joined |= {client: draws.round for client in new if client not in enrolment.joined}
            enrolment.save(self.directory.path)
            for client in new:
                self.directory.event("enrolled", client=client, site=enrolment.sites[client])
                self.audit.log.add("enrolled", site=enrolment.sites[client], round=draws.round)
                self.say(f"{enrolment.sites[client]} takes part from now on")
        if before != enrolment.counts or draws.round in enrolment.joined.values():
            federation.population = enrolment.population(draws.round)
            federation.exposed = enrolment.everyone()

    def _look_for_sites(self, enrolment: Enrolment, draws: Draws) -> None:
        """Take in the sites that were added to the list while the run goes on."""
        try:
            grown = Deployment.read(self.deployment.path)
        except ConfigError:  # being edited by hand: it is read again before the next round
            return
        begun = self.deployment.sites
        if len(grown.sites) > len(begun) and grown.sites[: len(begun)] == begun:
            self.say(f"{', '.join(grown.sites[len(begun) :])} was added to the sites")
            self.deployment = self.roster.deployment = self.audit.deployment = grown
            self.roster.sites = self.live.sites = enrolment.sites = draws.sites = grown.sites
            self.roster.until = 0.0

    def _federation(
        self, run: RunDirectory, config: Config, method: Method, enrolment: Enrolment, round: int = 1
    ) -> tuple[Server, ClientTrainer, ServerTest | SiteTest]:
        form, classes = self.deployment, len(self.deployment.classes)
        trainer = self._trainer(run, config, method)
        versions, frozen = trainer.store.versions, frozen_part(trainer)
        setup = {
            **self.form,
            **spoken(),
            "config": json.loads(json.dumps(config.to_tree())),
            "run": enrolment.run,
            "versions": versions,
            **frozen.header,
        }
        late = LateUpdates(run.path / LATE, versions) if config.federation.late == "next" else None
        held = HeldUpdates(run.path / HELD) if config.privacy.is_on else None
        engine = FlowerEngine(
            self.courier, setup, form.deadline, self.live.left_out, frozen, form.adapt, late, held
        )
        measure: ServerTest | SiteTest
        own = self.own
        kept = own.held_out if own is not None else None
        split = self.test() if self.test is not None else kept
        if split is not None:
            every = config.keep.metrics == "all"
            measure = ServerTest(trainer, self._seen(split, config), form.taken[1], scores=every)
        else:
            measure = SiteTest(
                self.courier, enrolment, setup, form.deadline, form.patience, self.say, frozen,
                by_site=form.notes_sites, shared=self._shared(run, enrolment), scores=counts_scores(config),
                last=config.federation.rounds,
            )  # fmt: skip
        population = enrolment.population(round)
        federation = server_of(
            config, method, population, engine, measure, classes, store=self._store(run.server, config),
            spool=run.path, own=None if own is None else OwnImages(trainer, own_images(own, form, config)),
        )  # fmt: skip
        federation.exposed = enrolment.everyone()
        return federation, trainer, measure

    def _shared(self, run: RunDirectory, enrolment: Enrolment) -> SharedModels | None:
        """The models of sites that let others measure them; none where nothing of single sites is noted."""
        return SharedModels(run.path, enrolment) if self.deployment.notes_sites else None

    def _seen(self, split: Split, config: Config) -> Split:
        """The server's test images, or what the frozen encoder makes of them."""
        if not self.deployment.encoded:
            return split
        encoder = load_encoder(config.model.encoder, config.model.encoder_hash)
        return Split(in_batches(encoder, split.images, ENCODED_AT_ONCE), split.labels)

    def _trainer(self, run: RunDirectory, config: Config, method: Method) -> ClientTrainer:
        """What knows the network; it trains no client here."""
        form = self.deployment
        network = Network.configured(config.model, len(form.classes), *form.taken)
        weak = config.encoder.weak if form.encoded else 0
        views = ViewSettings(form.flip, form.mean, form.std, config.vectors, weak)
        store = self._store(run.clients, config)
        return trainer_of(config, method, network, views, store, read_start(run, config))

    def _store(self, place: Path, config: Config) -> ClientStore:
        versions = config.keep.checkpoint_every * config.keep.checkpoints + 1
        cure = f"restore it from a copy, or move {self.deployment.run} away to start again"
        return ClientStore(place, versions, cure)

    def _card(self, config: Config, method: Method) -> dict[str, Any]:
        """What a saved model says about itself, but for the round."""
        form, model = self.deployment, config.model
        source = Encoded(model.encoder, model.encoder_hash, form.channels, form.image_size, 0)
        return model_card(
            config,
            method,
            channels=form.taken[0],
            image_size=form.taken[1],
            encoded=source if form.encoded else None,
            classes=form.classes,
            mean=form.mean,
            std=form.std,
            features=form.features,
        )


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        error = error.__cause__ or error.__context__
    return False


def sizes_only(enrolment: Enrolment, where: str = CLIENTS, server: int = 0) -> Partition:
    """A partition that tells how many images each site has, and the server: which ones they are, only they
    know.
    """
    population = enrolment.population(1)
    parts, first = [], 0
    for sizes in (population.labelled, population.unlabelled):
        total = int(sizes.sum())
        parts.append(Ragged.from_sizes(np.arange(first, first + total, dtype=np.int64), sizes))
        first += total
    return Partition(*parts, server=np.arange(first, first + server, dtype=np.int64), where=where)


def describe(config: Config, deployment: Deployment) -> dict[str, Any]:
    return {
        **describe_machine(config.compute, "flwr"),
        "data": AT_SITES,
        "federation": deployment.name,
        "sites": list(deployment.sites),
        "insecure": deployment.insecure,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
