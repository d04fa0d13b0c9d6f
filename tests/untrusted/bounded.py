"""Reads files given as ``READER:FILE`` in a process with little memory; tells in JSON what came of each.

Run by test_bombs.py. Everything heavy is imported first; then the process may take ROOM bytes more, and
whatever asks for more gets a MemoryError, which no reader may let out.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

from readers import READERS

from proxyfl.core.machine import peak_memory

ROOM = 700 << 20


def main() -> None:
    for reader in READERS.values():  # caches are filled and lazy imports done
        with tempfile.TemporaryDirectory() as folder:
            reader(reader.sample(), Path(folder))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before = peak_memory()
    for word in sys.argv[1:]:
        name, _, file = word.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            try:
                content = Path(file).read_bytes()
                outcome = "refused" if READERS[name](content, Path(folder)) is None else "read"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"[:300]
        grown = (peak_memory() - before) >> 20
        print(json.dumps({"what": Path(file).name, "outcome": outcome, "megabytes": grown}), flush=True)


if __name__ == "__main__":
    main()
