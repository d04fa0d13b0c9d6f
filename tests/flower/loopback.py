"""Real federations on this machine: Flower's programs on the loopback device, for the tests of this room."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from proxyfl.core.config import Config
from proxyfl.deploy import approval, pki, signing
from proxyfl.deploy.app_template import write_app
from proxyfl.deploy.live import LIVE_FILE, LiveReader, newest
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.site_data import client_arrays, write_npz
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.manifests import folders
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import Simulation, prepare
from toybox import TINY

PATIENCE = 600.0
"""Seconds to wait for what must happen; far more than it takes."""

# A shell's background job ignores SIGINT and hands that down; a user's terminal does not.
PROXYFL = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from proxyfl.cli import main; main()",
]


def wait_for(what: Callable[[], Any], why: str, patience: float = PATIENCE) -> Any:
    until = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < until, f"waited {patience:g} s in vain: {why}"
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def experiment(method: str, **settings: Any) -> Config:
    """A small experiment on digits in which every site takes part in every round."""
    small = {"subset": 240, "per_round": 4, "rounds": 5, "partition__scheme": "iid", "labels__per_class": 8}
    return resolve("digits", from_short({**TINY, **small, **settings}), {"method": {"name": method}})


def site_data(folder: Path, simulation: Simulation) -> list[Path]:
    """Each simulated client's images as a file of its own."""
    files = []
    for client in range(simulation.partition.clients):
        images, labels = client_arrays(simulation.holdings.client(client))
        files.append(folder / f"data-{client}.npz")
        write_npz(files[-1], images, labels, simulation.dataset.classes)
    return files


def server_folder(folder: Path, simulation: Simulation) -> Path:
    """The server's labelled images as a folder for each class, in their order."""
    own = simulation.holdings.server()
    assert own is not None
    for number, (place, label) in enumerate(zip(own.labelled.tolist(), own.labels.tolist(), strict=True)):
        file = folder / simulation.dataset.classes[label] / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(own.images[place, 0].numpy()).save(file)
    return folder


def deployment(
    folder: Path,
    config: Config,
    *,
    insecure: bool = False,
    hosts: Sequence[str] = ("127.0.0.1",),
    **settings: Any,
) -> Deployment:
    """A deployment of a simulated federation, one site per client, its test images at the server."""
    simulation = prepare(config)
    dataset, views = simulation.dataset, simulation.train_views
    folder.mkdir(parents=True, exist_ok=True)
    test = folder / "test.npz"
    write_npz(test, dataset.test.images[:100], dataset.test.labels[:100], dataset.classes)
    if len(simulation.partition.server):
        settings = {"server_data": str(server_folder(folder / "labelled", simulation)), **settings}
    tree = config.to_tree()
    tree["partition"].pop("clients")
    made = Deployment(
        insecure=insecure,
        classes=dataset.classes,
        channels=dataset.channels,
        image_size=dataset.image_size,
        mean=views.mean,
        std=views.std,
        flip=views.flip,
        address=f"{hosts[0]}:{free_port()}",
        sites=tuple(f"site-{client + 1:02d}" for client in range(config.partition.clients)),
        experiment=tree,
        path=folder,
        **{"test": str(test), "quorum": 2, "deadline": 300.0, "patience": 300.0, **settings},
    )
    made.write()
    write_app(made.app)
    made.ca_certificate.parent.mkdir()
    made.server_key.parent.mkdir()
    pki.create_authority(made.ca_certificate, made.ca_key, "test")
    authority = (made.ca_certificate, made.ca_key)
    pki.issue_server(made.server_certificate, made.server_key, authority, hosts)
    signing.create_operator(made)
    signing.sign_app(made)
    for name in made.sites:
        site = made.site(name)
        site.path.mkdir()
        site.write()
        pki.create_site_keys(site.private_key, site.public_key, name)
        pki.issue_site(site.certificate, site.public_key, authority, name)
        site.ca_certificate.write_bytes(made.ca_certificate.read_bytes())
        site.trusted.write_bytes(made.trusted.read_bytes())
        approval.write_offers(made, [name])
    site_data(folder, simulation)
    return made


@dataclass
class Started:
    """A verb of the command line in a process of its own, its output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """As a power cut would: the verb and every process below it."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def start(output: Path, *words: object, before: Sequence[str] = ()) -> Started:
    """``before`` is a command that runs the verb, as ``nsenter`` does."""
    env = {**os.environ, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "COLUMNS": "200"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*before, *PROXYFL, *map(str, words)], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env
        )
    return Started(process, output)


def descendants(pid: int) -> list[int]:
    """Every process below one, as Linux lists them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            found.append((int(stat.parent.name), int(fields[1])))
    family, size = {pid}, 0
    while size != len(family):
        size = len(family)
        family |= {child for child, parent in found if parent in family}
    return sorted(family - {pid}, reverse=True)


class Loopback:
    """A federation's programs; whatever is still there at the end is killed."""

    def __init__(self, made: Deployment) -> None:
        self.made, self.started, self.folder = made, dict[str, Started](), made.path

    def start(self, name: str, *words: object, before: Sequence[str] = ()) -> Started:
        self.started[name] = start(self.folder / f"{name}.out", *words, before=before)
        return self.started[name]

    def server(self, plugin: object = "", before: Sequence[str] = ()) -> Started:
        words = (*(("--plugin", plugin) if plugin else ()), "deploy", "server", self.made.path)
        server = self.start("server", *words, before=before)
        self.wait_text(server, "ready")
        return server

    def site(self, client: int, *more: object, before: Sequence[str] = (), plugin: object = "") -> Started:
        name = self.made.sites[client]
        data = self.folder / f"data-{client}.npz"
        words = ("deploy", "site", self.folder / name, "--data", data, "--approve", *more)
        return self.start(name, *(("--plugin", plugin) if plugin else ()), *words, before=before)

    def move_sites(self, folder: Path) -> None:
        """Give the sites a place of their own, as on other machines."""
        folder.mkdir()
        for client, name in enumerate(self.made.sites):
            shutil.copytree(self.made.path / name, folder / name)
            shutil.copy(self.made.path / f"data-{client}.npz", folder)
        self.folder = folder

    def sites(self, clients: Sequence[int] | None = None) -> None:
        for client in range(len(self.made.sites)) if clients is None else clients:
            self.site(client)

    def run(self, *words: object) -> Started:
        return self.start("run", "deploy", "run", self.made.path, *words)

    def wait_text(self, started: Started, text: str, patience: float = PATIENCE) -> None:
        def there() -> bool:
            if started.process.poll() is not None:
                assert text in started.text(), f"ended without '{text}':\n{started.text()}"
            return text in started.text()

        wait_for(there, f"'{text}' in {started.text()}", patience)

    def wait_event(
        self, wanted: Callable[[dict[str, Any]], bool], patience: float = PATIENCE
    ) -> dict[str, Any]:
        reader = LiveReader(self.made.state / LIVE_FILE)
        return wait_for(lambda: next(filter(wanted, newest(reader.new())), None), "an event", patience)

    def finish(self, run: Started, patience: float = PATIENCE) -> str:
        """Wait for the end of a verb; it has ``patience`` seconds from each new word on."""
        said, until = "", time.monotonic() + patience
        while run.process.poll() is None:
            if said != (text := run.text()):
                said, until = text, time.monotonic() + patience
            assert time.monotonic() < until, f"silent for {patience:g} s:\n{said}\n{self.tail()}"
            time.sleep(0.2)
        assert run.process.returncode == 0, f"{run.text()}\n{self.tail()}"
        return run.text()

    def tail(self) -> str:
        log = self.made.state / "superlink.log"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        return "\n".join(line for line in lines if " 200 OK" not in line)[-5000:]

    def checkpoint(self) -> int:
        saved = folders(RunDirectory(self.made.run))
        return int(saved[0].name.removeprefix("round-")) if saved else -1

    def close(self) -> None:
        for started in reversed(self.started.values()):
            started.kill()


@contextlib.contextmanager
def loopback(made: Deployment) -> Iterator[Loopback]:
    programs = Loopback(made)
    try:
        yield programs
    finally:
        programs.close()


def named(started: Started, program: str) -> int:
    """The process below a verb that runs this program of Flower's."""

    def find() -> int | None:
        for pid in descendants(started.process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(Path(os.fsdecode(word)).name == program for word in words[:5]):
                    return pid
        return None

    return int(wait_for(find, f"no {program} below {started.process.args}"))
