"""The Ray cluster that this process is connected to: the only place that knows Ray.

What is given to Ray are our own bytes, blocks of numbers and actor classes of this package, which it names by
their import path. Ray itself pickles what it sends: all nodes of a cluster trust each other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError, missing_extra
from proxyfl.core.machine import usable_cores
from proxyfl.engines.cluster.witness import Witness
from proxyfl.engines.forkserver import TUNABLES, tuned_environment

AUTO, LOCAL = "auto", "local"
PATIENCE = 10.0
"""Seconds in which a cluster's address must answer."""

SILENCE = 15.0
"""Seconds for which the head node may be silent; after 60, Ray ends the process without our error."""

LOOK_ROUND = 1.0
"""Seconds between two looks at whether the head node is there."""

LONG = 30.0
"""Seconds without anybody at work after which the wait is reported."""

GIGABYTE = 1e9
_PLACE = re.compile(r"(?P<host>[^\s:/]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")

Ref = Any
"""An answer that is to come, or something in the cluster's memory."""

Actor = Any
"""An object that lives in a process of some node."""


class Lost(Exception):
    """An actor that will not answer any more, and why, in a few words."""


class Unfit(Lost):
    """An actor that its node cannot start; ``node`` is empty where Ray does not say which one."""

    def __init__(self, why: str, node: str) -> None:
        super().__init__(why)
        self.node = node


@dataclass(frozen=True)
class Needs:
    """What an actor takes of its node; memory in gigabytes."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.cpus:g} CPU{'s' * (self.cpus > 1)}"]
        words += [f"{self.gpus:g} GPU{'s' * (self.gpus > 1)}"] * bool(self.gpus)
        words += [f"{self.memory:g} GB of memory"] * bool(self.memory)
        return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)

    def fitting(self, resources: dict[str, float]) -> int:
        """How many such actors a node with these resources has room for."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory * GIGABYTE}
        return int(min(resources.get(name, 0.0) / amount + 1e-9 for name, amount in wanted.items() if amount))


def require_address(address: str) -> None:
    if address not in (AUTO, LOCAL) and not _PLACE.fullmatch(address):
        raise ConfigError(
            f"'{address}' is not the address of a Ray cluster; give HOST:PORT, 'auto' for the cluster this "
            "machine belongs to, or 'local' for one that lasts as long as the run"
        )


class Cluster:
    """A process has one connection to one cluster, however many objects of this class there are."""

    _open: ClassVar[list[Cluster]] = []
    _disconnect: ClassVar[Callable[[], None]]

    def __init__(self, address: str = AUTO) -> None:
        require_address(address)
        self.ray, self.address = _ray(), address
        others = {cluster.address for cluster in Cluster._open} - {address}
        if others:
            raise RunError(f"this process uses the Ray cluster '{others.pop()}'; close that federation first")
        if not Cluster._open:
            # A program that has called ray.init() itself keeps the cluster that it chose.
            Cluster._disconnect = (lambda: None) if self.ray.is_initialized() else _connected(address)
        self.head, self._looked = self.ray.get_runtime_context().gcs_address, 0.0
        Cluster._open.append(self)

    def close(self) -> None:
        if self in Cluster._open:
            Cluster._open.remove(self)
            if not Cluster._open:
                Cluster._disconnect()

    def room(self, needs: Needs, without: Collection[str] = ()) -> int:
        """How many such actors all living nodes (but these) have room for, if nobody else used them."""
        self.require_head()  # just before: Ray would ask a dead one for a minute
        living = [node for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in without]
        return sum(needs.fitting(node["Resources"]) for node in living)

    def require_head(self) -> None:
        """An error where the head node stays silent: Ray would wait for it, and then end this process."""
        began = time.monotonic()
        while _silence(self.head):
            if time.monotonic() - began > SILENCE:
                raise RunError(_lost(self.address, f"its head node at {self.head} does not respond"))
            time.sleep(LOOK_ROUND)
        self._looked = time.monotonic()

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """What Ray raises where its own process on this machine has gone is no error of a disk."""
        try:
            yield
        except OSError as error:
            if isinstance(error, self.ray.exceptions.RayError):  # an actor's own error, as Ray passes it on
                raise
            why = f"Ray on this machine does not respond ({_last_line(error)})"
            raise RunError(_lost(self.address, why)) from error

    def require_room(self, needs: Needs, what: str) -> int:
        """The same; an error where no node has room for one of what is to be there."""
        room = self.room(needs)
        if not room:
            raise RunError(
                f"no node of the Ray cluster '{self.address}' has {needs}, as required for "
                f"a {what}; ask for less or add a node"
            )
        return room

    def hire(self, kind: type, needs: Needs, without: Collection[str] = ()) -> Actor:
        """An actor somewhere, but not on these nodes; it waits for room, and ends with this process."""
        elsewhere = {"ray.io/node-id": f"!in({','.join(sorted(without))})"} if without else None
        wanted = self.ray.remote(kind).options(
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            memory=int(needs.memory * GIGABYTE) or None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            label_selector=elsewhere,
        )
        with self._reached():
            return wanted.remote()

    def ask(self, actor: Actor, what: str, *given: Any) -> Ref:
        """The answer that is to come from a method of an actor."""
        with self._reached():
            return getattr(actor, what).remote(*given)

    def dismiss(self, actor: Actor) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(actor)

    def put(self, thing: Any) -> Ref:
        """Bytes or a block that every node can see; it is kept as long as the reference is."""
        errors = self.ray.exceptions
        try:
            with self._reached():
                return self.ray.put(thing)
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise RunError(
                f"{len(thing) / GIGABYTE:.1f} GB do not fit into the Ray cluster's memory; start it with "
                "a larger --object-store-memory, or use fewer images (data.subset)"
            ) from error

    def first(self, refs: Sequence[Ref], seconds: float) -> set[Ref]:
        """Those of the answers that have come, after waiting for the first of them."""
        if time.monotonic() - self._looked > LOOK_ROUND:
            self.require_head()
        if not refs:
            time.sleep(seconds)
            return set()
        with self._reached():
            return set(self.ray.wait(list(refs), num_returns=1, timeout=seconds)[0])

    def answer(self, ref: Ref) -> bytes:
        """What an actor said; :class:`Lost` where it ended before."""
        errors = self.ray.exceptions
        try:
            with self._reached():
                said: bytes = self.ray.get(ref)
        except errors.RayTaskError as error:  # actors answer with their errors: this one could not
            raise RunError(f"an actor failed: {_last_line(error)}") from error
        except errors.OutOfMemoryError as error:
            raise Lost("its node ran out of memory") from error
        except (errors.RuntimeEnvSetupError, errors.ActorUnschedulableError) as error:
            raise Lost(_last_line(error)) from error
        except errors.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise _unfit(error) from error
            raise Lost("the process or its node ended") from error
        return said


def _unfit(error: Any) -> Unfit:
    """An actor died in its creation; which node it was on is known to the head node."""
    address, node = re.search(r"\bip=([^,)\s]+)", str(error)), ""
    with contextlib.suppress(Exception):  # no public interface of Ray, which may change
        node = _ray()._private.state.actors(error.actor_id)["Address"]["NodeID"]
    host = address[1] if address else node or "of the Ray cluster"
    cure = "install the same packages there as here"
    return Unfit(f"node {host} cannot start an actor: {_last_line(error)}; {cure}", node)


def _lost(address: str, why: str) -> str:
    return (
        f"the Ray cluster '{address}' is lost: {why}; the last checkpoint is kept: continue with "
        "'proxyfl resume RUN', or several runs with the same command, without Ray or on another cluster "
        "(--engine ray --address HOST:PORT)"
    )


def this_node() -> str:
    """What Ray knows the node by that this process is on; to be asked by an actor."""
    name: str = _ray().get_runtime_context().get_node_id()
    return name


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise missing_extra("Ray", "ray") from error
    return ray


def _connected(address: str) -> Callable[[], None]:
    """Connect this process; gives what ends the connection."""
    stack = contextlib.ExitStack()
    with contextlib.ExitStack() as failing:
        failing.push(stack)
        if address == LOCAL:
            stack.enter_context(_private_cluster())
        _require_listening(address)
        _authentication_read_again()
        options = {"num_cpus": usable_cores(), "include_dashboard": False} if address == LOCAL else {}
        variables = {TUNABLES: tuned_environment()[TUNABLES]}
        try:
            with _handlers_kept():
                _ray().init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": variables},
                    **options,
                )
        except ProxyFLError:
            raise
        except Exception as error:  # Ray has no class for what goes wrong here
            raise _in_words(address, error) from error
        stack.callback(_ray().shutdown)
        if address != LOCAL:  # which ends with this process, however that ends
            stack.callback(_witness(address).end)
        failing.pop_all()
    return stack.close


def _witness(address: str) -> Witness:
    """Watches over this process while it depends on the head node and on Ray on this machine."""
    here = this_node()
    nodes = [node for node in _ray().nodes() if node["NodeID"] == here]
    places = [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in nodes]
    words = _lost(address, "its processes on the head node or on this machine have ended")
    return Witness(words, [_ray().get_runtime_context().gcs_address, *places])


def _in_words(address: str, error: Exception) -> RunError:
    if address == AUTO and isinstance(error, ConnectionError):
        return RunError(
            "there is no Ray cluster on this machine; start one with 'ray start --head', join one with "
            "'ray start --address HOST:PORT', or use --address local"
        )
    if isinstance(error, _ray().exceptions.AuthenticationError):
        return RunError(
            f"the Ray cluster at '{address}' requires a token; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN as when it was started"
        )
    return RunError(
        f"the Ray cluster at '{address}' cannot be used: {_last_line(error)}; this machine must be one of "
        "its nodes, with the same versions of Python and Ray"
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _require_listening(address: str) -> None:
    """Ray itself asks a silent address for minutes."""
    place = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    if error := _silence(place, PATIENCE):
        raise RunError(
            f"nothing answers at {place}; start Ray there with 'ray start --head --port "
            f"{place.rpartition(':')[2]}', or give the address that it printed when it was started"
        ) from error


def _silence(place: str, seconds: float = 2.0) -> Exception | None:
    """Why nothing answers at HOST:PORT; none where something does, or what is given is no such place."""
    if found := _PLACE.fullmatch(place):
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), seconds).close()
        except (OSError, OverflowError, UnicodeError) as error:
            return error
    return None


@cache
def _token() -> str:
    """One for all private clusters of this process: Ray keeps the first that it reads."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _private_cluster() -> Iterator[None]:
    """The environment in which Ray starts a cluster for this process alone, and tells nobody about it."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED")
    before = {name: os.environ.get(name) for name in names}
    if not any(before[name] for name in names[:3]):
        # Ray listens on all of the machine's networks, and would write a token to the user's home folder.
        os.environ["RAY_AUTH_TOKEN"] = _token()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _authentication_read_again() -> None:
    """Ray keeps the mode and the token of the last cluster that this process used; on a cluster with others,
    actors would end at once.
    """
    with contextlib.suppress(AttributeError):  # no public interface of Ray, which may change
        inside = _ray()._raylet
        inside.Config.initialize("")  # first: in the mode 'token', Ray ends a process that has no token
        inside.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray replaces what this program does on SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
