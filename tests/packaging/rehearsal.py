"""The services of compose.yaml without a container engine: each in a network and a file system of its own.

Run by its test as ``unshare -Urnm python rehearsal.py FOLDER``. As in a container, the root is read-only,
/tmp is empty, only its volumes are there, a service has no capabilities and finds the server by its name.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SITES = ("site-01", "site-02", "site-03")
NETWORK = "10.78.0"
PATIENCE = 1500
STOPPED = 130
"""How a service ends that was asked to."""

ENTER = """
set -eu
root=$(mktemp -d); mount -t tmpfs tmpfs "$root"
for place in /*; do
  case $place in
    /tmp|/home|/data) ;;
    /proc|/sys|/dev) mkdir "$root$place"; mount --rbind "$place" "$root$place" ;;
    *) if [ -L "$place" ]; then cp -P "$place" "$root$place"
       elif [ -d "$place" ]; then mkdir "$root$place"; mount --rbind "$place" "$root$place"
            mount -o remount,bind,ro "$root$place"; fi ;;
  esac
done
for place in /tmp /home/proxyfl /data; do mkdir -p "$root$place"; mount -t tmpfs tmpfs "$root$place"; done
for place in $IMAGE; do mkdir -p "$root$place"; mount --rbind "$place" "$root$place"; done
printf '127.0.0.1 localhost\\n%s server\\n' "$SERVER" > "$root/hosts"
mount --bind "$root/hosts" "$root/etc/hosts"
for volume in $VOLUMES; do
  source=${volume%%=*}; target=$root${volume#*=}
  if [ -d "$source" ]; then mkdir -p "$target"; else touch "$target"; fi
  mount --bind "$source" "$target"
done
mount -o remount,ro "$root"
cd "$root"
exec chroot . setpriv --bounding-set=-all --no-new-privs sh -c 'cd /home/proxyfl; exec "$@"' sh "$@"
"""


def main(folder: Path) -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for line in ("link set lo up", "link add bridge type bridge", "link set bridge up"):
        subprocess.run(["ip", *line.split()], check=True)
    holders = [subprocess.Popen(["unshare", "-n", "sleep", "7200"]) for _ in ("server", *SITES)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        time.sleep(1)
        for place, holder in enumerate(holders):
            plug(place, holder.pid)
        networks = dict(zip(("server", *SITES), (holder.pid for holder in holders), strict=True))
        finish(enter(services["setup"], folder, networks["server"], folder / "setup.log"))
        for name in ("server", *SITES):
            started.append(enter(services[name], folder, networks[name], folder / f"{name}.log"))
        finish(enter(services["train"], folder, networks["server"], folder / "train.log"), beside=started)
        for each in reversed(started):
            each.send_signal(signal.SIGTERM)
        ends = [each.wait(60) for each in started]
        print("ended with", *ends)
        assert set(ends) == {STOPPED}, ends
    finally:
        for each in [*started, *holders]:
            each.kill()
            each.wait()


def plug(place: int, holder: int) -> None:
    """A cable from the bridge to the network of the process ``holder``."""
    inside = ["nsenter", "-t", str(holder), "-n", "ip"]
    here, there = f"here{place}", f"there{place}"
    for line in (
        ["ip", "link", "add", here, "type", "veth", "peer", "name", there],
        ["ip", "link", "set", there, "netns", str(holder)],
        ["ip", "link", "set", here, "master", "bridge", "up"],
        [*inside, "addr", "add", f"{NETWORK}.{place + 2}/24", "dev", there],
        [*inside, "link", "set", there, "up"],
        [*inside, "link", "set", "lo", "up"],
    ):
        subprocess.run(line, check=True)


def enter(service: dict[str, Any], folder: Path, network: int, log: Path) -> subprocess.Popen[bytes]:
    """A service's command, in its network and with its volumes."""
    pairs = [volume.split(":")[:2] for volume in service["volumes"]]
    image = {str(ROOT), sys.prefix, sys.base_prefix, *(path for path in sys.path if Path(path).is_dir())}
    given = {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": service["environment"]["HOME"],
        "SERVER": f"{NETWORK}.2",
        "VOLUMES": " ".join(f"{(folder / source).resolve()}={target}" for source, target in pairs),
        "IMAGE": " ".join(path for path in sorted(image) if path.startswith(("/home/", "/tmp/"))),
    }
    command = [sys.executable, "-m", "proxyfl", *shlex.split(service["command"])]
    line = ["nsenter", "-t", str(network), "-n", "unshare", "-m", "bash", "-c", ENTER, "enter", *command]
    with log.open("wb") as file:
        return subprocess.Popen(line, env=given, stdout=file, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes], beside: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Wait for a service to succeed. A service ``beside`` it that ends meanwhile is a failure."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None:
        ended = [each.returncode for each in beside if each.poll() is not None]
        if ended or time.monotonic() > until:
            process.kill()
            raise AssertionError(f"services ended with {ended}" if ended else f"not done in {PATIENCE} s")
        time.sleep(1)
    assert process.returncode == 0, process.returncode


if __name__ == "__main__":
    main(Path(sys.argv[1]))
