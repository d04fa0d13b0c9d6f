"""Asking a run to stop: a note in the deployment's state, which the server heeds between two rounds."""

from __future__ import annotations

from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.core.files import write_bytes
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
