"""A model's page in Markdown, with the front matter that model hubs read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from proxyfl.core.dealing import PARTIAL, SERVER
from proxyfl.core.errors import RunError
from proxyfl.core.text import name_alone
from proxyfl.core.trees import dotted
from proxyfl.data.partition import NATURAL
from proxyfl.runs.export import ModelCard
from proxyfl.runs.run import Run

BLANK = "*to be filled in*"
KINDS = {"images": "image", "vectors": "tabular", "texts": "text"}
"""What model hubs call them."""


def model_page(
    run: Run, card: ModelCard, file: str, per_class: Sequence[tuple[int, float | None]], compared: str
) -> str:
    """The page of a run's model. ``per_class`` has the test images of each class and the share that is right;
    it is empty where there was nothing to test on. ``compared`` says how the file agrees with the original.
    """
    config, dealt = run.config, run.config.partition
    total = sum(images for images, _ in per_class)
    right = sum(images * (share or 0) for images, share in per_class)
    accuracy = right / total if total else card.accuracy
    parts = [
        _front_matter(run, KINDS[card.called], accuracy),
        f"# {run.path.name}",
        f"{card.network} for {len(card.classes)} classes, trained with {card.method} in a federation of "
        f"{dealt.clients} clients, {card.round} rounds.",
        "## Intended use",
        f"- Made for: {BLANK}\n- Not made for: {BLANK}\n- Who may be harmed by mistakes, and how: {BLANK}",
        "## How to use it",
        f"`{file}` takes {_taken(card)} The class names are in its metadata. {compared}",
        "## Data",
        f"- Data set: {name_alone(config.data.name)}\n- Labels: {_labels(run, card)}\n"
        f"- Clients: {dealt.clients}, {_dealing(run)}\n"
        f"- Where the {card.called} come from, and who may use them: {BLANK}",
        "## Accuracy",
        _accuracies(card, per_class, accuracy),
        "## Settings",
        _settings(run),
        f"Made with proxyfl, commit {run.directory.hints().get('commit') or 'unknown'}.",
    ]
    return "\n\n".join(parts) + "\n"


def _taken(card: ModelCard) -> str:
    """What goes in and what comes out."""
    if card.image_size:
        return (
            f"uint8 images of shape (N, {card.channels}, {card.image_size}, {card.image_size}), values 0 to "
            "255, and returns probabilities (N, classes). Normalisation and softmax are included; resize "
            "images to this size first."
        )
    names = f" in the order {', '.join(card.features)}" if card.features and not card.encoder else ""
    whose = "the features as the data has them"
    if card.encoder:
        identified = f"hash {card.encoder_hash[:16]}; not in this file"
        whose = f"features of the frozen encoder {name_alone(card.encoder)} ({identified})"
    return (
        f"float32 vectors of shape (N, {card.channels}), {whose}{names}, and gives "
        "probabilities (N, classes). Standardisation and softmax are included."
    )


def _front_matter(run: Run, kind: str, accuracy: float | None) -> str:
    """YAML; text is written as JSON has it, which YAML reads."""
    config, text = run.config, json.dumps
    lines = [
        "---",
        "# license: to be filled in",
        "library_name: proxyfl",
        f"pipeline_tag: {kind}-classification",
        "tags:",
        *(f"- {tag}" for tag in ("federated-learning", "semi-supervised-learning")),
        f"- {text(config.method.name)}",
        "metrics:",
        "- accuracy",
    ]
    if accuracy is not None:
        lines += [
            "model-index:",
            f"- name: {text(run.path.name)}",
            "  results:",
            "  - task:",
            f"      type: {kind}-classification",
            "    dataset:",
            f"      name: {text(name_alone(config.data.name))}",
            f"      type: {text(config.data.name.split(':')[0])}",
            "    metrics:",
            "    - type: accuracy",
            f"      value: {accuracy:.6f}",
        ]
    return "\n".join([*lines, "---"])


def _labels(run: Run, card: ModelCard) -> str:
    labels = run.config.labels
    if labels.where == PARTIAL:
        return f"all {card.called} of {labels.clients} clients, none of the others"
    if labels.where == SERVER:
        share = f"{100 * labels.ratio:g} % of the {card.called}"
        return f"{f'{labels.per_class} per class' if labels.per_class else share}, at the server"
    try:
        held = run.partition
    except RunError:  # sites count their own, and a lost file is no reason against an export
        return f"{labels.per_class} per class" if labels.per_class else "as the sites have them"
    labelled, unlabelled = (int(part.sizes.sum()) for part in (held.labelled, held.unlabelled))
    return f"{labelled:,} of {labelled + unlabelled:,} training {card.called}"


def _dealing(run: Run) -> str:
    dealt = run.config.partition
    if dealt.scheme == NATURAL:
        return "as the data names them"
    return f"partitioned by '{dealt.scheme}', alpha = {dealt.alpha:g}"


def _accuracies(
    card: ModelCard, per_class: Sequence[tuple[int, float | None]], accuracy: float | None
) -> str:
    if not per_class:
        known = "not measured" if accuracy is None else f"{accuracy:.2%}, as the run recorded it"
        what = f"test {card.called}"
        return f"On {what}: {known}. Per class: not measured, because the {what} were not available."
    rows = [f"| class | test {card.called} | accuracy |", "|---|---:|---:|"]
    for name, (images, share) in zip(card.classes, per_class, strict=True):
        shown = name.replace("|", "\\|")
        rows.append(f"| {shown} | {images:,} | {'–' if share is None else f'{share:.2%}'} |")
    rows.append(f"| all | {sum(images for images, _ in per_class):,} | {accuracy or 0:.2%} |")
    return "\n".join(rows)


def _settings(run: Run) -> str:
    """Without the folders of the machine, which tell whoever reads the page about it."""
    rows = [
        f"{name} = {json.dumps(_placeless(value))}" for name, value in dotted(run.config.to_tree()).items()
    ]
    return "\n".join(["```toml", *rows, "```"])


def _placeless(value: Any) -> Any:
    kind, separator, place = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{kind}{separator}{PurePath(place).name}" if PurePath(place).is_absolute() else value
