"""Runs whose numbers are written by hand: directories as training leaves them, without the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxyfl import Run
from proxyfl.runs.config_file import to_toml
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short


def write_run(
    path: Path, method: str, seed: int, accuracies: Sequence[float], *, missing: int = 0, **settings: Any
) -> Run:
    """A run that has played as many rounds as there are accuracies; ``missing`` are rounds still to play."""
    short = {"rounds": len(accuracies) + missing, "dtype": "fp32", "seed": seed, **settings}
    config = resolve("digits", from_short(short), {"method": {"name": method}})
    run = RunDirectory(path)
    newest = run.checkpoints / f"round-{len(accuracies):08d}"
    newest.mkdir(parents=True)
    (newest / "manifest.json").write_text("{}")
    run.config.write_text(to_toml(config), encoding="utf-8")
    traffic = {"bytes_up": 400_000, "bytes_down": 600_000}
    lines = [{"round": k, "accuracy": value, "traffic": traffic} for k, value in enumerate(accuracies, 1)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.timing.write_text(
        "".join(json.dumps({"round": line["round"], "train": 2.0}) + "\n" for line in lines)
    )
    return Run(path)


def without_seals(path: Path) -> Path:
    """A run whose checkpoints vouch for nothing, so that its metrics can be written by hand."""
    for manifest in path.glob("checkpoints/round-*/manifest.json"):
        manifest.write_text("{}")
    (path / "checkpoints" / "metrics.copy.jsonl").unlink(missing_ok=True)
    return path
