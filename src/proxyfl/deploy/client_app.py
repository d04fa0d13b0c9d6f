"""What Flower runs at a site, in a new process for every message; what is heavy is imported when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from proxyfl.core.errors import ConfigError
from proxyfl.deploy.app_template import PACKAGE

if TYPE_CHECKING:
    from proxyfl.deploy.settings import Site
    from proxyfl.engines.flower.site import SiteSide

SITE, SITE_DATA = "PROXYFL_SITE", "PROXYFL_SITE_DATA"
"""Set by ``proxyfl deploy site``: the site's folder and its images."""


def this_site() -> Site:
    """This site's settings, as its folder holds them."""
    from proxyfl.core.plugins import load_plugins
    from proxyfl.deploy.settings import Site

    folder = os.environ.get(SITE)
    if not folder or not os.environ.get(SITE_DATA):
        raise ConfigError(f"${SITE} is not set; start the node with 'proxyfl deploy site DIR --data PATH'")
    load_plugins(())
    return Site.read(folder)


def site_side(site: Site) -> SiteSide:
    """What answers for the site."""
    from pathlib import Path

    from proxyfl.deploy.site_data import open_data
    from proxyfl.engines.flower.site import FORM, SiteImages, SiteSide

    data = os.environ[SITE_DATA]

    def images() -> SiteImages:
        found = open_data(site, Path(data), site.state / "cache")
        return SiteImages(found.data, found.held_out)

    values = {name: getattr(site, name) for name in FORM}
    form = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return SiteSide(
        site.name,
        form,
        images,
        site.state,
        site.device,
        site.encoder,
        scores=site.send_scores,
        shares=site.share_model,
        limits=site.limits,
    )


def train(message: Message, context: Context) -> Message:
    return _answer(message, "train", lambda side: side.train(message.content))


def evaluate(message: Message, context: Context) -> Message:
    return _answer(message, "evaluate", lambda side: side.evaluate(message.content))


def enrol(message: Message, context: Context) -> Message:
    def act(side: SiteSide) -> RecordDict:
        words = f"proxyfl: {side.name}: running the server's app {app_mark()}"
        print(words, file=sys.stderr, flush=True)
        return side.enrol(message.content)

    return _answer(message, "enrol", act)


def app_mark() -> str:
    """The first digits of the app's SHA-256, by which Flower names the folder that it is run from."""
    module = sys.modules.get(f"{PACKAGE}.client_app")
    return str(module and module.__file__).rpartition(f"/{PACKAGE}/")[0].rpartition(".")[2] or "unknown"


def _answer(message: Message, kind: str, act: Callable[[SiteSide], RecordDict]) -> Message:
    """A reply in any case. Flower would send an error's words, which may name this machine's files."""
    from proxyfl.core.state import Failure
    from proxyfl.deploy.desk import Desk, unable
    from proxyfl.engines.flower.codec import answer_records

    try:
        site = this_site()
        records = Desk(site, app_mark()).answer(kind, message.content, lambda: act(site_side(site)))
    except Exception as error:  # its settings or its log cannot be used
        records = answer_records(Failure(0, 0, unable(error)))
    return Message(records, reply_to=message)


def fitted(app: ClientApp) -> ClientApp:
    """The app with its three handlers."""
    app.train()(train)
    app.evaluate()(evaluate)
    app.query()(enrol)
    return app
