"""What the server notes of a run in its audit log, and the models that it signs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from flwr.app import MessageType, RecordDict

from proxyfl.core.checksum import read_verified
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.files import sha256
from proxyfl.core.state import Failure, Update
from proxyfl.deploy import model_signing, signing
from proxyfl.deploy.audit import AuditLog, listed
from proxyfl.deploy.roster import SiteRoster
from proxyfl.deploy.settings import Deployment
from proxyfl.engines.flower.codec import Malformed, digest_of, header_of, text
from proxyfl.federation.loop import Observer, RoundReport
from proxyfl.runs.settings import identity


class ServerAudit:
    """An observer of rounds, called before the recorder, so that every round that counts has its line; a
    courier reports what is sent and received.
    """

    def __init__(self, deployment: Deployment, roster: SiteRoster) -> None:
        self.deployment, self.roster, self.log = deployment, roster, AuditLog(deployment.path)
        self.round = 0

    def begin(self, event: str, **details: Any) -> None:
        """A run begins or goes on, with which app and settings."""
        form = self.deployment
        app = "" if form.insecure else str(signing.signature_of(form)["app"])
        config = form.config
        self.log.add(event, app=app, settings=identity(config), method=config.method.name, **details)
        self.sign(**({"round": details["round"]} if details.get("round") else {}))

    def sent(self, client: int, kind: str, records: RecordDict) -> None:
        size, digest = digest_of(records)
        self.log.add("sent", **self._about(client, kind), bytes=size, sha256=digest)

    def received(self, client: int, kind: str, reply: RecordDict | str) -> None:
        about = self._about(client, kind)
        if isinstance(reply, str):
            self.log.add("no answer", **about, reason=reply)
            return
        size, digest = digest_of(reply)
        try:
            header = header_of(reply)
            reason = text(header, "reason", 400) if header.get("kind") == "failure" else ""
        except Malformed as error:
            reason = str(error)
        more = {"reason": reason} if reason else {}
        self.log.add("received", **about, bytes=size, sha256=digest, **more)

    def _about(self, client: int, kind: str) -> dict[str, Any]:
        """Whom a message is to or from, and what it is about; who enrols is known by its node."""
        if kind != MessageType.QUERY:
            return {"site": self.deployment.sites[client], "kind": kind, "round": self.round}
        sites = {node: self.deployment.sites[number] for number, node in self.roster.online().items()}
        return {"site": sites.get(client, f"node {client}"), "kind": "enrol"}

    def round_started(self, round: int, clients: list[int]) -> None:
        self.round = round
        names = [self.deployment.sites[client] for client in clients]
        self.log.add("round started", round=round, **listed(names))

    def answered(self, answer: Update | Failure) -> None:
        """What the guard refused looks like any answer on the wire."""
        if isinstance(answer, Failure):
            name = self.deployment.sites[answer.client]
            self.log.add("left out", site=name, round=answer.round, reason=answer.reason)

    def round_finished(self, report: RoundReport) -> None:
        metrics = report.metrics
        found = {name: metrics[name] for name in ("round", "accuracy") if name in metrics}
        self.log.add("round finished", **found)

    def sign(self, **about: Any) -> None:
        """Sign the models that are new, each once the log has it."""
        if self.deployment.insecure:
            return
        for file in model_signing.unsigned(self.deployment):
            of = {**about, **_round_of(file)}
            self.log.add("signed", model=file.stem, sha256=sha256(file), **of)
            model_signing.sign(file, self.deployment, **of)

    def failed(self, error: BaseException) -> None:
        reason = str(error) if isinstance(error, ProxyFLError) else type(error).__name__
        self.log.add("run stopped", reason=reason)


class Signing(Observer):
    """Signs the models of a round, which the recorder has written before."""

    def __init__(self, audit: ServerAudit) -> None:
        self.audit = audit

    def round_finished(self, report: RoundReport) -> None:
        self.audit.sign(round=report.metrics["round"])


def _round_of(file: Path) -> dict[str, int]:
    """The round that a model says it is of: the best one is written rounds later, with a checkpoint."""
    with contextlib.suppress(OSError, RunError, KeyError, ValueError, TypeError, RecursionError):
        round = json.loads(read_verified(file)[1]["proxyfl"])["round"]
        return {"round": round} if type(round) is int else {}
    return {}
