"""``proxyfl deploy init``: set a federation up, and change one that exists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    Fidelity,
    Method,
    Scenario,
    Settings,
    command,
    err,
    examples,
    option,
    out,
    overrides,
)
from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxyfl.deploy.scaffold import Plan
    from proxyfl.deploy.settings import Deployment

INIT_EXAMPLES = examples(
    "proxyfl deploy init hospital --sites 4 --host fl.example.org --classes healthy,ill --image-size 64",
    "proxyfl deploy init trial --sites 3 --sample",
    "proxyfl deploy init wards --sites 3 --like patients.csv --set data.keys=label=diagnosis,without=id",
    "proxyfl deploy init clinic --method semifl --scenario server --server-data images/ --classes ill,well",
    "proxyfl deploy init hospital --renew --host 10.0.0.5",
)

SERVER, IMAGES, ROUNDS, EXISTING = "The server", "Classes and images", "Rounds", "A deployment that exists"
PRESETS = "the preset's"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder.", show_default=False)]
Sites = Annotated[str, typer.Option(help="How many sites, or their names: paris,lyon.")]
Preset = Annotated[str, typer.Option(help="A preset's name or a TOML file: what is trained.")]

Host = Annotated[
    list[str] | None,
    option(
        "Name or IP address at which sites reach the server. Repeatable: the first is used, the certificate "
        "covers all.",
        default="localhost",
        panel=SERVER,
    ),
]
Port = Annotated[int, option("Its port.", default=True, min=1, max=65535, panel=SERVER)]
LISTENING = "Address the gate binds to if it differs, as behind a forwarded port."
Listen = Annotated[str, option(LISTENING, metavar="HOST:PORT", panel=SERVER)]
Name = Annotated[str, option("The federation's name.", default="DIR", panel=SERVER)]
Insecure = Annotated[bool, option("No encryption, no authentication.", "--insecure", panel=SERVER)]

Classes = Annotated[str, option("Class names in order: cat,dog.", default=PRESETS, panel=IMAGES)]
FEATURES = "3 for colour, 1 for grey; for vectors the number of features."
Channels = Annotated[int | None, option(FEATURES, default=PRESETS, panel=IMAGES)]
Size = Annotated[
    int | None, option("Side in pixels, from 8; 0 for vectors.", default=PRESETS, min=0, panel=IMAGES)
]
MIRRORED = "Whether a mirrored image keeps its class."
Flip = Annotated[bool | None, option(MIRRORED, "--flip/--no-flip", default=PRESETS, panel=IMAGES)]
Like = Annotated[
    str,
    option(
        "For vectors: a table or npz file of examples. Features, mean and standard deviation are taken from "
        "it, and the classes if they are not given; the file is not sent. For frozen encoders: samples in "
        "any format; mean and standard deviation of their features are taken.",
        default="as --server-data or --test",
        metavar="FILE",
        panel=IMAGES,
    ),
]
Test = Annotated[str, option("Test images at the server: npz file or folder.", panel=IMAGES)]
LABELLED = "Labelled images at the server, for --scenario server: npz file, table or folder."
ServerData = Annotated[str, option(LABELLED, panel=IMAGES)]
HELD_OUT = "Share of labelled images that each site, or the server, holds out for evaluation."
Holdout = Annotated[
    float | None, option(HELD_OUT, default="0.2 without --test", min=0, max=0.9, panel=IMAGES)
]
TRIAL = "Partition the preset's data set across the sites, for a trial: DIR/sample."
Sample = Annotated[bool, option(TRIAL, "--sample", panel=IMAGES)]

Rounds = Annotated[int | None, option("Rounds.", min=1, panel=ROUNDS)]
INITIAL = "Initial weights: a model file, or a run such as DIR/run of another federation."
Weights = Annotated[str, option(INITIAL, metavar="RUN|FILE", panel=ROUNDS)]
ANSWERS = "Sites that must answer for a round to be valid."
Quorum = Annotated[int | None, option(ANSWERS, default="more than half", min=1, panel=ROUNDS)]
Deadline = Annotated[float, option("Seconds a round waits for its sites.", default=True, min=1, panel=ROUNDS)]
WAITING = "Seconds to wait for the quorum before stopping."
Patience = Annotated[float, option(WAITING, default=True, min=0, panel=ROUNDS)]

STOLEN = "Make a new key for a site whose key was lost or stolen."
NewKey = Annotated[str, option(STOLEN, metavar="SITE", panel=EXISTING)]
RENEWED = "Make a new server certificate, with --host for additional names, and anything that is missing."
Renew = Annotated[bool, option(RENEWED, "--renew", panel=EXISTING)]


def init(
    context: typer.Context,
    folder: Folder,
    sites: Sites = "2",
    method: Method = None,
    preset: Preset = "digits",
    scenario: Scenario = None,
    fidelity: Fidelity = None,
    set_: Settings = None,
    rounds: Rounds = None,
    weights: Weights = "",
    host: Host = None,
    port: Port = 8000,
    listen: Listen = "",
    name: Name = "",
    insecure: Insecure = False,
    classes: Classes = "",
    channels: Channels = None,
    image_size: Size = None,
    flip: Flip = None,
    like: Like = "",
    test: Test = "",
    server_data: ServerData = "",
    holdout: Holdout = None,
    sample: Sample = False,
    data_root: DataRoot = None,
    quorum: Quorum = None,
    deadline: Deadline = 600.0,
    patience: Patience = 3600.0,
    new_key: NewKey = "",
    renew: Renew = False,
) -> None:
    """Write a deployment: settings, certificates, one key per site, start scripts, a README.

    Encryption and authentication are on. Send each site the contents of DIR/SITE and nothing else.
    """
    from proxyfl.cli.deploy_life import require_flower  # which imports this module

    require_flower()
    from proxyfl.deploy import scaffold

    if new_key or renew:
        _refuse_others(context, renew)
        _change(folder, new_key, host if renew else None)
        return
    source = context.get_parameter_source("data_root")
    if not sample and source and source.name == "COMMANDLINE":  # PROXYFL_DATA is for all commands
        raise ConfigError(
            "--data-root is the folder with the data set of --sample; add --sample, or leave --data-root out"
        )
    start = str(Path(weights).expanduser().resolve()) if weights else None
    short = {"rounds": rounds, "fidelity": fidelity, "scenario": scenario, "weights": start}
    asked = overrides(method, short, set_ or ())
    form = {
        "classes": tuple(part.strip() for part in classes.split(",")) if classes else None,
        "channels": channels,
        "image_size": image_size,
        "flip": flip,
    }
    plan = scaffold.Plan(
        sites=scaffold.site_names(sites),
        hosts=tuple(host or ["localhost"]),
        port=port,
        listen=listen,
        preset=Path(preset) if preset.endswith(".toml") else preset,
        method=method,
        overrides=asked,
        name=name,
        form={key: value for key, value in form.items() if value is not None},
        like=like,
        test=test,
        server_data=server_data,
        holdout=holdout,
        quorum=quorum,
        deadline=deadline,
        patience=patience,
        insecure=insecure,
        sample=sample,
        data_root=data_root,
    )
    _tell_created(scaffold.create(folder, plan), plan)


def _refuse_others(context: typer.Context, renew: bool) -> None:
    """A change to a deployment that exists takes no other options; a renewed certificate takes more names."""
    given = [
        parameter
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) and source.name == "COMMANDLINE"
    ]
    changes = [one.opts[0] for one in given if one.name in ("new_key", "renew")]
    if len(changes) > 1:
        raise ConfigError(f"{' and '.join(changes)} are separate changes; make one at a time")
    taken = ("folder", "new_key", "renew", *(["host"] if renew else []))
    if others := [one.opts[0] for one in given if one.name not in taken]:
        raise ConfigError(
            f"{changes[0]} changes a deployment that exists and does not take {', '.join(others)}; "
            "other settings are changed in federation.toml"
        )


def _change(folder: Path, new_key: str, more_hosts: Sequence[str] | None) -> None:
    from proxyfl.deploy import rotation

    if new_key:
        site = rotation.new_key(folder, new_key)
        done = (
            f"{new_key} has a new key; send it {site.private_key}, {site.public_key} and {site.certificate}"
        )
    else:
        done = f"the server has a new certificate for {rotation.renew(folder, more_hosts or ())} days"
    typer.echo(f"{done}; restart the server if it runs")


def _tell_created(deployment: Deployment, plan: Plan) -> None:
    from proxyfl.deploy.texts import labels_are, measured_on

    console = err()
    if deployment.insecure:
        console.print(
            "WARNING: this federation is INSECURE. Nothing is encrypted or authenticated: anyone who "
            "reaches the port can read the weights, join, and run code. For trying out on one machine only.",
            style="bold red",
        )
    path = deployment.path
    say = out().print
    say(f"wrote {path}: server at {deployment.address}, {len(deployment.sites)} site(s)", markup=False)
    say(labels_are(deployment), markup=False)
    say(f"accuracy comes from {measured_on(deployment)}", markup=False)
    if deployment.called == "vectors" and set(deployment.mean) == {0.0} and set(deployment.std) == {1.0}:
        say(
            "warning: the sites' features must have mean 0 and standard deviation 1; if they do not, "
            "start again with --like FILE, a file of vectors like theirs",
            soft_wrap=True,
        )
    agree = [] if deployment.insecure else ["--approve"]

    def data(name: str) -> Path | str:
        return path / "sample" / f"{name}.npz" if plan.sample else "DATA"

    say("\nnext", style="bold")
    for words in (
        ("deploy", "explain", path),
        ("deploy", "server", path),
        *(("deploy", "site", path / name, "--data", data(name), *agree) for name in deployment.sites),
        ("deploy", "run", path),
    ):
        say(f"  {command(*words)}", markup=False, soft_wrap=True)
    say(f"\nhow to distribute the sites' folders: {path / 'README.md'}", markup=False, soft_wrap=True)
