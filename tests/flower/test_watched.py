"""A real federation that is watched: OpenMetrics while it runs, the matrix of models and sites, limits."""

from __future__ import annotations

import dataclasses
import json
import sys
import urllib.request

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment, free_port, loopback, wait_for

from calling import invoke
from proxyfl.deploy.openmetrics import token_of
from proxyfl.deploy.settings import Site
from proxyfl.results.sites import matrix
from proxyfl.runs.run import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def scraped(made) -> dict[str, float]:
    """The samples that the server serves now, by name and labels."""
    headers = {"Authorization": f"Bearer {token_of(made)}"}
    request = urllib.request.Request(f"http://{made.metrics}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def allow(made, name, **settings):
    dataclasses.replace(Site.read(made.path / name), **settings).write()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_federation_is_watched_and_its_models_are_measured_at_every_site(tmp_path):
    config = experiment("fedavg", rounds=3, clients=3, per_round=3, keep__metrics="all")
    address = f"127.0.0.1:{free_port()}"
    made = deployment(tmp_path / "f", config, test="", holdout=0.3, metrics=address)
    allow(made, "site-01", share_model=True, max_kbit=4000, max_memory_mb=20_000, max_seconds=600.0)
    allow(made, "site-02", send_scores=False)
    allow(made, "site-03", max_memory_mb=1)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        run = federation.run()
        wait_for(lambda: scraped(made).get("proxyfl_round_begun", 0) >= 1, "no round was begun")
        wait_for(lambda: scraped(made).get("proxyfl_round", 0) >= 1, "no round was finished")
        found = scraped(made)
        assert found["proxyfl_run_running"] == 1
        assert found['proxyfl_site_connected{site="site-01"}'] == 1
        assert found['proxyfl_site_received_bytes_total{site="site-01"}'] > 100_000
        federation.finish(run)
        assert "limits of site.toml: 20,000 MB of memory" in federation.started["site-01"].text()
        found = scraped(made)
        assert found["proxyfl_run_finished"] == 1
        assert found["proxyfl_round"] == 3
        assert found['proxyfl_site_rounds_total{site="site-03",outcome="refused"}'] == 3
        assert found['proxyfl_site_rounds_total{site="site-01",outcome="answered"}'] == 3
        assert found["proxyfl_seconds_total"] > 0
        told = json.loads(invoke("deploy", "status", made.path, "--json").stdout)
    assert told["server"] == "up"
    assert [site["node"] for site in told["sites"]] == ["online"] * 3
    assert told["sites"][0]["last_answer"]["round"] == 3
    line = Run(made.run).metrics[-1]
    assert "training needs about" in line["failed"]["2"]
    within_limits = {"site-01", "site-02"}  # the third has no memory to measure, either
    assert set(line["evaluation"]["at"]) == within_limits
    assert "auroc" in line["evaluation"]["at"]["site-01"]
    assert "auroc" not in line["evaluation"]["at"]["site-02"]
    rows = {row.model: row for row in matrix(Run(made.run)).rows}
    assert set(rows["of site-01"].at) == within_limits
    assert "of site-02" not in rows
    assert "of site-01" in invoke("show", made.run, "--sites").output
