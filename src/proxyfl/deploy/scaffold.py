"""Writes a deployment: settings, keys, start scripts and service units, and a folder to hand to each site."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.core.network import ModelSettings
from proxyfl.core.trees import Tree, merge
from proxyfl.data import sources
from proxyfl.deploy import approval, pki, rotation, signing
from proxyfl.deploy.addresses import with_listen
from proxyfl.deploy.app_template import write_app
from proxyfl.deploy.audit import AuditLog, listed
from proxyfl.deploy.like import described, with_statistics
from proxyfl.deploy.names import check_sites
from proxyfl.deploy.server_data import open_server_data
from proxyfl.deploy.settings import UNSAFE, Deployment
from proxyfl.deploy.site_data import client_arrays, open_test, write_npz
from proxyfl.deploy.texts import server_words, site_words, write_text
from proxyfl.encoders import load_encoder, settle_encoder
from proxyfl.encoders.named import shape_for
from proxyfl.runs.config_file import load_preset, load_toml
from proxyfl.runs.experiment import load_config
from proxyfl.runs.simulation import Simulation, prepare
from proxyfl.runs.start import read_weights

PRIVATE = 0o700
HOLDOUT = 0.2
OWN_MEAN, OWN_STD = 0.5, 0.25
"""Normalisation of a federation's own images where nobody says another."""
NATIVE_SIZE = {"digits": 8, "mnist": 28, "fashion-mnist": 28}
SIZE = 32
VECTOR_NETWORK = "mlp"
"""What is trained on vectors where nobody names a network."""
OWN_DATA = "folder:sites"
"""What a run's settings call data that lie at the sites."""


@dataclass(frozen=True)
class Plan:
    """What is asked for. ``form`` holds image settings that were given; what is missing is found."""

    sites: tuple[str, ...]
    hosts: tuple[str, ...] = ("localhost",)
    port: int = 8000
    listen: str = ""
    preset: str | Path = "digits"
    method: str | None = None
    overrides: Tree = dataclasses.field(default_factory=dict)
    name: str = ""
    form: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    like: str = ""
    test: str = ""
    server_data: str = ""
    holdout: float | None = None
    quorum: int | None = None
    deadline: float = 600.0
    patience: float = 3600.0
    insecure: bool = False
    sample: bool = False
    data_root: Path | None = None


def site_names(text: str) -> tuple[str, ...]:
    """``4`` as site-01 to site-04, or names with commas between them."""
    if text.isdecimal():
        count = int(text)
        if not 1 <= count <= 9999:
            raise ConfigError(f"--sites {text}: a federation has 1 to 9999 sites")
        width = max(2, len(str(count)))
        return tuple(f"site-{number:0{width}d}" for number in range(1, count + 1))
    names = tuple(name.strip() for name in text.split(","))
    check_sites(names)
    return names


def create(folder: str | Path, plan: Plan) -> Deployment:
    """Write a new deployment. It appears complete or not at all, and nothing is overwritten."""
    path = Path(folder).expanduser().resolve()
    _require_free(path)
    asked, overrides = described(plan.form, plan.like, plan.test, plan.overrides)
    plan = dataclasses.replace(plan, form=asked, overrides=overrides)
    config = settle_encoder(_experiment(plan))
    if config.model.weights:
        read_weights(path / Path(config.model.weights).expanduser())
    simulation = prepare(config, plan.data_root) if plan.sample else None
    deployment = _deployment(path, plan, config, simulation)
    if simulation and config.model.encoder:  # sites are dealt what their own encoder reads
        raw = dataclasses.replace(config, model=ModelSettings())
        simulation = prepare(raw, plan.data_root, simulation.partition)
    deployment.check()
    if deployment.test_path and not plan.sample:
        form = (deployment.classes, deployment.channels, deployment.image_size)
        keys = deployment.config.data.keys
        open_test(deployment.test_path, *form, features=deployment.features, keys=keys)
    if deployment.server_data and not plan.sample:
        open_server_data(deployment)
    if not plan.sample:
        deployment = with_statistics(deployment, plan.like)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _furnish(dataclasses.replace(deployment, path=aside), plan, path, simulation)
        if path.exists():
            path.rmdir()
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Deployment.read(path)


def write_again(deployment: Deployment) -> None:
    """The settings and the README of a deployment that changed."""
    deployment.write()
    _write_readme(deployment, deployment.path)


def write_texts(deployment: Deployment) -> None:
    """README, start script and service unit of a deployment that lies elsewhere now."""
    _write_texts(deployment, deployment.path)


def _write_texts(deployment: Deployment, final: Path) -> None:
    server, words = deployment.path / "server", server_words(deployment, final)
    write_text(server / "start.sh", "start-server.sh", words, mode=0o755)
    write_text(server / "proxyfl-server.service", "server.service", words)
    _write_readme(deployment, final)


def _require_free(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; choose a new folder")
    if path.exists() and any(path.iterdir()):
        raise RunError(
            f"{path} is not empty; choose a new folder; one that exists is changed by 'proxyfl deploy "
            "add-site' and --renew"
        )
    if not str(path).isprintable() or UNSAFE & set(str(path)):
        raise ConfigError(f"{path} has characters that service files cannot hold; choose another folder")


def _experiment(plan: Plan) -> Config:
    """The experiment, with the sites for its clients."""
    check_sites(plan.sites)
    preset, count = plan.preset, len(plan.sites)
    base = load_toml(Path(preset)) if str(preset).endswith(".toml") else load_preset(str(preset))
    written = merge(base, plan.overrides)
    per_round = min(base.get("federation", {}).get("per_round", 8), count)
    ours: Tree = {"partition": {"clients": count}, "federation": {"per_round": per_round}}
    if "dtype" not in written.get("compute", {}):
        ours["compute"] = {"dtype": "fp32"}  # what all machines have, whatever this one has
    if not plan.sample and plan.form.get("classes"):
        ours["data"] = {"name": OWN_DATA}
    if plan.form.get("image_size") == 0 and not str(preset).endswith(".toml"):
        ours["model"] = {"name": VECTOR_NETWORK}
    asked = plan.overrides.get("partition", {}).get("clients", count)
    if asked != count:
        raise ConfigError(f"partition.clients = {asked}, but there are {count} sites")
    return load_config(preset, merge(ours, plan.overrides), plan.method)


def _deployment(path: Path, plan: Plan, config: Config, simulation: Simulation | None) -> Deployment:
    form = _sample_form(plan, simulation) if simulation else _form(plan, config)
    test, labelled = (
        str(Path(given).expanduser().resolve()) if given else "" for given in (plan.test, plan.server_data)
    )
    if simulation:
        test = "" if plan.holdout else "sample/test.npz"
        labelled = "sample/server.npz" if len(simulation.partition.server) else ""
    holdout = plan.holdout if plan.holdout is not None else (0.0 if test else HOLDOUT)
    quorum = plan.quorum or config.federation.per_round // 2 + 1
    tree = merge(config.to_tree(), {"federation": {"quorum": quorum}})
    first = plan.hosts[0]
    host = f"[{first}]" if ":" in first else first
    return Deployment(
        **form,
        name=plan.name or path.name,
        address=f"{host}:{plan.port}",
        listen=plan.listen,
        sites=plan.sites,
        test=test,
        server_data=labelled,
        holdout=holdout,
        quorum=quorum,
        deadline=plan.deadline,
        patience=plan.patience,
        insecure=plan.insecure,
        experiment=tree,
        path=path,
    )


def _sample_form(plan: Plan, simulation: Simulation) -> dict[str, Any]:
    """The form of a known data set, dealt to the sites as a simulation would."""
    if plan.form or plan.test or plan.server_data:
        raise ConfigError(
            "sample data bring their own classes, image form, test images and images of the server; leave "
            "yours out"
        )
    dataset, views = simulation.dataset, simulation.train_views
    encoded = dataset.encoded
    return {
        "classes": dataset.classes,
        "channels": encoded.channels if encoded else dataset.channels,
        "image_size": encoded.image_size if encoded else dataset.image_size,
        "encoded": dataset.channels if encoded else 0,
        "features": dataset.features,
        "mean": views.mean,
        "std": views.std,
        "flip": views.flip,
    }


def _form(plan: Plan, config: Config) -> dict[str, Any]:
    """Classes and image form: as given, else what is known of the preset's data set."""
    given = {name: value for name, value in plan.form.items() if value is not None}
    source = sources.find(config.data.name)
    classes = given.pop("classes", None) or source.classes
    if not classes:
        raise ConfigError("give the class names, as in --classes cat,dog; their order is their number")
    known = tuple(classes) == source.classes
    channels = given.pop("channels", len(source.mean) if known and source.mean else 3)
    same = known and source.mean is not None and source.std is not None and len(source.mean) == channels
    if given.get("image_size") == 0 and not config.model.encoder:
        return {
            "classes": tuple(classes),
            "channels": channels,
            "mean": (0.0,) * channels,
            "std": (1.0,) * channels,
            **given,
        }
    form = {
        "classes": tuple(classes),
        "channels": channels,
        "image_size": config.data.image_size or (NATIVE_SIZE.get(source.name, SIZE) if known else SIZE),
        "mean": source.mean if same else (OWN_MEAN,) * channels,
        "std": source.std if same else (OWN_STD,) * channels,
        "flip": source.flip if known and config.data.flip == "own" else config.data.flip == "always",
    }
    return _encoded_form(config, {**form, **given})


def _encoded_form(config: Config, form: dict[str, Any]) -> dict[str, Any]:
    """The form with a frozen encoder between images and network."""
    if not config.model.encoder:
        return form
    if load_encoder(config.model.encoder, config.model.encoder_hash).takes == "texts":
        form = {**form, "channels": 0, "image_size": 0, "flip": False}
    count = shape_for(config.model, form["channels"], form["image_size"])[0]
    return {**form, "encoded": count, "mean": (0.0,) * count, "std": (1.0,) * count}


def _furnish(deployment: Deployment, plan: Plan, final: Path, simulation: Simulation | None) -> None:
    """Fill the folder ``deployment.path``, which will be called ``final``."""
    here = deployment.path
    server = here / "server"
    server.mkdir(mode=PRIVATE)
    if not deployment.insecure:
        (here / "ca").mkdir(mode=PRIVATE)
        pki.create_authority(deployment.ca_certificate, deployment.ca_key, deployment.name)
        authority = deployment.ca_certificate, deployment.ca_key
        hosts = with_listen(plan.hosts, plan.listen)
        pki.issue_server(deployment.server_certificate, deployment.server_key, authority, hosts)
        signing.create_operator(deployment)
    deployment.write()
    write_app(deployment.app)
    if not deployment.insecure:
        signing.sign_app(deployment)
    for name in deployment.sites:
        write_site(deployment, name)
    _write_texts(deployment, final)
    AuditLog(here).add("created", **listed(deployment.sites), method=deployment.config.method.name)
    if simulation:
        _write_sample(here / "sample", deployment, simulation)


def write_site(deployment: Deployment, name: str) -> None:
    """The folder that is handed to a site: its own key, and what is public."""
    site = deployment.site(name)
    site.path.mkdir(mode=PRIVATE)
    site.write()
    if not deployment.insecure:
        pki.create_site_keys(site.private_key, site.public_key, name)
        write_bytes(site.ca_certificate, deployment.ca_certificate.read_bytes())
        write_bytes(site.trusted, deployment.trusted.read_bytes())
        rotation.certify(deployment, site)
        approval.write_offers(deployment, [name])
    words = site_words(deployment, site)
    write_text(site.path / "start.sh", "start-site.sh", words, mode=0o755)
    write_text(site.path / "proxyfl-site.service", "site.service", words)
    write_text(site.path / "README.md", "site-README.md", words)


def _write_sample(folder: Path, deployment: Deployment, simulation: Simulation) -> None:
    folder.mkdir()
    holdings, classes = simulation.holdings, deployment.classes
    for client, name in enumerate(deployment.sites):
        write_npz(folder / f"{name}.npz", *client_arrays(holdings.client(client)), classes)
    if (own := holdings.server()) is not None:
        write_npz(folder / "server.npz", *client_arrays(own), classes)
    test = simulation.dataset.test
    write_npz(folder / "test.npz", test.images, test.labels, classes)


def _write_readme(deployment: Deployment, final: Path) -> None:
    write_text(deployment.path / "README.md", "README.md", server_words(deployment, final))
