"""Worker processes where ``/dev/shm`` has room for next to nothing, as in many containers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = 64
"""Kilobytes in ``/dev/shm``: less than the images, and less than the weights."""

SCRIPT = """
import errno, os, sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from toybox import Told, assemble, make_simulation, play, tiny_config

place, folder = Path("/dev/shm"), Path(sys.argv[2])
try:
    (place / "full").write_bytes(bytes(1 << 20))
except OSError as error:
    assert error.errno == errno.ENOSPC
else:
    sys.exit("/dev/shm is not small")
(place / "full").unlink()

simulation = make_simulation((6,) * 4, (26,) * 4, channels=3, size=32)
config = tiny_config("proxyfl")
federation, _ = assemble(folder, config, simulation, 2)
told = Told()
with closing(federation.engine):
    play(config, simulation, folder, observers=[told], engine=lambda _: federation.engine)
    assert len(federation.engine.workers) == 2
    assert os.fstat(federation.engine.store.fd).st_size > 1024 * int(sys.argv[3])
assert [len(report.metrics["clients"]) for report in told.reports] == [2, 2], told.reports
assert not any(report.metrics["failed"] for report in told.reports)
print("left:", sorted(path.name for path in place.iterdir()))
"""


def inside(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command that sees a small ``/dev/shm`` of its own."""
    mount = f'mount -t tmpfs -o size={ROOM}k tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command],
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_a_pool_needs_no_room_in_shared_memory_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    if not shutil.which("unshare") or inside(["true"]).returncode:
        pytest.skip("this system does not let a test mount a /dev/shm of its own")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    tests = str(Path(__file__).parents[1])
    done = inside([sys.executable, str(script), tests, str(tmp_path / "run"), str(ROOM)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "left: []"
