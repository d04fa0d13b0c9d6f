"""What Flower runs at the server: the round loop of the deployment whose SuperLink this is."""

from __future__ import annotations

import os

from flwr.app import Context
from flwr.serverapp import Grid

from proxyfl.core.errors import ConfigError

DEPLOYMENT = "PROXYFL_DEPLOYMENT"
"""Set by ``proxyfl deploy server``: the operator's folder. An app that is submitted cannot choose it."""


def serve(grid: Grid, context: Context) -> None:
    """The main function of the server app."""
    from proxyfl.core.plugins import load_plugins
    from proxyfl.deploy.server_run import DeployedServer
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.site_data import open_test

    folder = os.environ.get(DEPLOYMENT)
    if not folder:
        raise ConfigError(f"${DEPLOYMENT} is not set; start the SuperLink with 'proxyfl deploy server DIR'")
    load_plugins(())
    deployment = Deployment.read(folder)
    path, form = deployment.test_path, (deployment.classes, deployment.channels, deployment.image_size)
    keys = deployment.config.data.keys
    test = None if path is None else lambda: open_test(path, *form, features=deployment.features, keys=keys)
    DeployedServer(deployment, grid, test, str(context.run_id)).run()
