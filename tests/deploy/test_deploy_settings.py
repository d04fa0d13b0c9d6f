"""federation.toml and site.toml: read back as written, and every mistake named with its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyfl.core.errors import ConfigError
from proxyfl.deploy.addresses import is_host, split_address
from proxyfl.deploy.names import RESERVED, check_sites, inside
from proxyfl.deploy.settings import Deployment, Site

UNIFORM = {"federation": {"per_round": 2, "weighting": "uniform"}}
GOOD: dict[str, Any] = {
    "address": "fl.example.org:8000",
    "classes": ("cat", "dog"),
    "channels": 1,
    "image_size": 8,
    "mean": (0.5,),
    "std": (0.25,),
    "sites": ("lyon", "paris"),
    "holdout": 0.2,
    "quorum": 2,
    "experiment": {"preset": "digits", "federation": {"per_round": 2}, "method": {"name": "sage"}},
}


def deployment(path: Path, **changes: Any) -> Deployment:
    return Deployment(**{**GOOD, **changes}, path=path)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = deployment(tmp_path)
    written.write()
    assert Deployment.read(tmp_path) == written
    site = written.site("paris")
    site.path.mkdir()
    site.write()
    read = Site.read(tmp_path / "paris")
    assert (read.name, read.server, read.classes) == ("paris", "fl.example.org:8000", ("cat", "dog"))
    assert read == site


def test_what_follows_from_the_rest_is_not_written_and_tables_that_mislead_say_so(tmp_path: Path) -> None:
    tree = {
        **GOOD["experiment"],
        "data": {"image_size": 0},
        "partition": {"clients": 2},
        "federation": {"per_round": 2, "quorum": 2},
    }
    made = deployment(tmp_path, experiment=tree)
    made.write()
    text = made.file.read_text(encoding="utf-8")
    assert (text.count("quorum = "), "clients = " in text) == (1, False)
    assert "only labels.where counts.\n[experiment.data]\nimage_size = 0" in text
    assert "\n[experiment.federation]\nper_round = 2" in text
    assert Deployment.read(tmp_path).config == made.config


def test_the_experiments_clients_are_the_sites_and_its_quorum_the_federations(tmp_path: Path) -> None:
    config = deployment(tmp_path).config
    assert (config.partition.clients, config.federation.quorum, config.method.name) == (2, 2, "sage")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("adress = 'a:1'", "unknown setting 'adress'; did you mean 'address'"),
        ("address = 'fl.example.org'", "must be HOST:PORT"),
        ("listen = 'fl.example.org:0'", "a port is a number"),
        ("classes = ['cat']", "two classes or more"),
        ("classes = ['cat', 'cat']", "has 'cat' twice"),
        ("classes = ['cat', 3]", "must be a list of names"),
        ("sites = ['lyon', '../paris']", "site name '../paris' cannot be used"),
        ("sites = ['ca']", "one of the deployment's own folders"),
        ("sites = []", "there are no sites"),
        ("mean = [0.5, 0.5, 0.5]", "mean must be 1 number"),
        ("std = [0.0]", "std must be above 0"),
        ("test = 'test.npz'", "are both set"),
        ("holdout = 0.0", "nothing measures accuracy"),
        ("deadline = 0.5", "deadline = 0.5 is below 1"),
        ("channels = 2", "channels = 2 is not one of 1, 3"),
        ("insecure = 'no'", "insecure must be true or false"),
        ("format = 2", "format 2; this version of proxyfl reads 1"),
        ("name = 'a % b'", "must be plain words"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, line: str, words: str) -> None:
    deployment(tmp_path).write()
    file = tmp_path / "federation.toml"
    key = line.partition(" ")[0]
    head, _, experiment = file.read_text(encoding="utf-8").partition("[experiment]")
    import tomllib

    import tomli_w

    table = {k: v for k, v in tomllib.loads(head).items() if k != key}
    file.write_text(f"{line}\n{tomli_w.dumps(table)}\n[experiment]{experiment}", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        Deployment.read(tmp_path)
    assert words in str(error.value)
    assert str(file) in str(error.value)


def test_a_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="proxyfl deploy init DIR"):
        Deployment.read(tmp_path)
    with pytest.raises(ConfigError, match=r"site\.toml does not exist"):
        Site.read(tmp_path)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        ({"partition": {"clients": 5}}, "partition.clients = 5 of .experiment. are not the 2 sites"),
        ({"federation": {"quorum": 3}}, "federation.quorum = 3 of .experiment. is not quorum = 2"),
        ({"federation": {"per_round": 3}}, "federation.per_round = 3 is more than"),
        ({"method": {"name": "fedavg-sl"}}, "true labels of unlabelled images, which no site has"),
        ({"train": {"leak_momentum": True}}, "momentum to the next"),
        ({"labels": {"where": "server"}, "method": {"name": "semifl"}}, "needs the server's labelled images"),
        ({"data": {"validation": 0.1}}, "sites hold out images with holdout"),
        ({"data": {"norm": "release"}}, "set it to 'own'"),
        ({"privacy": {"clip": 1.0}, **UNIFORM}, "every site knows the seed"),
    ],
)
def test_an_experiment_that_real_sites_cannot_do_is_refused(
    tmp_path: Path, experiment: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        _ = deployment(tmp_path, experiment={**GOOD["experiment"], **experiment}).config


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("fl.example.org:8000", ("fl.example.org", 8000)),
        ("10.0.0.5:1", ("10.0.0.5", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:8443", ("localhost", 8443)),
    ],
)
def test_addresses_are_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        *("", ":8000", "host", "host:", "host:0", "host:65536", "host:8000/x", "https://host:8000", "a b:1"),
        *("::1:8000", "[host]:1", "-a.org:1", "host:٣", "a..b:1", "256.1.1.1:1", "host:99999999999"),
    ],
)
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "listen", "expected"),
    [
        ("fl.example.org:8000", "", ("0.0.0.0", 8000)),
        ("localhost:8000", "", ("127.0.0.1", 8000)),
        ("127.0.0.1:8000", "", ("127.0.0.1", 8000)),
        ("fl.example.org:443", "127.0.0.1:8001", ("127.0.0.1", 8001)),
        ("[2001:db8::5]:8000", "", ("::", 8000)),
        ("[::1]:8000", "", ("::1", 8000)),
    ],
)
def test_the_server_listens_everywhere_unless_told_or_local(
    tmp_path: Path, address: str, listen: str, expected: tuple[str, int]
) -> None:
    assert deployment(tmp_path, address=address, listen=listen).bind == expected


@given(st.text())
def test_a_site_name_that_is_let_in_is_a_plain_folder_below(name: str) -> None:
    try:
        check_sites((name,))
    except ConfigError:
        return
    place = Path("/deployment") / name
    assert place.parent == Path("/deployment")
    assert Path(name).name == name
    assert name not in RESERVED


@given(st.text())
def test_a_path_below_never_escapes(name: str) -> None:
    folder = Path("/deployment")
    try:
        place = inside(folder, name)
    except (ConfigError, ValueError):  # a NUL is no path at all
        return
    assert place.resolve().is_relative_to(folder)
    assert place.resolve() != folder


def test_a_link_out_of_the_deployment_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "paris").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="'paris' leads out of"):
        deployment(home).site_folder("paris")


def test_test_images_lie_below_the_deployment_or_at_an_absolute_path(tmp_path: Path) -> None:
    found = deployment(tmp_path, test="sample/test.npz", holdout=0.0)
    assert found.test_path == tmp_path / "sample/test.npz"
    assert dataclasses.replace(found, test="/data/test.npz").test_path == Path("/data/test.npz")
    with pytest.raises(ConfigError, match="leads out of"):
        _ = dataclasses.replace(found, test="../test.npz").test_path


@given(st.from_regex(r"[a-z0-9.\-]{1,30}", fullmatch=True))
def test_a_host_is_never_an_address_of_digits_that_is_none(text: str) -> None:
    if is_host(text) and all(part.isdecimal() for part in text.split(".")):
        assert len(text.split(".")) == 4
