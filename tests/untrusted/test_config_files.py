"""Config files of strangers: whatever they say, settings come out, or one line that names the fault."""

from __future__ import annotations

import copy
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st
from readers import config_sample, read_config

from proxyfl.core.errors import ConfigError, DataError, ProxyFLError
from proxyfl.data.dataset import Dataset, Split
from proxyfl.runs.config_file import MAX_BYTES, load_toml
from proxyfl.runs.settings import resolve
from toybox import make_simulation

SOUND: dict[str, Any] = tomllib.loads(config_sample().decode())


def leaves(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in tree.items():
        found += leaves(value, (*above, key)) if isinstance(value, dict) else [(*above, key)]
    return found


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(SOUND)
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return tree


strange = st.one_of(
    st.sampled_from(
        [-1, 0, 2**31, 2**63, 10**18, 10**400, -(10**400), float("nan"), float("inf"), -0.0, 1e308]
    ),
    st.sampled_from(
        ["", "../../etc/passwd", "/etc/passwd", "\x1b[2J", "a\nb", "__import__('os')", "x" * 5000, "‮"]
    ),
    st.sampled_from(["folder:/etc", "npz:../../x", "idx:", ":", "cuda:99999999999", "meta", "proxyfl+" * 50]),
    st.booleans(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=120, deadline=None)
@given(path=st.sampled_from(leaves(SOUND)), value=strange)
@example(path=("preset",), value="x" * 5000)  # no file can have this name
@example(path=("preset",), value="~nobody-of-this-name")
def test_strange_values(path: tuple[str, ...], value: Any) -> None:
    try:
        resolve("", changed(path, value))
    except ProxyFLError as error:
        assert str(error).isprintable()  # noqa: PT017
        assert len(str(error)) <= 2000  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 10_000, "is not TOML"),
        ("a = " + "[" * 10_000 + "]" * 10_000, "is not TOML"),
        ("a = " + "{a=" * 10_000, "is not TOML"),
        ("[" + ".".join(["a"] * 100) + "]", "more than 10 levels deep"),
        (".".join(["a"] * 100) + " = 1", "more than 10 levels deep"),
        ("[" + ".".join(["a"] * 100_000) + "]", "a line with more than 200 dots"),
        (".".join(["a"] * 100_000) + " = 1", "a line with more than 200 dots"),  # would take minutes
        ("seed = " + "9" * 5000, "is not TOML"),
        ("seed = " + "9" * 400, "seed is outside the supported range"),
        ("[train]\nlr = " + "9" * 400, "train.lr must be a number"),
        ("[partition]\nclients = 1000000000000", "partition.clients = 1000000000000 is above 10000000"),
        ("[model]\nwidth = 1000000", "model.width = 1000000 is above 64"),
        ("[data]\nimage_size = 1000000", "data.image_size = 1000000 is above 1024"),
        ("[federation]\nrounds = 100000000", "federation.rounds = 100000000 is above 99999999"),
        ("[train]\nbatch = 10000000000", "train.batch = 10000000000 is above 100000"),
        ("[compute]\nthreads = 1000000", "compute.threads = 1000000 is above 1024"),
        ('preset = "../../../etc/passwd"', "unknown preset '../../../etc/passwd'"),
        ('[model]\nname = "/tmp/evil.py"', "unknown model '/tmp/evil.py'"),
        ('[method]\nname = "../evil"', "unknown method '../evil'"),
        ('[method]\nname = "os:system"', "unknown method 'os:system'"),
        ('[plugins]\nfile = "evil.py"', "unknown setting 'plugins'"),
        ('"\\u001b[2J\\u0007" = 1', r"unknown setting '\x1b[2J\x07'"),
        ("\ufeffa = 1", "unknown setting"),
        ("a = 1\0", "cannot be read"),
    ],
)
def test_hostile_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(text.encode(), tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 2000


def test_files_without_an_end_are_not_read_to_it(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="longer than any"):
        load_toml(tmp_path / "long.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.toml")  # opening it would wait for ever
    for name in ("zero", "pipe"):
        with pytest.raises(ConfigError, match="settings file"):
            load_toml(tmp_path / f"{name}.toml")
    with pytest.raises(ConfigError, match="settings file"):
        load_toml(tmp_path)


def test_a_config_cannot_load_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever name of a module or file it puts wherever a name may stand."""
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in leaves(SOUND):
        for name in ("evil", "evil.py", str(tmp_path / "evil.py"), "evil:x"):
            try:
                resolve("", tomllib.loads(tomli_w.dumps(changed(path, name))))
            except (ConfigError, DataError):
                continue
    assert not ran.exists()


def test_images_are_not_made_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset: Dataset = make_simulation().dataset
    assert dataset.resized(9).train.images.shape[-1] == 9
    monkeypatch.setattr("proxyfl.data.dataset.memory_limit", lambda: 1000)
    with pytest.raises(ConfigError, match=r"data\.image_size = 16 .*43\.\d kB"):
        dataset.resized(16)
    assert isinstance(dataset.train, Split)
