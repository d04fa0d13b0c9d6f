"""An app of somebody else, and all the ways in which a site can try to submit it."""

from __future__ import annotations

from pathlib import Path

import pytest
from line import line_to

from proxyfl.deploy.app_template import PACKAGE, write_app
from proxyfl.deploy.connector import client_tls
from proxyfl.deploy.programs import FlowerError, ask_flwr, environment
from proxyfl.deploy.settings import Deployment

FOREIGN = """
import os, pathlib
from flwr.{side}app import {kind}
from flwr.app import Message, RecordDict, MessageType
from proxyfl.core.config import Config
place = pathlib.Path({marks!r}) / f"{side}-{{os.getpid()}}"
place.write_text("was here")
app = {kind}()
"""

SERVES = """
@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(asked, timeout=120))
    told = [str(reply.error) if reply.has_error() else "RAN" for reply in replies]
    (place.parent / "told").write_text("\\n".join([f"{len(nodes)} nodes", *told]))
"""

OBEYS = """
@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""


def foreign_app(folder: Path, marks: Path) -> Path:
    """An app of somebody else, in the clothes of ours: it leaves a mark wherever it is loaded."""
    write_app(folder)
    for side, kind, rest in (("server", "ServerApp", SERVES), ("client", "ClientApp", OBEYS)):
        text = FOREIGN.format(side=side, kind=kind, marks=str(marks)) + rest
        (folder / PACKAGE / f"{side}_app.py").write_text(text)
    return folder


def submitted_by(made: Deployment, name: str, folder: Path, server: str) -> None:
    """``flwr run`` of a foreign app, with all that a site has: nothing of it is ever loaded.

    Once as Flower's command does it, with ``ca.crt`` alone, and once through a line that shows the site's own
    certificate, which no command of Flower's can do.
    """
    site, marks = made.site(name), folder / "marks"
    marks.mkdir(parents=True)
    app = foreign_app(folder / "foreign", marks)
    bare = f'address = "{server}"\nroot-certificates = "{site.ca_certificate}"\n'
    with line_to(server, client_tls(site)) as line:
        shown = f'address = "{line.address}"\ninsecure = true\n'
        for number, (link, why) in enumerate({bare: None, shown: "403"}.items()):
            env = environment(folder / f"home {number}", {})
            config = folder / f"home {number}" / "config.toml"
            config.write_text(f'[superlink]\ndefault = "it"\n[superlink.it]\n{link}')
            with pytest.raises(FlowerError, match=why):
                ask_flwr(["run", str(app), "it"], env)
    assert list(marks.iterdir()) == []
