"""The frame around the verbs: help, version, errors, plug-ins, and starting as a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from proxyfl import __version__
from proxyfl.cli import app
from proxyfl.cli.common import Verbs, command
from proxyfl.core.errors import RunError

VERBS = [
    [], ["run"], ["resume"], ["ls"], ["show"], ["validate"], ["eval"], ["predict"], ["methods"],
    ["methods", "show"], ["models"], ["models", "show"],
    ["data", "ls"], ["data", "check"], ["data", "fetch"], ["data", "preview"],
    ["config"], ["config", "ls"], ["config", "show"], ["config", "copy"],
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_has_examples(call, verb):
    result = call(*verb, "--help")
    assert result.exit_code == 0
    examples = result.stdout.partition("Examples")[2]
    assert f"proxyfl {' '.join(verb)}".strip() in examples


def test_help_groups_the_verbs(call):
    told = call("--help").stdout
    places = [told.index(f"─ {panel} ─") for panel in ("Train", "Inspect runs", "Use a model")]
    assert places == sorted(places)
    train = told[places[0] : places[1]]
    assert all(f"│ {verb} " in train for verb in ("demo", "run", "resume"))
    assert "│ data " in told
    assert call().stdout.strip() == told.strip()


def test_paragraphs_of_help_are_wrapped_by_the_terminal_alone():
    def texts(verb):
        yield verb.help or ""
        for inner in getattr(verb, "commands", {}).values():
            yield from texts(inner)

    assert not [text for text in texts(typer.main.get_command(app)) if re.search(r"\S\n\S", text)]


def test_version(call, monkeypatch):
    for commit, shown in ((__version__, ""), ("684a03a-changed", " (684a03a-changed)")):
        monkeypatch.setattr("proxyfl.core.provenance.this_commit", lambda commit=commit: commit)
        assert call("--version").stdout == f"proxyfl {__version__}{shown}\n"


def test_unknown_verbs_and_flags_are_refused(call):
    assert call("rnu").exit_code == 2
    result = call("run", "--round", "3")
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_the_command_line_starts_without_torch():
    code = "import sys, proxyfl.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_python_m_proxyfl_in_a_real_process(tiny):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "proxyfl", *words]
        return subprocess.run(line, capture_output=True, text=True, encoding="utf-8", check=False)

    listed = run("ls", str(tiny.parent))
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "tiny" in listed.stdout
    assert "Usage: proxyfl" in run("--help").stdout
    failed = run("show", "nothing")
    assert failed.returncode == 2
    assert "nothing is not a run; 'proxyfl ls DIR'" in failed.stderr
    assert failed.stdout == ""


def test_a_terminal_without_unicode_gets_question_marks(tiny):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-m", "proxyfl", "methods", "show", "proxyfl"]
    result = subprocess.run(line, capture_output=True, env=environment, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"? 0, ? 1" in result.stdout


def small_app(failure: BaseException) -> typer.Typer:
    small = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @small.callback()
    def group() -> None:
        pass

    @small.command()
    def fail() -> None:
        raise failure

    return small


def test_errors_of_several_lines_become_one():
    result = CliRunner().invoke(small_app(RunError("first [x]\n\n\tsecond\n")), ["fail"])
    assert (result.exit_code, result.stderr) == (2, "error: first [x] second\n")


def test_bugs_keep_their_traceback():
    result = CliRunner().invoke(small_app(ZeroDivisionError("a bug")), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.stderr == ""


def test_ctrl_c_anywhere_ends_with_130():
    result = CliRunner().invoke(small_app(KeyboardInterrupt()), ["fail"])
    assert (result.exit_code, result.stderr) == (130, "stopped\n")


PLUGIN = '''
import torch
import proxyfl
from proxyfl.methods.fedavg import FedAvg

@proxyfl.register_model("{name}")
class Net(torch.nn.Module):
    """Sixteen means and a linear map."""
    def __init__(self, classes, channels, width):
        super().__init__()
        self.classifier = torch.nn.Linear(16 * channels, classes)
    def features(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
    def forward(self, x):
        return self.classifier(self.features(x))

proxyfl.register_method(proxyfl.Recipe("{name}-avg", "a method of mine", FedAvg))
'''


@pytest.fixture
def own_names(monkeypatch):
    """What a plug-in registers is forgotten after the test."""
    from proxyfl.methods import registry as methods
    from proxyfl.models import registry as models

    monkeypatch.setattr(methods, "_recipes", dict(methods._recipes))
    monkeypatch.setattr(models, "_factories", dict(models._factories))


def write_plugin(name: str) -> str:
    Path(f"{name}.py").write_text(PLUGIN.format(name=name), encoding="utf-8")
    return f"{name}.py"


def test_a_plugin_makes_its_names_known_and_is_part_of_the_next_command(call, own_names):
    file = write_plugin("ours")
    assert "ours" not in call("models").stdout
    small = ["--rounds", "1", "--clients", "4", "--per-round", "1", "--subset", "120"]
    ours = ["--method", "ours-avg", "--set", "model.name=ours", "--set", "train.epochs=1", "--name", "r"]
    result = call("--plugin", file, "run", *ours, *small)
    assert result.exit_code == 0, result.stderr
    assert "curve      proxyfl --plugin ours.py show runs/r\n" in result.stdout
    assert "a method of mine" in call("--plugin", file, "methods").stdout
    # Imported once a process, however often it is named.
    assert call("--plugin", file, "--plugin", f"./{file}", "models").exit_code == 0


def test_plugins_come_from_the_environment_too(call, own_names, monkeypatch):
    files = [write_plugin("first"), write_plugin("second")]
    monkeypatch.setenv("PROXYFL_PLUGINS", os.pathsep.join(files))
    told = call("models").stdout
    assert "first" in told
    assert "second" in told


def test_a_module_is_imported_by_name(call, own_names, monkeypatch):
    write_plugin("by_module_name")
    monkeypatch.syspath_prepend(".")
    assert "by_module_name" in call("--plugin", "by_module_name", "models").stdout


def test_plugins_that_cannot_be_found(call):
    result = call("--plugin", "none.py", "ls")
    assert (result.exit_code, result.stderr) == (2, "error: plug-in none.py does not exist\n")
    result = call("--plugin", "no_such_module.sub", "ls")
    message = "error: plug-in 'no_such_module.sub' is not installed; to name a file, include its .py\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert call("--plugin", "..", "ls").exit_code == 2


def test_what_a_plugin_cannot_do_is_told_with_file_and_line(call):
    """A neighbour that cannot be imported, a slip of the pen, any error: one line, no traceback."""
    Path("lonely.py").write_text("\nimport neighbour_of_mine\n")
    result = call("--plugin", "lonely.py", "ls")
    assert result.exit_code == 2
    assert "lonely.py, line 2: ModuleNotFoundError" in result.stderr
    assert "PYTHONPATH" in result.stderr
    Path("slip.py").write_text("x = 1\ndef broken(:\n    pass\n")
    result = call("--plugin", "slip.py", "ls")
    assert (result.exit_code, "slip.py, line 2: invalid syntax" in result.stderr) == (2, True)
    Path("wrong.py").write_text("def f():\n    return 1 / 0\nf()\n")
    result = call("--plugin", "wrong.py", "ls")
    assert "wrong.py, line 2: ZeroDivisionError: division by zero" in result.stderr


def test_a_config_file_cannot_run_code(call):
    Path("evil.py").write_text("raise SystemExit('ran')\n")
    Path("evil.toml").write_text('preset = "digits"\n[model]\nname = "evil:Net"\n')
    result = call("validate", "evil.toml")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown model 'evil:Net'")
    Path("evil.toml").write_text('preset = "digits"\nplugin = "evil.py"\n')
    assert call("validate", "evil.toml").stderr.startswith("error: unknown setting 'plugin'")


def test_next_commands_are_quoted_for_the_shell():
    assert command("show", Path("my runs/a")) == "proxyfl show 'my runs/a'"


def test_every_flag_that_is_boolean_takes_no_value():
    import click

    def options(group: click.Command):
        yield from (p for p in group.params if isinstance(p, click.Option))
        for inner in getattr(group, "commands", {}).values():
            yield from options(inner)

    booleans = [
        p for p in options(typer.main.get_command(app)) if isinstance(p.type, click.types.BoolParamType)
    ]
    assert {"--quiet", "--force", "--version"} <= {name for p in booleans for name in p.opts}
    assert all(p.is_flag for p in booleans)
