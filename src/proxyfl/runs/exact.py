"""Whether a run is bit-identical to one that was never stopped: said, recorded, and required on request."""

from __future__ import annotations

from proxyfl.core.config import ComputeSettings
from proxyfl.core.errors import RunError
from proxyfl.core.provenance import other_arithmetic
from proxyfl.federation.loop import Engine, Observer, RoundReport
from proxyfl.runs.directory import RunDirectory, read_json_lines

CREATED = "created"
"""The event with which every run begins."""

OTHER = "other arithmetic"
"""The event of a run whose rounds after ``round`` may have other last bits, for a ``reason``."""


def require_exact(run: RunDirectory, round: int, compute: ComputeSettings) -> None:
    """Refuse to continue where results may differ in their last bits: here, or already."""
    if reason := other_arithmetic(run.noted(), compute):
        raise RunError(f"the result would not be bit-identical ({reason}); continue without --exact")
    if reason := _in_between(run, round):
        raise RunError(f"the result would not be bit-identical: {reason}; continue without --exact")


def continued(run: RunDirectory, round: int, compute: ComputeSettings) -> list[str]:
    """A warning where results from here on may differ in their last bits; the run records it. Called behind
    the event of the start.
    """
    reason = other_arithmetic(run.hints(), compute)
    if not reason:
        return []
    warning = f"from here on the last bits may differ ({reason})"
    run.event("warning", text=warning)
    run.event(OTHER, round=round, reason=reason)
    return [warning]


def differs(engine: Engine) -> str:
    """How the nodes of an engine differ from this machine; empty where they do not, or there are none."""
    return str(getattr(engine, "differs", ""))


class MixedNodes(Observer):
    """Records, before a round's checkpoint, that some of its clients trained on another kind of node."""

    def __init__(self, run: RunDirectory, engine: Engine) -> None:
        self.run, self.engine, self.noted = run, engine, False

    def round_finished(self, report: RoundReport) -> None:
        if not self.noted and (reason := differs(self.engine)):
            self.noted = True
            self.run.event(OTHER, round=report.number - 1, reason=reason)


def _in_between(run: RunDirectory, round: int) -> str:
    """Why rounds up to this one may have other bits. Those that were discarded by a resume do not matter."""
    lines = read_json_lines(run.events)
    if round and all(line.get("event") != CREATED for line in lines):
        return f"{run.events} is lost, which records what computed the rounds before"
    found: tuple[int, object] | None = None
    for line in lines:
        begun = line.get("round")
        begun = begun if type(begun) is int else 0
        if line.get("event") in ("started", "resumed") and found and type(line.get("round")) is int:
            found = None if begun <= found[0] else found
        elif line.get("event") == OTHER and (found is None or begun < found[0]):
            found = begun, line.get("reason")
    if found is None or found[0] >= round:
        return ""
    return f"rounds after round {found[0]} were computed with other arithmetic ({found[1]})"
