"""What the consoles of real programs say: clocks that are wrong, data that grew, sites that were removed."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment, loopback, wait_for

from proxyfl.deploy import pki
from proxyfl.deploy.site_data import write_npz
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux"),
]

CLOCKS = {
    3600: r"this machine's clock is 36\d\d s ahead of the server's; set it right",
    -600: r"this machine's clock is (59|60)\d s behind the server's; set it right",
    -3 * 86400: r"this machine's clock is behind by 7\d\.\d hours or more: .* set it right",
    4000 * 86400: "the server's certificate has ended, or this machine's clock is far ahead",
}
"""What a site says whose clock is ahead by so many seconds."""


@pytest.fixture
def wrong_clock(tmp_path):
    """The words before a command that is to have another time of day, by seconds."""
    source, library = Path(__file__).with_name("clock.c"), tmp_path / "clock.so"
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return lambda seconds: ["env", f"LD_PRELOAD={library}", f"CLOCK_OFF_BY={seconds}"]


def test_a_wrong_clock_is_named_with_its_difference_and_once_right_the_site_connects(tmp_path, wrong_clock):
    config = experiment("fedavg", clients=len(CLOCKS), per_round=2, subset=80, labels__per_class=4)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.server()
        for client, seconds in enumerate(CLOCKS):
            federation.site(client, before=wrong_clock(seconds))
        for name, wanted in zip(made.sites, CLOCKS.values(), strict=True):
            site = federation.started[name]
            wait_for(lambda site=site, wanted=wanted: re.search(wanted, site.text()), f"{name}: {wanted}")
            assert f"{name} waits: " in site.text()
            assert site.process.poll() is None
            assert "is connected" not in site.text()
            assert "Traceback" not in site.text()
            site.kill()
        federation.wait_text(federation.site(0), "site-01 is connected")


def more_images(file, config):
    """A site's data with images that it did not have when it enrolled."""
    dataset = prepare(config).dataset
    write_npz(file, dataset.train.images[:60], dataset.train.labels[:60], dataset.classes)


def test_grown_data_a_removed_site_and_certificates_that_end_are_told(tmp_path, monkeypatch):
    """And nobody's home folder is written to; what is kept is for its owner alone."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pki, "CA_DAYS", 10)
    config = experiment("fedavg", rounds=500, clients=3, per_round=3, subset=80, labels__per_class=4)
    made = deployment(tmp_path / "federation", config, quorum=1)
    pair, authority = (made.server_certificate, made.server_key), (made.ca_certificate, made.ca_key)
    pki.issue_server(*pair, authority, ["127.0.0.1"], days=10, renew=True)
    with loopback(made) as federation:
        server = federation.server()
        renewal = f"server.crt ends in 9 days; renew it with: proxyfl deploy init {made.path} --renew"
        federation.wait_text(server, renewal)
        federation.move_sites(tmp_path / "elsewhere")
        federation.sites()
        for name in made.sites:
            soon = "site.crt ends in 8 days; ask the federation's operator for a new one"
            federation.wait_text(federation.started[name], soon)
            federation.wait_text(federation.started[name], f"{name} is connected")
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round")
        app, key = re.search(
            r"sites run the app (\w{8}), signed by the operator's key (\S+)", server.text()
        ).groups()
        for name in made.sites:
            assert f"running the server's app {app}" in federation.started[name].text()
            assert f"signed by the operator's key {key}" in federation.started[name].text()

        more_images(federation.folder / "data-2.npz", config)
        grown = federation.started["site-03"]
        federation.wait_text(grown, "site-03: the server did not use this site's answer, round ")
        federation.wait_text(grown, "refused: claims 60 images, registered ")
        federation.wait_text(server, "refused: site-03")

        removed = federation.started["site-02"]
        done = federation.finish(federation.start("remove", "deploy", "remove-site", made.path, "site-02"))
        assert "the run keeps its list of sites and goes on without site-02" in done
        federation.wait_text(removed, "site-02 waits: ")
        at = federation.checkpoint()
        wait_for(lambda: federation.checkpoint() > at + 1, "the run goes on without it")
        assert Run(made.run).metrics[-1]["clients"] == [0]
        assert removed.process.poll() is None
        assert "removed" in federation.finish(federation.start("status", "deploy", "status", made.path))

        federation.finish(federation.start("stop", "deploy", "stop", made.path, "--now"))
        run.process.wait(60)
        made.run.rename(tmp_path / "moved away")
        told = federation.finish(federation.start("status", "deploy", "status", made.path))
        assert f"the run has not begun; start it with: proxyfl deploy run {made.path}" in told
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), name
    assert list(home.rglob("*")) == []
    for state in (made.state, tmp_path / "elsewhere" / "site-01" / "state"):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
