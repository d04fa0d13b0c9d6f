"""A hostile site in its own network: whatever it tries at the server, only a site's own requests are heard.

Run as ``python intruder.py DIR SITE SERVER``; DIR is read for what a site has, and for the SuperLink's port.
"""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
from pathlib import Path

from foreign import submitted_by
from test_gate import TRICKS, post

from proxyfl.deploy import entrance
from proxyfl.deploy.settings import Deployment


def main(folder: str, site: str, server: str) -> None:
    made = Deployment.read(folder)
    inner = entrance.inner_port(made)
    for port in (inner, *range(8000, 8010), 9091, 9092, 9093):
        with socket.socket() as probe:
            probe.settimeout(5)
            assert probe.connect_ex((server, port)) != 0, f"port {port} is open"
    bound = made.bind[1]
    assert post(made, "/v1/fleet/pull-messages", site=site, server=(server, bound))[0] != 403
    for path in TRICKS:
        assert post(made, path, site=site, server=(server, bound)) == (403, "path"), path
    other = next(name for name in made.sites if name != site)
    assert post(made, "/v1/fleet/pull-messages", site=site, node=other, server=(server, bound))[1] == "node"
    with tempfile.TemporaryDirectory() as home:
        submitted_by(made, site, Path(home) / "attack", f"{server}:{bound}")
    bare = ssl.create_default_context(cafile=str(made.ca_certificate))
    try:
        post(made, "/v1/control/list-runs", site=site, context=bare, server=(server, bound))
    except (ssl.SSLError, OSError):
        print("nothing got through")
        return
    raise AssertionError("heard without a certificate")


if __name__ == "__main__":
    main(*sys.argv[1:])
