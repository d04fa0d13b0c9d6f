"""A site's desk: what comes in and what goes out is compared with what the owner approved, and noted."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from flwr.app import MetricRecord, RecordDict

from proxyfl.core.errors import ConfigError, ProxyFLError
from proxyfl.core.state import TRAIN, Failure
from proxyfl.core.text import one_line
from proxyfl.deploy import approval
from proxyfl.deploy.approval import ENROL, Approval, Refused
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.repeats import COUNTED, Repeats
from proxyfl.deploy.settings import Site
from proxyfl.engines.flower.codec import (
    HEADER,
    METRICS,
    OWN,
    Malformed,
    answer_records,
    digest_of,
    forms_of,
    header_of,
    text,
)
from proxyfl.engines.flower.protocol import PROGRAM, PROTOCOL, negotiated
from proxyfl.engines.serialization import Header

SAYS = {
    "enrolled": {
        *("kind", "name", "labelled", "unlabelled", "heldout", "shares", "versions"),
        *(PROTOCOL, PROGRAM),
    },
    "update": {"kind", "round", "client", "samples", "seconds"},
    "evaluation": {"kind", "shares"},
    "failure": {"kind", "round", "client", "reason", "detail"},
}
"""What the header of each kind of answer may say."""


class Desk:
    """For one message. ``app`` is what is known of the SHA-256 of the app that is being run."""

    def __init__(self, site: Site, app: str) -> None:
        self.site, self.app, self.log = site, app, AuditLog(site.path)

    def answer(self, kind: str, records: RecordDict, act: Callable[[], RecordDict]) -> RecordDict:
        """What ``act`` makes of a message, if the owner approved of it and of that; else why not."""
        header = _read(records)
        kind = str(header.get("purpose", TRAIN)) if kind == TRAIN else kind
        about = {"kind": kind, "round": header.get("round"), "run": header.get("run")}
        about = {name: value for name, value in about.items() if isinstance(value, str | int)}
        self.log.add("received", **about, **_traced(records))
        try:
            negotiated(header, "the server", self.site.name)
            approved = None if self.site.insecure else self._require(kind, header)
            repeats = Repeats(self.site, approved, kind, header) if approved and kind in COUNTED else None
            if repeats:
                repeats.require()
            answer = act()
            if approved is not None:
                answer = _allowed(approved, kind, answer)
            if repeats and header_of(answer).get("kind") != "failure":
                repeats.add()
        except (ConfigError, Malformed) as error:
            answer = _failure(header, str(error))
            self._refuse(header, {**about, **_traced(answer)}, error)
            return answer
        except Exception as error:
            answer = _failure(header, unable(error))
        answered = header_of(answer)
        failed = {"reason": text(answered, "reason", 400)} if answered.get("kind") == "failure" else {}
        self.log.add("failed" if failed else "sent", **about, **failed, **_traced(answer))
        return answer

    def _require(self, kind: str, header: Header) -> Approval:
        found = approval.require(self.site)
        approval.require_app(found, self.app)
        approval.require_asked(found, kind, header)
        return found

    def _refuse(self, header: Header, about: dict[str, Any], error: Exception) -> None:
        here = error.here if isinstance(error, Refused) else ""
        self.log.add("refused", **about, reason=str(error), **({"changed": here} if here else {}))
        approval.note_asked(self.site, "", header)
        reason = one_line(error.in_full if isinstance(error, Refused) else str(error))
        words = f"proxyfl: {self.site.name}: refused: {reason}; {approval.cure(self.site)}"
        print(words, file=sys.stderr, flush=True)


def unable(error: Exception) -> str:
    """Why a site has no answer, as it leaves; an error's own words may name this machine's files, and are
    printed here.
    """
    words = str(error) if isinstance(error, ProxyFLError) else "".join(traceback.format_exception(error))
    print(f"proxyfl: {words.rstrip()}", file=sys.stderr, flush=True)
    return f"the site could not begin ({type(error).__name__}); the site's own output says why"


def _failure(header: Header, reason: str) -> RecordDict:
    return answer_records(Failure(_number(header, "round"), _number(header, "client"), reason))


def _traced(records: RecordDict) -> dict[str, Any]:
    """By which a message is found in the log at its other end."""
    size, digest = digest_of(records)
    return {"bytes": size, "sha256": digest}


def _read(records: RecordDict) -> Header:
    try:
        return header_of(records)
    except Malformed:
        return {}


def _number(header: Header, name: str) -> int:
    value = header.get(name, 0)
    return value if type(value) is int else 0


def _allowed(approved: Approval, kind: str, answer: RecordDict) -> RecordDict:
    """The answer as far as the owner approved it: other numbers stay here, other tensors are a refusal."""
    header = header_of(answer)
    says = SAYS.get(str(header.get("kind")), set())
    parts = {*answer.array_records, *answer.config_records, *answer.metric_records}
    if (more := sorted(header.keys() - says)) or (more := sorted(parts - {HEADER, OWN, METRICS})):
        raise Refused(f"the site's owner did not approve that '{more[0]}' leaves")
    if OWN in answer.array_records:
        if kind == ENROL:
            raise Refused("the site's owner did not approve that tensors leave when it enrols")
        approval.require_leaving(approved, kind, forms_of(answer.array_records[OWN]))
    if METRICS in answer.metric_records:
        kept = answer.metric_records[METRICS]
        answer[METRICS] = MetricRecord({n: v for n, v in kept.items() if n in approved.metrics})
    return answer
