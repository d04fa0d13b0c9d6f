"""What each test costs in CPU time, its child processes included: pytest -p cost [--cost FILE].

A busy machine makes a test wait but does not make it dearer, so budgets are kept in this measure, not in
seconds of the clock. The first test that asks for a shared fixture pays for it.
"""

from __future__ import annotations

import csv
import resource
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 40


def _used() -> float:
    """Processor seconds of this process and of those children that have ended."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in times)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cost", type=Path, help="add a line for every test to this CSV file")


class Cost:
    """Each report carries what was used since the last one; who collects reports adds them up."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.before = _used()
        self.seconds: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        self.before = _used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = _used()
        report.user_properties.append(("cost", now - self.before))
        self.before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += dict(report.user_properties).get("cost", 0)
        if report.when == "teardown" and self.file:
            with self.file.open("a", newline="", encoding="utf-8") as out:
                csv.writer(out).writerow([report.nodeid, f"{self.seconds[report.nodeid]:.2f}"])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        folders: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            folders[test.partition("::")[0].rpartition("/")[0]] += seconds
        terminalreporter.section(f"CPU time: {sum(folders.values()):.0f} s")
        for name, seconds in (*folders.most_common(), *self.seconds.most_common(SHOWN)):
            terminalreporter.line(f"{seconds:8.2f}  {name}")


def pytest_configure(config: pytest.Config) -> None:
    collects = not hasattr(config, "workerinput")
    config.pluginmanager.register(Cost(config.getoption("--cost") if collects else None))
