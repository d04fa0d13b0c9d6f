"""A dashboard that answers while a test asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxyfl.report.dashboard.server import Dashboard


@contextmanager
def answering(folder: Path, every: float) -> Iterator[Dashboard]:
    made = Dashboard(folder, every=every)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.stop()
        thread.join(10)
    assert not thread.is_alive()
