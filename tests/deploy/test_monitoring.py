"""What watches a federation: the overview of its files, OpenMetrics, the dashboard file, status --json."""

from __future__ import annotations

import dataclasses
import json
import re
import ssl
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from calling import invoke
from proxyfl.core.errors import ConfigError
from proxyfl.deploy import openmetrics, overview
from proxyfl.deploy.entrance import free_port
from proxyfl.deploy.live import LIVE_FILE, LiveLog
from proxyfl.deploy.openmetrics import FAMILIES, grafana, render, samples, served, token_of
from proxyfl.deploy.overview import Overview
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.tally import Count, Tally, read_tally

SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (-?[0-9.e+-]+)')


@pytest.fixture
def deployed(tmp_path):
    """Set up, nothing begun."""
    assert invoke("deploy", "init", tmp_path / "f", "--sites", "2", "--classes", "a,b").exit_code == 0
    return Deployment.read(tmp_path / "f")


def written(deployed, **more):
    """With another federation.toml."""
    changed = dataclasses.replace(deployed, **more)
    changed.write()
    return changed


def families(text):
    """The metrics of a text, which must be OpenMetrics: every sample below its type, the end at the end."""
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    kinds, current = {}, ""
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split()
            assert current not in kinds
            kinds[current] = kind
        elif not line.startswith("# HELP "):
            name = SAMPLE.fullmatch(line).group(1)
            ending = {"counter": "_total", "info": "_info"}.get(kinds[current], "")
            assert name == current + ending
    return kinds


def test_a_federation_that_has_not_begun_has_an_overview(deployed):
    found = Overview(deployed.path).look()
    assert found["run"]["state"] == "not begun"
    assert [site["state"] for site in found["sites"]] == ["not seen", "not seen"]
    assert found["certificates"].keys() == {"server", "authority", "site-01", "site-02"}
    assert found["certificates"]["server"] > 800
    json.dumps(found, allow_nan=False)
    assert families(render(found))["proxyfl_certificate_days"] == "gauge"


def test_the_page_of_a_federation_without_a_run_says_who_is_missing(deployed):
    tally = Tally(deployed.state)
    deployed.state.mkdir(exist_ok=True)
    tally.note("site-01", 200, 1000, 20)
    tally.save()
    watch = Overview(deployed.path)
    page = watch.page()
    assert (page["run"]["state"], page["run"]["round"], page["run"]["begun"]) == ("not begun", 0, 0)
    seen, unseen = page["sites"]
    assert (seen["name"], seen["state"], seen["approval"]) == ("site-01", "connected", None)
    assert abs(seen["seen"] - time.time()) < 30
    assert (unseen["name"], unseen["state"], unseen["seen"]) == ("site-02", "not seen", None)

    live = LiveLog(deployed.state / LIVE_FILE, deployed.sites, "7")

    def approvals():
        return [site["approval"] for site in watch.page()["sites"]]

    live.tell("note", text="site-01 takes part: 5 labelled, 3 unlabelled")
    live.tell("note", text="site-02 cannot take part: the site's owner did not approve rounds = 9")
    assert approvals() == ["given", "missing"]
    live.tell("note", text="site-02 takes part from now on")
    live.tell("failed", client=0, text="round 1: site-01 left out: the site's owner did not approve the app")
    assert approvals() == ["missing", "given"]
    live.tell("failed", client=1, text="round 1: site-02 is not connected")
    live.tell("answered", client=0, round=2, time=1.0)
    assert approvals() == ["given", "given"]
    asks = "the site's owner did not approve the app; approve it before this site takes part"  # its words
    live.tell("note", text=f"site-01 cannot take part: {asks}")
    live.tell("failed", client=1, text=f"round 2: site-02 left out: {asks}")
    assert approvals() == ["missing", "missing"]
    live.tell("note", text="site-01 takes part from now on")
    live.tell("note", text="site-01 did not answer yet: it did not run the app: its owner did not approve it")
    assert approvals() == ["missing", "missing"]
    json.dumps(watch.page(), allow_nan=False)


def test_the_dashboard_opens_before_the_run_exists(deployed, monkeypatch):
    served_pages = []

    def serve(server):
        served_pages.append(json.loads(server.listing()))
        server.stop()

    monkeypatch.setattr("proxyfl.report.dashboard.server.serve", serve)
    done = invoke("dashboard", deployed.path, "--port", "0")
    assert done.exit_code == 0, done.stderr
    assert "no round yet" in done.stdout
    assert "/run?" not in done.stdout
    (told,) = served_pages
    assert told["runs"] == []
    assert [site["name"] for site in told["federation"]["sites"]] == ["site-01", "site-02"]
    (deployed.path / "run").mkdir()
    assert invoke("dashboard", deployed.path).exit_code == 2


def test_what_happens_in_a_round_is_seen_site_by_site(deployed, monkeypatch):
    live = LiveLog(deployed.state / LIVE_FILE, deployed.sites, "7")
    watch = Overview(deployed.path)
    monkeypatch.setattr(overview.RunDirectory, "is_locked", lambda self: True)
    live.tell("began")
    live.round_started(3, [0, 1])
    found = watch.look()
    assert found["run"]["begun"] == 3
    assert [site["doing"] for site in found["sites"]] == ["training round 3", "training round 3"]
    live.tell("answered", round=3, client=1, site="site-02", bytes=1234, seconds=2.5)
    live.tell("failed", round=3, client=0, site="site-01", text="round 3: site-01 was late")
    one, two = watch.look()["sites"]
    assert (one["doing"], two["doing"]) == ("left out of round 3", "answered round 3")
    assert two["last_answer"]["bytes"] == 1234
    assert two["state"] == "connected"
    live.tell("finished round", round=3)
    assert [site["doing"] for site in watch.look()["sites"]] == ["", ""]


def test_the_gate_counts_what_sites_send(deployed):
    tally = Tally(deployed.state)
    deployed.state.mkdir(exist_ok=True)
    tally.note("site-01", 200, 1000, 20)
    tally.note("site-01", 403, 5, 7)
    tally.turned_away()
    tally.save()
    assert read_tally(deployed.state)["site-01"] == Count(tally.counts["site-01"].seen, 2, 1005, 27, 1)
    found = Overview(deployed.path).look()
    assert found["sites"][0]["gate"] == {"received": 1005, "sent": 27, "refused": 1}
    assert found["sites"][0]["state"] == "connected"
    assert found["strangers_refused"] == 1
    tally.counts["site-01"].seen = time.time() - 1000
    tally.changed = True
    tally.save()
    assert Overview(deployed.path).look()["sites"][0]["state"] == "offline"
    tally.file.write_text("{")
    assert read_tally(deployed.state) == {}


def test_every_metric_of_the_dashboard_file_exists_and_all_are_shown():
    board = json.loads(grafana())
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts = [*targets, json.dumps(board["templating"])]
    named = {name for text in texts for name in re.findall(r"proxyfl_[a-z_]+", text)}
    endings = {"counter": "_total", "info": "_info"}
    served_as = {name + endings.get(kind, "") for name, (kind, _) in FAMILIES.items()}
    assert named == served_as
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_texts_of_others_cannot_break_a_line(deployed):
    found = Overview(deployed.path).look()
    found["name"] = 'a"b\\c\nd'
    assert 'federation="a\\"b\\\\c\\nd"' in render(found)
    families(render(found))
    assert {name for name, _, _ in samples(found)} <= FAMILIES.keys()


def ask(address, token="", path="/metrics", context=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_metrics_are_served_on_the_loopback_device_to_whoever_has_the_token(deployed, monkeypatch):
    said = []
    with served(deployed, said.append) as nothing:
        assert nothing is None
        assert not (deployed.state / "metrics.token").exists()
    with served(written(deployed, metrics=f"127.0.0.1:{free_port()}"), said.append) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        token = token_of(deployed)
        assert (deployed.state / "metrics.token").stat().st_mode & 0o777 == 0o600
        kind, text = ask(address, token)
        assert kind.startswith("application/openmetrics-text")
        assert "proxyfl_rounds" in families(text)
        assert json.loads(ask(address, token, "/grafana.json")[1])["title"] == "proxyfl federation"
        for wrong, path, status in (
            ("", "/metrics", 401),
            ("no" * 20, "/metrics", 401),
            (token, "/state", 404),
        ):
            with pytest.raises(urllib.error.HTTPError, match=str(status)):
                ask(address, wrong, path)
        assert token not in "".join(said)
        port = f"127.0.0.1:{server.server_address[1]}"
        with (
            pytest.raises(ConfigError, match="cannot be served"),
            served(written(deployed, metrics=port), print),
        ):
            pass
    assert token_of(deployed) == token


def test_elsewhere_metrics_are_served_with_tls(deployed):
    with served(written(deployed, metrics=f"0.0.0.0:{free_port()}"), lambda text: None) as server:
        port = server.server_address[1]
        trust = ssl.create_default_context(cafile=str(deployed.ca_certificate))
        assert "# EOF" in ask(f"https://localhost:{port}", token_of(deployed), context=trust)[1]
        with pytest.raises(OSError):
            ask(f"http://localhost:{port}", token_of(deployed))
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(f"https://localhost:{port}", token_of(deployed), context=ssl.create_default_context())


def test_without_certificates_only_this_machine_is_served(deployed):
    bare = dataclasses.replace(deployed, insecure=True, metrics=f"0.0.0.0:{free_port()}")
    with pytest.raises(ConfigError, match="only localhost"), openmetrics.served(bare, print):
        pass


def test_status_for_other_programs(deployed, monkeypatch):
    monkeypatch.setattr("proxyfl.deploy.operate.answers", lambda *_: False)
    found = json.loads(invoke("deploy", "status", deployed.path, "--json").output)
    assert found["server"] == "down"
    assert [site["name"] for site in found["sites"]] == ["site-01", "site-02"]
    assert found["run"]["state"] == "not begun"
