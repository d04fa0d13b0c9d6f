"""A deployment as it is written: complete, private where it must be, and no site gets more than its own."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError
from proxyfl.deploy import entrance, explain, members, pki, rotation, scaffold, signing, texts
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.site_data import open_site, open_test
from proxyfl.runs.simulation import prepare

SITE_FILES = {
    *("README.md", "ca.crt", "proxyfl-site.service", "site.crt", "site.key", "site.pub", "site.toml"),
    *("offer.json", "start.sh", "trusted.yaml"),
}
LOG = {"audit.jsonl", "audit.head"}
OWN: dict[str, Any] = {"classes": ("healthy", "ill"), "channels": 3, "image_size": 16}


def plan(**changes: Any) -> scaffold.Plan:
    return scaffold.Plan(**{"sites": ("lyon", "paris"), "form": OWN, **changes})


def test_everything_of_a_deployment_is_there(trial: Path) -> None:
    names = {path.name for path in trial.iterdir()}
    sites = {"site-01", "site-02", "site-03"}
    assert names == {"README.md", "app", "audit", "ca", "federation.toml", "sample", "server", *sites}
    server = {
        *("app.sig", "proxyfl-server.service", "server.crt", "server.key", "start.sh", "trusted.yaml"),
    }
    assert {path.name for path in (trial / "server").iterdir()} == server
    deployment = Deployment.read(trial)
    assert deployment.address == "fl.example.org:8000"
    assert deployment.sites == ("site-01", "site-02", "site-03")
    assert (deployment.config.partition.clients, deployment.config.federation.per_round) == (3, 3)
    assert (deployment.quorum, deployment.config.compute.dtype) == (2, "fp32")
    assert {*pki.hosts_of(deployment.server_certificate)} >= {"fl.example.org", "10.0.0.5", "localhost"}
    pki.check_server(deployment.server_certificate, deployment.ca_certificate)


def test_a_site_gets_its_own_folder_and_nothing_else(trial: Path) -> None:
    secrets = [path.read_bytes() for path in trial.rglob("*.key")]
    assert len(secrets) == len(set(secrets)) == 6
    for name in ("site-01", "site-02", "site-03"):
        folder = trial / name
        assert {path.name for path in folder.iterdir()} == SITE_FILES
        own = (folder / "site.key").read_bytes()
        for path in folder.iterdir():
            held = [secret for secret in secrets if secret in path.read_bytes()]
            assert held in ([], [own])
        site = Site.read(folder)
        assert (site.name, site.server) == (name, "fl.example.org:8000")
        pki.check_site_keys(site.private_key, site.public_key)
        assert site.ca_certificate.read_bytes() == (trial / "ca/ca.crt").read_bytes()
        pki.check_site(site.certificate, site.public_key, site.ca_certificate)
        assert site.trusted.read_bytes() == (trial / "server/trusted.yaml").read_bytes()


def test_private_files_and_folders_are_the_owners_alone(trial: Path) -> None:
    for path in trial.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name in (".", "ca", "server", "site-01", "site-02", "site-03"):
        assert stat.S_IMODE((trial / name).stat().st_mode) == 0o700


def test_no_secret_travels_in_the_app(trial: Path) -> None:
    text = "".join(path.read_text() for path in (trial / "app").rglob("*") if path.is_file())
    assert "PRIVATE" not in text
    assert str(trial) not in text
    parts = tomllib.loads((trial / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for name in parts.values():
        module, _, attribute = name.partition(":")
        source = (trial / "app" / f"{module.replace('.', '/')}.py").read_text()
        assert f"\n{attribute} = " in source


def test_sample_data_can_be_held_out_at_the_sites_instead_of_tested_at_the_server(tmp_path: Path) -> None:
    made = scaffold.create(tmp_path / "fed", scaffold.Plan(("a", "b"), sample=True, holdout=0.2))
    assert (made.sites_measure, made.test, made.holdout) == (True, "", 0.2)
    assert made.site("a").holdout == 0.2


def test_sample_data_are_what_a_simulation_deals_out(trial: Path) -> None:
    deployment = Deployment.read(trial)
    simulation = prepare(deployment.config)
    form = deployment.classes, deployment.channels, deployment.image_size
    for client, name in enumerate(deployment.sites):
        found = open_site(trial / "sample" / f"{name}.npz", *form).data
        expected = simulation.holdings.client(client)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.images[found.unlabelled], expected.images[expected.unlabelled])
    assert deployment.test_path is not None
    assert torch.equal(open_test(deployment.test_path, *form).labels, simulation.dataset.test.labels)
    views = simulation.train_views
    assert (deployment.mean, deployment.std, deployment.flip) == (views.mean, views.std, views.flip)


def test_a_federation_of_ones_own_images(tmp_path: Path) -> None:
    found = scaffold.create(
        tmp_path / "own", plan(method="sage", preset="cifar10", hosts=("::1",), name="Our trial")
    )
    assert (found.classes, found.channels, found.image_size) == (("healthy", "ill"), 3, 16)
    assert (found.mean, found.std, found.flip, found.holdout) == ((0.5,) * 3, (0.25,) * 3, False, 0.2)
    assert (found.address, found.name, found.test) == ("[::1]:8000", "Our trial", "")
    assert (found.config.method.name, found.config.federation.rounds) == ("sage", 300)
    assert found.config.data.name == "folder:sites"
    assert (found.site("paris").holdout, found.site("paris").seed) == (0.2, found.config.seed)
    assert "20% of labelled images" in (found.path / "README.md").read_text()


def test_a_federation_of_vectors(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = ["age,dose,label", *(f"{random.normal():.3f},{row % 3},{row % 2}" for row in range(60))]
    (tmp_path / "patients.csv").write_text("\n".join(table), encoding="utf-8")
    overrides = {
        "data": {"name": f"table:{tmp_path / 'patients.csv'}"},
        "model": {"name": "mlp", "width": 1},
        "labels": {"ratio": 0.5},
    }
    made = scaffold.create(tmp_path / "fed", scaffold.Plan(("a", "b"), overrides=overrides, sample=True))
    assert (made.channels, made.image_size, made.features) == (2, 0, ("age", "dose"))
    assert made.classes == ("0", "1")
    site = made.site("a")
    assert "A vector has 2 features: age, dose." in (site.path / "README.md").read_text()
    form = (site.classes, site.channels, site.image_size)
    found = open_site(tmp_path / "fed" / "sample" / "a.npz", *form, features=site.features)
    assert found.images.shape[1:] == (2,)
    turned = tmp_path / "turned.csv"
    turned.write_text("id,label,dose,age\n1,0,2,0.5\n2,,1,0.25\n", encoding="utf-8")
    told = open_site(turned, *form, features=site.features)
    assert told.images.tolist() == [[0.5, 2.0], [0.25, 1.0]]
    assert told.counts.unlabelled == 1
    _, update = explain.dry_run(made)
    assert update.weights["trunk.hidden1.weight"].shape == (64, 2)


def test_vectors_are_like_those_in_a_file(tmp_path: Path) -> None:
    rows = "id,age,dose,what\n1,10,1,ill\n2,30,1,well\n3,20,1,\n"
    (tmp_path / "some.csv").write_text(rows, encoding="utf-8")
    keys = {"data": {"keys": "label=what,without=id"}}
    asked = scaffold.Plan(("a", "b"), like=str(tmp_path / "some.csv"), overrides=keys)
    made = scaffold.create(tmp_path / "fed", asked)
    assert (made.classes, made.channels, made.image_size) == (("ill", "well"), 2, 0)
    assert (made.features, made.mean) == (("age", "dose"), (20.0, 1.0))
    assert made.std == (pytest.approx(200**0.5 / 3**0.5), 1.0)
    assert (made.config.model.name, made.config.data.keys) == ("mlp", "")
    _, update = explain.dry_run(made)
    assert update.weights["trunk.hidden1.weight"].shape == (64, 2)
    told = explain.explain(made)
    assert not [line for line in (*told.enrols, *told.remarks, told.measured, told.noted) if "image" in line]
    with pytest.raises(ConfigError, match=r"--channels 5, .*2 features"):
        scaffold.create(tmp_path / "no", dataclasses.replace(asked, form={"channels": 5}))
    np.savez(tmp_path / "test.npz", X=np.array([[1.0], [3.0]]), y=np.array([0, 1]))
    form = {"classes": ("ill", "well"), "image_size": 0}
    made = scaffold.create(tmp_path / "t", scaffold.Plan(("a",), form=form, test=str(tmp_path / "test.npz")))
    assert (made.channels, made.mean, made.std) == (1, (2.0,), (1.0,))


def test_a_test_file_of_vectors_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "test.csv"
    file.write_text("id,age,what\n1,10,ill\n2,30,well\n", encoding="utf-8")
    keys = {"data": {"keys": "label=what,without=id"}}
    form = {"classes": ("ill", "well"), "image_size": 0}
    made = scaffold.create(tmp_path / "fed", scaffold.Plan(("a",), form=form, test=str(file), overrides=keys))
    assert (made.features, made.mean) == (("age",), (20.0,))
    sizes = (made.classes, made.channels, made.image_size)
    test = open_test(made.test_path, *sizes, features=made.features, keys=made.config.data.keys)
    assert (test.images.tolist(), test.labels.tolist()) == ([[10.0], [30.0]], [0, 1])


def test_a_presets_data_set_brings_its_form(tmp_path: Path) -> None:
    found = scaffold.create(
        tmp_path / "d", scaffold.Plan(("a", "b"), overrides={"federation": {"rounds": 4}})
    )
    assert (found.channels, found.image_size, found.mean) == (1, 8, (0.3062,))
    assert (found.classes[3], found.config.federation.rounds, found.config.data.name) == ("3", 4, "digits")


def test_an_insecure_federation_has_no_keys_and_says_so(tmp_path: Path) -> None:
    found = scaffold.create(tmp_path / "open", plan(insecure=True))
    assert found.insecure
    assert not [*found.path.rglob("*.key"), *found.path.rglob("*.crt"), *found.path.rglob("*.pub")]
    assert found.site("lyon").insecure
    for readme in found.path.rglob("README.md"):
        assert "**Insecure.**" in readme.read_text()
    with pytest.raises(ConfigError, match="there is no certificate to renew"):
        rotation.renew(found.path)


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(RunError, match="is not empty"):
        scaffold.create(tmp_path / "full", plan())
    (tmp_path / "empty").mkdir()
    assert scaffold.create(tmp_path / "empty", plan()).path == tmp_path / "empty"
    before = {path.name for path in tmp_path.iterdir()}

    def fail(*words: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(scaffold, "write_app", fail)
    with pytest.raises(OSError, match="the disk is full"):
        scaffold.create(tmp_path / "new", plan())
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ("ca",)}, "own folders"),
        ({"sites": ()}, "there are no sites"),
        ({"form": {"classes": ("one",)}}, "two classes or more"),
        ({"form": {**OWN, "channels": 2}}, "channels = 2 is not one of 1, 3"),
        ({"hosts": ("a b",)}, "is not a host name"),
        ({"quorum": 3}, "federation.quorum = 3 can never be reached"),
        ({"holdout": 0.0}, "nothing measures accuracy"),
        ({"test": "nowhere.npz"}, "nowhere.npz does not exist"),
        ({"method": "fedavg-sl"}, "no site has"),
        ({"method": "sagee"}, "did you mean 'sage'"),
        ({"overrides": {"federation": {"per_round": 3}}}, "more than"),
        ({"overrides": {"partition": {"clients": 9}}}, "partition.clients = 9, but there are 2 sites"),
        ({"sample": True}, "bring their own classes"),
        ({"name": "50% off"}, "plain words"),
        ({"preset": "mnits"}, "unknown preset"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProxyFLError, match=words):
        scaffold.create(tmp_path / "new", plan(**changes))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ['a"b', "a%b", "a\nb", "a;b"])
def test_a_folder_that_service_files_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="choose another folder"):
        scaffold.create(tmp_path / name, plan())


def test_test_images_at_the_server_replace_the_held_out_share(tmp_path: Path, trial: Path) -> None:
    images = trial / "sample/test.npz"
    found = scaffold.create(tmp_path / "d", scaffold.Plan(("a", "b"), test=str(images)))
    assert (found.test, found.holdout, found.test_path) == (str(images), 0.0, images)
    with pytest.raises(ConfigError, match="are both set"):
        scaffold.create(tmp_path / "e", scaffold.Plan(("a", "b"), test=str(images), holdout=0.1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", ("site-01", "site-02")), ("paris, lyon", ("paris", "lyon")), ("1", ("site-01",))],
)
def test_sites_are_a_number_or_names(text: str, expected: tuple[str, ...]) -> None:
    assert scaffold.site_names(text) == expected
    assert scaffold.site_names("100")[0] == "site-001"


@pytest.mark.parametrize("text", ["0", "10000", "a,,b", "a,a", "Paris", ""])
def test_other_site_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        scaffold.site_names(text)


def test_a_site_can_join_before_the_run(own_trial: Path) -> None:
    before = {path: path.read_bytes() for path in own_trial.rglob("*.key")}
    members.add_site(own_trial, "lyon")
    grown = Deployment.read(own_trial)
    assert (grown.sites.index("lyon"), grown.config.partition.clients) == (3, 4)
    assert {path.name for path in (own_trial / "lyon").iterdir()} == SITE_FILES
    assert all(path.read_bytes() == content for path, content in before.items())
    with pytest.raises(ConfigError, match="there is a site 'lyon' already"):
        members.add_site(own_trial, "lyon")
    with pytest.raises(ConfigError, match="own folders"):
        members.add_site(own_trial, "sample")


def test_sites_a_round_and_quorum_grow_as_init_would_have_chosen(own_trial: Path, tmp_path: Path) -> None:
    for count in range(4, 11):
        members.add_site(own_trial, f"more-{count}")
        grown = Deployment.read(own_trial)
        chosen = scaffold.create(
            tmp_path / str(count), scaffold.Plan(scaffold.site_names(str(count)), sample=True)
        )
        for one in (grown, chosen):
            assert (one.quorum, one.config.federation.quorum) == (chosen.quorum, chosen.quorum)
            assert one.config.federation.per_round == chosen.config.federation.per_round
    assert (grown.config.federation.per_round, grown.quorum) == (8, 5)


def test_sites_a_round_and_quorum_that_were_chosen_stay(tmp_path: Path) -> None:
    overrides = {"federation": {"per_round": 2}}
    scaffold.create(
        tmp_path / "few", scaffold.Plan(scaffold.site_names("3"), sample=True, overrides=overrides)
    )
    scaffold.create(tmp_path / "all", scaffold.Plan(scaffold.site_names("3"), sample=True, quorum=1))
    for name in ("few", "all"):
        members.add_site(tmp_path / name, "lyon")
    few, every = (Deployment.read(tmp_path / name) for name in ("few", "all"))
    assert (few.config.federation.per_round, few.quorum) == (2, 2)
    assert (every.config.federation.per_round, every.quorum) == (4, 1)


def test_renewal_changes_the_server_alone(own_trial: Path) -> None:
    before = {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}
    assert rotation.renew(own_trial) == pki.SERVER_DAYS - 1
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed <= {"server.crt", "server.key", "app.sig", *LOG}
    deployment = Deployment.read(own_trial)
    pki.check_server(deployment.server_certificate, deployment.ca_certificate)
    assert "fl.example.org" in pki.hosts_of(deployment.server_certificate)
    deployment.ca_key.unlink()
    with pytest.raises(ConfigError, match="restore the key"):
        rotation.renew(own_trial)


def test_a_lost_operator_key_stops_a_renewal_before_anything_changes(own_trial: Path) -> None:
    deployment = Deployment.read(own_trial)
    deployment.operator_key.unlink()
    before = {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"operator\.key is missing.*trusted\.yaml"):
        rotation.renew(own_trial)
    assert before == {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}
    deployment.trusted.unlink()
    rotation.renew(own_trial)
    signing.signature_of(deployment)
    told = {signing.fingerprint(deployment.site(name).trusted) for name in deployment.sites}
    assert told == {signing.fingerprint(deployment.trusted)}


def test_a_stolen_key_is_replaced_and_nothing_else(own_trial: Path) -> None:
    before = {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}
    site = rotation.new_key(own_trial, "site-02")
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    changed -= {own_trial / "audit" / name for name in LOG}
    assert changed == {own_trial / "site-02" / f"site.{end}" for end in ("key", "pub", "crt")}
    pki.check_site(site.certificate, site.public_key, site.ca_certificate)
    pki.check_site_keys(site.private_key, site.public_key)
    assert stat.S_IMODE(site.private_key.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="there is no site 'lyon'"):
        rotation.new_key(own_trial, "lyon")


def run_script(script: Path, *words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a start script with a program that only says how it was called."""
    program = tmp_path / "told.sh"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\n')
    program.chmod(0o755)
    environment = {**os.environ, "PROXYFL": str(program)}
    return subprocess.run(
        [str(script), *words], env=environment, cwd="/", capture_output=True, text=True, check=False
    )


def test_start_scripts_call_the_program_from_anywhere(trial: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(trial, tmp_path / "a place with spaces"))
    told = run_script(moved / "server/start.sh", "--more", tmp_path=tmp_path)
    assert told.stdout.split("\n")[:4] == ["<deploy>", "<server>", f"<{moved}>", "<--more>"]
    told = run_script(moved / "site-02/start.sh", "my data", tmp_path=tmp_path)
    assert told.stdout.split("\n")[:5] == [
        "<deploy>",
        "<site>",
        f"<{moved / 'site-02'}>",
        "<--data>",
        "<my data>",
    ]
    told = run_script(moved / "site-02/start.sh", tmp_path=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert "usage" in told.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_service_units_are_understood_by_systemd(trial: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trial, tmp_path / "trial"))
    for unit in ("server/proxyfl-server.service", "site-01/proxyfl-site.service"):
        text = (folder / unit).read_text()
        # The programs are not installed where the unit expects them; what is asked is whether it parses.
        for line in text.splitlines():
            if line.startswith("ExecStart="):
                text = text.replace(line, "ExecStart=/bin/true ${DATA}")
        file = tmp_path / Path(unit).name
        file.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
        )
        told = [line for line in done.stderr.splitlines() if file.name in line]
        assert told == []


def test_service_files_name_this_deployment(trial: Path) -> None:
    unit = (trial / "server/proxyfl-server.service").read_text()
    assert f'ExecStart="{trial}/server/start.sh"' in unit
    for path in trial.rglob("*"):
        if path.suffix in (".md", ".service", ".sh"):
            assert "~{" not in path.read_text()


def test_behind_a_forwarded_port_the_gate_binds_another(tmp_path: Path) -> None:
    found = scaffold.create(tmp_path / "d", plan(port=443, listen="10.0.0.5:9000"))
    assert (found.address, found.bind) == ("localhost:443", ("10.0.0.5", 9000))
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        scaffold.create(tmp_path / "e", plan(listen="9000"))


def test_an_insecure_federation_stays_on_its_machine(tmp_path: Path) -> None:
    for other in ({"hosts": ("fl.example.org",)}, {"listen": "0.0.0.0:8000"}):
        with pytest.raises(ConfigError, match="insecure = true"):
            scaffold.create(tmp_path / "d", plan(insecure=True, **other))


def test_a_deployment_of_an_earlier_version_is_told_what_is_missing(own_trial: Path) -> None:
    deployment = Deployment.read(own_trial)
    entrance.check_server_files(deployment)
    for pattern in ("site.crt", "trusted.yaml", "app.sig", "operator.key"):
        for file in own_trial.rglob(pattern):
            file.unlink()
    with pytest.raises(ConfigError, match=r"trusted\.yaml is missing.*proxyfl deploy init .* --renew"):
        entrance.check_server_files(deployment)
    with pytest.raises(ConfigError, match=r"site\.crt is missing; .*operator"):
        entrance.check_site_files(deployment.site("site-01"))
    rotation.renew(own_trial)
    entrance.check_server_files(deployment)
    for name in deployment.sites:
        entrance.check_site_files(deployment.site(name))
        assert signing.fingerprint(deployment.site(name).trusted) == signing.fingerprint(deployment.trusted)


def test_an_app_that_the_operator_did_not_sign_is_found(own_trial: Path) -> None:
    from proxyfl.deploy import signing

    deployment = Deployment.read(own_trial)
    assert signing.signature_of(deployment)["app"]
    text = deployment.app_signature.read_text()
    deployment.app_signature.write_text(text.replace('"app": "', '"app": "00'))
    with pytest.raises(ConfigError, match=r"app\.sig .*operator's key"):
        signing.signature_of(deployment)
    deployment.app_signature.write_text(text)
    part = deployment.app / "proxyfl_federation" / "client_app.py"
    part.write_text(part.read_text() + "print('more')\n")
    with pytest.raises(ConfigError, match=r"app .*signed; .*--renew"):
        signing.signature_of(deployment)
    rotation.renew(own_trial)
    assert signing.signature_of(deployment)
    assert "more" not in part.read_text()


def test_the_certificate_is_also_for_the_host_that_the_server_binds(tmp_path: Path) -> None:
    usual = {"localhost", "127.0.0.1", "::1"}
    for number, (listen, more) in enumerate(
        [("10.0.0.9:9000", {"10.0.0.9"}), ("[2001:db8::9]:9000", {"2001:db8::9"}), ("0.0.0.0:9000", set())]
    ):
        found = scaffold.create(tmp_path / str(number), plan(listen=listen))
        assert set(pki.hosts_of(found.server_certificate)) == usual | more


def test_a_user_without_a_name_can_set_up_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(texts.getpass, "getuser", nameless)
    found = scaffold.create(tmp_path / "d", plan())
    assert "User=proxyfl" in (found.path / "server/proxyfl-server.service").read_text()


def test_a_site_may_send_eight_models_and_64_mb_in_a_minute_unless_the_operator_sets_another_volume(
    trial: Path,
) -> None:
    deployment = Deployment.read(trial)
    task, _ = explain.dry_run(deployment)
    model = sum(value.numel() * value.element_size() for value in task.weights.values())
    assert 300_000 < model < 400_000
    assert entrance.volume(deployment) == 8 * model + 64 * 1024 * 1024
    assert entrance.volume(dataclasses.replace(deployment, max_site_mb=5)) == 5 * 1024 * 1024
