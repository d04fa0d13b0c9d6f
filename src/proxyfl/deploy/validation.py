"""What a real federation cannot do, and why. Reasons come from a method's hooks, not from its name."""

from __future__ import annotations

from proxyfl.core.config import Config
from proxyfl.core.dealing import SERVER
from proxyfl.core.errors import ConfigError
from proxyfl.methods import registry
from proxyfl.methods.base import Method, overrides

NOT_OFFERED = (
    "secure aggregation is not offered: Flower has it for its legacy strategies alone, and what they hand to "
    "a server is every site's update replaced by the mean"
)


def reads_single_sites(method: Method) -> list[str]:
    """Why the server needs the updates of single sites: one reason per hook that looks at them."""
    reasons = []
    for part in method.parts:
        if overrides(part, "receive"):
            reasons.append(f"{part.name} keeps tensors of each site's update")
        if overrides(part, "task_extras"):
            reasons.append(f"{part.name} sends each site something of its own")
    if overrides(method, "weights") or method.needs_all_updates:
        reasons.append(f"{method.name} weighs sites by what they sent")
    elif overrides(method, "weight_of"):
        reasons.append(f"{method.name} weighs each update by itself")
    return reasons


def secure_aggregation(method: Method) -> str:
    """Why secure aggregation is refused with this method."""
    reasons = reads_single_sites(method)
    why = f"; {method.name} could not use it either: {', '.join(reasons)}" if reasons else ""
    return f"{NOT_OFFERED}{why}; take the setting out"


def open_updates(method: Method) -> str:
    """That the server sees the update of every site, and what of it this method needs."""
    reasons = reads_single_sites(method)
    needs = (
        f"this method needs them: {', '.join(reasons)}" if reasons else "this method needs only their mean"
    )
    return f"the server sees the update of every single site (secure aggregation is not offered); {needs}"


def check_experiment(config: Config) -> None:
    """Refuse experiments that make sense in a simulation alone."""
    method = registry.method_of(config)
    if method.oracle:
        raise ConfigError(
            f"method '{method.name}' is given the true labels of unlabelled images, which no site has; "
            "choose another method"
        )
    if config.labels.where == SERVER and method.needs_labels:
        raise ConfigError(
            f"method '{method.name}' asks no site for anything where labels are at the server; train it with "
            "'proxyfl run' on the server's images, or choose another method"
        )
    if config.model.weights and (method.recalls_start or method.all_private):
        raise ConfigError(
            f"model.weights: a site's own part of {method.name} begins as the seed initialises it, since no "
            "site has the weights that the server starts from; take the setting out"
        )
    if config.train.leak_momentum:
        raise ConfigError(
            "train.leak_momentum hands one site's momentum to the next, which real sites do not; set it to "
            "false"
        )
    if config.privacy.is_on and config.privacy.draw == "seed":
        raise ConfigError(
            "privacy.draw = 'seed': every site knows the seed and could remove the noise; set it to 'system'"
        )
    if config.data.validation:
        raise ConfigError(
            "data.validation is for simulations; sites hold out images with holdout in federation.toml"
        )
    if config.data.norm == "release":
        raise ConfigError(
            "data.norm = 'release' normalises training and test images differently; set it to 'own': "
            "mean and std of federation.toml are used"
        )


def check_server_data(config: Config, server_data: str) -> None:
    """Labelled images of the server are there where the scenario needs them, and only there."""
    where = config.labels.where
    if where == SERVER and not server_data:
        raise ConfigError(
            "labels.where = 'server' needs the server's labelled images; name them: --server-data PATH of "
            "'proxyfl deploy init', or server_data = 'PATH' in federation.toml"
        )
    if where != SERVER and server_data:
        raise ConfigError(
            f"server_data is set, but labels.where = '{where}'; set that to 'server' (--scenario server), or "
            "take server_data out"
        )
