"""What gate and connector cost in a round: three sites and a server on this machine, with them and without.

    python benchmarks/gate.py [--rounds 6] [--repeats 3]

Without them is ``--insecure``: no encryption either, so that the difference is more than theirs alone. Beside
the seconds of a round stands the CPU time of the gate and of the sites' commands, which hold the
connectors and do nothing else while rounds are played; it says the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROXYFL = [sys.executable, "-m", "proxyfl"]
SITES = 3


def call(*words: object) -> None:
    done = subprocess.run([*PROXYFL, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")


def start(output: Path, *words: object) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen([*PROXYFL, *map(str, words)], stdout=file, stderr=file)


def wait(text: str, output: Path) -> None:
    until = time.monotonic() + 600
    while text not in output.read_text():
        if time.monotonic() > until:
            raise SystemExit(f"waited in vain for '{text}':\n{output.read_text()}")
        time.sleep(0.2)


def processor(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def gate_of(server: int) -> int | None:
    for path in Path("/proc").glob("[0-9]*/stat"):
        parent = path.read_text().rpartition(")")[2].split()[1]
        if parent == str(server) and b"\0gate\0" in (path.parent / "cmdline").read_bytes():
            return int(path.parent.name)
    return None


def measure(folder: Path, port: int, rounds: int, insecure: bool) -> dict[str, Any]:
    made = folder / "f"
    words = ["--sites", SITES, "--sample", "--rounds", rounds, "--port", port, "--method", "fedavg"]
    words += ["--set", "data.subset=300"]  # little to compute, so that the rest is seen
    call("deploy", "init", made, *words, *(["--insecure"] if insecure else []))
    programs = [start(folder / "server.out", "deploy", "server", made)]
    try:
        wait("ready", folder / "server.out")
        for number in range(1, SITES + 1):
            name = f"site-{number:02d}"
            data = made / "sample" / f"{name}.npz"
            words = ("deploy", "site", made / name, "--data", data, "--approve")
            programs.append(start(folder / f"{name}.out", *words))
        for number in range(1, SITES + 1):
            wait("is starting", folder / f"site-{number:02d}.out")
        watched = [pid for pid in (gate_of(programs[0].pid), *(p.pid for p in programs[1:])) if pid]
        before = sum(map(processor, watched))
        call("deploy", "run", made, "--quiet")
        used = sum(map(processor, watched)) - before
        lines = (made / "run" / "timing.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["train"] for line in lines]
        return {"round": statistics.median(seconds[1:]), "processor": used / rounds}
    finally:
        for program in programs:
            program.send_signal(signal.SIGINT)
        for program in programs:
            program.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for repeat in range(given.repeats):
        for insecure in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                port = 20000 + os.getpid() % 20000 + 2 * repeat + insecure
                found[insecure].append(measure(Path(folder), port, given.rounds, insecure))
                print("without" if insecure else "with   ", found[insecure][-1], flush=True)
    for insecure, runs in found.items():
        rounds, used = ([run[key] for run in runs] for key in ("round", "processor"))
        print(
            f"{'without' if insecure else 'with'}: {statistics.median(rounds):.2f} s a round "
            f"({min(rounds):.2f} to {max(rounds):.2f}), {statistics.median(used):.3f} s of processor a round"
        )


if __name__ == "__main__":
    main()
