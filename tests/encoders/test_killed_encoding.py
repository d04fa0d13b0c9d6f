"""A process that is killed while it encodes: another one goes on, to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import proxyfl
from proxyfl.encoders import cache
from proxyfl.testing.toy import toy_dataset

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

CHILD = """
import sys, time
import proxyfl
from proxyfl.encoders import cache
from proxyfl.testing.toy import toy_dataset

def means(images):
    time.sleep(0.05)
    return images.mean((1, 3))

cache.BLOCK = 8
proxyfl.encode(toy_dataset(80), proxyfl.Encoder(means, weights_hash="means"), cache=sys.argv[1])
"""


def means(images):
    return images.mean((1, 3))


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.glob("*/features.npy")}


def test_a_killed_encoding_is_finished_by_another_process_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 8)
    encoder, data = proxyfl.Encoder(means, weights_hash="means"), toy_dataset(80)
    whole = proxyfl.encode(data, encoder, cache=tmp_path / "whole")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "cut")])
    try:
        until = time.monotonic() + 120
        while sum(file.read_bytes().count(b"sha256") for file in tmp_path.glob("cut/*/blocks.jsonl")) < 3:
            assert time.monotonic() < until, "nothing was encoded"
            assert child.poll() is None, "it ended by itself"
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    (log,) = tmp_path.glob("cut/*/blocks.jsonl")
    assert 3 <= log.read_bytes().count(b"sha256") < 10  # of ten blocks
    assert contents(tmp_path / "cut") != contents(tmp_path / "whole")
    resumed = proxyfl.encode(data, encoder, cache=tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert torch.equal(resumed.train.images, whole.train.images)
    assert log.read_bytes().count(b"sha256") == 10, "no block was made twice"
