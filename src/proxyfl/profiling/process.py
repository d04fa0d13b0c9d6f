"""A profile taken in a process of its own, with the memory allocator that worker processes have.

The allocator reads its settings when a program starts, and without them a step takes up to half as long
again: a profile of the process that the user started would not be that of a run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from proxyfl.core import plugins
from proxyfl.core.config import Config, read_config
from proxyfl.core.errors import RunError
from proxyfl.engines.forkserver import WORKERS, search_path, tuned_environment
from proxyfl.engines.remote_error import describe, raised
from proxyfl.profiling.phases import Profile
from proxyfl.profiling.profile import Tell, profile

PATIENCE = 1.5
"""Seconds that the process has to end when it is asked to."""


def profile_in_process(
    config: Config,
    data_root: Path | None = None,
    *,
    steps: int | None = None,
    client: int | None = None,
    tell: Tell = lambda words, share: None,
) -> Profile:
    """As :func:`proxyfl.profiling.profile.profile`, under the conditions of a worker process. Where a run
    would have none, in this process.
    """
    if os.environ.get(WORKERS) == "0" or config.train.leak_momentum:
        return profile(config, data_root, steps=steps, client=client, tell=tell)
    request = {
        "config": config.to_tree(),
        "plugins": plugins.loaded,
        "data_root": str(data_root) if data_root else None,
        "steps": steps,
        "client": client,
    }
    threads = str(config.compute.threads)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**tuned_environment(), "PYTHONPATH": search_path(), "OMP_NUM_THREADS": threads},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "words" in message:
                tell(message["words"], message["share"])
            elif "profile" in message:
                return Profile.from_tree(message["profile"])
            else:
                raise raised(message)
    finally:
        code = _end(process)
    raise RunError(f"the profiling process ended with code {code}; is there enough memory?")


def _end(process: subprocess.Popen[str]) -> int:
    """Its exit code. It is given the time to remove its folder."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a plug-in prints must not get among the answers
    try:
        found = dataclasses.asdict(_take(json.load(sys.stdin), answers))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to tidy up
        _send(answers, profile=found)
    except BrokenPipeError:
        return
    except Exception as error:
        _send(answers, **describe(error))


def _take(request: dict[str, Any], answers: TextIO) -> Profile:
    for plugin in request["plugins"]:
        plugins.load_plugin(plugin)
    config = read_config(request["config"], request["config"]["fidelity"])
    return profile(
        config,
        request["data_root"],
        steps=request["steps"],
        client=request["client"],
        tell=lambda words, share: _send(answers, words=words, share=share),
    )


def _send(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
