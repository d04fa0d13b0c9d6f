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
    "proxyfl deploy init hospital --add-site lyon",
    "proxyfl deploy init hospital --renew --host 10.0.0.5",
)

SERVER, IMAGES, ROUNDS, EXISTING = "The server", "Classes and images", "Rounds", "A deployment that exists"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder.", show_default=False)]


def init(
    context: typer.Context,
    folder: Folder,
    sites: Annotated[str, typer.Option(help="How many sites, or their names: paris,lyon.")] = "2",
    method: Method = None,
    preset: Annotated[str, typer.Option(help="A preset's name or a TOML file: what is trained.")] = "digits",
    scenario: Scenario = None,
    fidelity: Fidelity = None,
    set_: Settings = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds.", show_default=False, rich_help_panel=ROUNDS)
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="RUN|FILE",
            help="Start from these weights: a model file, or a run, as DIR/run of another federation.",
            show_default=False,
            rich_help_panel=ROUNDS,
        ),
    ] = "",
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or IP address by which sites reach the server. Repeatable: the first is used, the "
            "certificate is for all.",
            show_default="localhost",
            rich_help_panel=SERVER,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.", rich_help_panel=SERVER)] = 8000,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="What the gate binds where that differs, as behind a forwarded port.",
            show_default=False,
            rich_help_panel=SERVER,
        ),
    ] = "",
    name: Annotated[
        str, typer.Option(help="What the federation is called.", show_default="DIR", rich_help_panel=SERVER)
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="No encryption, no authentication.", rich_help_panel=SERVER),
    ] = False,
    classes: Annotated[
        str,
        typer.Option(
            help="Class names in order: cat,dog.", show_default="the preset's", rich_help_panel=IMAGES
        ),
    ] = "",
    channels: Annotated[
        int | None,
        typer.Option(
            help="3 for colour, 1 for grey; of vectors the number of features.",
            show_default="the preset's",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Side in pixels, from 8; 0 for vectors.",
            show_default="the preset's",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Whether a mirrored image keeps its class.",
            show_default="the preset's",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="For vectors: a table or npz file of some. Features, mean and standard deviation are taken "
            "from it, and the classes where they are not given; the file stays here. For frozen encoders: "
            "samples in any form; mean and standard deviation of their features are taken.",
            show_default="as --server-data or --test",
            rich_help_panel=IMAGES,
        ),
    ] = "",
    test: Annotated[
        str,
        typer.Option(
            help="Test images at the server: npz file or folder.", show_default=False, rich_help_panel=IMAGES
        ),
    ] = "",
    server_data: Annotated[
        str,
        typer.Option(
            help="Labelled images at the server, for --scenario server: npz file, table or folder.",
            show_default=False,
            rich_help_panel=IMAGES,
        ),
    ] = "",
    holdout: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.9,
            help="Share of labelled images that each site, or the server, holds out for measuring.",
            show_default="0.2 without --test",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Deal the preset's data set to the sites, for trying out: DIR/sample.",
            rich_help_panel=IMAGES,
        ),
    ] = False,
    data_root: DataRoot = None,
    quorum: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sites that must answer for a round to count.",
            show_default="more than half",
            rich_help_panel=ROUNDS,
        ),
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds a round waits for its sites.", rich_help_panel=ROUNDS)
    ] = 600.0,
    patience: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for the quorum before stopping.", rich_help_panel=ROUNDS),
    ] = 3600.0,
    add_site: Annotated[
        str, typer.Option(metavar="NAME", help="Add a site.", show_default=False, rich_help_panel=EXISTING)
    ] = "",
    new_key: Annotated[
        str,
        typer.Option(
            metavar="SITE",
            help="Another key for a site whose key was lost or stolen.",
            show_default=False,
            rich_help_panel=EXISTING,
        ),
    ] = "",
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="A new server certificate, with --host for more names; what is missing is made.",
            rich_help_panel=EXISTING,
        ),
    ] = False,
) -> None:
    """Write a deployment: settings, certificates, one key per site, start scripts, a README.

    Encryption and authentication are on. What lies in DIR/SITE is handed to that site, and nothing else.
    """
    from proxyfl.deploy import scaffold

    if add_site or new_key or renew:
        _refuse_others(context, renew)
        _change(folder, add_site, new_key, host if renew else None)
        return
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
    changes = [one.opts[0] for one in given if one.name in ("add_site", "new_key", "renew")]
    if len(changes) > 1:
        raise ConfigError(f"{' and '.join(changes)} are different things; do one after the other")
    taken = ("folder", "add_site", "new_key", "renew", *(["host"] if renew else []))
    if others := [one.opts[0] for one in given if one.name not in taken]:
        raise ConfigError(
            f"{changes[0]} changes a deployment that exists and does not take {', '.join(others)}; "
            "other settings are changed in federation.toml"
        )


def _change(folder: Path, add_site: str, new_key: str, more_hosts: Sequence[str] | None) -> None:
    from proxyfl.deploy import rotation, scaffold
    from proxyfl.deploy.settings import Deployment

    if add_site:
        before, grown = Deployment.read(folder), scaffold.add_site(folder, add_site)
        done = f"{add_site} is site {len(grown.sites)}; hand it {grown.site_folder(add_site)}"
        typer.echo(_told_rounds(before, grown))
    elif new_key:
        site = rotation.new_key(folder, new_key)
        done = (
            f"{new_key} has a new key; hand it {site.private_key}, {site.public_key} and {site.certificate}"
        )
    else:
        done = f"the server's certificate is new and lasts {rotation.renew(folder, more_hosts or ())} days"
    typer.echo(f"{done}; restart the server if it runs")


def _told_rounds(before: Deployment, after: Deployment) -> str:
    """How many sites a round asks and needs now, and where that is set."""
    (asked, needed), (now_asked, now_needed) = (
        (one.config.federation.per_round, one.quorum) for one in (before, after)
    )
    changed = (asked, needed) != (now_asked, now_needed)
    was = f" (before: {needed} of {asked})" if changed else ", as before"
    return (
        f"a round asks {now_asked} of {len(after.sites)} sites and needs the answers of {now_needed}{was}; "
        f"to change that, set per_round in [experiment.federation] and quorum in {after.file}"
    )


def _tell_created(deployment: Deployment, plan: Plan) -> None:
    from proxyfl.deploy.texts import labels_are, measured_on

    console = err()
    if deployment.insecure:
        console.print(
            "WARNING: this federation is INSECURE. Nothing is encrypted and nobody is authenticated: whoever "
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
            "warning: sites have to bring features with mean 0 and standard deviation 1; where they do not, "
            "begin again with --like FILE, a file of vectors like theirs",
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
    say(f"\nhow to hand out the sites' folders: {path / 'README.md'}", markup=False, soft_wrap=True)
