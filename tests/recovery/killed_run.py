"""A small run in a process of its own, to be killed: ``python killed_run.py run|resume DIRECTORY``.

Its method keeps state for every client and lets it show in the weights, on top of all that ProxyFL keeps.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

import proxyfl
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.methods.proxyfl import ProxyFL

SETTINGS: dict[str, Any] = {
    "rounds": 10,
    "clients": 6,
    "per_round": 3,
    "subset": 120,
    "width": 1,
    "train__epochs": 1,
    "train__batch": 8,
    "method__tau": 0.3,
    "method__gpt__epochs": 20,
    "keep__snapshot_every": 4,
}


class Counting(ProxyFL):
    """ProxyFL whose loss depends on how often the client took part."""

    name = "counting"
    keeps = "how often it took part"

    def begin(self, ctx: ClientContext) -> None:
        ctx.state = {"times": ctx.state.get("times", torch.zeros(())) + 1}

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        smaller = 0.01 * ctx.state["times"] * outputs.logits.square().mean()
        return {**super().losses(outputs, ctx), "times": smaller}


def register() -> None:
    recipe = proxyfl.Recipe("counting", "ProxyFL with a state that matters", Counting, ("icpl", "gpt"))
    proxyfl.register_method(recipe)


def main(verb: str, directory: str) -> None:
    register()
    torch.set_num_threads(1)
    experiment = proxyfl.Experiment("counting", "digits", **SETTINGS)
    print("ready", flush=True)
    if verb == "run":
        experiment.run(directory)
    else:
        proxyfl.resume(directory)
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
