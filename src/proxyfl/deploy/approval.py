"""What a site's owner has agreed to: this app, these settings, these tensors and no others.

``SITE/offer.json`` comes with the site's folder, ``SITE/approval.json`` is made from it by ``proxyfl deploy
approve`` and signed with the site's key. Every message of the server is compared with it before anything is
done, every answer before it leaves. What a server asked for in vain is kept in ``SITE/state/asked.json``, so
that the owner can look at it and agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config, read_config
from proxyfl.core.dealing import SERVER
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded, sha256, write_bytes
from proxyfl.core.state import STATISTICS, TRAIN, Update, detached
from proxyfl.core.text import shortened
from proxyfl.deploy import pki, signers, signing
from proxyfl.deploy.audit import AuditLog, user
from proxyfl.deploy.explain import Explanation, dry_run, explain
from proxyfl.deploy.form import ImageForm
from proxyfl.deploy.post import private
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.widening import allowed, widened
from proxyfl.engines.flower.codec import forms_of, packed, whole
from proxyfl.engines.serialization import tensors_of
from proxyfl.federation.score_counts import blank, counts_scores

OFFER_FILE, APPROVAL_FILE, ASKED_FILE = "offer.json", "approval.json", "asked.json"
FORMAT = 1
ENROL, EVALUATE = "enrol", "evaluate"
COUNTS = "confusion"
"""The table that leaves a site which measures accuracy, beside counts of scores where it sends them."""
OWN_SETTINGS = ("seed", "scenario", "send_scores", "share_model")
"""What of ``site.toml``, beside the form of its samples, decides about what leaves."""

Leaves = dict[str, list[Any]]
"""Names of tensors, with type and shape."""


class Refused(ConfigError):
    """Something that the site's owner did not approve. Its words are for the server, too; ``here`` are more
    for the site alone.
    """

    def __init__(self, words: str, here: str = "") -> None:
        super().__init__(words)
        self.here = here

    @property
    def in_full(self) -> str:
        """For the site's own people."""
        return f"{self} ({self.here})" if self.here else str(self)


@dataclass(frozen=True)
class Offer:
    """What a site is to agree to: the app by its SHA-256, and the experiment."""

    app: str
    config: Config

    @classmethod
    def of(cls, deployment: Deployment) -> Offer:
        return cls(str(signing.signature_of(deployment)["app"]), deployment.config)

    @classmethod
    def from_tree(cls, tree: Any) -> Offer:
        """From a file or a server: whatever is not as it should be is an error in words."""
        config = tree.get("config") if isinstance(tree, dict) else None
        if not isinstance(config, dict) or not isinstance(config.get("fidelity"), str):
            raise ConfigError("it carries no settings")
        return cls(str(tree.get("app", "")), read_config(config, config["fidelity"]))

    @property
    def tree(self) -> dict[str, Any]:
        return {"app": self.app, "config": json.loads(json.dumps(self.config.to_tree()))}

    def write(self, file: Path) -> None:
        private(file.parent)
        write_bytes(file, f"{json.dumps(self.tree, indent=1)}\n".encode())


@dataclass(frozen=True)
class Approval:
    """The signed document, read and checked."""

    offer: Offer
    form: dict[str, Any]
    leaves: dict[str, Leaves]
    metrics: tuple[str, ...]
    proxyfl: str
    signer: str
    by: str
    time: str
    sha256: str
    """Of the file, as the log has it."""


def write_offers(deployment: Deployment, names: Sequence[str] | None = None) -> None:
    """What the operator puts into sites' folders. Without keys nobody can sign, so there is none then."""
    if not deployment.insecure:
        offer = Offer.of(deployment)
        for name in deployment.present if names is None else names:
            offer.write(deployment.site_folder(name) / OFFER_FILE)


def newest_offer(site: Site, *, of_folder: bool = False) -> tuple[Offer, bool]:
    """What there is to agree to, and whether it is what the server asked for: the newer of the two, or that
    of the site's folder alone.
    """
    handed, asked = site.path / OFFER_FILE, site.state / ASKED_FILE
    found = [file for file in ((handed,) if of_folder else (handed, asked)) if file.is_file()]
    if not found:
        raise ConfigError(
            f"{handed} is missing: it says what this site is to agree to; the federation's operator makes it "
            "with: proxyfl deploy init DIR --renew"
        )
    newest = max(found, key=lambda file: file.stat().st_mtime_ns)
    return Offer.from_tree(_json(newest)), newest == asked


def terms_hash(site: Site, offer: Offer) -> str:
    """Of all that an approval would agree to now, so that what was looked at is what is approved."""
    terms = {
        **offer.tree,
        "form": form_of(site),
        "proxyfl": metadata.version("proxyfl"),
        "signer": signing.fingerprint(site.trusted),
    }
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()


def require_terms(site: Site, offer: Offer, given: str) -> None:
    """Raise where an offer is not that whose hash was given.

    The whole of it: the server chooses requests, and with them the settings that are its own, freely. It can
    search for two whose hashes begin alike, let the one be reviewed and request the other.
    """
    now = terms_hash(site, offer)
    if len(given) != len(now):
        raise ConfigError(
            f"--hash '{given}' has {len(given)} of {len(now)} characters: a server can find two requests "
            "whose hashes begin alike, so an abbreviated one proves nothing; specify the whole hash, as "
            "'proxyfl deploy check' prints it"
        )
    if now != given.lower():
        raise ConfigError(
            f"--hash {given} is not that of what would be approved now, {now}: the server requested "
            f"something else since, or the folder of {site.name} changed; look at it again with 'proxyfl "
            "deploy check'"
        )


def described(site: Site, offer: Offer) -> Explanation:
    """What leaves this site if it agrees, as ``deploy explain`` shows it, observed in a dry run here."""
    return explain(_as_deployment(site, offer.config))


def leaving(site: Site, config: Config) -> tuple[dict[str, Leaves], list[str]]:
    """The tensors of every kind of answer, and the names of its numbers: observed in a dry run."""
    deployment = _as_deployment(site, config)
    _, update = dry_run(deployment)
    leaves = {TRAIN: _shapes(update)}
    if config.model.norm == "static":
        leaves[STATISTICS] = _shapes(dry_run(deployment, STATISTICS)[1])
    if site.holdout:
        leaves[EVALUATE] = {COUNTS: ["I64", [len(site.classes)] * 2]}
        if site.send_scores and counts_scores(config):
            leaves[EVALUATE] |= forms_of(packed(blank(len(site.classes))))
    return leaves, sorted(update.metrics)


def approve(site: Site, offer: Offer) -> Approval:
    """Sign what is offered, with what leaves in consequence."""
    _require_keys(site)
    leaves, metrics = leaving(site, offer.config)
    record = {
        "format": FORMAT,
        "site": site.name,
        "by": user(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "proxyfl": metadata.version("proxyfl"),
        "signer": signing.fingerprint(site.trusted),
        **offer.tree,
        "form": form_of(site),
        "leaves": leaves,
        "metrics": metrics,
    }
    record["signature"] = signers.sign_with_site(site.private_key, _message(record))
    content = f"{json.dumps(record, indent=1)}\n".encode()
    AuditLog(site.path).add(  # first: an approval that is not in the log must not count
        "approved",
        app=offer.app,
        signer=record["signer"],
        method=offer.config.method.name,
        rounds=offer.config.federation.rounds,
        sha256=hashlib.sha256(content).hexdigest(),
        **signers.identity(site),
    )
    write_bytes(site.path / APPROVAL_FILE, content)
    offer.write(site.path / OFFER_FILE)  # what is agreed to again, when the key or the version changes
    (site.state / ASKED_FILE).unlink(missing_ok=True)
    return read(site)


def read(site: Site) -> Approval:
    """The approval, with its signature checked; a :class:`Refused` where there is none that counts."""
    file = site.path / APPROVAL_FILE
    if not file.is_file():
        raise Refused(f"the owner of {site.name} has not approved anything yet")
    try:
        record = _json(file)
        if record["format"] != FORMAT or record["site"] != site.name:
            raise ValueError
        if not signers.is_of_site(site.public_key, _message(record), record["signature"]):
            raise ValueError
        offer = Offer.from_tree(record)
        facts = [*(str(record[name]) for name in ("proxyfl", "signer", "by", "time")), sha256(file)]
        return Approval(offer, record["form"], record["leaves"], tuple(record["metrics"]), *facts)
    except (ValueError, KeyError, TypeError, ConfigError, RunError):
        raise Refused(
            f"the approval of {site.name} is damaged, or was signed with another key than it has now"
        ) from None


def require(site: Site) -> Approval:
    """What counts now; a :class:`Refused` where the site itself has changed since it was given."""
    found, version = read(site), metadata.version("proxyfl")
    if found.proxyfl != version:
        raise Refused(
            f"the owner of {site.name} approved with proxyfl {found.proxyfl}, and it is {version} now"
        )
    if changes := changed(found, site):
        names = shortened(list(changes))  # values stay here: means, say, may come from the site's images
        raise Refused(
            f"site.toml of {site.name} was changed since its owner approved: {names}",
            here=shortened(list(changes.values())),
        )
    with contextlib.suppress(ConfigError):  # whose words would name this machine's files
        if found.signer == signing.fingerprint(site.trusted):
            return found
    raise Refused(f"trusted.yaml of {site.name} does not name the operator's key that was approved")


def changed(found: Approval, site: Site) -> dict[str, str]:
    """What of ``site.toml`` is not as it was approved, by name, each with both values."""
    before, now = found.form, form_of(site)
    return {
        name: f"{name} = {now.get(name)!r}, approved: {before.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    }


def is_missing(reason: str) -> bool:
    """Whether a site gave no update because its owner did not approve something."""
    return "approv" in reason


def require_app(found: Approval, app: str) -> None:
    """Refuse any other app; ``app`` is its SHA-256 or the beginning of it."""
    if len(app) < signing.MARK or not found.offer.app.startswith(app):
        approved = found.offer.app[: signing.MARK]
        raise Refused(f"the site's owner approved the app {approved}, not {app[: signing.MARK] or 'this'}")


def require_asked(found: Approval, kind: str, header: Mapping[str, Any]) -> None:
    """Refuse what a message asks for beyond the approval: before anything is done."""
    if kind not in (ENROL, *found.leaves):
        raise Refused(f"the site's owner did not approve '{kind}'")
    if changes := widened(found.offer.config, Offer.from_tree(header).config):
        raise Refused(f"the site's owner did not approve {shortened(changes)}")
    limit = found.offer.config.federation.rounds
    if kind != ENROL and not 0 <= whole(header, "round") <= limit:
        raise Refused(f"the site's owner approved {limit} rounds, not round {header['round']}")


def require_leaving(found: Approval, kind: str, tensors: Mapping[str, Any]) -> None:
    """Refuse to send what was not approved: a tensor of another name, type or shape."""
    approved = found.leaves.get(kind, {})
    for name, form in tensors.items():
        if approved.get(name) != list(form):
            raise Refused(f"the site's owner did not approve that '{name}' of {form[1]} leaves")


def note_asked(site: Site, app: str, header: Mapping[str, Any]) -> None:
    """Keep what was refused, for the owner to look at."""
    with contextlib.suppress(ConfigError, RunError, OSError):
        known = read(site).offer
        tree = header.get("config") or known.tree["config"]
        Offer.from_tree({"app": app or known.app, "config": tree}).write(site.state / ASKED_FILE)


def differences(site: Site, offer: Offer) -> list[str]:
    """In which respects an offer goes beyond what is approved now, and what of ``site.toml`` was changed;
    empty where nothing was approved.
    """
    try:
        found = read(site)
    except Refused:
        return []
    before = found.offer
    app = [f"app = {offer.app[: signing.MARK]}, approved: {before.app[: signing.MARK]}"]
    own = [f"site.toml: {change}" for change in changed(found, site).values()]
    return [*(app if before.app != offer.app else []), *own, *widened(before.config, offer.config)]


def allowed_differences(site: Site, offer: Offer) -> list[str]:
    """In which respects an offer differs from what is approved now that need no approval."""
    try:
        return allowed(read(site).offer.config, offer.config)
    except Refused:
        return []


def own_terms(site: Site, config: Config) -> list[str]:
    """What this site adds by its own ``site.toml``, with the experiment as it is offered."""
    none = f"this site holds out no {site.called}"
    shares = "yes" if site.share_model else "no"
    if site.share_model and not site.holdout:
        shares = f"yes, but without effect: {none}"
    elif site.share_model and not _as_deployment(site, config).notes_sites:
        shares = "yes, but without effect: with these settings nothing about individual sites is recorded"
    scores = "yes" if site.send_scores else "no"
    if site.send_scores and not site.holdout:
        scores = f"yes, but without effect: {none}"
    elif site.send_scores and not counts_scores(config):
        scores = "yes, but without effect: these settings do not request them"
    return [
        f"shares its best model with all sites (share_model): {shares}",
        f"sends counts of scores (send_scores): {scores}",
    ]


def cure(site: Site) -> str:
    """What the owner can do, for the site's own console."""
    return f"look at it, and approve it if you agree, with: proxyfl deploy approve {site.path}"


def form_of(site: Site) -> dict[str, Any]:
    """What of the site's own settings decides about what leaves."""
    table = {spec.name: getattr(site, spec.name) for spec in dataclasses.fields(ImageForm)}
    own = {name: getattr(site, name) for name in OWN_SETTINGS}
    return dict(json.loads(json.dumps({**table, **own})))


def _as_deployment(site: Site, config: Config) -> Deployment:
    """The federation as far as this site knows it, for a dry run."""
    shared = {spec.name: getattr(site, spec.name) for spec in dataclasses.fields(ImageForm)}
    return Deployment(
        **shared,
        name=site.name,
        address=site.server,
        sites=tuple(f"site-{number}" for number in range(config.partition.clients)),
        test="" if site.holdout or config.labels.where == SERVER else "at the server",
        server_data="at the server" if config.labels.where == SERVER else "",
        quorum=config.federation.quorum,
        experiment=config.to_tree(),
        path=site.path,
    )


def _shapes(update: Update) -> Leaves:
    return forms_of(packed(detached(tensors_of(update))))


def _message(record: Mapping[str, Any]) -> bytes:
    signed = {name: value for name, value in record.items() if name != "signature"}
    return b"proxyfl approval\n" + json.dumps(signed, sort_keys=True).encode()


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bounded(file, JSON_SWELLS, SHORT))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged ({type(error).__name__}); restore it") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is damaged: it holds no table; restore it")
    return found


def _require_keys(site: Site) -> None:
    if site.insecure:
        raise ConfigError(f"{site.name} is insecure: it has no key to sign an approval with, and needs none")
    pki.check_site_keys(site.private_key, site.public_key)
