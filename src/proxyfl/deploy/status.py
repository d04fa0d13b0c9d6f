"""A look at a federation from the server's machine: server, sites, run."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ProxyFLError
from proxyfl.deploy import expiry, model_signing, operate
from proxyfl.deploy.enrolment import SITES_FILE, Enrolment
from proxyfl.deploy.live import ENDS, LIVE_FILE, LiveReader, newest
from proxyfl.deploy.names import REMOVED
from proxyfl.deploy.overview import Overview
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.shrink import settled
from proxyfl.runs.config_file import recorded
from proxyfl.runs.directory import FINISHED, RunDirectory, measured, read_json_lines
from proxyfl.runs.run import Run

STOPPED = re.compile(r"^stopped( after round \d+)?[:,]? *")
"""How the words about an end begin, which the line on the run says itself."""


@dataclass(frozen=True)
class Status:
    """What was found; ``sites`` are rows of name, node, labelled, unlabelled and rounds taken part in."""

    server: str
    sites: list[tuple[str, str, str, str, str]]
    run: str
    notes: list[str]


def look(deployment: Deployment) -> Status:
    deployment, left = settled(deployment)
    up = operate.answers(deployment)
    nodes = _nodes(deployment) if up and not deployment.insecure else {}
    counts, rounds = {}, Counter[int]()
    with contextlib.suppress(ProxyFLError):
        if (deployment.run / SITES_FILE).is_file():
            counts = Enrolment.load(deployment.run, deployment.sites).counts
    for line in read_json_lines(deployment.run / "metrics.jsonl"):
        rounds.update(line.get("clients", []))
    rows = []
    for client, name in enumerate(deployment.sites):
        row = counts.get(client)
        numbers = (f"{row.labelled:,}", f"{row.unlabelled:,}") if row else ("–", "–")
        node = REMOVED if deployment.is_removed(name) else nodes.get(name, "–")
        rows.append((name, node, *numbers, str(rounds[client])))
    waits = "starting" if operate.supervisor(deployment).is_taken() else "down"
    if not deployment.insecure and expiry.has_ended(deployment.server_certificate):
        waits = "not trusted: its certificate has expired"
    return Status("up" if up else waits, rows, run_line(deployment), [*left, *expiry.of_server(deployment)])


def as_table(deployment: Deployment, found: Status) -> dict[str, Any]:
    """The same for other programs, with all that the deployment's files say."""
    seen = Overview(deployment.path).look()
    nodes = {row[0]: row[1] for row in found.sites}
    sites = [{**site, "node": nodes.get(site["name"], "–")} for site in seen["sites"]]
    return {"server": found.server, **seen, "sites": sites, "notes": found.notes}


def _nodes(deployment: Deployment) -> dict[str, str]:
    """What Flower says; its command wants to write, so it gets a home elsewhere, in memory where there is."""
    memory = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as home:
            return operate.node_states(deployment, Path(home))
    except (ProxyFLError, OSError):
        return dict.fromkeys(deployment.sites, "?")


def is_finished(deployment: Deployment) -> bool:
    """Whether there is a run that has played all its rounds."""
    try:
        return deployment.run.is_dir() and Run(deployment.run).finished
    except (ProxyFLError, OSError):
        return False


def is_over(deployment: Deployment) -> bool:
    """Whether nothing is left to do: a kill right behind a run's last checkpoint leaves models unsigned, and
    updates on the disk.
    """
    if not is_finished(deployment) or not model_signing.all_signed(deployment):
        return False
    run = RunDirectory(deployment.run)
    rounds = recorded(run.config).federation.rounds
    return any(
        line.get("event") == FINISHED and line.get("round") == rounds for line in read_json_lines(run.events)
    )


def run_line(deployment: Deployment) -> str:
    """How far the run is, in a line."""
    lines, going = newest(LiveReader(deployment.state / LIVE_FILE).new()), operate.is_running(deployment)
    if going and any(line["event"] in ENDS for line in lines):
        lines = []  # of the run before
    latest = next((line for line in reversed(lines) if "text" in line), {"event": "", "text": ""})
    last = str(latest["text"])
    if not deployment.run.is_dir():
        if going:
            return f"the run is being prepared{f'; {last}' if last else ''}"
        return f"the run has not begun; start it with: proxyfl deploy run {deployment.path}"
    try:
        run = Run(deployment.run)
        metrics, total = run.metrics, run.config.federation.rounds
    except (ProxyFLError, OSError) as error:
        return f"the run cannot be read: {error}"
    state = "finished" if run.finished else "running" if going else "stopped"
    scored, said = measured(metrics), f"; {last}" if last else ""
    accuracy = f", accuracy {scored[-1]['accuracy']:.1%}" if scored else ""
    done = f"round {len(metrics)} of {total}{accuracy}"
    begun = max((line["round"] for line in lines if line["event"] == "round"), default=0)
    if latest["event"] == "finished round":
        done, said = last.replace(":", f" of {total}:", 1), ""
    elif latest["event"] in ENDS:
        why = STOPPED.sub("", last)
        said = f" ({why})" if why and not run.finished else ""
    if going and begun > len(metrics):
        done = f"round {begun} of {total} is being trained" + (f"; so far: {done}" if metrics else "")
    return f"run {state}: {done}{said}"
