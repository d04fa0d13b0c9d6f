"""The network: the settings of the section ``[model]``."""

from __future__ import annotations

from dataclasses import dataclass

from proxyfl.core.settings import setting

FROZEN = "frozen:"
"""Names of networks begin so whose encoder is not trained."""
ALLOW_DOWNLOAD = "PROXYFL_ALLOW_DOWNLOAD"
"""Set to 1, as ``proxyfl --allow-download`` does: such an encoder may be downloaded by its name."""


@dataclass(frozen=True)
class ModelSettings:
    """The network every client trains."""

    name: str = setting("resnet8", "registered network, or a frozen encoder such as frozen:hf:FOLDER")
    head: str = setting(
        "linear", "head trained on a frozen encoder's features: linear, mlp, adapter", later=True
    )
    encoder_hash: str = setting(
        "", "hash of the frozen encoder; filled in when empty, compared when given", later=True
    )
    width: int = setting(4, "width factor; features have 64 × width dimensions", low=1, high=64)
    hidden: tuple[int, ...] = setting(
        (), "sizes of the mlp's hidden layers, such as [128, 64]; empty: two layers of 64 × width", later=True
    )
    dropout: float = setting(0.0, "dropout rate of the mlp's hidden layers", low=0, high=0.9, later=True)
    norm: str = setting(
        "batch",
        "batch norm: batch keeps it; group replaces it by group norm; static uses no statistics in training "
        "and gathers those of the global model as sums from the round's clients after each aggregation",
        choices=("batch", "group", "static"),
        later=True,
    )
    trainable: str = setting(
        "all",
        "what is trained and sent: all, head (the classifier), or comma-separated "
        "patterns of parameter names such as trunk.stage3.*,classifier.*",
        later=True,
    )
    lora_rank: int = setting(
        0, "rank of LoRA adapters trained in place of the weights; 0: none", low=0, high=4096, later=True
    )
    lora_targets: str = setting("*", "layers with adapters, as patterns of their names", later=True)
    lora_alpha: float = setting(0.0, "adapters are scaled by alpha / rank; 0: by 1", low=0, later=True)
    weights: str = setting(
        "",
        "initial weights: a model file (such as RUN/models/best.safetensors) or a run "
        "(its last model); empty: initialised from the seed",
        later=True,
    )
    weights_hash: str = setting(
        "", "SHA-256 of the initial tensors; filled in when empty, compared when given", later=True
    )

    @property
    def encoder(self) -> str:
        """The frozen encoder, as in ``hf:FOLDER``; empty where there is none."""
        return self.name.removeprefix(FROZEN) if self.name.startswith(FROZEN) else ""

    @property
    def trained(self) -> str:
        """The name of the network that clients train."""
        return self.head if self.encoder else self.name
