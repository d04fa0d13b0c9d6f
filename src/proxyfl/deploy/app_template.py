"""The Flower app that is submitted: a folder of a few lines that name this package."""

from __future__ import annotations

from pathlib import Path

from proxyfl.core.files import write_bytes

PACKAGE = "proxyfl_federation"

FILES = {
    "pyproject.toml": f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "proxyfl-federation"
version = "1.0.0"
description = "A federation of proxyfl"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "proxyfl"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

[tool.flwr.app.config]
""",
    f"{PACKAGE}/__init__.py": '"""A federation of proxyfl, as Flower starts it."""\n',
    f"{PACKAGE}/server_app.py": '''\
"""The server: its rounds are in proxyfl."""

from flwr.serverapp import ServerApp

from proxyfl.deploy.server_app import serve

app = ServerApp()
app.main()(serve)
''',
    f"{PACKAGE}/client_app.py": '''\
"""A site: its work is in proxyfl."""

from flwr.clientapp import ClientApp

from proxyfl.deploy.client_app import fitted

app = ClientApp()
fitted(app)
''',
}


def write_app(folder: Path) -> None:
    """Write the app into a folder; files of that name are replaced."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
