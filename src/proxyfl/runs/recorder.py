"""The observer that writes a run down: metrics, clients, timing, snapshots, models, and what commits them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from proxyfl.core.checksum import write_verified
from proxyfl.core.config import Config
from proxyfl.core.errors import RunError
from proxyfl.core.files import write_bytes
from proxyfl.core.records import choosing
from proxyfl.core.state import Failure, Tensors, Update
from proxyfl.federation.loop import Observer, RoundReport
from proxyfl.federation.witness import SECONDS, Row
from proxyfl.runs import checkpoint
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.directory import RunDirectory, measured, read_json_lines
from proxyfl.runs.export import ModelCard, save_model
from proxyfl.runs.metrics_log import CLIENTS, MetricsLog


class Recorder(Observer):
    """Appends to the run's files. A checkpoint is written last: what it does not hold is computed again.

    The best model waits for it: its copy is written before, the model itself behind, so that whenever a run
    is killed one of the two is of the best round that counts. On a resume, lines beyond the checkpoint are
    dropped first, so that no round is missing or there twice. ``whole`` makes a model of weights.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        whole: Callable[[Tensors], Tensors],
        card: dict[str, Any],
        saved: Checkpoint,
    ) -> None:
        self.run, self.config, self.whole, self.card = run, config, whole, card
        self.log, self.run_files = MetricsLog(run, saved.metrics), saved.run_files
        self.clients = MetricsLog(run, saved.clients or b"", CLIENTS)
        lines = [json.loads(line) for line in saved.metrics.splitlines()]
        self.best = max(map(choosing, measured(lines)), default=-1.0)
        self._better: tuple[Tensors, ModelCard] | None = None
        kept = [line for line in read_json_lines(run.timing) if _until(len(lines), line)]
        write_bytes(run.timing, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def answered(self, answer: Update | Failure) -> None:
        if isinstance(answer, Failure):
            self.run.event("client failed", **vars(answer))

    def round_finished(self, report: RoundReport) -> None:
        started = time.perf_counter()
        self.log.append(metrics_line(report.metrics))
        self.clients.append(client_lines(report.rows))
        self._snapshot(report)
        self._models(report)
        round, keep = report.state.round, self.config.keep
        if round % keep.checkpoint_every == 0 or round == self.config.federation.rounds:
            self._commit(report)
        seconds = {**report.timing, "record": time.perf_counter() - started}
        with self.run.timing.open("a", encoding="utf-8") as file:
            file.write(timing_line(round, seconds, report.rows))

    def _snapshot(self, report: RoundReport) -> None:
        round = report.state.round
        if self.config.keep.snapshot(round, self.config.federation.rounds):
            write_verified(self.run.snapshots / f"round-{round:08d}.safetensors", report.snapshots)

    def _models(self, report: RoundReport) -> None:
        accuracy = report.metrics.get("accuracy")
        card = ModelCard(**self.card, round=report.state.round, accuracy=accuracy)
        weights = self.whole(report.state.weights)
        save_model(self.run.models / "last.safetensors", weights, card)
        if accuracy is not None and choosing(report.metrics) > self.best:
            self.best, self._better = choosing(report.metrics), (weights, card)

    def _commit(self, report: RoundReport) -> None:
        better, self._better = self._better, None
        if better is not None:
            save_model(self.run.best_copy, *better)
        checkpoint.save(
            self.run,
            report.state,
            self.log.mark(),
            self.config.keep.checkpoints,
            self.run_files,
            clients=self.clients.mark(),
        )
        if better is not None:
            save_model(self.run.models / "best.safetensors", *better)


def metrics_line(metrics: dict[str, Any]) -> bytes:
    """A round's line of ``metrics.jsonl``."""
    try:
        return json.dumps(metrics, allow_nan=False).encode() + b"\n"
    except ValueError as error:
        raise RunError(
            f"round {metrics['round']} gave values that are not finite; try smaller learning rates "
            "(train.lr, method.gpt.lr)"
        ) from error


def client_lines(rows: Sequence[Row]) -> bytes:
    """A round's lines of ``clients.jsonl``: the same bits whenever and wherever it was computed."""
    lines = [{name: value for name, value in row.items() if name != SECONDS} for row in rows]
    return b"".join(json.dumps(line, allow_nan=False).encode() + b"\n" for line in lines)


def timing_line(round: int, seconds: dict[str, float], rows: Sequence[Row] = ()) -> str:
    """A round's line of ``timing.jsonl``, with each client's seconds."""
    line: dict[str, Any] = {"round": round, **{name: _short(value) for name, value in seconds.items()}}
    if clients := {str(row["client"]): _short(row[SECONDS]) for row in rows}:
        line["clients"] = clients
    return json.dumps(line) + "\n"


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _until(round: int, line: dict[str, Any]) -> bool:
    return isinstance(line.get("round"), int) and line["round"] <= round
