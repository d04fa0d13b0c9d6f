"""A look at a federation from the server's machine: server, sites, run."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass

from proxyfl.core.errors import ProxyFLError
from proxyfl.deploy import operate
from proxyfl.deploy.enrolment import SITES_FILE, Enrolment
from proxyfl.deploy.live import LIVE_FILE, LiveReader
from proxyfl.deploy.settings import Deployment
from proxyfl.runs.directory import read_json_lines
from proxyfl.runs.run import Run


@dataclass(frozen=True)
class Status:
    """What was found; ``sites`` are rows of name, node, labelled, unlabelled and rounds taken part in."""

    server: str
    sites: list[tuple[str, str, str, str, str]]
    run: str


def look(deployment: Deployment) -> Status:
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
        rows.append((name, nodes.get(name, "–"), *numbers, str(rounds[client])))
    return Status("up" if up else "down", rows, _run(deployment))


def _nodes(deployment: Deployment) -> dict[str, str]:
    try:
        return operate.node_states(deployment)
    except ProxyFLError:
        return dict.fromkeys(deployment.sites, "?")


def _run(deployment: Deployment) -> str:
    last = [line["text"] for line in LiveReader(deployment.state / LIVE_FILE).new() if "text" in line]
    said = f"; {last[-1]}" if last else ""
    if not deployment.run.is_dir():
        waits = "is being prepared" if last else "has not begun"
        return f"the run {waits}; start it with: proxyfl deploy run {deployment.path}{said}"
    run = Run(deployment.run)
    done, total = len(run.metrics), run.config.federation.rounds
    going = "running" if operate.is_running(deployment) else "stopped"
    state = "finished" if run.finished else going
    accuracy = f", accuracy {run.metrics[-1]['accuracy']:.1%}" if done else ""
    return f"run {state}: round {done} of {total}{accuracy}{said}"
