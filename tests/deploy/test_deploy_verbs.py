"""``proxyfl deploy init``, ``explain`` and ``check``, as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from calling import invoke
from proxyfl.deploy.pki import hosts_of
from proxyfl.deploy.settings import Deployment


def test_init_writes_a_deployment_and_says_what_is_next(tmp_path: Path) -> None:
    words = "--sites lyon,paris --host fl.example.org --port 8443 --method sage --rounds 7 --quorum 1".split()
    own = "--classes healthy,ill --image-size 16 --channels 3 --flip --holdout 0.3 --deadline 60".split()
    done = invoke("deploy", "init", "hospital", *words, *own, "--set", "train.lr=0.02")
    assert done.exit_code == 0, done.stderr
    assert "server at fl.example.org:8443, 2 site(s)" in done.stdout
    assert "accuracy comes from the 30% of labelled images" in done.stdout
    for site in ("lyon", "paris"):
        assert f"proxyfl deploy site {tmp_path / 'hospital' / site} --data DATA --approve" in done.stdout
    assert f"proxyfl deploy run {tmp_path / 'hospital'}" in done.stdout
    found = Deployment.read(tmp_path / "hospital")
    assert (found.sites, found.classes, found.flip) == (("lyon", "paris"), ("healthy", "ill"), True)
    assert (found.holdout, found.quorum, found.deadline) == (0.3, 1, 60.0)
    config = found.config
    assert (config.method.name, config.federation.rounds, config.train.lr) == ("sage", 7, 0.02)
    again = invoke("deploy", "init", "hospital")
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)


def test_an_insecure_federation_is_loud(tmp_path: Path) -> None:
    done = invoke("deploy", "init", "open", "--insecure")
    assert done.exit_code == 0
    assert "WARNING: this federation is INSECURE" in done.stderr
    assert "INSECURE" in invoke("deploy", "explain", "open").stdout
    assert "INSECURE" not in invoke("deploy", "init", "closed").stderr


def test_a_site_is_added_and_the_certificate_renewed(own_trial: Path) -> None:
    done = invoke("deploy", "add-site", own_trial, "lyon")
    assert done.exit_code == 0, done.stderr
    assert f"lyon is site 4; send it {own_trial / 'lyon'}" in done.stdout
    assert "the answers of 3 (before: 2 of 3)" in done.stdout
    done = invoke("deploy", "init", own_trial, "--renew")
    assert "certificate for 824 days" in done.stdout
    done = invoke("deploy", "init", own_trial, "--renew", "--host", "10.0.0.77")
    assert done.exit_code == 0, done.stderr
    assert {"10.0.0.77", "fl.example.org"} <= {*hosts_of(own_trial / "server" / "server.crt")}
    done = invoke("deploy", "init", own_trial, "--new-key", "lyon")
    assert f"send it {own_trial / 'lyon' / 'site.key'}" in done.stdout
    done = invoke("deploy", "init", own_trial, "--renew", "--new-key", "lyon")
    assert (done.exit_code, "one at a time" in done.stderr) == (2, True)


def test_a_change_takes_no_options_that_it_would_not_heed(own_trial: Path) -> None:
    before = {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}
    for words, refused in (
        (("--renew", "--rounds", "7"), "--renew changes a deployment that exists and does not take --rounds"),
        (("--new-key", "site-01", "--host", "a.org", "--flip"), "does not take --host, --flip"),
    ):
        done = invoke("deploy", "init", own_trial, *words)
        assert (done.exit_code, refused in done.stderr) == (2, True), done.stderr
    assert before == {path: path.read_bytes() for path in own_trial.rglob("*") if path.is_file()}


def test_explain_prints_what_leaves_a_site(trial: Path) -> None:
    done = invoke("deploy", "explain", trial)
    assert done.exit_code == 0, done.stderr
    for words in (
        "prior/counts",
        "weights: classifier",
        "What this reveals",
        "Stays at the site",
        "loss/icpl",
    ):
        assert words in done.stdout


def test_explain_refuses_secure_aggregation_on_one_line(own_trial: Path) -> None:
    file = own_trial / "federation.toml"
    file.write_text(file.read_text().replace("secure_aggregation = false", "secure_aggregation = true"))
    done = invoke("deploy", "explain", own_trial)
    assert done.exit_code == 2
    assert "secure aggregation is not offered" in done.stderr
    assert "gpt keeps tensors of each site's update" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_check_counts_a_sites_images(trial: Path) -> None:
    done = invoke("deploy", "check", trial / "sample" / "site-02.npz", "--site", trial / "site-02")
    assert done.exit_code == 0, done.stderr
    assert "site-02" in done.stdout
    assert "unlabelled: " in done.stdout
    assert done.stdout.strip().endswith("nothing was sent")
    assert "missing here" not in done.stdout
    wrong = invoke("deploy", "check", trial / "nowhere", "--site", trial / "site-02")
    assert (wrong.exit_code, "does not exist" in wrong.stderr) == (2, True)


def test_check_says_what_the_sites_folder_lacks(own_trial: Path) -> None:
    lost = [own_trial / "site-02" / name for name in ("ca.crt", "site.key")]
    for file in lost:
        file.unlink()
    done = invoke("deploy", "check", own_trial / "sample" / "site-02.npz", "--site", own_trial / "site-02")
    assert done.exit_code == 0, done.stderr
    assert f"note: missing here: {lost[0]}, {lost[1]}; " in " ".join(done.stdout.split())


@pytest.mark.parametrize("verb", ["init", "explain", "check"])
def test_help_answers(verb: str) -> None:
    assert "Examples" in invoke("deploy", verb, "--help").stdout


def ending(trial, days):
    """The trial's server and first site with certificates that last so long."""
    from proxyfl.deploy import pki
    from proxyfl.deploy.settings import Deployment

    made = Deployment.read(trial)
    authority = made.ca_certificate, made.ca_key
    pki.issue_server(
        made.server_certificate, made.server_key, authority, ["localhost"], days=days, renew=True
    )
    return made


@pytest.mark.parametrize(("days", "said"), [(10, "expires in 9 days"), (-1, "expired 1 day(s) ago")])
def test_a_certificate_that_ends_is_announced_with_the_command_that_renews_it(
    own_trial, monkeypatch, days, said
):
    from proxyfl.deploy import expiry, pki

    made = ending(own_trial, 10)
    if days < 0:
        monkeypatch.setattr(pki, "days_left", lambda file: -1 if file.name == "server.crt" else 900)
    status = invoke("deploy", "status", own_trial)
    words = " ".join(status.stdout.split())
    assert (
        f"note: {made.server_certificate} {said}; renew it with: proxyfl deploy init {own_trial} --renew"
        in words
    )
    assert ("not trusted: its certificate has expired" in words) == (days < 0)
    run = invoke("deploy", "run", own_trial)
    assert run.exit_code == 2
    assert ("has expired; renew it with" in run.stderr) == (days < 0)
    site = made.site("site-01")
    monkeypatch.setattr(pki, "days_left", lambda file: 3)
    note, _ = expiry.of_site(site)
    assert f"{site.certificate} expires in 3 days" in note
    checked = invoke("deploy", "check", own_trial / "sample" / "site-01.npz", "--site", site.path)
    assert "expires in 3 days; ask the federation's operator" in " ".join(checked.stdout.split())


def test_a_site_is_removed_before_a_run_and_locked_out_in_one(own_trial, monkeypatch):
    from proxyfl.deploy import operate, rotation
    from proxyfl.deploy.roster import site_keys
    from proxyfl.deploy.settings import Deployment

    done = invoke("deploy", "remove-site", own_trial, "site-02")
    assert done.exit_code == 0, done.stderr
    assert "site-02 is removed" in done.stdout
    assert "per_round is now 2, it was 3" in done.stdout
    made = Deployment.read(own_trial)
    assert made.sites == ("site-01", "site-03")
    assert (own_trial / "removed" / "site-02" / "site.pub").is_file()

    made.run.mkdir()
    done = invoke("deploy", "remove-site", own_trial, "site-03")
    assert "continues without site-03" in done.stdout
    assert "no round can count" in " ".join(done.stdout.split())
    made = Deployment.read(own_trial)
    assert made.sites == ("site-01", "site-03")
    assert list(site_keys(made).values()) == [0]
    again = invoke("deploy", "remove-site", own_trial, "site-03")
    assert again.exit_code == 2
    assert "was removed already" in again.stderr
    only = invoke("deploy", "remove-site", own_trial, "site-01")
    assert "site-01 is the only site" in only.stderr
    rotation.renew(own_trial)
    status = invoke("deploy", "status", own_trial)
    assert "removed" in status.stdout

    made.run.rename(own_trial / "run-1")
    status = invoke("deploy", "status", own_trial)
    assert "site-03 leaves the list of sites" in " ".join(status.stdout.split())
    assert "site-03" not in status.stdout.split("note:")[0]
    assert Deployment.read(own_trial).sites == ("site-01", "site-03"), "a look changes nothing"
    monkeypatch.setattr(operate, "require_server", lambda *words: None)
    monkeypatch.setattr(operate, "submit", lambda deployment: str(deployment.sites))
    begun = invoke("deploy", "run", own_trial, "--detach")
    assert begun.exit_code == 0, begun.stderr
    assert "quorum is now 1, it was 2" in begun.stderr
    assert "run ('site-01',) started" in begun.stderr
    made = Deployment.read(own_trial)
    assert (made.sites, made.quorum, made.config.federation.per_round) == (("site-01",), 1, 1)


def test_a_finished_run_says_how_to_start_another(own_trial, monkeypatch):
    from proxyfl.deploy import status

    monkeypatch.setattr(status, "is_over", lambda deployment: True)
    done = invoke("deploy", "run", own_trial)
    assert done.exit_code == 2
    assert f"{own_trial / 'run'} is finished; results: proxyfl show {own_trial / 'run'}" in done.stderr
    assert "for another run move that folder away" in done.stderr


def test_labels_at_the_server_are_named_checked_and_told(trial: Path, tmp_path: Path) -> None:
    labelled = trial / "sample" / "test.npz"
    words = ("--method", "semifl", "--scenario", "server", "--server-data", labelled)
    done = invoke("deploy", "init", "clinic", *words)
    assert done.exit_code == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert f"All labels are at the server ({labelled})" in told
    assert "accuracy comes from the 20%" in told
    found = Deployment.read(tmp_path / "clinic")
    assert (found.scenario, found.server_data, found.site("site-01").holdout) == ("server", str(labelled), 0)
    assert "All labels are at the server" in (found.path / "README.md").read_text()
    assert "No labels are needed" in (found.path / "site-01" / "README.md").read_text()
    at_site = invoke("deploy", "check", labelled, "--site", found.path / "site-01")
    assert "the labels of 497 images" in at_site.stdout
    at_server = invoke("deploy", "check", labelled, "--server", found.path)
    assert "all classes       398        99" in at_server.stdout
    without = invoke("deploy", "check", trial / "sample" / "site-01.npz", "--server", found.path)
    assert "note: 390 images without a label are not used" in without.stdout
    neither = invoke("deploy", "check", labelled)
    assert (neither.exit_code, "specify whose images these are" in neither.stderr) == (2, True)
    missing = invoke("deploy", "init", "other", *words[:4])
    assert (missing.exit_code, "needs the server's labelled images" in missing.stderr) == (2, True)
    assert not (tmp_path / "other").exists()


def test_a_sample_has_what_the_server_and_labelled_sites_hold(tmp_path: Path) -> None:
    small = ("--sites", "3", "--sample", "--set", "data.subset=120")
    done = invoke("deploy", "init", "one", *small, "--method", "semifl", "--scenario", "server")
    assert done.exit_code == 0, done.stderr
    assert Deployment.read(tmp_path / "one").server_data == "sample/server.npz"
    done = invoke("deploy", "init", "two", *small, "--method", "fedavg", "--scenario", "partial")
    assert done.exit_code == 0, done.stderr
    said = [
        invoke("deploy", "check", tmp_path / f"two/sample/{name}.npz", "--site", tmp_path / "two" / name)
        for name in Deployment.read(tmp_path / "two").sites
    ]
    assert sum("takes part with labels" in one.stdout for one in said) == 1
    assert sum("takes part without labels" in one.stdout for one in said) == 2
