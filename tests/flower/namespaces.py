"""A federation over networks of their own: the server in one network namespace, each site in another.

Run by its test as ``unshare -Urn python namespaces.py DIR``: every site has a cable to the server and reaches
nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loopback import loopback, start, wait_for

from proxyfl.deploy.addresses import split_address
from proxyfl.deploy.settings import Deployment


def server_address(client: int) -> str:
    """The server's end of the cable to a site."""
    return f"10.77.{client + 1}.1"


def plug(client: int, holder: int) -> list[str]:
    """A cable between this network and that of the process ``holder``; gives how to run a command there."""
    inside = ["nsenter", "-t", str(holder), "-n"]
    here, there = f"here{client}", f"there{client}"
    for line in (
        ["ip", "link", "add", here, "type", "veth", "peer", "name", there],
        ["ip", "link", "set", there, "netns", str(holder)],
        ["ip", "addr", "add", f"{server_address(client)}/24", "dev", here],
        ["ip", "link", "set", here, "up"],
        [*inside, "ip", "addr", "add", f"10.77.{client + 1}.2/24", "dev", there],
        [*inside, "ip", "link", "set", there, "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(line, check=True)
    return inside


def unshared(holder: subprocess.Popen[bytes]) -> bool:
    """Whether the process has reached its own network."""
    ours = Path("/proc/self/ns/net").readlink()
    return Path(f"/proc/{holder.pid}/ns/net").readlink() != ours


def besiege(made: Deployment, client: int, inside: list[str]) -> None:
    """From a site's own network, with all that the site has, the gate is reached and nothing behind it."""
    words = [str(made.path), made.sites[client], server_address(client)]
    script = Path(__file__).with_name("intruder.py")
    done = subprocess.run([*inside, sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def main(folder: str) -> None:
    made = Deployment.read(folder)
    port = split_address(made.address)[1]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    ways: list[list[str]] = []
    holders = [subprocess.Popen(["unshare", "-n", "sleep", "3600"]) for _ in made.sites]
    try:
        with loopback(made) as federation:
            for client, (name, holder) in enumerate(zip(made.sites, holders, strict=True)):
                wait_for(lambda holder=holder: unshared(holder), "a network namespace")
                inside = plug(client, holder.pid)
                ways.append(inside)
                words = ["deploy", "site", made.path / name, "--data", made.path / f"data-{client}.npz"]
                words += ["--approve", "--server", f"{server_address(client)}:{port}"]
                federation.started[name] = start(made.path / f"{name}.out", *words, before=inside)
            federation.server()
            print(federation.finish(federation.run()))
            for client, inside in enumerate(ways):
                besiege(made, client, inside)
    finally:
        for holder in holders:
            holder.kill()


if __name__ == "__main__":
    main(sys.argv[1])
