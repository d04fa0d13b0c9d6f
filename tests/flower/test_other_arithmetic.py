"""The server of a real federation that continues a run with another arithmetic says so."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment
from serving import connect, server, texts

from proxyfl.core import provenance
from proxyfl.runs.exact import OTHER
from proxyfl.runs.run import Run

pytestmark = pytest.mark.usefixtures("quick")


def test_a_server_with_other_arithmetic_says_and_records_it(tmp_path, monkeypatch):
    sizes = {"clients": 2, "per_round": 2, "subset": 80, "labels__per_class": 4}
    config = experiment("fedavg", model__name="little", rounds=2, **sizes)
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    killed = server(deployed, net)

    def killing(**about):
        if about:  # a round
            raise KeyboardInterrupt

    monkeypatch.setattr(killed.audit, "sign", killing)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    assert not any("last bits" in text for text in texts(deployed))
    reason = f"numerics {provenance.NUMERICS}, now 99"
    monkeypatch.setattr(provenance, "NUMERICS", 99)
    server(deployed, net).run()
    assert sum(f"last bits may differ ({reason})" in text for text in texts(deployed)) == 1
    (event,) = [line for line in Run(deployed.run).events if line["event"] == OTHER]
    assert (event["round"], event["reason"]) == (1, reason)
