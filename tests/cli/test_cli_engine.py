"""Options that say where clients train."""

from __future__ import annotations

import pytest

from proxyfl.cli.engine import chosen_engine
from proxyfl.core.errors import ConfigError
from proxyfl.engines.cluster.engine import RayEngine


def test_the_options_name_an_engine() -> None:
    assert chosen_engine("workers", None, None, 2) is None
    assert chosen_engine("ray", None, None, None) == RayEngine("auto")
    asked = chosen_engine("ray", "head:6379", "cpus=2, gpus=0.5,memory=4", 3)
    assert asked == RayEngine("head:6379", workers=3, cpus=2.0, gpus=0.5, memory=4.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "rai"), "unknown engine 'rai'; did you mean 'ray'?"),
        (("--address", "auto"), "--address is for a Ray cluster; add --engine ray, or leave it out"),
        (("--engine", "ray", "--address", "head"), "'head' is not the address of a Ray cluster"),
        (("--engine", "ray", "--per-client", "disk=3"), "must be like cpus=1,gpus=0.5,memory=4"),
        (("--engine", "ray", "--address", "127.0.0.1:1"), "nothing answers at 127.0.0.1:1"),
        (("--engine", "ray", "--workers", "0"), "workers = 0 must be a number of clients, at least 1"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_before_anything_is_written(call, tmp_path, words, told) -> None:
    if "127.0.0.1:1" in words:
        pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'proxyfl[ray]'")
    done = call("run", "digits", "--subset", "120", "--runs", tmp_path / "runs", *words)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_sweep_names_what_a_run_takes() -> None:
    with pytest.raises(ConfigError, match=r"--per-run .*Ray cluster"):
        chosen_engine("workers", None, "cpus=1", None, "--per-run")
