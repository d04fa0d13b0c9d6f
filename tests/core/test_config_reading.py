"""Settings: what is refused and in which words, what each fidelity makes of the defaults."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyfl.core.config import Config, DataSettings, FederationSettings, TrainSettings, read_config
from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.settings import describe, read_section, setting
from proxyfl.core.trees import merge, nested, parse_assignment


def refusal(table: dict[str, object], fidelity: str = "clean") -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(table, fidelity)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sede": 1}, "unknown setting 'sede'; did you mean 'seed'?"),
        ({"train": {"epoch_s": 1}}, "unknown setting 'train.epoch_s'; did you mean 'train.epochs'?"),
        (
            {"model": {"zzz": 1}},
            "unknown setting 'model.zzz'; known: dropout, encoder_hash, head, hidden, lora_alpha, "
            "lora_rank, lora_targets, name, norm, trainable, weights, weights_hash, width",
        ),
        ({"seed": "1"}, "seed must be a whole number, not '1'"),
        ({"seed": 1.0}, "seed must be a whole number, not 1.0"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"train": {"lr": "fast"}}, "train.lr must be a number, not 'fast'"),
        ({"train": {"lr": True}}, "train.lr must be a number, not True"),
        ({"train": {"leak_momentum": 1}}, "train.leak_momentum must be true or false, not 1"),
        ({"data": {"name": 3}}, "data.name must be text, not 3"),
        ({"train": {"lr": math.nan}}, "train.lr must be a number, not nan"),
        ({"train": {"lr": math.inf}}, "train.lr must be a number, not inf"),
        ({"data": {"subset": math.inf}}, "data.subset must be a number, not inf"),
        ({"train": {"epochs": 0}}, "train.epochs = 0 is below 1"),
        ({"labels": {"ratio": 1.5}}, "labels.ratio = 1.5 is above 1"),
        (
            {"train": {"pool": "xxxx"}},
            "train.pool = 'xxxx' is not one of all, unlabelled; known: all, unlabelled",
        ),
        (
            {"federation": {"sampling": "legcy"}},
            "federation.sampling = 'legcy' is not one of stream, poisson, legacy; did you mean 'legacy'?",
        ),
        ({"train": 5}, "'train' is a table of settings, not 5"),
        ({"method": "proxyfl"}, 'method must be a table with a name; write [method] and name = "proxyfl"'),
        ({"method": {"name": 7}}, "method.name must be text, not 7"),
    ],
)
def test_refusals_name_the_setting_and_the_cure(table: dict[str, object], message: str) -> None:
    assert refusal(table) == message


def test_whole_numbers_become_numbers_where_a_number_is_wanted() -> None:
    config = read_config({"train": {"lr": 1}}, "clean")
    assert config.train.lr == 1.0
    assert type(config.train.lr) is float


def test_method_table_is_kept_for_the_methods_room() -> None:
    config = read_config({"method": {"name": "x", "tau": 0.5, "gpt": {"epochs": 3}}}, "clean")
    assert config.method.name == "x"
    assert config.method.parameters == {"tau": 0.5, "gpt": {"epochs": 3}}
    assert config.to_tree()["method"] == {"name": "x", "tau": 0.5, "gpt": {"epochs": 3}}


CLEAN = {
    "data.norm": "own", "labels.rule": "release", "partition.scheme": "paired", "train.pool": "all",
    "train.epoch": "release", "train.leak_momentum": False, "federation.sampling": "stream",
    "federation.weighting": "size",
}  # fmt: skip
CODE = CLEAN | {
    "data.norm": "release", "train.leak_momentum": True, "federation.sampling": "legacy",
    "federation.weighting": "release",
}  # fmt: skip
PAPER = CLEAN | {
    "labels.rule": "share", "partition.scheme": "dirichlet", "train.pool": "unlabelled",
    "train.epoch": "pass",
}  # fmt: skip


@pytest.mark.parametrize(("fidelity", "expected"), [("clean", CLEAN), ("code", CODE), ("paper", PAPER)])
def test_fidelity_defaults(fidelity: str, expected: dict[str, object]) -> None:
    config = read_config({}, fidelity)
    found = {key: getattr(getattr(config, key.split(".")[0]), key.split(".")[1]) for key in expected}
    assert found == expected
    assert config.fidelity == fidelity


def test_a_given_value_wins_over_the_fidelity() -> None:
    assert read_config({"train": {"pool": "all"}}, "paper").train.pool == "all"


def test_the_protocol_every_preset_starts_from() -> None:
    config = Config()
    assert (config.partition.clients, config.federation.per_round, config.train.epochs) == (20, 8, 5)
    assert (config.train.batch, config.train.mu, config.train.lr) == (128, 2, 0.1)
    assert (config.train.momentum, config.train.weight_decay) == (0.9, 1e-4)
    assert (config.labels.seed, config.partition.seed, config.model.width) == (7, 0, 4)


def test_every_setting_says_what_it_means() -> None:
    for cls in (Config, DataSettings, TrainSettings, FederationSettings):
        listed = {name: (default, span, meaning) for name, default, span, meaning in describe(cls)}
        plain = [f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING]
        assert set(listed) == set(plain)
        assert all(meaning for _, _, meaning in listed.values())
    by_name = {name: rest for name, *rest in describe(TrainSettings)}
    assert by_name["momentum"][1] == "≥ 0, ≤ 1"
    assert by_name["pool"][1] == "all | unlabelled"
    assert by_name["pool"][2].endswith("(paper: unlabelled)")


def test_a_setting_for_a_fidelity_that_is_none() -> None:
    with pytest.raises(TypeError, match="not a fidelity: exact"):
        setting(1, "x", exact=2)


def test_lists_are_read_as_tuples() -> None:
    @dataclasses.dataclass(frozen=True)
    class Sizes:
        sizes: tuple[int, ...] = setting((1, 2), "some sizes")

    globals()["Sizes"] = Sizes
    assert read_section(Sizes, {"sizes": [3, 4]}, "clean").sizes == (3, 4)
    with pytest.raises(ConfigError, match="sizes must be a list, not 3"):
        read_section(Sizes, {"sizes": 3}, "clean")


def test_merge_lays_tables_over_each_other() -> None:
    below = {"a": {"x": 1, "y": 2}, "b": 1}
    assert merge(below, {"a": {"y": 3, "z": 4}}, {"b": {"c": 5}}) == {
        "a": {"x": 1, "y": 3, "z": 4},
        "b": {"c": 5},
    }
    assert below == {"a": {"x": 1, "y": 2}, "b": 1}
    assert merge({"a": {"x": 1}}, {"a": 2}) == {"a": 2}
    assert merge() == {}


def test_merge_does_not_share_tables_with_its_layers() -> None:
    layer = {"a": {"x": 1}}
    result = merge(layer)
    result["a"]["x"] = 2
    assert layer == {"a": {"x": 1}}


def test_nested() -> None:
    assert nested({"method.gpt.epochs": 3, "method.tau": 0.9, "seed": 1}) == {
        "method": {"gpt": {"epochs": 3}, "tau": 0.9},
        "seed": 1,
    }
    with pytest.raises(ConfigError, match=r"'method\.\.tau' is not a setting"):
        nested({"method..tau": 1})
    with pytest.raises(ConfigError, match=r"'a\.b' .*'a'"):
        nested({"a": 1, "a.b": 2})


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("method.tau=0.9", {"method": {"tau": 0.9}}),
        ("seed=3", {"seed": 3}),
        ("train.leak_momentum = true", {"train": {"leak_momentum": True}}),
        ("data.name=cifar10", {"data": {"name": "cifar10"}}),
        ("data.name='a=b'", {"data": {"name": "a=b"}}),
        ("data.name=folder:/x/y", {"data": {"name": "folder:/x/y"}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("train.weight_decay=1e-4", {"train": {"weight_decay": 1e-4}}),
    ],
)
def test_assignments(text: str, tree: dict[str, object]) -> None:
    assert parse_assignment(text) == tree


@pytest.mark.parametrize("text", ["tau", "=3", " = 3", ""])
def test_what_is_no_assignment(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like method\.tau=0\.9"):
        parse_assignment(text)


@given(st.integers(0, 2**31), st.floats(0, 1e6), st.sampled_from(["all", "unlabelled"]))
def test_what_is_read_is_what_was_written(seed: int, lr: float, pool: str) -> None:
    config = read_config({"seed": seed, "train": {"lr": lr, "pool": pool}}, "clean")
    assert (config.seed, config.train.lr, config.train.pool) == (seed, lr, pool)
    assert read_config(config.to_tree(), "clean") == config


def test_nearest() -> None:
    assert nearest("proxfl", ["proxyfl", "fedavg"]) == "did you mean 'proxyfl'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "none are known"
