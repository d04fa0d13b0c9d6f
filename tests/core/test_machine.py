"""What the machine has."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from proxyfl.core.machine import bf16_sets, has_bf16
from proxyfl.runs.settings import native_dtype


@pytest.mark.parametrize(
    ("processor", "torch_says", "avx512_bf16", "amx", "expected"),
    [
        ("x86_64", True, False, False, False),  # computed with instructions for fp32, at half their speed
        ("x86_64", True, True, False, True),
        ("x86_64", True, False, True, True),
        ("x86_64", False, False, False, False),
        ("aarch64", True, False, False, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_bf16_is_used_where_there_are_instructions_for_it(
    processor: str,
    torch_says: bool,
    avx512_bf16: bool,
    amx: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: torch_says)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert has_bf16() is expected
    assert native_dtype(torch.device("cpu")) == ("bf16" if expected else "fp32")


def test_the_peak_of_a_process_is_its_own_and_not_that_of_the_one_that_started_it() -> None:
    held = torch.ones(300 << 20, dtype=torch.uint8)
    program = "from proxyfl.core.machine import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert 1 << 20 < int(done.stdout) < len(held), done.stderr


def test_an_older_torch_knows_fewer_sets_of_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert bf16_sets() == []
