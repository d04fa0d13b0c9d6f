"""Does every method learn? All registered methods on digits, three seeds, beside labelled-only FedAvg.

    python benchmarks/learning.py [--seeds 3] [--methods sage,proxyfl] [--runs runs/learning]
    python benchmarks/learning.py --scenario server --methods semifl,server-only,fedavg-sl
    python benchmarks/learning.py --scenario partial --methods fedavg,proxyfl,fedavg-sl

A method learns with labels at every client, or in the first scenario in which it is defined, unless
``--scenario`` names one. With ``partial``, 4 of the 20 clients are labelled. Every finished run adds its row
to ``results/digits-learning.csv`` (labels at every client) or ``results/scenarios.csv`` (the others) at once,
and a run that has a row there in this machine's precision is not repeated: a command that was stopped goes on
where it was. Prints mean ± std; ``python tools/refresh.py`` carries the numbers to the pages.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from proxyfl.cli.common import load_settings
from proxyfl.cli.sweep import train_missing
from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS
from proxyfl.core.machine import usable_cores
from proxyfl.core.plugins import load_plugin
from proxyfl.methods import create, recipes
from proxyfl.methods.registry import OTHERS, defined, shown
from proxyfl.runs.batch import Job, finish
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name

RESULTS = Path(__file__).parents[1] / "results"
PLUGINS = (
    *("fedlabel+proxyfl", "sage+proxyfl", "semifl+proxyfl", "flfl+proxyfl", "cbafed+proxyfl", "rscfed+gpt"),
)
SCALED = ["method.scale=1", "method.scale_unlabelled=100"]
VARIANTS = {
    "fixmatch-gpl (mask either)": ("fixmatch-gpl", ["method.mask=either"]),
    "cbafed (no rare classes)": ("cbafed", ["method.rare=0"]),
    "rscfed (scale by images)": ("rscfed", SCALED),
    "rscfed (once)": ("rscfed", ["method.once=true"]),
    "rscfed (once and scale by images)": ("rscfed", ["method.once=true", *SCALED]),
    "rscfed+gpt (once)": ("rscfed+gpt", ["method.once=true"]),
    "fixmatch-gpl (labelled count)": ("fixmatch-gpl", ["federation.weighting=release"]),
    "proxyfl (labelled count)": ("proxyfl", ["federation.weighting=release"]),
    "proxyfl (global mask)": ("proxyfl", ["method.mask=global"]),
    "proxyfl (correct labels alone)": ("proxyfl-correct", []),
    "proxyfl (unlabelled clients idle)": ("proxyfl-idle", []),
    "proxyfl (unlabelled clients left out)": ("proxyfl-left-out", []),
}
"""Methods with settings, by the name they have in the results: ProxyFL's mask without the rest of it, what
may keep CBAFed and RSCFed back, means in which labelled images count 2,001 times, and what clients without
labels do to ProxyFL (``dilution.py``)."""

LABELLED_CLIENTS = 4
MEASURED = ["method", "seed", "dtype", "rounds", "mean_last", "last", "best", "megabytes", "commit"]
KEY = ("scenario", "method", "seed", "dtype")

Row = dict[str, str]


def main() -> None:
    load_plugin(str(Path(__file__).with_name("dilution.py")))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="")
    parser.add_argument("--scenario", choices=SCENARIOS, default="")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, help="a file for all rows instead of those in results/")
    parser.add_argument("--side-by-side", type=int, default=usable_cores(), help="1: all in this process")
    options = parser.parse_args()
    where = options.scenario
    every = [recipe.name for recipe in recipes(where) if shown(recipe.name).group != OTHERS]
    every += [name for name in PLUGINS if not where or defined(create(name), where)]
    every += [] if where else VARIANTS
    names = options.methods.split(",") if options.methods else every
    jobs = [job_of(name, where, seed, options.runs) for name in names for seed in range(1, options.seeds + 1)]
    missing = [job for job in jobs if key_of(job) not in rows_of(file_of(job, options.output))]
    failed: dict[Path, str] = {}
    for start in range(0, len(missing), options.side_by_side):
        several = missing[start : start + options.side_by_side]
        names = ", ".join("/".join(filter(None, key_of(job))) for job in several)
        print(f"{start + 1} of {len(missing)}: {names}", flush=True)
        failed |= train(several)
        for job in several:
            if job.path not in failed:
                record(job, file_of(job, options.output))
    tell(jobs, options.output)
    if failed:
        raise SystemExit("\n".join(f"{path}: {trouble}" for path, trouble in failed.items()))


def train(jobs: Sequence[Job]) -> dict[Path, str]:
    """What could not be trained, and why; one run is trained in this process."""
    if len(jobs) > 1:
        return train_missing(jobs, len(jobs))
    return {job.path: trouble for job in jobs if not job.finished and (trouble := finish(job, 0, ()))}


def file_of(job: Job, output: Path | None) -> Path:
    at_clients = job.config.labels.where == CLIENTS
    return output or RESULTS / ("digits-learning.csv" if at_clients else "scenarios.csv")


def job_of(name: str, where: str, seed: int, runs: Path) -> Job:
    method, settings = VARIANTS.get(name, (name, []))
    where = where or next(home for home in SCENARIOS if defined(create(method), home))
    at = [] if where == CLIENTS else [f"labels.where={where}"]
    at += [f"labels.clients={LABELLED_CLIENTS}"] if where == PARTIAL else []
    config = load_settings("digits", method, {"seed": seed}, [*at, *settings])
    return Job(name, config, runs / default_name(config))


def key_of(job: Job) -> tuple[str, ...]:
    where = job.config.labels.where
    return ("" if where == CLIENTS else where, job.name, str(job.config.seed), job.config.compute.dtype)


def rows_of(file: Path) -> dict[tuple[str, ...], Row]:
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as opened:
        return {tuple(row.get(name, "") for name in KEY): row for row in csv.DictReader(opened)}


def record(job: Job, file: Path) -> None:
    """Put the run's row behind the others."""
    run, (where, *rest) = Run(job.path), key_of(job)
    found = run.summary
    numbers = {name: f"{getattr(found, name):.6g}" for name in ("mean_last", "last", "best", "megabytes")}
    row = dict(zip(KEY, (where, *rest), strict=True)) | {"rounds": str(found.rounds)} | numbers
    row["commit"] = str(run.environment.get("commit", ""))
    fields = MEASURED if file.name == "digits-learning.csv" else ["scenario", *MEASURED]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, fields, lineterminator="\n", extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerow(row)


def tell(jobs: Sequence[Job], output: Path | None) -> None:
    for name in dict.fromkeys(job.name for job in jobs):
        found = [rows_of(file_of(job, output)).get(key_of(job)) for job in jobs if job.name == name]
        accuracy = [100 * float(row["mean_last"]) for row in found if row]
        spread = f" ± {statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
        print(f"{name:26} {statistics.mean(accuracy):5.1f}{spread} %" if accuracy else f"{name:26} failed")


if __name__ == "__main__":
    main()
