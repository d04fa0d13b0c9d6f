"""What holds for every test: one thread, and no worker processes where a test does not ask for them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors: threads cost more than they give, and other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ.setdefault("PROXYFL_WORKERS", "0")
    yield
    torch.set_num_threads(before)
