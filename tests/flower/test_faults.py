"""What goes wrong between and at real machines: the line, the clock, a proxy in front, a power cut at a site.

Whatever happens, the federation goes on by itself or when the site is started again, and since every site
answered every round in the end, the result has the bits of the simulation.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from line import DOWN, UP, line_to
from loopback import PATIENCE, PROXYFL, deployment, experiment, free_port, loopback, wait_for
from test_life import assert_same_end, small

from proxyfl.deploy import supervise
from proxyfl.runs.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux"),
]

INSIDE = 30_000
"""Bytes after which a model is on its way: what is said besides in a round is less, a model is more."""

FAULTS = (("cut", DOWN), ("reset", UP), ("lose", DOWN), ("lose", UP), ("reset", DOWN), ("cut", UP))
"""What happens to the connection of a site while a model comes down, or its update goes up; one a round."""


def assert_nobody_was_lost(made):
    """Otherwise the bits would be others."""
    lines = Run(made.run).metrics
    assert all(len(line["clients"]) == 2 and not line.get("failed") for line in lines)


def begun(federation, round):
    federation.wait_event(lambda line: line["event"] == "round" and line["round"] == round)


def test_a_line_that_is_cut_reset_lost_slow_shut_and_brittle(tmp_path):
    config = small(rounds=len(FAULTS) + 3)
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=240.0)
    with loopback(made) as federation, line_to(made.address) as line:
        federation.server()
        site = federation.site(0, "--server", line.address)
        federation.site(1)
        run = federation.run()
        for round, (how, way) in enumerate(FAULTS, start=1):
            begun(federation, round)
            happened = line.trip(how, way, INSIDE)
            wait_for(happened.is_set, f"round {round}: nothing to {how} on the way {way}")
        # Between rounds: every connection is gone, and for a while nobody answers.
        federation.wait_event(lambda told: told["event"] == "finished round" and told["round"] == len(FAULTS))
        line.shut = True
        line.all("reset")
        federation.wait_text(site, "site-01 waits: ")
        line.shut = False
        begun(federation, len(FAULTS) + 2)
        line.delay = 0.3
        begun(federation, len(FAULTS) + 3)
        line.delay, line.brittle = 0.0, 700_000
        line.all("reset")
        federation.finish(run)
        assert line.resets
        assert site.text().count("site-01 is connected") >= 2
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), name
    assert_nobody_was_lost(made)
    assert_same_end(made, config, tmp_path)


@pytest.fixture
def moving_clock(tmp_path, clock):
    """The words before a command whose clock is set by a file, and what sets it."""
    file = tmp_path / "seconds"

    def turn(seconds):
        file.with_suffix(".new").write_text(str(seconds))
        file.with_suffix(".new").rename(file)

    return ["env", clock, f"CLOCK_OFF_FILE={file}"], turn


def test_a_site_whose_clock_jumps_by_hours_says_so_and_goes_on_once_it_is_right(tmp_path, moving_clock):
    before, turn = moving_clock
    config = small(rounds=4)
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=120.0, patience=1200.0)
    with loopback(made) as federation:
        federation.server()
        site = federation.site(0, before=before)
        federation.site(1)
        run = federation.run()
        for round, (by, told) in enumerate(((3 * 3600, "s ahead of"), (-2 * 3600, "s behind")), start=2):
            begun(federation, round)
            turn(by)
            federation.wait_text(site, told)
            assert site.process.poll() is None
            turn(0)
        federation.finish(run)
        assert "this machine's clock is 10" in site.text()
        assert "set it right" in site.text()
    assert_nobody_was_lost(made)
    assert_same_end(made, config, tmp_path)


def test_a_server_whose_clock_jumps_ahead_keeps_its_sites_waiting_until_it_is_right(tmp_path, moving_clock):
    # By the library of ours: with libfaketime, Python cannot sleep (see clock.c).
    before, turn = moving_clock
    config = small(rounds=4)
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=120.0, patience=1200.0)
    with loopback(made) as federation:
        server = federation.server(before=before)
        federation.sites()
        run = federation.run()
        begun(federation, 2)
        turn(3 * 3600)
        federation.wait_text(federation.started["site-01"], "s behind")
        assert server.process.poll() is None
        turn(0)
        set_back = time.monotonic()
        federation.finish(run)
        time.sleep(max(0.0, set_back + supervise.SILENT + 3 * supervise.LOOK - time.monotonic()))
        assert "starting again" not in server.text(), "for the gate, time goes on"
    assert_nobody_was_lost(made)
    assert_same_end(made, config, tmp_path)


MODULE = "ngx_stream_module.so"
NGINX = """
{load}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
stream {{
    server {{
        listen 127.0.0.1:{port};
        proxy_pass {target};
        proxy_timeout 10m;
    }}
}}
"""


@pytest.fixture
def nginx(tmp_path):
    """Starts nginx before an address. TLS is passed on as it is: the gate wants to see certificates."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    places = [
        Path(os.environ.get("NGINX_MODULES", "/usr/lib/nginx/modules")),
        Path("/usr/share/nginx/modules"),
    ]
    module = next((place / MODULE for place in places if (place / MODULE).is_file()), None)
    built = subprocess.run(["nginx", "-V"], capture_output=True, text=True).stderr.split()
    if module is None and "--with-stream" not in built:
        pytest.skip("nginx has no stream module here: apt install libnginx-mod-stream, or set NGINX_MODULES")
    running: list[subprocess.Popen[bytes]] = []

    def begin(target, port):
        load = f"load_module {module};" if module else ""
        file = tmp_path / "nginx.conf"
        file.write_text(NGINX.format(load=load, folder=tmp_path, port=port, target=target))
        words = ["nginx", "-c", str(file), "-e", str(tmp_path / "error.log")]
        running.append(subprocess.Popen(words, start_new_session=True))
        return running[-1]

    yield begin
    for process in running:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def test_nginx_in_front_may_be_reloaded_and_killed(tmp_path, nginx):
    config = small(rounds=4)
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=240.0)
    port = free_port()
    with loopback(made) as federation:
        federation.server()
        front = nginx(made.address, port)
        for client in range(2):
            federation.site(client, "--server", f"127.0.0.1:{port}")
        run = federation.run()
        begun(federation, 2)
        front.send_signal(signal.SIGHUP)
        begun(federation, 3)
        os.killpg(front.pid, signal.SIGKILL)
        front.wait(30)
        federation.wait_text(federation.started["site-01"], "site-01 waits: nothing listens at")
        nginx(made.address, port)
        federation.finish(run)
        addresses = (made.state / "gate.log").read_text()
        assert "site-01" in addresses
        assert "site-02" in addresses
    assert_nobody_was_lost(made)
    assert_same_end(made, config, tmp_path)


POWER = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, {recovery!r})
from faulty_disk import Disk, Fault

class Site(Disk):
    def _die(self):
        with open({died!r}, "w") as file:  # not by its path: that would be an operation, too
            file.write(str(self.operations))
        pid = Path(os.environ["PROXYFL_SITE"], "state", "supervisor", "pid").read_text()
        os.kill(int(pid), signal.SIGKILL)
        super()._die()

at = Path({at!r})
if os.environ.get("PROXYFL_SITE") and at.is_file():
    Site(Fault("power", int(at.read_text()), "during")).install()
"""
CUTS = (2, 9, 14, 19)
"""At which operation of the disk, in the process that trains, the site's machine loses its power."""


def lose_writes(site, pid):
    """What a power cut may leave of every file that a site writes: of those that are flushed before they get
    their name, a half-written one beside them; of a log, half a line more; of all others nothing, or zeros.
    """
    log = site / "audit" / "audit.jsonl"
    lines = log.read_bytes()
    log.write_bytes(lines + lines[:40])
    kept = [
        log,
        site / "audit" / "audit.head",
        site / "approval.json",
        *site.glob("state/site-*/*/answers.json"),
        *site.glob("state/site-*/**/*.safetensors"),
    ]
    for file in kept:
        file.with_name(f".{file.name}.{pid}.aside").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    files = [file for file in (site / "state").rglob("*") if file.is_file() and file not in kept]
    others = [file for file in files if not file.name.endswith(".aside")]
    assert {"supernode.log", "pid", "local.crt", "local.key", "client_app.py"} <= {
        file.name for file in others
    }
    for number, file in enumerate(sorted(others)):
        size = file.stat().st_size
        file.write_bytes(b"" if number % 2 else bytes(size))


def test_a_site_loses_its_power_in_a_write(tmp_path):
    config = experiment(
        "fedloke", rounds=len(CUTS) + 2, clients=2, per_round=2, subset=80, labels__per_class=4
    )
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=120.0, patience=1200.0)
    died, at, plugin = (tmp_path / name for name in ("died", "at", "power.py"))
    recovery = Path(__file__).parents[1] / "recovery"
    plugin.write_text(POWER.format(recovery=str(recovery), died=str(died), at=str(at)))
    with loopback(made) as federation:
        federation.server()
        site = federation.site(0, plugin=str(plugin))
        federation.site(1)
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round" and line["round"] == 1)
        for operation in CUTS:
            at.write_text(str(operation))
            wait_for(died.is_file, f"no operation {operation}: {site.text()}")
            site.process.wait(PATIENCE)
            site.kill()
            assert died.read_text() == str(operation)
            at.unlink()
            died.unlink()
            if operation == CUTS[-1]:
                time.sleep(6)  # by then nothing that it started is left to write
                lose_writes(made.path / "site-01", site.process.pid)
            done = federation.checkpoint()
            site = federation.site(0, plugin=str(plugin))
            if operation != CUTS[-1]:
                federation.wait_event(
                    lambda line, done=done: line["event"] == "finished round" and line["round"] > done
                )
        federation.finish(run)
        for name in ("server", "site-01", "site-02"):
            assert "Traceback" not in federation.started[name].text(), name
    assert_nobody_was_lost(made)
    assert_same_end(made, config, tmp_path)
    for place in (made.path, made.path / "site-01"):
        subprocess.run([*PROXYFL, "deploy", "audit", str(place)], check=True)
    for folder in ("state/site-01", "audit"):
        assert not list((made.path / "site-01" / folder).rglob("*.aside"))
