"""``proxyfl report`` and ``proxyfl dashboard`` as a user types them."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


def test_report_writes_one_file_and_says_where(call, tiny, tmp_path):
    result = call("report", tiny, "-o", tmp_path / "out" / "page.html", "--title", "Mine")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{tmp_path / 'out' / 'page.html'} (")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["page.html"]
    assert "<title>Mine</title>" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")


def test_report_takes_names_and_counts_a_run_once(call, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PROXYFL_RUNS", str(tiny.parent))
    result = call("report", "tiny", "tiny")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>tiny</title>" in text
    assert text.count('"name":"tiny"') == 1


def test_report_refuses_what_is_no_run_or_no_file(call, tiny, tmp_path):
    result = call("report", "nothing")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "nothing is not a run" in result.stderr
    result = call("report", tiny, "-o", tmp_path)
    assert result.exit_code == 2
    assert "is a folder" in result.stderr


@pytest.mark.parametrize("verb", ["report", "dashboard"])
def test_help_has_examples(call, verb):
    assert f"proxyfl {verb}" in call(verb, "--help").stdout.partition("Examples")[2]


def test_dashboard_needs_a_folder_and_a_free_port(call, tmp_path):
    result = call("dashboard", "--runs", tmp_path / "none")
    assert result.exit_code == 2
    assert "is not a folder" in result.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = call("dashboard", "--runs", tmp_path, "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "cannot be used" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="interrupts are sent as POSIX signals")
def test_dashboard_answers_and_ends_cleanly(tiny):
    line = [sys.executable, "-m", "proxyfl", "dashboard", "--runs", str(tiny.parent), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address.replace("/?", "/api/runs?"), timeout=30) as answer:
                assert b'"tiny"' in answer.read()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")


def test_the_browser_is_opened_without_the_token_on_a_command_line(call, tiny, monkeypatch):
    """Other accounts can read command lines, and cannot read the file that leads to the page."""
    opened = []

    def look(address):
        file = Path(unquote(urlsplit(address).path))
        others = stat.S_IMODE(file.parent.stat().st_mode) & 0o077
        opened.append((address, file.read_text(), others))

    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr("proxyfl.report.dashboard.server.serve", lambda server: server.stop())
    told = call("dashboard", "--runs", tiny.parent, "--port", 0, "--open").stdout.split()[0]
    ((address, page, others),) = opened
    assert address.startswith("file://")
    assert urlsplit(told).query.startswith("token=")
    assert (told in page, others) == (True, 0)
    assert not Path(unquote(urlsplit(address).path)).exists()
