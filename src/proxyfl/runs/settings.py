"""From a preset, a TOML file and overrides to one checked config with every value explicit."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from proxyfl import models
from proxyfl.aggregation.base import Aggregator
from proxyfl.aggregation.build import build_aggregator, require_sound
from proxyfl.core.config import Config, MethodSettings, TrainSettings, read_config
from proxyfl.core.dealing import SERVER
from proxyfl.core.errors import ConfigError, ProxyFLError
from proxyfl.core.machine import has_bf16
from proxyfl.core.network import FROZEN, ModelSettings
from proxyfl.core.settings import OBJECT, describe, known_fidelity
from proxyfl.core.trees import Tree, dotted, merge, table_in
from proxyfl.data import sources
from proxyfl.data.partition import require_scheme
from proxyfl.encoders.named import require_kind
from proxyfl.federation.records import check as check_records
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.runs.config_file import load_preset, text_at, to_toml
from proxyfl.runs.short_names import COMMON

PRECISIONS = ("fp32", "bf16")
"""What machines compute in."""


def resolve(preset: str = "", *layers: Mapping[str, Any]) -> Config:
    """Every setting with its value. ``layers`` are nested tables, later ones win; all win over the preset.

    A layer may name its preset itself, as a saved config does.
    """
    tree = merge(*layers)
    preset = preset or text_at(tree, "preset", "")
    base = load_preset(preset) if preset else {}
    fidelity = known_fidelity(text_at(tree, "fidelity", text_at(base, "fidelity", "clean")))
    suggested = base.pop("method", {})
    if _other_data(base, tree):
        base["labels"] = {key: value for key, value in base["labels"].items() if key != "ten_percent"}
    _require_places(tree, suggested)
    merged = merge(base, tree)
    if _is_own(merged) and "rule" not in table_in(tree, "labels"):
        merged = merge(merged, {"labels": {"rule": "stratified"}})
    config = read_config({**merged, "preset": preset}, fidelity)
    method = config.method.name
    if not tree.get("method", {}).get("name"):
        method = suggested.get("name", method)
    suggested = {key: value for key, value in suggested.items() if key != "name"}
    name, parameters = registry.resolve(method, config.method.parameters, fidelity, lenient=suggested)
    config = dataclasses.replace(config, method=MethodSettings(name, parameters))
    check(config)
    return with_dtype(config)


def _require_places(tree: Mapping[str, Any], suggested: Mapping[str, Any]) -> None:
    """Refuse a setting without its section or in another one's, and say where it belongs: ``tau`` is
    ``method.tau``, ``federation.clients`` is ``partition.clients``.
    """
    usual = Config().to_tree()
    given = [(key, key) for key in tree if key not in usual]
    for section, inner in usual.items():
        if section != "method" and isinstance(inner, Mapping):  # a method's own are checked with it
            given += [(f"{section}.{key}", key) for key in table_in(tree, section) if key not in inner]
    if not given:
        return
    name = table_in(tree, "method").get("name")
    with contextlib.suppress(ProxyFLError):
        usual["method"] = registry.resolve(str(name or suggested.get("name", "proxyfl")), {})[1]
    for full, key in given:
        known = [place for place in dotted(usual) if place.rpartition(".")[2] == key]
        known = [COMMON[key]] if key in COMMON else sorted(known, key=lambda place: place[:7] != "method.")
        if known:
            names = " or ".join(f"'{place}'" for place in known)
            raise ConfigError(f"unknown setting '{full}'; did you mean {names}?")


def with_dtype(config: Config) -> Config:
    """The config with ``compute.dtype = auto`` settled for this machine."""
    compute = config.compute
    if compute.dtype != "auto":
        return config
    settled = dataclasses.replace(compute, dtype=native_dtype(torch.device(compute.device)))
    return dataclasses.replace(config, compute=settled)


def native_dtype(device: torch.device) -> str:
    """What ``auto`` means on this machine: bf16 where there are instructions for it."""
    if device.type == "cuda":
        fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and has_bf16()
    return "bf16" if fast else "fp32"


def _other_data(base: Tree, tree: Tree) -> bool:
    """Whether a preset's protocol is used with another data set: its label counts do not fit that."""
    named = table_in(tree, "data").get("name")
    return "labels" in base and named is not None and named != base.get("data", {}).get("name")


def _is_own(tree: Tree) -> bool:
    """Whether the data is a person's own."""
    name = table_in(tree, "data").get("name")
    return isinstance(name, str) and sources.is_own(name)


def check(config: Config) -> None:
    """Settings that are well-formed but cannot be meant."""
    models.require(config.model.trained)
    if config.model.encoder:
        require_kind(config.model.encoder)
    elif config.model.head != ModelSettings().head:
        raise ConfigError(
            f"model.head = {config.model.head} is for frozen encoders; choose one as model.name"
        )
    sources.find(config.data.name)
    require_scheme(config.partition.scheme)
    if not (config.labels.ratio or config.labels.per_class):
        raise ConfigError("labels.ratio = 0 leaves no labelled image; give a share or labels.per_class")
    if config.data.subset == 0:
        raise ConfigError("data.subset = 0 keeps no image; give a share up to 1 or a count")
    method = registry.method_of(config)
    check_together(config, method, build_aggregator(config.aggregation, config.privacy))


def check_together(config: Config, method: Method, aggregator: Aggregator) -> None:
    """Settings that contradict each other or the method, whatever the names stand for."""
    federation, train = config.federation, config.train
    method.require(config.labels.where)
    if federation.per_round > config.partition.clients:
        raise ConfigError(
            f"federation.per_round = {federation.per_round} is more than "
            f"partition.clients = {config.partition.clients}; "
            f"lower it, as in --set federation.per_round={config.partition.clients}"
        )
    if federation.quorum > federation.per_round:
        raise ConfigError(
            f"federation.quorum = {federation.quorum} can never be reached with "
            f"federation.per_round = {federation.per_round}"
        )
    try:
        torch.device(config.compute.device)
    except RuntimeError:
        raise ConfigError(
            f"compute.device = '{config.compute.device}' is not a device; use cpu, cuda, cuda:1 or mps"
        ) from None
    if train.nesterov and (train.optimiser != "sgd" or not train.momentum):
        raise ConfigError("train.nesterov needs train.optimiser = 'sgd' and train.momentum above 0")
    if train.leak_momentum and train.optimiser != "sgd":
        raise ConfigError("train.leak_momentum passes on the momentum of SGD; set it to false for AdamW")
    if train.keep_momentum != "none" and (train.optimiser != "sgd" or train.leak_momentum):
        raise ConfigError(
            "train.keep_momentum keeps the momentum of SGD where it is; set train.optimiser = 'sgd' and "
            "train.leak_momentum = false"
        )
    if train.keep_momentum == "server" and config.labels.where != SERVER:
        raise ConfigError(
            "train.keep_momentum = 'server', but the server has no images to train on; set labels.where = "
            "'server'"
        )
    if method.own_optimiser and train.optimiser.startswith(OBJECT):
        raise ConfigError(f"{method.name} trains with {method.own_optimiser}; remove your own optimiser")
    usual = TrainSettings()
    schedule = ("optimiser", "nesterov", "schedule", "warmup", "max_grad_norm", "keep_momentum")
    changed = [name for name in schedule if getattr(train, name) != getattr(usual, name)]
    if method.own_optimiser and changed:
        raise ConfigError(
            f"{method.name} trains with {method.own_optimiser}; leave train.{changed[0]} unchanged"
        )
    plain = config.aggregation.rule == "mean" and not config.aggregation.clip
    if config.model.norm == "static" and (aggregator.private or aggregator.noised or not plain):
        raise ConfigError(
            "model.norm = 'static' gathers sums from clients that neither privacy nor a "
            "robust rule covers; use model.norm = 'group' with them"
        )
    require_sound(aggregator, method, train, federation)
    check_records(config, method)
    if (aggregator.private or config.privacy.is_on) and config.keep.clients == "all":
        raise ConfigError(
            "keep.clients = 'all' records what each client sent, which differential "
            "privacy is meant to hide; leave it unchanged"
        )


def meanings(method: str) -> dict[str, tuple[Any, str, str]]:
    """Every setting by its dotted name, in order: default, range and meaning; those of this method, too."""
    found: dict[str, tuple[Any, str, str]] = {}
    sections: dict[str, Any] = {"": Config}
    for spec in dataclasses.fields(Config):
        if spec.name != "method" and spec.default_factory is not dataclasses.MISSING:
            sections[f"{spec.name}."] = spec.default_factory
    created = registry.create(method)
    for part in created.parts:
        sections["method." if part is created else f"method.{part.name}."] = type(part).Parameters
    for prefix, section in sections.items():
        for name, default, span, meaning in describe(section):
            found[f"{prefix}{name}"] = (default, span, meaning)
    found["method.name"] = ("proxyfl", "", "a name from `proxyfl methods`, or parent+addon")
    return found


def explained(config: Config, first_line: str = "") -> str:
    """:func:`to_toml`, with what each setting means behind its value."""
    known, section, lines = meanings(config.method.name), "", []
    for line in to_toml(config, first_line).splitlines():
        if line.startswith("["):
            section = f"{line.strip('[]')}."
        name, equals, _ = line.partition(" = ")
        if equals and f"{section}{name}" in known:
            _, span, meaning = known[f"{section}{name}"]
            line = f"{line}  # {meaning}" + (f" [{span}]" if span else "")
        lines.append(line)
    return "\n".join(lines) + "\n"


def identity(config: Config) -> str:
    """A hash of everything that decides the result, for naming runs. A config never changes: it is computed
    once and kept with it.
    """
    return identities(config)[config.compute.dtype]


def identities(config: Config) -> dict[str, str]:
    """By precision, its own first: the identity of the config if it were computed in that one."""
    known: dict[str, Any] = vars(config)
    if "_identities" not in known:
        known["_identities"] = _identities(config)
    found: dict[str, str] = known["_identities"]
    return found


def _identities(config: Config) -> dict[str, str]:
    tree = config.to_tree()
    del tree["keep"], tree["preset"], tree["model"]["weights"]  # where weights lie; what they are counts
    if config.model.encoder:
        tree["model"]["name"] = FROZEN
    _drop_later(config, tree)
    found = {}
    for dtype in dict.fromkeys((config.compute.dtype, *PRECISIONS)):
        tree["compute"]["dtype"] = dtype
        found[dtype] = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    return found


def _drop_later(settings: Any, tree: Tree) -> None:
    """Take out what came later and is at its default."""
    section: Any = type(settings)
    for name, later, usual in _usual(section):
        value = getattr(settings, name)
        if later and value == usual:
            tree.pop(name, None)
        elif dataclasses.is_dataclass(value) and name in tree:
            _drop_later(value, tree[name])


@cache
def _usual(section: Any) -> list[tuple[str, bool, Any]]:
    """What of a section came later or is a section itself: name, whether it came later, and default."""
    usual = section()
    fields = [(spec.name, bool(spec.metadata.get("later"))) for spec in dataclasses.fields(section)]
    found = [(name, later, getattr(usual, name)) for name, later in fields]
    return [each for each in found if each[1] or dataclasses.is_dataclass(each[2])]


def default_name(config: Config) -> str:
    data = config.data.name.split(":")[0]
    return f"{data}-{config.method.name}-seed{config.seed}-{identity(config)[:6]}"
