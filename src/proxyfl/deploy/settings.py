"""A deployment's settings files: ``DIR/federation.toml`` of the operator, ``site.toml`` of each site.

Everything a deployment writes lies below its folder; :class:`Deployment` and :class:`Site` say where.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from proxyfl.core.config import Config
from proxyfl.core.dealing import CLIENTS, SCENARIOS, SERVER
from proxyfl.core.errors import ConfigError, ProxyFLError
from proxyfl.core.files import write_bytes
from proxyfl.core.settings import read_section, setting
from proxyfl.core.trees import Tree
from proxyfl.deploy import validation
from proxyfl.deploy.addresses import is_ip, is_loopback, split_address
from proxyfl.deploy.allowed import Allowed
from proxyfl.deploy.form import ImageForm
from proxyfl.deploy.names import REMOVED, check_sites, inside, known_site
from proxyfl.deploy.settings_text import to_toml
from proxyfl.methods import registry
from proxyfl.runs.config_file import load_toml
from proxyfl.runs.settings import resolve
from proxyfl.runs.start import settle_place

FEDERATION_FILE, SITE_FILE, TRUSTED_FILE = "federation.toml", "site.toml", "trusted.yaml"
UNSAFE = frozenset("\"'\\$%`{};#@")
"""What cannot stand in service units as it is."""

S = TypeVar("S", bound="ImageForm")


@dataclass(frozen=True)
class DeploymentSettings(ImageForm):
    """What ``federation.toml`` holds."""

    name: str = setting("federation", "what the federation is called")
    address: str = setting("", "HOST:PORT at which sites reach the server")
    listen: str = setting("", "HOST:PORT the server binds; empty: the address's port on every interface")
    sites: tuple[str, ...] = setting((), "site names in order; a site's place is its client number")
    test: str = setting("", "test images at the server, an npz file or a folder; empty: sites hold out")
    server_data: str = setting(
        "", "labelled images at the server, an npz file, a table or a folder, where labels.where is 'server'"
    )
    quorum: int = setting(1, "sites that must answer for a round to count", low=1)
    deadline: float = setting(600.0, "seconds that a round waits for its sites", low=1)
    adapt: float = setting(
        0.0,
        "wait this many times as long as the slowest answer of the last rounds, at most the deadline; 0: off",
        low=0,
    )
    patience: float = setting(3600.0, "seconds to wait for enough sites before stopping", low=0)
    max_request_mb: int = setting(16, "largest request of a site; models are sent in pieces of 1 MB", low=1)
    max_site_mb: int = setting(0, "megabytes that a site may send per minute; 0: 8 models plus 64 MB", low=0)
    max_images: int = setting(
        1_000_000, "most images that a site may claim, as its weight follows them", low=1
    )
    metrics: str = setting(
        "", "HOST:PORT of OpenMetrics: on the loopback device, or elsewhere with TLS; empty: none are served"
    )
    secure_aggregation: bool = setting(False, "not offered: setting it explains why")
    experiment: Tree = field(default_factory=dict)
    """The experiment, as in a run's config.toml."""

    def check(self) -> None:
        super().check()
        split_address(self.address)
        if self.listen:
            split_address(self.listen)
        if self.metrics:
            split_address(self.metrics)
        if 0 < self.adapt < 1.5:
            raise ConfigError(
                f"adapt = {self.adapt:g} would exclude sites that are slightly slower; use at least 1.5, or 0"
            )
        if self.insecure and not is_loopback(split_address(self.listen or self.address)[0]):
            raise ConfigError(
                "insecure = true is for one machine; use localhost as the address, or insecure = false"
            )
        check_sites(self.sites)
        if not self.name.strip() or not self.name.isprintable() or UNSAFE & set(self.name):
            raise ConfigError(f"name '{self.name}' must be plain words, without quotes or special characters")
        if self.test and self.holdout:
            raise ConfigError(
                "test images at the server and a held-out share at the sites are both set; "
                "set test = '' or holdout = 0, so that it is clear where accuracy comes from"
            )
        if not (self.test or self.holdout):
            raise ConfigError("nothing measures accuracy; give test images, or a share as in holdout = 0.2")


@dataclass(frozen=True)
class Deployment(DeploymentSettings):
    """The operator's folder: ``federation.toml`` and where everything else of it lies."""

    path: Path = Path()

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The deployment in a folder; errors name the file and the cure."""
        path = Path(folder).expanduser().resolve()
        settings = _read(
            DeploymentSettings, path / FEDERATION_FILE, "make a deployment with: proxyfl deploy init DIR"
        )
        return cls(**_table_of(settings, type(settings)), path=path)

    def check(self) -> None:
        read_section(DeploymentSettings, _table_of(self, DeploymentSettings), "clean")
        super().check()

    def write(self) -> None:
        """Write ``federation.toml``, whole or not at all."""
        self.check()
        text = to_toml(_table_of(self, DeploymentSettings), "proxyfl deploy run DIR")
        write_bytes(self.file, text.encode())

    @property
    def file(self) -> Path:
        return self.path / FEDERATION_FILE

    @cached_property
    def config(self) -> Config:
        """The experiment with every value. Its clients are the sites, its quorum is the federation's."""
        tree = self.experiment
        partition, rounds = _table(tree, "partition"), _table(tree, "federation")
        if (clients := partition.get("clients", len(self.sites))) != len(self.sites):
            raise self._wrong(
                f"partition.clients = {clients} of [experiment] are not the {len(self.sites)} sites"
            )
        if (quorum := rounds.get("quorum", 1)) not in (1, self.quorum):
            raise self._wrong(f"federation.quorum = {quorum} of [experiment] is not quorum = {self.quorum}")
        settled = {"partition": {"clients": len(self.sites)}, "federation": {"quorum": self.quorum}}
        masked = self.secure_aggregation or rounds.get("secure_aggregation")
        tree = {**tree, "federation": {k: v for k, v in rounds.items() if k != "secure_aggregation"}}
        try:
            config = resolve("", tree, settled)
            validation.check_experiment(config)
            validation.check_server_data(config, self.server_data)
            config = settle_place(config, self.path)
        except ProxyFLError as error:
            raise self._wrong(f"[experiment]: {error}") from None
        if bool(config.model.encoder) != bool(self.encoded):
            raise self._wrong(
                f"encoded = {self.encoded}, but the network is {config.model.name}; set encoded to the "
                "number of the frozen encoder's features, or to 0 without one"
            )
        if config.model.encoder and not config.model.encoder_hash:
            raise self._wrong(
                "model.encoder_hash of [experiment] is empty, so sites cannot tell whether theirs is the "
                "same encoder; proxyfl deploy init fills it in"
            )
        if masked:
            raise self._wrong(validation.secure_aggregation(registry.method_of(config)))
        return config

    @property
    def bind(self) -> tuple[str, int]:
        """(host, port) that the server listens at; only a loopback address stays on this machine."""
        if self.listen:
            return split_address(self.listen)
        host, port = split_address(self.address)
        host = "127.0.0.1" if host == "localhost" else host
        if is_loopback(host):
            return host, port
        return "::" if is_ip(host, version=6) else "0.0.0.0", port

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self.file}: {what}")

    def site(self, name: str) -> Site:
        """What the site's ``site.toml`` holds."""
        shared, where = _table_of(self, ImageForm), self.scenario
        if where == SERVER:
            shared["holdout"] = 0.0  # it is the server that holds out labelled images
        return Site(
            **shared,
            name=name,
            server=self.address,
            seed=self.config.seed,
            scenario=where,
            path=self.site_folder(name),
        )

    def site_folder(self, name: str) -> Path:
        """What is handed to a site: a folder below this one."""
        return inside(self.path, known_site(name, self.sites))

    def removed_folder(self, name: str) -> Path:
        """Where the folder of a site lies that was taken out."""
        return self.path / REMOVED / known_site(name, self.sites)

    @property
    def present(self) -> list[str]:
        """The sites that were not removed."""
        return [name for name in self.sites if not self.is_removed(name)]

    def is_removed(self, name: str) -> bool:
        """Whether a site was taken out after a run had begun; it keeps its place in the list."""
        return self.removed_folder(name).is_dir() and not (self.path / name).exists()

    @property
    def scenario(self) -> str:
        """Who has labels."""
        return self.config.labels.where

    @property
    def sites_measure(self) -> bool:
        """Whether accuracy comes from images that sites hold out."""
        return not self.test and self.scenario != SERVER

    @property
    def notes_sites(self) -> bool:
        """Whether anything of single sites is written down; nothing is under differential privacy."""
        config = self.config
        return not config.privacy.is_on and config.keep.watches(config.federation.per_round)

    @property
    def test_path(self) -> Path | None:
        """The server's test images: as it stands when absolute, else below this folder."""
        return self._place(self.test)

    @property
    def server_data_path(self) -> Path | None:
        """The server's labelled images, likewise."""
        return self._place(self.server_data)

    def _place(self, given: str) -> Path | None:
        path = Path(given).expanduser()
        return (path if path.is_absolute() else inside(self.path, given)) if given else None

    @property
    def ca_certificate(self) -> Path:
        return self.path / "ca" / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.path / "ca" / "ca.key"

    @property
    def server_certificate(self) -> Path:
        return self.path / "server" / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.path / "server" / "server.key"

    @property
    def operator_key(self) -> Path:
        """What signs the app."""
        return self.path / "ca" / "operator.key"

    @property
    def trusted(self) -> Path:
        """The operator's public key; every site has a copy."""
        return self.path / "server" / TRUSTED_FILE

    @property
    def app_signature(self) -> Path:
        return self.path / "server" / "app.sig"

    @property
    def app(self) -> Path:
        """The Flower app that ``deploy run`` submits."""
        return self.path / "app"

    @property
    def run(self) -> Path:
        """The server's run directory."""
        return self.path / "run"

    @property
    def state(self) -> Path:
        """The SuperLink's database and Flower's home."""
        return self.path / "state"


@dataclass(frozen=True)
class SiteSettings(Allowed):
    """What ``site.toml`` holds."""

    name: str = setting("", "the site's name in the federation")
    server: str = setting("", "HOST:PORT of the server")
    seed: int = setting(1, "seed of the held-out share", low=0)
    scenario: str = setting(
        CLIENTS,
        "who has labels: clients, each site those it has; server, no site, and labels that are here are not "
        "used; partial, a site for all its images or for none",
        choices=SCENARIOS,
    )
    encoder: str = setting(
        "", "location of the frozen encoder at this site, as hf:FOLDER or onnx:FILE; empty: the server's"
    )
    keys: str = setting("", "names of arrays or columns of its data, as in images=pixels,labels=diagnosis")

    def check(self) -> None:
        super().check()
        check_sites((self.name,))
        split_address(self.server)


@dataclass(frozen=True)
class Site(SiteSettings):
    """A site's folder: ``site.toml`` and the keys beside it."""

    path: Path = Path()

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        path = Path(folder).expanduser().resolve()
        settings = _read(
            SiteSettings, path / SITE_FILE, "give the folder that the federation's operator distributed"
        )
        return cls(**_table_of(settings, type(settings)), path=path)

    def check(self) -> None:
        read_section(SiteSettings, _table_of(self, SiteSettings), "clean")
        super().check()

    def write(self) -> None:
        self.check()
        text = to_toml(_table_of(self, SiteSettings), "proxyfl deploy site THIS_FOLDER --data PATH")
        write_bytes(self.path / SITE_FILE, text.encode())

    @property
    def ca_certificate(self) -> Path:
        return self.path / "ca.crt"

    @property
    def private_key(self) -> Path:
        return self.path / "site.key"

    @property
    def public_key(self) -> Path:
        return self.path / "site.pub"

    @property
    def certificate(self) -> Path:
        """What lets the site in at the server's gate."""
        return self.path / "site.crt"

    @property
    def trusted(self) -> Path:
        """The key of the operator whose apps this site runs."""
        return self.path / TRUSTED_FILE

    @property
    def state(self) -> Path:
        """What the site keeps between rounds."""
        return self.path / "state"


def _read(cls: type[S], file: Path, cure: str) -> S:
    if not file.is_file():
        raise ConfigError(f"{file} does not exist; {cure}")
    table = load_toml(file)
    try:
        settings = read_section(cls, table, "clean")
        settings.check()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return settings


def _table_of(settings: ImageForm, cls: type[ImageForm]) -> dict[str, Any]:
    """The values of the fields that ``cls`` has."""
    return {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(cls)}


def _table(tree: Tree, name: str) -> Tree:
    found = tree.get(name, {})
    return found if isinstance(found, dict) else {}
