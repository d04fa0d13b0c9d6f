"""What the documents show must run as it stands there (with fewer rounds)."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from calling import invoke, known_place
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
TINY = "--rounds 1 --clients 4 --per-round 2 --subset 120 --set train.epochs=1".split()


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


def execute(script: str, cwd: Path) -> str:
    """What a script prints that begins with an empty namespace in this folder."""
    printed = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(printed):
        exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's examples in Python have run."""
    folder = tmp_path_factory.mktemp("readme")
    objects, example = blocks("README.md")[:2]
    assert "rounds=2," in objects
    shorter = objects.replace("rounds=2,", "rounds=2, per_round=2,")
    (folder / "objects.txt").write_text(execute(shorter, cwd=folder))
    assert "rounds=20" in example
    shorter = example.replace("rounds=20", "rounds=1, clients=4, per_round=2, subset=200, train__epochs=1")
    (folder / "first.txt").write_text(execute(shorter, cwd=folder))
    return folder


def test_the_python_examples_are_ten_lines_and_run(place: Path) -> None:
    for example in blocks("README.md")[:2]:
        assert len([line for line in example.splitlines() if line.strip()]) <= 10
    assert (place / "objects.txt").read_text().splitlines()[-1].startswith("2 0.")
    printed = (place / "first.txt").read_text()
    assert "% over the last rounds" in printed
    assert "selected_share" in printed


def test_a_model_file_loads_in_five_lines(place: Path) -> None:
    example = blocks("README.md")[2]
    assert len(example.strip().splitlines()) == 5
    shown = "print(network.eval()(torch.zeros(2, 1, 8, 8)).shape, card['classes'][3], card['mean'])"
    check = f"\nimport torch\n{shown}"
    assert execute(example + check, cwd=place).startswith("torch.Size([2, 10]) 3 [0.3")


def test_the_example_method_trains_alone_and_with_addons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_place(monkeypatch, tmp_path)
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    (tmp_path / "my_methods.py").write_text(blocks("docs/hooks.md")[0])
    monkeypatch.setenv("PROXYFL_PLUGINS", "my_methods.py")
    for method in ("risingmatch", "risingmatch+proxyfl"):
        answer = invoke("run", "digits", "--method", method, *TINY, "--name", method)
        assert answer.exit_code == 0, answer.stderr
        assert (tmp_path / "runs" / method / "models" / "last.safetensors").is_file()
    assert "threshold in the first round" in invoke("methods", "show", "risingmatch").stdout
