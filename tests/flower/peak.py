"""What training one client takes of memory, and what was estimated before: ``peak.py METHOD NETWORK BATCH``.

A process of its own, since what a process has taken never shrinks. Prints JSON: bytes before the round, the
estimate, and the peak after it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from loopback import experiment  # noqa: E402
from test_site_limits import trainer_for  # noqa: E402

from proxyfl.core.machine import peak_memory  # noqa: E402
from proxyfl.core.state import Task  # noqa: E402
from proxyfl.engines.flower import limits  # noqa: E402
from proxyfl.runs.simulation import prepare  # noqa: E402


def main(method: str, network: str, batch: int) -> None:
    torch.set_num_threads(1)
    config = experiment(
        method, clients=2, per_round=2, subset=800, model__name=network, width=4, train__batch=batch
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_for(config, Path(folder))
        data = prepare(config).holdings.client(0)
        before, estimated = limits._resident(), limits.estimate(trainer)
        trainer.train(Task(1, 0, trainer.initial_weights()), data)
    print(json.dumps({"before": before, "estimated": estimated, "peak": peak_memory()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
