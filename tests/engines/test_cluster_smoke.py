"""A Ray cluster of one node that lives as long as the rounds: the same bits as one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyfl import RayEngine
from proxyfl.core.state import ServerState
from proxyfl.runs import build
from toybox import make_simulation, play, same_bits, same_state, tiny_config

pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'proxyfl[ray]'")
SIMULATION = make_simulation((6, 6, 6, 6), (26, 42, 10, 26))


def test_a_cluster_of_one_node_gives_the_same_bits_and_keeps_client_states_with_the_run(
    tmp_path: Path,
) -> None:
    config = tiny_config("fedloke", rounds=2, per_round=3)
    here = play(config, SIMULATION, tmp_path / "inline")
    engine = RayEngine("local", workers=1)
    federation = build.assemble(config, SIMULATION, engine=engine)
    federation.settle(tmp_path / "ray")
    for _ in federation.rounds():
        pass
    assert same_state(here, federation.state)
