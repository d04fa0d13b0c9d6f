"""What holds for every test: one thread, no worker processes unasked, Ctrl-C and plug-ins of its own."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator

import pytest
import torch
import typer.testing

from proxyfl.core import plugins

os.environ.setdefault("RAY_worker_niceness", "0")
"""Ray's processes give way to all others by default: beside other tests on two cores they hardly start."""

FIRST = ("test_loopback.py", "test_cluster.py", "test_demo.py")
"""Tests that wait for other programs: begun first, they wait while the others compute."""

typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
"""Typer puts the whole command line together anew for every call of a test: five times the call itself."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)


class NamedAtOnce:
    """The name of a failed test as soon as it failed: the whole suite takes more than an hour."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when})")


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal and "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.pluginmanager.register(NamedAtOnce(terminal))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors: threads cost more than they give, and other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ.setdefault("PROXYFL_WORKERS", "0")
    os.environ["PROXYFL_CACHE"] = ""  # listings are made, not read
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for programs that tests start
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def no_flushing() -> Iterator[None]:
    """What a killed process wrote stays without it: only power cuts need it, which have their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_works() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would every program that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_plugins() -> Iterator[None]:
    """Worker processes import every plug-in of their parent; those of another test may be gone by then."""
    before = list(plugins.loaded)
    yield
    plugins.loaded[:] = before
