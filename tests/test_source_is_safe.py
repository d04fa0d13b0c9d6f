"""No line of the program can run what a file says: a walk through the syntax trees of all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "proxyfl"

ALLOWED = {
    "__init__.py": {"importlib.import_module"},  # of a fixed table of this package's own modules
    "methods/__init__.py": {"importlib.import_module"},  # of the files in its own folder
    "results/frames.py": {"pandas"},  # frames are made of what was read; none is read or written with it
    "data/sources/digits.py": {"numpy.loadtxt"},  # of a file that scikit-learn brings
    "data/restricted_pickle.py": {"pickletools"},  # the disassembler alone: nothing is built or imported
    "engines/start.py": {"os.execv"},  # of this very module, with the numbers of open connections
    "engines/handover.py": {"pickle", "cloudpickle"},  # for own child processes, and own actors on a cluster
    "engines/cluster/connection.py": {"ray"},  # between the nodes of one cluster, which trust each other
    "core/plugins.py": {  # code that the user names on the command line or in an environment variable
        "importlib.import_module",
        "importlib.util.spec_from_file_location",
        "importlib.util.module_from_spec",
        "exec_module()",
    },
}
"""The only exceptions, by file."""

MODULES = {
    *(
        "pickle",
        "_pickle",
        "cPickle",
        "pickletools",
        "marshal",
        "shelve",
        "dbm",
        "dill",
        "cloudpickle",
        "joblib",
    ),
    *(
        "yaml",
        "runpy",
        "imp",
        "code",
        "codeop",
        "pty",
        "ctypes",
        "cffi",
        "commands",
        "xmlrpc",
        "pandas",
        "ray",
    ),
    *("torch.package", "torch.hub", "torch.utils.model_zoo", "torch.serialization", "numpy.ctypeslib"),
}
NAMES = {
    *("eval", "exec", "compile", "__import__", "breakpoint"),
    *("builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__"),
    *("os.system", "os.popen", "os.startfile", "os.posix_spawn", "os.posix_spawnp"),
    *(
        f"os.{verb}{end}"
        for verb in ("exec", "spawn")
        for end in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
    ),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"),
    *("torch.load", "torch.jit.load", "torch.export.load", "torch.compile", "torch.ops.load_library"),
    *("numpy.memmap", "numpy.loadtxt", "numpy.genfromtxt", "numpy.lib.format.read_array"),
    *("tempfile.mktemp", "os.tmpnam", "os.tempnam", "ssl._create_unverified_context"),
    *(
        "importlib.import_module",
        "importlib.__import__",
        "importlib.reload",
        "importlib.util.module_from_spec",
    ),
    *("importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader"),
    *("multiprocessing.Pool", "multiprocessing.Queue", "multiprocessing.Manager"),
    *("concurrent.futures.ProcessPoolExecutor", "logging.config.listen"),
}
METHODS = {"exec_module", "load_module", "read_pickle", "to_pickle", "extractall"}
CAREFUL = {"numpy.load": ("allow_pickle", False)}
"""Functions that must be told so in so many words."""

NEVER = {"shell": True, "allow_pickle": True, "verify": False, "weights_only": False}
"""Arguments that no call may have; nor may they be anything that is only known later."""


def faults(code: str) -> Iterator[str]:
    """What a module does that could run what a file says."""
    tree = ast.parse(code)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
                yield from _module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _module(node.module)
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                aliases[name.asname or name.name] = whole
                yield from _module(whole)
                if whole in NAMES:
                    yield whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (found := _dotted(node, aliases)) in NAMES:
            yield found
        elif isinstance(node, ast.Constant) and node.value in ("__import__", "__builtins__"):
            yield str(node.value)
        elif isinstance(node, ast.Call):
            yield from _call(node, aliases)


def _module(name: str) -> Iterator[str]:
    yield from (bad for bad in MODULES if name == bad or name.startswith(f"{bad}."))


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """``np.load`` as ``numpy.load``, whatever numpy was imported as."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return "?"


def _call(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    name = _dotted(node.func, aliases)
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in METHODS:
            yield f"{node.func.attr}()"
        if node.func.attr == "recv" and not node.args:  # of a connection between processes: it unpickles
            yield "recv()"
    for argument, value in NEVER.items():
        found = given.get(argument)
        if found is not None and not (isinstance(found, ast.Constant) and found.value is not value):
            yield f"{argument}={value}"
    if name in CAREFUL:
        argument, value = CAREFUL[name]
        found = given.get(argument)
        if not (isinstance(found, ast.Constant) and found.value is value):
            yield f"{name} without {argument}={value}"


def modules() -> list[str]:
    return sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


def test_all_of_the_source_is_walked_through() -> None:
    assert len(modules()) > 100
    assert set(ALLOWED) <= set(modules())


@pytest.mark.parametrize("module", modules())
def test_nothing_runs_what_a_file_says(module: str) -> None:
    found = set(faults((SOURCE / module).read_text(encoding="utf-8")))
    assert found <= ALLOWED.get(module, set())


@pytest.mark.parametrize("module", ALLOWED)
def test_every_exception_is_needed(module: str) -> None:
    assert set(faults((SOURCE / module).read_text(encoding="utf-8"))) == ALLOWED[module]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import joblib",
        "import ray",
        "def f():\n    import marshal",
        "from torch import package",
        "eval('1')",
        "f = exec",
        "compile('1', '', 'eval')",
        "__import__(name)",
        "getattr(x, '__import__')",
        "from builtins import eval as e\ne('1')",
        "import os\nos.system('ls')",
        "import os as o\no.popen('ls')",
        "from os import system\nsystem('ls')",
        "from os import execv as go",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess as s\ns.Popen(words, shell=flag)",
        "import subprocess\nsubprocess.getoutput('ls')",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=flag)",
        "from numpy import load\nload(path, allow_pickle=1)",
        "import yaml\nyaml.load(text)",
        "import tempfile\ntempfile.mktemp()",
        "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as i\ni(name)",
        "spec.loader.exec_module(module)",
        "tar.extractall(folder)",
        "connection.recv()",
        "requests.get(url, verify=False)",
        "frame.read_pickle(path)",
    ],
)
def test_the_walk_finds_what_it_looks_for(code: str) -> None:
    assert list(faults(code))


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('a')",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'])",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "from safetensors.torch import load\nload(content)",
        "model.eval()",
        "socket.recv(1024)",
        "import json\njson.load(file)",
    ],
)
def test_the_walk_leaves_sound_code_alone(code: str) -> None:
    assert list(faults(code)) == []
