"""Coverage-guided fuzzing of one reader: ``python fuzz_readers.py NAME [SECONDS]``, ``--list`` for all names.

Needs atheris (``make fuzz`` installs it), which watches which branches an input reaches and mutates towards
new ones. It starts from the reader's valid sample. What breaks a reader is written to ``crash-…`` in the
current folder; put it into ``FOUND`` of test_found_inputs.py, which every test run then repeats.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WATCHED = [
    *(
        "proxyfl.data",
        "proxyfl.core",
        "proxyfl.runs.settings",
        "proxyfl.runs.directory",
        "proxyfl.runs.export",
    ),
    *("zipfile", "tarfile", "gzip", "tomllib", "pickletools", "json.decoder", "PIL", "readers"),
]
FOLDER = "PROXYFL_FUZZ_FOLDER"
MEMORY, PATIENCE = 3000, 20
"""Megabytes and seconds that one input may take."""


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        from readers import READERS

        print(*READERS)
        return
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris (Linux, or macOS with LLVM's clang)")
    with atheris.instrument_imports(include=WATCHED):
        from readers import READERS

    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    reader = READERS[name]
    work = Path(os.environ[FOLDER])
    corpus = work / "corpus"
    corpus.mkdir()
    (corpus / "sample").write_bytes(reader.sample())

    def one_input(content: bytes) -> None:
        folder = work / "input"
        folder.mkdir()
        try:
            reader(content, folder)
        finally:
            shutil.rmtree(folder)

    options = [
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={MEMORY}",
        f"-timeout={PATIENCE}",
        "-max_len=20000",
    ]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(corpus)], one_input)
    atheris.Fuzz()


def in_a_folder() -> int:
    """The fuzzer ends its process on the spot, so another one tidies up after it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast_folder()) as folder:
        return subprocess.run([sys.executable, *sys.argv], env={**os.environ, FOLDER: folder}).returncode


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    if FOLDER in os.environ or sys.argv[1:] == ["--list"]:
        main()
    else:
        sys.exit(in_a_folder())
