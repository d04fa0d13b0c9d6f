"""Stopping a run: by a note that the server heeds between two rounds, or at once."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.core.files import write_bytes
from proxyfl.deploy import operate
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.live import LIVE_FILE, LiveLog, LiveReader
from proxyfl.deploy.programs import FlowerError, ask_flwr, wait_until
from proxyfl.deploy.settings import Deployment


class StopAsked(RunError):
    """The operator wants the run to stop, with its checkpoint kept."""


def _note(deployment: Deployment) -> Path:
    return deployment.state / "stop"


def ask_to_stop(deployment: Deployment) -> None:
    write_bytes(_note(deployment), b"after the round\n")


def stop_asked(deployment: Deployment) -> bool:
    return _note(deployment).exists()


def clear_stop(deployment: Deployment) -> None:
    """A run that starts does not heed what an earlier one was asked."""
    _note(deployment).unlink(missing_ok=True)


def stop_now(deployment: Deployment) -> bool:
    """End the run in the SuperLink; its checkpoint stays. False where it had finished before."""
    run = operate.under_way(deployment)
    AuditLog(deployment.path).add("stop asked for", now=True)
    try:
        ask_flwr(["stop", run, operate.LINK], operate.flower_home(deployment))
    except FlowerError:
        if run in operate.going(deployment):
            raise
        return False
    _end_player(deployment, run)
    wait_until(lambda: not operate.is_running(deployment), operate.START)
    log = LiveLog(deployment.state / LIVE_FILE, deployment.sites, run)
    log.tell("stopped", asked=True, reason="stopped, as requested", text="stopped, as requested")
    return True


def _end_player(deployment: Deployment, run: str) -> None:
    """End the process that plays a run: it would notice only with Flower's next sign of life, in half a
    minute. Who holds the lock is the one that began last.
    """
    lines = LiveReader(deployment.state / LIVE_FILE).new()
    *_, last = {}, *(line for line in lines if line["event"] == "began")
    if last.get("run") == run and type(pid := last.get("pid")) is int and operate.is_running(deployment):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
