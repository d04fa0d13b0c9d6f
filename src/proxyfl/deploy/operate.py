"""What an operator does: bring the server up, bring a site up, start the run or go on with it."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from typing import Any

import tomli_w

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.deploy import approval, entrance, expiry, signing
from proxyfl.deploy.addresses import split_address
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.client_app import SITE, SITE_DATA
from proxyfl.deploy.connector import Problem
from proxyfl.deploy.live import ENDS, LIVE_FILE, LiveReader
from proxyfl.deploy.post import Post, private
from proxyfl.deploy.programs import FlowerError, Program, ask_flwr, environment, wait_until
from proxyfl.deploy.roster import NOTES, noted, previous_key, previous_note, site_keys
from proxyfl.deploy.server_app import DEPLOYMENT
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.site_data import open_data
from proxyfl.runs.directory import RunDirectory

LINK = "federation"
"""What Flower's configuration calls this federation's SuperLink."""

START = 180.0
"""Seconds that a program has for starting."""

ONLINE = "online"
"""What Flower calls a node that is connected."""

QUIET = 60.0
"""Seconds of silence after which Flower is asked whether the run is still there."""

PROBES = 3
"""A server that does not answer so many times in a row is gone."""

Say = Callable[[str], None]


def local_address(deployment: Deployment) -> str:
    """How programs on the server's machine reach the SuperLink; its certificate is for this name, too."""
    return f"127.0.0.1:{entrance.inner_port(deployment) or deployment.bind[1]}"


def flower_home(deployment: Deployment, home: Path | None = None) -> dict[str, str]:
    """The environment for Flower's commands, with the connection they need written down."""
    home = home or deployment.state / "flower"
    link: dict[str, Any] = {"address": local_address(deployment), "insecure": deployment.insecure}
    if not deployment.insecure:
        link["root-certificates"] = str(deployment.ca_certificate)
    content = tomli_w.dumps({"superlink": {"default": LINK, LINK: link}}).encode()
    try:
        env = environment(home, {DEPLOYMENT: str(deployment.path)})
        write_bytes(home / "config.toml", content)
    except OSError as error:
        raise RunError(
            f"{home} cannot be written ({error.strerror}); make room or make it writable"
        ) from None
    return env


def answers(deployment: Deployment, seconds: float = 2.0) -> bool:
    """Whether the SuperLink takes connections, with TLS by a certificate of the federation's own CA."""
    host, port = split_address(local_address(deployment))
    try:
        with socket.create_connection((host, port), timeout=seconds) as plain:
            if deployment.insecure:
                return True
            trust = ssl.create_default_context(cafile=str(deployment.ca_certificate))
            with trust.wrap_socket(plain, server_hostname=host):
                return True
    except OSError:
        return False


def forget_apps(state: Path) -> None:
    """Flower unpacks an app once and trusts its files from then on; a power cut may have emptied them."""
    shutil.rmtree(state / "flower" / "apps", ignore_errors=True)


@contextmanager
def server(deployment: Deployment, say: Say) -> Iterator[tuple[Program, ...]]:
    """SuperLink and gate, up and with every site's key registered, for as long as the context lasts.

    The SuperLink is bound to the loopback device, whatever the federation's address: two of its three
    interfaces ask nobody who they are. Sites reach the gate.
    """
    words = ["flower-superlink", "--isolation", "subprocess", "--disable-runtime-dependency-installation"]
    database = deployment.state / "superlink.db"
    words += ["--database", str(database)]
    if deployment.insecure:
        words.append("--insecure")
    else:
        entrance.check_server_files(deployment)
        words += ["--ssl-ca-certfile", str(deployment.ca_certificate), "--enable-supernode-auth"]
        words += ["--ssl-certfile", str(deployment.server_certificate)]
        words += ["--ssl-keyfile", str(deployment.server_key)]
    entrance.require_free(deployment)
    if not database.exists():
        shutil.rmtree(deployment.state / NOTES, ignore_errors=True)
    port = entrance.choose_port(deployment)
    env = flower_home(deployment)
    forget_apps(deployment.state)
    log = deployment.state / "superlink.log"
    with Program([*words, "--host", "127.0.0.1", "--port", str(port)], env, log) as program:
        ready = wait_until(lambda: program.ended is not None or answers(deployment), START)
        if not ready or program.ended is not None:
            raise RunError(f"the SuperLink did not start: {program.failure()}; see {log}")
        _require_guard(program, port)
        if deployment.insecure:
            yield (program,)
            return
        register(deployment, env)
        with entrance.open_gate(deployment, port, env, say) as gate:
            yield program, gate


def register(deployment: Deployment, env: dict[str, str]) -> None:
    """Make every site's public key known to the SuperLink, in place of the one it had before."""
    notes = deployment.state / NOTES
    notes.mkdir(parents=True, exist_ok=True)

    current = site_keys(deployment, former=False)

    def tell(key: bytes, client: int) -> None:
        site, node = deployment.site(deployment.sites[client]), ""
        note, file = (site.name, site.public_key)
        if key not in current:
            note, file = previous_note(deployment, site.name).name, previous_key(site)
        before = noted(deployment, note)
        if before.get("key") == key.hex():
            return
        if before.get("node"):
            with contextlib.suppress(FlowerError):  # it is no site's key in any case, see the roster
                ask_flwr(["supernode", "unregister", before["node"], LINK], env)
        try:
            words = ["supernode", "register", str(file), LINK, "--name", note]
            node = str(ask_flwr(words, env)["node-id"])
        except FlowerError as error:
            if "already in use" not in str(error).lower():
                raise RunError(f"the key of {site.name} could not be registered: {error}") from error
        write_bytes(notes / note, json.dumps({"key": key.hex(), "node": node}).encode())

    keys = site_keys(deployment)
    former = {deployment.sites[client] for key, client in keys.items() if key not in current}
    wanted = {*deployment.present, *(previous_note(deployment, name).name for name in former)}
    for note in notes.iterdir():
        if note.name not in wanted:
            with contextlib.suppress(FlowerError):
                ask_flwr(
                    ["supernode", "unregister", str(noted(deployment, note.name).get("node")), LINK], env
                )
            note.unlink()
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(tell, keys, keys.values()))


def node_states(deployment: Deployment, home: Path) -> dict[str, str]:
    """What the SuperLink says of each site's node: online, offline, registered."""
    listed = ask_flwr(["supernode", "list", LINK], flower_home(deployment, home))
    states = {str(node["node-id"]): str(node["status"]) for node in listed.get("nodes", [])}
    found = {}
    for name in deployment.sites:
        notes = (name, previous_note(deployment, name).name)
        own, former = (str(noted(deployment, note).get("node", "")) for note in notes)
        if own in states:
            found[name] = states[own]
        if states.get(former) == ONLINE and found.get(name) != ONLINE:
            found[name] = f"{ONLINE}, former key"
    return found


@contextmanager
def site(settings: Site, data: Path, say: Say, address: str = "") -> Iterator[Program]:
    """A SuperNode for a site's own images, for as long as the context lasts."""
    address = address or settings.server
    split_address(address)
    private(settings.state)

    def changed(problem: Problem | None) -> None:
        say(f"{settings.name} waits: {problem.text}" if problem else f"{settings.name} is connected")

    extra = {SITE: str(settings.path), SITE_DATA: str(data.expanduser().resolve())}
    env = environment(settings.state / "flower", extra)
    forget_apps(settings.state)
    port = entrance.free_port()

    def approved(app: str) -> bool:
        try:
            approval.require_app(approval.require(settings), app)
        except ProxyFLError as error:
            say(f"{settings.name}: refused: {error}; {approval.cure(settings)}")
            AuditLog(settings.path).add("refused", kind="app", app=app, reason=str(error))
            approval.note_asked(settings, app, {})
            return False
        return True

    with entrance.line(settings, address, changed, approved) as (_, words):
        words = ["flower-supernode", *words, "--isolation", "subprocess"]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        with Program(words, env, settings.state / "supernode.log", say) as program:
            wait_until(lambda: program.ended is not None or entrance.listens(port), START)
            if program.ended is None:
                _require_guard(program, port)
            yield program


def _require_guard(program: Program, port: int) -> None:
    """Nothing runs open: a Flower that listens in another way than it used to is not started."""
    if not program.guards(port) and program.ended is None:
        raise RunError(
            "the guard of Flower's local port does not work with this version of Flower, and other accounts "
            "of this machine could use the port; install a version that proxyfl[flower] asks for"
        )


def look(settings: Site, data: Path, say: Say) -> None:
    """Count a site's images and check them before it takes part; what was decoded is kept for the rounds."""
    if not data.exists():
        raise ConfigError(f"{data} does not exist; --data is the folder or file with this site's images")
    key = settings.private_key
    if not settings.insecure and key.is_file() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        say(f"WARNING: others on this machine can read {key}; fix it with: chmod 600 {key}")
    found = open_data(settings, data, private(settings.state) / "cache")
    counts, what = found.counts, settings.called
    say(
        f"{settings.name} has {sum(counts.labelled):,} labelled and {counts.unlabelled:,} unlabelled {what} "
        f"to train on, {sum(counts.held_out):,} held out"
    )
    for note in (*found.notes, *settings.limits_in_words, *expiry.of_site(settings)):
        say(f"note: {note}")
    if not settings.insecure and settings.trusted.is_file():
        say(f"{settings.name} {signing.trusted_by(settings)}")


def require_approval(settings: Site) -> None:
    """Raise where a site's owner has not approved what it would take part in."""
    if not settings.insecure:
        try:
            approval.require(settings)
        except approval.Refused as error:
            raise ConfigError(f"{error.in_full}; {approval.cure(settings)}") from None


def require_server(deployment: Deployment, say: Say | None = None) -> None:
    """Raise where the server does not answer, or could not with a certificate that has ended.

    With ``say``, one that is being started is waited for.
    """
    if answers(deployment):
        return
    if not deployment.insecure:
        entrance.check_server_files(deployment)
    starting = supervisor(deployment).is_taken
    if say and starting():
        say(f"waiting for the server of {deployment.path}, which is starting")
        wait_until(lambda: answers(deployment) or not starting(), START)
        if answers(deployment):
            return
    if starting():
        raise RunError(
            f"the server was started, but does not answer at {local_address(deployment)}; "
            f"{deployment.state / 'server.log'} says why"
        )
    raise RunError(f"the server is not running; start it with 'proxyfl deploy server {deployment.path}'")


def submit(deployment: Deployment) -> str:
    """Start the run or go on with it; Flower's number of it. Its SuperLink must be up."""
    require_server(deployment)
    if not deployment.insecure:
        signing.signature_of(deployment)
    answer = ask_flwr(["run", str(deployment.app), LINK], flower_home(deployment))
    return str(answer["run-id"])


def supervisor(deployment: Deployment) -> Post:
    """What is locked while ``proxyfl deploy server`` runs, also while it starts a program again."""
    return Post(deployment.state, f"the server of {deployment.path}")


def is_running(deployment: Deployment) -> bool:
    return RunDirectory(deployment.state).is_locked()


def under_way(deployment: Deployment) -> str:
    """Flower's number of the run that is being played."""
    require_server(deployment)
    if not (runs := going(deployment)):
        raise RunError(f"no run is in progress; 'proxyfl deploy status {deployment.path}' says what there is")
    return runs[0]


def going(deployment: Deployment) -> list[str]:
    """Flower's numbers of runs that have not ended."""
    listed = ask_flwr(["ls", LINK], flower_home(deployment))
    return [str(run["run-id"]) for run in listed.get("runs", []) if "finished" not in str(run.get("status"))]


def follow(
    deployment: Deployment, run: str, every: float = 0.5, *, past: bool = True
) -> Iterator[dict[str, Any]]:
    """What happens, as it happens, up to the end of the run. A run that died without a word is found, too.

    Without its ``past``, from its last line on.
    """
    reader, begun = LiveReader(deployment.state / LIVE_FILE), False
    alive = asked = time.monotonic()
    silent = over = 0
    while True:
        lines = reader.new()
        if not begun:
            lines = _since(run, lines)
            begun, lines = bool(lines), lines if past else lines[-1:]
        run = str(lines[-1].get("run")) if lines else run  # the server may have started it again
        yield from lines
        if any(line["event"] in ENDS for line in lines):
            return
        now = time.monotonic()
        asked, over = (now, 0) if lines else (asked, over)
        if now - alive > QUIET / 10:
            alive, reason = now, ""
            there = answers(deployment, 10.0) or supervisor(deployment).is_taken()
            silent = 0 if there else silent + 1
            if silent >= PROBES:
                reason = _gone(deployment)
            elif not silent and now - asked > QUIET:
                asked, reason = now, _over(deployment, run)
                over = over + 1 if reason else 0
                if over < PROBES and "stopped" not in reason and supervisor(deployment).is_taken():
                    reason = ""  # the server may be about to start it again
            if reason:
                yield {"event": "stopped", "reason": reason, "text": f"stopped: {reason}"}
                return
        time.sleep(every)


def _since(run: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(dropwhile(lambda line: line.get("run") != run, lines))


def _gone(deployment: Deployment) -> str:
    return (
        f"the server is gone; start it again with 'proxyfl deploy server {deployment.path}', "
        "then run this again"
    )


def _over(deployment: Deployment, run: str) -> str:
    """Why Flower's run is over; empty while it goes on, or where Flower cannot say."""
    state = state_of(deployment, run)
    over = "finished" in state or "unknown" in state
    return f"Flower says '{state}'; see {deployment.state / 'superlink.log'}" if over else ""


def state_of(deployment: Deployment, run: str) -> str:
    """What Flower calls the state of a run; empty where it cannot say."""
    try:
        listed = ask_flwr(["ls", LINK, "--run-id", run], flower_home(deployment))
    except ProxyFLError as error:
        if "not found" not in str(error).lower():
            return ""
        listed = {}
    return str(listed["runs"][0].get("status", "")) if listed.get("runs") else "unknown run"
