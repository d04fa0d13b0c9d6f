"""What Flower runs at a site, in a new process for every message; what is heavy is imported when needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from proxyfl.engines.flower.site import SiteSide

SITE, SITE_DATA = "PROXYFL_SITE", "PROXYFL_SITE_DATA"
"""Set by ``proxyfl deploy site``: the site's folder and its images."""


def site_side() -> SiteSide:
    """This site, as its folder describes it."""
    from pathlib import Path

    from proxyfl.core.plugins import load_plugins
    from proxyfl.deploy.settings import Site
    from proxyfl.deploy.site_data import open_site
    from proxyfl.engines.flower.site import FORM, SiteImages, SiteSide

    folder, data = os.environ.get(SITE), os.environ.get(SITE_DATA)
    if not folder or not data:
        raise ConfigError(f"${SITE} is not set; start the node with 'proxyfl deploy site DIR --data PATH'")
    load_plugins(())
    site = Site.read(folder)

    def images() -> SiteImages:
        cache = site.state / "cache"
        form = (site.classes, site.channels, site.image_size, site.holdout, site.seed)
        found = open_site(Path(data), *form, cache=cache)
        return SiteImages(found.data, found.held_out)

    values = {name: getattr(site, name) for name in FORM}
    form = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return SiteSide(site.name, form, images, site.state, site.device)


def train(message: Message, context: Context) -> Message:
    return Message(site_side().train(message.content), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    return Message(site_side().evaluate(message.content), reply_to=message)


def enrol(message: Message, context: Context) -> Message:
    return Message(site_side().enrol(message.content), reply_to=message)


def fitted(app: ClientApp) -> ClientApp:
    """The app with its three handlers."""
    app.train()(train)
    app.evaluate()(evaluate)
    app.query()(enrol)
    return app
