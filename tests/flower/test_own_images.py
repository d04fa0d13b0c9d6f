"""A federation of one's own images as docs/deploy.md has it: nine commands, and what works on the result."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PROXYFL, free_port, loopback

from dashboards import require_page
from proxyfl.deploy.settings import Deployment
from proxyfl.runs.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux"),
]
CLASSES = ("well", "ill")
"""Not in the order of the alphabet, as folders would be."""


def images(folder, count, seed, kinds=(*CLASSES, "unlabelled")):
    """A folder for each class: a bright square above for one of them, below for the other."""
    draw = np.random.default_rng(seed)
    for place, name in enumerate(kinds):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 90, (16, 16), dtype=np.uint8)
            top = 8 * (place if name in CLASSES else number % 2)
            pixels[top : top + 8, 4:12] += 120
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
    return folder


def typed(*words, cwd=None):
    done = subprocess.run([*PROXYFL, *map(str, words)], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_nothing_to_a_result_in_at_most_ten_commands(tmp_path):
    home, elsewhere = tmp_path / "clinic", tmp_path / "elsewhere"
    test = images(tmp_path / "test", 30, 9, CLASSES)
    data = [images(tmp_path / f"images {site}", 24, site) for site in range(2)]
    form = ("--classes", ",".join(CLASSES), "--channels", 1, "--image-size", 16, "--no-flip", "--test", test)
    small = ("--set", "train.epochs=2", "--set", "train.batch=8", "--set", "federation.evaluate_every=2")
    place = ("--port", free_port(), "--rounds", 2)
    typed("deploy", "init", home, "--sites", 2, "--method", "sage", *form, *small, *place)
    assert "weights" in typed("deploy", "explain", home)
    made = Deployment.read(home)
    with loopback(made) as federation:
        federation.server()
        for name, folder in zip(made.sites, data, strict=True):
            assert "24" in typed("deploy", "check", folder, "--site", home / name)
            federation.start(name, "deploy", "site", home / name, "--data", folder, "--approve")
        said = federation.finish(federation.run())
        assert "finished" in typed("deploy", "status", home)
    rounds = re.findall(r"^round (\d): (accuracy)?.*?( of it measuring accuracy)?$", said, re.MULTILINE)
    assert rounds == [("1", "", ""), ("2", "accuracy", " of it measuring accuracy")]

    elsewhere.mkdir()
    accuracy = Run(made.run).model().card.accuracy
    assert accuracy > 0.8, "or classes that were mixed up would not be noticed"
    evaluated = typed("eval", made.run, cwd=elsewhere)
    assert f"accuracy {accuracy:.2%}".replace("%", " %") in evaluated
    assert "the run recorded" not in evaluated
    assert "best (round 2)" in typed("show", made.run, cwd=elsewhere)
    require_page(["dashboard", str(made.run)])
    assert list(elsewhere.iterdir()) == []
