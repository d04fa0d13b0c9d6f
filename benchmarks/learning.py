"""Does every method learn? All registered methods on digits, three seeds, beside labelled-only FedAvg.

    python benchmarks/learning.py [--seeds 3] [--methods sage,proxyfl] [--runs runs/learning]

A method that is not defined with labels at every client learns in the first scenario in which it is: labels
at the server, or at four of the twenty clients.
Runs that are finished are used again, those that were stopped go on. Writes ``results/digits-learning.csv``
(one row per run) and prints mean ± std; ``python tools/refresh.py`` carries the numbers to the method pages.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

from proxyfl.cli.common import load_settings
from proxyfl.cli.sweep import train_missing
from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS, SERVER
from proxyfl.methods import create, recipes
from proxyfl.methods.registry import defined
from proxyfl.runs.batch import Job
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name

ROOT = Path(__file__).parents[1]
PLUGINS = (
    *("fedlabel+proxyfl", "sage+proxyfl", "semifl+proxyfl", "flfl+proxyfl", "cbafed+proxyfl", "rscfed+gpt"),
)
HOMES = {CLIENTS: [], SERVER: ["labels.where=server"], PARTIAL: ["labels.where=partial", "labels.clients=4"]}
VARIANTS = {
    "fixmatch-gpl (mask either)": ("fixmatch-gpl", ["method.mask=either"]),
    **{f"{name} (server)": (name, HOMES[SERVER]) for name in ("fixmatch-gpl", "fedavg-sl")},
    **{
        f"{name} (partial)": (name, HOMES[PARTIAL])
        for name in ("fedavg", "fixmatch-gpl", "proxyfl", "fedavg-sl")
    },
    "cbafed (no rare classes)": ("cbafed", ["method.rare=0"]),
    "rscfed (scale by images)": ("rscfed", ["method.scale=1", "method.scale_unlabelled=100"]),
}
"""Methods with settings, by the name they have in the results: ProxyFL's mask without the rest of it, bounds
and baselines of other scenarios, and what may keep CBAFed and RSCFed back."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "digits-learning.csv")
    options = parser.parse_args()
    every = [*(recipe.name for recipe in recipes()), *PLUGINS, *VARIANTS]
    names = options.methods.split(",") if options.methods else every
    jobs = []
    for name in names:
        method, settings = VARIANTS.get(name, (name, []))
        home = next(where for where in SCENARIOS if defined(create(method), where))
        for seed in range(1, options.seeds + 1):
            config = load_settings("digits", method, {"seed": seed}, [*HOMES[home], *settings])
            jobs.append(Job(name, config, options.runs / default_name(config)))
    failed = train_missing(jobs)
    if failed:
        raise SystemExit(f"{len(failed)} of {len(jobs)} runs failed; nothing was written")
    write(jobs, options.out)


def write(jobs: list[Job], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["method", "seed", "rounds", "mean_last", "last", "best", "megabytes", "commit"])
        for job in jobs:
            run = Run(job.path)
            found = run.summary
            row = [found.mean_last, found.last, found.best, found.megabytes]
            table.writerow(
                [
                    job.name,
                    job.config.seed,
                    found.rounds,
                    *(f"{value:.6g}" for value in row),
                    run.environment.get("commit", ""),
                ]
            )
    for name in dict.fromkeys(job.name for job in jobs):
        accuracy = [100 * Run(job.path).summary.mean_last for job in jobs if job.name == name]
        spread = f" ± {statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
        print(f"{name:26} {statistics.mean(accuracy):5.1f}{spread} %")


if __name__ == "__main__":
    main()
