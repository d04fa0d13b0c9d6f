"""``proxyfl deploy approve`` and ``audit``: what a site's owner agrees to, and who did what."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import examples, out
from proxyfl.cli.deploy_life import require_flower
from proxyfl.cli.deploy_look import show_explanation
from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from proxyfl.deploy.approval import Offer
    from proxyfl.deploy.settings import Site

APPROVE_EXAMPLES = examples("proxyfl deploy approve site-03", "proxyfl deploy approve site-03 --hash HASH")
AUDIT_EXAMPLES = examples("proxyfl deploy audit DIR", "proxyfl deploy audit site-03 --last 50")

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.", show_default=False)]


def approve(
    folder: SiteFolder,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what is shown without asking.")] = False,
    hash: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="Approve only what was reviewed: the whole hash that 'deploy check' printed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what this site would take part in, and approve it: this app and these settings, no others.

    The approval is stored at the site, signed with its key. If the server has requested something else
    since, that is shown with the differences.
    """
    require_flower()
    from proxyfl.deploy.settings import Site

    agree(Site.read(folder), yes, hash)


def agree(site: Site, yes: bool, reviewed: str | None = None, *, of_folder: bool = False) -> None:
    """Show an offer and approve it, if the owner says so, and if it has the hash that was ``reviewed``.

    ``of_folder``: whatever the server requested in the meantime, what the site's folder offers.
    """
    from proxyfl.core.plugins import load_plugins
    from proxyfl.deploy import approval

    load_plugins(())
    offer, asked = approval.newest_offer(site, of_folder=of_folder)
    if reviewed is not None:
        approval.require_terms(site, offer, reviewed)
    show_offer(site, offer, asked)
    if (site.path / approval.APPROVAL_FILE).exists():
        show_standing(site, offer)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("no terminal to ask on; use --yes to approve what is shown")
        if not typer.confirm(f"\nDoes {site.name} take part under these terms?"):
            raise typer.Exit(1)
    made = approval.approve(site, offer)
    what = "what the server requested" if asked else "what its folder offers"
    out().print(f"\n{site.name} approved {what}, as {made.by} at {made.time}", markup=False, soft_wrap=True)


def show_offer(site: Site, offer: Offer, asked: bool) -> None:
    """App, signer, what leaves, and what this site adds by its own settings."""
    from proxyfl.deploy import approval, signing

    found, console = approval.described(site, offer), out()
    source = "requested by the server, and refused" if asked else "offered in its folder"
    console.print(f"\n{site.name}: {source}", style="bold", markup=False)
    for name, value in (
        ("hash", approval.terms_hash(site, offer)),
        ("app", offer.app),
        ("signer", signing.fingerprint(site.trusted)),
        ("method", offer.config.method.name),
        ("rounds", offer.config.federation.rounds),
    ):
        console.print(f"{name:11}{value}", markup=False, soft_wrap=True)
    show_explanation(found, site)
    console.print(f"\n{site.name} itself, as its site.toml says", style="bold", markup=False)
    for line in approval.own_terms(site, offer.config):
        console.print(f"- {line}", markup=False, soft_wrap=True)


def show_standing(site: Site, offer: Offer) -> bool:
    """What is approved now, and how an offer differs from it; whether the offer is approved."""
    from proxyfl.deploy import approval

    console, state = out(), standing(site)
    approved = state.startswith("approved")
    if changes := approval.differences(site, offer):
        console.print("\nDifferent from what is approved now", style="bold")
        _list(changes)
        state += ", but not for this" if approved else ""
    if allowed := approval.allowed_differences(site, offer):
        console.print("\nAlso different, but this needs no approval", style="bold")
        _list(allowed)
    console.print(f"\n{state}", markup=False, soft_wrap=True)
    return approved and not changes


def _list(lines: list[str]) -> None:
    for line in lines:
        out().print(f"- {line}", markup=False, soft_wrap=True)


def standing(site: Site) -> str:
    """Whether there is an approval, in a line."""
    from proxyfl.deploy import approval

    try:
        found = approval.require(site)
    except approval.Refused as error:
        return f"not approved: {error.in_full}"
    return f"approved by {found.by} at {found.time}"


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A deployment's or a site's folder.", show_default=False)
    ],
    last: Annotated[int, typer.Option(help="How many of the last lines to show.", min=0, max=1000)] = 10,
    since: Annotated[
        str, typer.Option(metavar="N:HASH", help="A head recorded elsewhere: the log must contain it.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the lines as they are stored, for other programs.")
    ] = False,
) -> None:
    """Verify the log of who did, received and sent what. Reports any edit, cut or gap, with exit code 1."""
    from proxyfl.core.errors import RunError
    from proxyfl.deploy.audit import AuditLog, Mark

    log = AuditLog(folder.expanduser().resolve())
    try:
        found = log.verify(Mark.read(since) if since else None)
    except RunError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    shown = list(found.lines)[len(found.lines) - min(last, len(found.lines)) :]
    if as_json:
        for line in shown:
            typer.echo(json.dumps(line))
        return
    console = out()
    for line in shown:
        console.print(_in_words(line), markup=False, soft_wrap=True)
    counts = ", ".join(f"{count} {event}" for event, count in found.events.most_common())
    console.print(
        f"\n{log.folder}: {found.events.total()} lines, unbroken: {counts}", markup=False, soft_wrap=True
    )
    console.print(f"head {found.head}", markup=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _in_words(line: dict[str, Any]) -> str:
    from proxyfl.core.text import reported

    known = {"n", "time", "event", "by", "before"}
    details = " ".join(f"{name}={_short(value)}" for name, value in line.items() if name not in known)
    return reported(f"{line['n']} {line.get('time')} {line.get('by')} {line['event']} {details}", 400)


def _short(value: Any) -> str:
    text = str(value)
    return text[:16] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text
