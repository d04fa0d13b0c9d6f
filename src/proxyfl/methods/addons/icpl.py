"""Indecisive-categories proxy learning (ICPL), the clients' half of ProxyFL (Chen and Wang, CVPR 2026).

A contrastive loss in which unsure images take part too. An image the global model is sure of belongs to one
class; any other belongs to the set xi of classes it finds likelier than the class prior P. Every anchor is
drawn to the proxies (classifier rows w_c) of its set and pushed from images whose sets share no class with
its own. Rows r are labelled images, weak and strong views; z_r is a feature, F and R are learned heads::

    f_r = F(z_r) / |F(z_r)|,   v_c = R(w_c) / |R(w_c)|
    xi_r  = {lab(pG_r)} if sure_r else {c : pG_r(c) > P(c)},   {lab(pG_r)} where that is empty
    pos_r = <f_r, v_lab(pG_r)> if sure_r else <f_r, sum of pG_r(c) v_c over c in xi_r>
    N_r   = {q : xi_q and xi_r disjoint, <f_r, f_q> >= 1e-6}
    Licpl = mean over anchors r of -log [ e^pos_r / (e^pos_r + sum of e^<f_r, f_q> over q in N_r) ]

Anchors are the unlabelled rows; labelled ones serve as negatives. A strong view has pG and sure of its weak
view. Gradients flow into the network, the heads and the classifier rows (``train_proxies``).

Deviations: the default is the released program. The printed text has neither heads nor the filter on the
cosine, true classes for labelled images, the local model's scores in pos, weak views only and two means,
of sure and of unsure anchors; ``fidelity = "paper"`` takes that. Its raw dot products explode, so features
and proxies have unit length in every reading (``normalise``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.errors import ConfigError, MethodError, nearest
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors
from proxyfl.methods.addons.prior import Prior
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ClientContext, Outputs, ServerContext
from proxyfl.methods.registry import register_addon

MIN_COSINE = 1e-6
"""With ``negatives="positive"``, a negative is kept from this similarity on."""


def category_sets(probs: Tensor, confident: Tensor, prior: Tensor) -> Tensor:
    """ξ as a boolean (N, C): the likeliest class of a confident row, else every class above the prior.

    A row with no class above the prior falls back to its likeliest.
    """
    top = _likeliest(probs)
    above = probs > prior
    return torch.where((confident.bool() | ~above.any(1))[:, None], top, above)


def icpl_loss(
    features: Tensor,
    proxies: Tensor,
    probs: Tensor,
    confident: Tensor,
    prior: Tensor,
    *,
    labelled: int,
    weights: Tensor | None = None,
    normalise: bool = True,
    negatives: str = "positive",
    reduction: str = "anchors",
    sets: Tensor | None = None,
) -> Tensor:
    """The ICPL loss of projected ``features`` (N, d): ``labelled`` labelled rows first, then the anchors.

    ``probs`` (N, C) and ``confident`` (N,) describe each row, ``weights`` (default ``probs``) are the scores
    of the proxies (C, d) in the positive of an unsure row, ``sets`` (N, C) replaces the category sets.
    ``negatives`` is "positive" (cosine of at least 1e-6) or "all"; ``reduction`` is "anchors" (one mean) or
    "hc+lc" (the mean of confident anchors plus the mean of unsure ones).
    """
    _check(negatives, ("positive", "all"), "negatives")
    _check(reduction, ("anchors", "hc+lc"), "reduction")
    confident = confident.bool()
    sets = category_sets(probs, confident, prior) if sets is None else sets.bool()
    scores = sets * (probs if weights is None else weights).detach()
    shares = torch.where(confident[:, None], _likeliest(probs), scores)
    with torch.autocast(features.device.type, enabled=False):
        features, proxies = _full_precision(features), _full_precision(proxies)
        if len(features) <= labelled:
            return features[:0].sum() + proxies[:0].sum()
        if normalise:
            features, proxies = F.normalize(features, dim=1), F.normalize(proxies, dim=1)
        losses = anchor_losses(features, proxies, shares, sets, labelled, negatives)
        return _reduce(losses, confident[labelled:], reduction)


def anchor_losses(
    features: Tensor, proxies: Tensor, shares: Tensor, sets: Tensor, labelled: int, negatives: str
) -> Tensor:
    """−log(e^pos / (e^pos + Σ e^s)) of each anchor: pos is its similarity to the ``shares`` (N, C) of the
    proxies, s that to each of its negatives.
    """
    anchors = features[labelled:]
    positive = (anchors * (shares[labelled:].to(features.dtype) @ proxies)).sum(1)
    similarity = anchors @ features.T
    against = _disjoint(sets, labelled)
    if negatives == "positive":
        against &= similarity.detach() >= MIN_COSINE
    terms = torch.cat([positive[:, None], similarity.masked_fill(~against, -torch.inf)], dim=1)
    return torch.logsumexp(terms, dim=1) - positive


def _disjoint(sets: Tensor, labelled: int) -> Tensor:
    """Which rows share no class with each anchor, as (anchors, N). An anchor is never against itself."""
    member = sets.to(torch.float32)
    disjoint = member[labelled:] @ member.T == 0
    disjoint.diagonal(labelled).fill_(False)
    return disjoint


def _reduce(losses: Tensor, confident: Tensor, reduction: str) -> Tensor:
    if reduction == "anchors":
        return losses.mean()
    groups = torch.stack([confident, ~confident]).to(losses.dtype)
    return ((groups @ losses) / groups.sum(1).clamp(min=1)).sum()


def _likeliest(probs: Tensor) -> Tensor:
    return F.one_hot(probs.argmax(1), probs.shape[1]).bool()


def _full_precision(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _check(value: str, known: tuple[str, ...], option: str) -> None:
    if value not in known:
        raise ConfigError(f"icpl.{option} = '{value}' is unknown; {nearest(value, known)}")


@dataclass(frozen=True)
class ICPLParameters:
    """Parameters of ICPL. Where a fidelity differs from the default, the reading of the paper is meant."""

    weight: float = setting(1.0, "weight of the loss (beta)", low=0)
    project: bool = setting(True, "learned heads between features, proxies and the loss", paper=False)
    keep_heads: bool = setting(False, "each client keeps its heads to itself instead of sending them")
    normalise: bool = setting(True, "normalise features and proxies to unit length; raw dot products explode")
    label_set: str = setting(
        "teacher",
        "category set of a labelled image: from the global model, or its true class",
        choices=("teacher", "truth"),
        paper="truth",
    )
    scores: str = setting(
        "global",
        "whose probabilities weight the proxies of an unconfident image",
        choices=("global", "local"),
        paper="local",
    )
    views: str = setting(
        "both", "views used: weak and strong, or weak only", choices=("both", "weak"), paper="weak"
    )
    reduction: str = setting(
        "anchors",
        "one mean over all anchors, or one over confident and one over unconfident anchors, summed",
        choices=("anchors", "hc+lc"),
        paper="hc+lc",
    )
    negatives: str = setting(
        "positive",
        "images without a shared category: only those with positive cosine, or all",
        choices=("positive", "all"),
        paper="all",
    )
    sets: str = setting(
        "prior",
        "categories of an unconfident image: above the prior, or the k most likely",
        choices=("prior", "top1", "top5"),
    )
    train_proxies: bool = setting(True, "let the loss update the classifier rows")


@register_addon
class ICPL(Addon):
    name = "icpl"
    needs = (Prior,)
    wants = frozenset({"x", "u_weak", "u_strong", "teacher_x"})
    sends = "projection heads, averaged like the network"
    Parameters = ICPLParameters

    def __init__(self, parameters: ICPLParameters | None = None, **values: Any) -> None:
        super().__init__(parameters, **values)
        self.heads = self.parameters.project
        self.private = ("heads.",) if self.parameters.project and self.parameters.keep_heads else ()

    def start(self, ctx: ServerContext) -> Tensors:
        if "classifier.weight" not in ctx.weights:
            raise MethodError(
                "ICPL needs a network with features(x) and a last layer called classifier that is trained"
            )
        return {}

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        if outputs.pseudo is None:
            return None
        if outputs.features is None:
            raise MethodError(
                "ICPL needs a network with features(x) and classifier; see proxyfl.models.register"
            )
        labelled = outputs.labelled_rows
        views = 2 if self.parameters.views == "both" else 1
        unsure_labels = self.parameters.label_set == "teacher"
        probs_x = outputs.global_x if unsure_labels else F.one_hot(outputs.batch.y, ctx.classes).float()
        sure_x = (
            ctx.method.confident(outputs.global_x) if unsure_labels else torch.ones_like(probs_x[:, 0] > 0)
        )

        probs = torch.cat([probs_x] + [outputs.global_weak] * views)
        confident = torch.cat([sure_x] + [outputs.pseudo.mask] * views)
        local = torch.cat([probs_x] + [outputs.local_weak] * views)
        sets = self._sets(probs, confident, ctx.extras["prior/classes"])
        weak = slice(labelled, labelled + len(outputs.weak))
        ctx.show(outputs.batch.u_index, mask=outputs.pseudo.mask, sets=sets[weak])

        features = outputs.features[: len(probs)]
        rows: Tensor = ctx.model.get_parameter("classifier.weight")
        rows = rows if self.parameters.train_proxies else rows.detach()
        if self.heads:
            features, rows = ctx.model.get_submodule("heads")(features, rows)
        loss = icpl_loss(
            features,
            rows,
            probs,
            confident,
            ctx.extras["prior/classes"],
            labelled=labelled,
            weights=local if self.parameters.scores == "local" else None,
            sets=sets,
            normalise=self.parameters.normalise,
            negatives=self.parameters.negatives,
            reduction=self.parameters.reduction,
        )
        return loss * float(self.parameters.weight)

    def _sets(self, probs: Tensor, confident: Tensor, prior: Tensor) -> Tensor:
        if self.parameters.sets == "prior":
            return category_sets(probs, confident, prior)
        count = 1 if self.parameters.sets == "top1" else min(5, probs.shape[1])
        likeliest = torch.zeros_like(probs, dtype=torch.bool)
        likeliest.scatter_(1, probs.topk(count, dim=1).indices, True)
        return torch.where(confident[:, None], _likeliest(probs), likeliest)
