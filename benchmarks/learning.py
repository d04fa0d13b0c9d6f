"""Does every method learn? All registered methods on digits, three seeds, beside labelled-only FedAvg.

    python benchmarks/learning.py [--seeds 3] [--methods sage,proxyfl] [--runs runs/learning]
    python benchmarks/learning.py --scenario server --methods semifl,server-only,fedavg-sl
    python benchmarks/learning.py --scenario partial --methods fedavg,proxyfl,fedavg-sl

A method learns with labels at every client, or in the first scenario in which it is defined, unless
``--scenario`` names one. With ``partial``, 4 of the 20 clients are labelled. Runs that are finished are used
again, those that were stopped go on. Puts one row per run into ``results/digits-learning.csv`` (labels at
every client) or ``results/scenarios.csv`` (the others), beside the rows of other methods, and prints
mean ± std; ``python tools/refresh.py`` carries the numbers to the pages.
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
from proxyfl.methods import create, recipes
from proxyfl.methods.registry import defined
from proxyfl.runs.batch import Job
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name

RESULTS = Path(__file__).parents[1] / "results"
PLUGINS = (
    *("fedlabel+proxyfl", "sage+proxyfl", "semifl+proxyfl", "flfl+proxyfl", "cbafed+proxyfl", "rscfed+gpt"),
)
VARIANTS = {
    "fixmatch-gpl (mask either)": ("fixmatch-gpl", ["method.mask=either"]),
    "cbafed (no rare classes)": ("cbafed", ["method.rare=0"]),
    "rscfed (scale by images)": ("rscfed", ["method.scale=1", "method.scale_unlabelled=100"]),
    "fixmatch-gpl (labelled count)": ("fixmatch-gpl", ["federation.weighting=release"]),
    "proxyfl (labelled count)": ("proxyfl", ["federation.weighting=release"]),
}
"""Methods with settings, by the name they have in the results: ProxyFL's mask without the rest of it, what
may keep CBAFed and RSCFed back, and means in which labelled images count 2,001 times."""

LABELLED_CLIENTS = 4
MEASURED = ["method", "seed", "rounds", "mean_last", "last", "best", "megabytes", "commit"]
KEY = ("scenario", "method", "seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="")
    parser.add_argument("--scenario", choices=SCENARIOS, default="")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, help="a file for all rows instead of those in results/")
    options = parser.parse_args()
    where = options.scenario
    every = [recipe.name for recipe in recipes(where)]
    every += [] if where else [*PLUGINS, *VARIANTS]
    names = options.methods.split(",") if options.methods else every
    jobs = [job_of(name, where, seed, options.runs) for name in names for seed in range(1, options.seeds + 1)]
    failed = train_missing(jobs)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(jobs)} runs failed; nothing was written")
    for at_clients, file in ((True, "digits-learning.csv"), (False, "scenarios.csv")):
        found = [job for job in jobs if (job.config.labels.where == CLIENTS) is at_clients]
        if found:
            write(found, options.output or RESULTS / file)
    tell(jobs)


def job_of(name: str, where: str, seed: int, runs: Path) -> Job:
    method, settings = VARIANTS.get(name, (name, []))
    where = where or next(home for home in SCENARIOS if defined(create(method), home))
    at = [] if where == CLIENTS else [f"labels.where={where}"]
    at += [f"labels.clients={LABELLED_CLIENTS}"] if where == PARTIAL else []
    config = load_settings("digits", method, {"seed": seed}, [*at, *settings])
    return Job(name, config, runs / default_name(config))


def write(jobs: Sequence[Job], out: Path) -> None:
    """Put a row for each run in its place, or behind the others; rows of other runs stay as they are."""
    table: dict[tuple[str, ...], dict[str, str]] = {}
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            table = {_key(row): row for row in csv.DictReader(file)}
    rows = [row_of(job) for job in jobs]
    table |= {_key(row): row for row in rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    scenario = ["scenario"] if "scenario" in rows[0] else []
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*scenario, *MEASURED], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in KEY)


def row_of(job: Job) -> dict[str, str]:
    run, where = Run(job.path), job.config.labels.where
    found = run.summary
    numbers = {name: f"{getattr(found, name):.6g}" for name in ("mean_last", "last", "best", "megabytes")}
    return {
        **({} if where == CLIENTS else {"scenario": where}),
        "method": job.name,
        "seed": str(job.config.seed),
        "rounds": str(found.rounds),
        **numbers,
        "commit": str(run.environment.get("commit", "")),
    }


def tell(jobs: Sequence[Job]) -> None:
    for name in dict.fromkeys(job.name for job in jobs):
        accuracy = [100 * Run(job.path).summary.mean_last for job in jobs if job.name == name]
        spread = f" ± {statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
        print(f"{name:26} {statistics.mean(accuracy):5.1f}{spread} %")


if __name__ == "__main__":
    main()
