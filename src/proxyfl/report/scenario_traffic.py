"""What a round of every method sends in a scenario, counted from the tensors that it declares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from proxyfl.core.dealing import PARTIAL, SERVER
from proxyfl.core.errors import MethodError
from proxyfl.core.state import detached
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext
from proxyfl.report.communication import Setting

FACTS = {
    SERVER: ("the server's labelled images and its own training cause no traffic: they stay at the server"),
    PARTIAL: (
        "labelled and unlabelled clients send the same; methods that need labels sample only labelled clients"
    ),
}


@dataclass(frozen=True)
class Sent:
    """Numbers that a client of a round sends and receives, buffers included; ``why`` explains what is not
    counted.
    """

    method: str
    up: int
    down: int
    why: str = ""


def facts(where: str) -> list[str]:
    """What a scenario's table cannot tell."""
    most = {recipe.name: registry.create(recipe.name).most_trainings for recipe in registry.recipes(where)}
    again = [
        f"{name}: counted for one training; a client may train, and send its weights, {times} times per round"
        for name, times in most.items()
        if times > 1
    ]
    return [*([FACTS[where]] if where in FACTS else []), *again]


def sent_in(where: str, setting: Setting) -> list[Sent]:
    """Every method that is defined in a scenario, in the order of registration."""
    found = []
    for recipe in registry.recipes(where):
        method = registry.create(recipe.name)
        if where == SERVER and method.needs_labels:
            found.append(Sent(recipe.name, 0, 0, "asks no client"))
            continue
        try:
            found.append(Sent(recipe.name, *numbers(method, setting)))
        except MethodError as error:
            found.append(Sent(recipe.name, 0, 0, str(error)))
    return found


def numbers(method: Method, setting: Setting) -> tuple[int, int]:
    """(sent by a client, received by it) in the first round."""
    with torch.random.fork_rng(devices=[]):  # initialising draws from the global generator
        state = detached(setting.build(heads=method.needs_heads).state_dict())
    weights = method.initial(method.shared(state))
    ctx = ServerContext(1, 1, setting.classes, torch.device("cpu"), weights, {}, weights)
    ctx.extras = method.start_all(ctx)
    size = sum(value.numel() for value in weights.values())
    up = size + sum(math.prod(shape) for shape in method.extras_form_all(ctx).values())
    broadcast = (value.numel() for name, value in ctx.extras.items() if "/_" not in name)
    personal = (value.numel() for value in method.task_extras_all(ctx, 0).values())
    return up, size + sum(broadcast) + sum(personal)
