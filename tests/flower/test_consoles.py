"""What the consoles of real programs say: wrong clocks, ended certificates, grown data, replaced keys, sites
that were removed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PATIENCE, deployment, experiment, loopback, wait_for

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
    4000 * 86400: "the server's certificate has expired, or this machine's clock is far ahead",
}
"""What a site says whose clock is ahead by so many seconds."""


@pytest.fixture
def wrong_clock(clock):
    """The words before a command that is to have another time of day, by seconds."""
    return lambda seconds: ["env", clock, f"CLOCK_OFF_BY={seconds}"]


def end_at_once(monkeypatch, made, name):
    """Give a site a certificate that has expired, signed by the federation's authority."""
    site = made.site(name)
    with monkeypatch.context() as patch:
        patch.setattr(pki, "days_left", lambda authority: 0)
        pki.issue_site(site.certificate, site.public_key, (made.ca_certificate, made.ca_key), name)


def test_wrong_clocks_and_ended_certificates_are_named_and_once_right_the_site_connects(
    tmp_path, wrong_clock, monkeypatch
):
    config = experiment("fedavg", clients=len(CLOCKS) + 1, per_round=2, subset=80, labels__per_class=4)
    made = deployment(tmp_path / "federation", config)
    end_at_once(monkeypatch, made, made.sites[-1])
    with loopback(made) as federation:
        federation.server()
        for client, seconds in enumerate(CLOCKS):
            federation.site(client, before=wrong_clock(seconds))
        for name, wanted in zip(made.sites, CLOCKS.values(), strict=False):
            site = federation.started[name]
            wait_for(lambda site=site, wanted=wanted: re.search(wanted, site.text()), f"{name}: {wanted}")
            assert f"{name} waits: " in site.text()
            assert site.process.poll() is None
            assert "is connected" not in site.text()
            assert "Traceback" not in site.text()
            site.kill()

        late = federation.site(len(CLOCKS))
        ended = f"{made.site(made.sites[-1]).certificate} expired 1 day(s) ago; ask the federation's operator"
        federation.wait_text(late, f"note: {ended}")
        federation.wait_text(late, f"{made.sites[-1]} waits: {ended}")
        assert late.process.poll() is None
        first = federation.site(0)
        federation.wait_text(first, "site-01 is connected")

        # The server's own: it is named wherever one looks, and renewed as the words say.
        federation.started["server"].kill()
        pair, authority = (made.server_certificate, made.server_key), (made.ca_certificate, made.ca_key)
        pki.issue_server(*pair, authority, ["127.0.0.1"], days=0, renew=True)
        for verb in ("server", "run"):
            refused = federation.start(verb, "deploy", verb, made.path)
            assert refused.process.wait(PATIENCE) == 2
            assert f"{made.server_certificate} has expired; renew it with" in refused.text()
        looked = federation.finish(federation.start("status", "deploy", "status", made.path))
        assert "not trusted: its certificate has expired" in looked
        federation.finish(federation.start("renew", "deploy", "init", made.path, "--renew"))
        federation.server()
        wait_for(lambda: first.text().count("site-01 is connected") == 2, "it connects again by itself")
        late.kill()
        federation.wait_text(federation.site(len(CLOCKS)), f"{made.sites[-1]} is connected")


def more_images(file, config):
    """A site's data with images that it did not have when it enrolled."""
    dataset = prepare(config).dataset
    write_npz(file, dataset.train.images[:60], dataset.train.labels[:60], dataset.classes)


def test_grown_data_replaced_keys_a_removed_site_and_certificates_that_end_are_told(
    tmp_path, monkeypatch, request
):
    """And nobody's home folder is written to; what is kept is for its owner alone, whatever the umask."""
    home = tmp_path / "home"
    home.mkdir()
    usual = os.umask(0)
    request.addfinalizer(lambda: os.umask(usual))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pki, "CA_DAYS", 10)
    config = experiment("fedavg", rounds=500, clients=3, per_round=3, subset=80, labels__per_class=4)
    made = deployment(tmp_path / "federation", config, quorum=1)
    pair, authority = (made.server_certificate, made.server_key), (made.ca_certificate, made.ca_key)
    pki.issue_server(*pair, authority, ["127.0.0.1"], days=10, renew=True)
    with loopback(made) as federation:
        server = federation.server()
        renewal = f"server.crt expires in 9 days; renew it with: proxyfl deploy init {made.path} --renew"
        federation.wait_text(server, renewal)
        federation.move_sites(tmp_path / "elsewhere")
        federation.sites()
        for name in made.sites:
            soon = "site.crt expires in 8 days; ask the federation's operator for a new one"
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
        assert "continues without site-02" in done
        unknown = "{0} waits: the server does not know the key of {0}: the site was removed, or its key was"
        federation.wait_text(removed, unknown.format("site-02"))
        at = federation.checkpoint()
        wait_for(lambda: federation.checkpoint() > at + 1, "the run goes on without it")
        assert Run(made.run).metrics[-1]["clients"] == [0]
        assert removed.process.poll() is None
        assert "removed" in federation.finish(federation.start("status", "deploy", "status", made.path))

        federation.finish(federation.start("stop", "deploy", "stop", made.path, "--now"))
        run.process.wait(60)
        kept = made.run.rename(tmp_path / "moved away")
        told = federation.finish(federation.start("status", "deploy", "status", made.path))
        assert f"proxyfl deploy run {made.path}" in told
        assert "finished" not in told

        # A key is replaced: the old one is locked out at once, the new one is in after a restart.
        federation.finish(federation.start("key", "deploy", "init", made.path, "--new-key", "site-03"))
        federation.wait_text(grown, unknown.format("site-03"))
        grown.kill()
        for file in ("site.key", "site.pub", "site.crt"):
            shutil.copy(made.path / "site-03" / file, federation.folder / "site-03" / file)
        # What was approved was signed with the old key.
        own = federation.folder / "site-03"
        federation.finish(federation.start("approve", "deploy", "approve", own, "--yes"))
        renewed = federation.site(2)
        federation.wait_text(renewed, "site-03 waits: the server has not registered the key of site-03 yet")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        federation.server()
        federation.wait_text(renewed, "site-03 is connected")
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), name
    assert list(home.rglob("*")) == []
    for place in (kept, made.state, federation.folder / "site-01" / "state"):
        for path in (place, *place.rglob("*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


SLOW = """
import os, pathlib, time
from proxyfl.federation.client import ClientTrainer

prompt = ClientTrainer.train

def train(self, task, data, *more, **named):
    while task.round == 2 and not pathlib.Path(os.environ["WAIT_FOR"]).exists():
        time.sleep(0.2)
    return prompt(self, task, data, *more, **named)

ClientTrainer.train = train
"""


def test_a_late_site_is_named_told_and_takes_part_again(tmp_path, monkeypatch):
    """Both consoles say round by round what happens; the server's words are kept from run to run."""
    monkeypatch.setenv("WAIT_FOR", str(tmp_path / "now"))
    plugin = tmp_path / "slow.py"
    plugin.write_text(SLOW)
    config = experiment("fedavg", rounds=500, clients=2, per_round=2, subset=80, labels__per_class=4)
    made = deployment(tmp_path / "federation", config, quorum=1, deadline=60.0)
    with loopback(made) as federation:
        server = federation.server()
        sites = federation.site(0), federation.site(1, plugin=str(plugin))
        for name, site in zip(made.sites, sites, strict=True):
            federation.wait_text(site, f"{name} is connected")
        run = federation.run()
        federation.wait_text(sites[1], "site-02: round 2: training")
        federation.wait_text(server, "late: site-02")
        line = re.search(
            r"^round 2: accuracy \S+, answered: site-01; late: site-02; .*$", server.text(), re.M
        )
        assert line, server.text()
        (tmp_path / "now").touch()
        told = (
            "site-02: the server did not use this site's answer, round 2: it had not arrived by the deadline"
        )
        federation.wait_text(sites[1], told)
        federation.wait_event(
            lambda event: event["event"] == "answered" and event["round"] > 2 and event["client"] == 1
        )
        assert re.search(r"site-01: round 2: trained in \S+ s, sending \d+ kB", sites[0].text())
        federation.finish(federation.start("stop", "deploy", "stop", made.path, "--now"))
        assert run.process.wait(PATIENCE) == 130
        federation.wait_text(federation.run(), "answered: ")
        assert line[0] in (made.state / "server.log").read_text()
        assert '"text": "round 2: ' in (made.state / "live.jsonl").read_text(), "kept over the second run"
