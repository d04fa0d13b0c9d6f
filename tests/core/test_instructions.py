"""What is recorded of the processor: as much as the last bits of a run depend on, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from proxyfl.core import provenance
from proxyfl.core.config import ComputeSettings

FP32, BF16 = ComputeSettings(dtype="fp32"), ComputeSettings(dtype="bf16")
CUDA = ComputeSettings(dtype="fp32", device="cuda:1")


@pytest.fixture(autouse=True)
def xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX-512 and no instructions for bf16, and no limits. The arithmetic is that of notes
    that do not name it.
    """
    monkeypatch.setattr(provenance, "NUMERICS", 1)
    monkeypatch.setattr(provenance.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    has(monkeypatch)
    for name in provenance.LIMITS:
        monkeypatch.delenv(name, raising=False)


def has(monkeypatch: pytest.MonkeyPatch, avx: bool = False, amx: bool = False) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


def noted(compute: ComputeSettings) -> dict[str, Any]:
    return {"instructions": provenance.instructions(compute)}


def test_kinds_of_avx512_differ_for_bf16_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    for kind in ({}, {"avx": True}, {"avx": True, "amx": True}):
        has(monkeypatch, **kind)
        kinds.append(noted(BF16))
        assert noted(FP32) == {"instructions": "x86_64 AVX512"}
    assert [kind["instructions"] for kind in kinds] == [
        "x86_64 AVX512 bf16=emulated",
        "x86_64 AVX512 bf16=avx512_bf16",
        "x86_64 AVX512 bf16=avx512_bf16+amx_bf16",
    ]
    told = provenance.other_arithmetic(kinds[1], BF16)
    assert told == f"processor {kinds[1]['instructions']}, now {kinds[2]['instructions']}"
    assert provenance.other_arithmetic(kinds[2], BF16) == ""


@pytest.mark.parametrize(
    ("name", "value", "fp32", "bf16"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2", True, True),
        ("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16", False, True),
        ("DNNL_MAX_CPU_ISA", "AVX512_CORE", False, True),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT", False, False),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", True, True),
        ("MKL_CBWR", "COMPATIBLE", True, True),
        ("ONEDNN_VERBOSE", "1", False, False),
    ],
)
def test_limits_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, fp32: bool, bf16: bool
) -> None:
    before = noted(FP32), noted(BF16)
    monkeypatch.setenv(name, value)
    assert bool(provenance.other_arithmetic(before[0], FP32)) == fp32
    assert bool(provenance.other_arithmetic(before[1], BF16)) == bf16


def test_strings_that_say_nothing_of_bf16_are_not_recorded_for_bf16() -> None:
    old = {"instructions": "x86_64 AVX512"}
    assert provenance.other_arithmetic(old, FP32) == ""
    assert "bf16=not-recorded, now " in provenance.other_arithmetic(old, BF16)
    assert provenance.other_arithmetic({}, FP32) == ""
    assert "not-recorded, now " in provenance.other_arithmetic({}, BF16)
    assert "AVX2, now " in provenance.other_arithmetic({"instructions": "x86_64 AVX2"}, FP32)
    assert provenance.other_arithmetic({"instructions": [1]}, FP32)


def test_gpus_are_compared_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda:1": "NVIDIA A100"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[str(device)])
    before = noted(CUDA)
    assert before == {"instructions": "x86_64 AVX512 GPU=NVIDIA A100"}
    assert provenance.other_arithmetic(before, CUDA) == ""
    assert "GPU=not-recorded, now " in provenance.other_arithmetic({"instructions": "x86_64 AVX512"}, CUDA)
    names["cuda:1"] = "NVIDIA H100"
    assert "A100, now " in provenance.other_arithmetic(before, CUDA)

    def lost(device: object) -> str:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "get_device_name", lost)
    assert noted(CUDA) == {"instructions": "x86_64 AVX512 GPU=none"}
