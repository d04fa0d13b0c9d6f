"""One browser for all pages: to start it takes longer than most of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headless import Browser, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    made = Browser(str(find_chromium()))
    yield made
    made.close()
