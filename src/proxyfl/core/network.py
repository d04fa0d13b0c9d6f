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

    name: str = setting("resnet8", "registered network, or a frozen encoder, as in frozen:hf:FOLDER")
    head: str = setting(
        "linear", "what is trained on a frozen encoder's features: linear, mlp, adapter", later=True
    )
    encoder_hash: str = setting(
        "", "hash of the frozen encoder; filled in when empty, compared when given", later=True
    )
    width: int = setting(4, "width factor; features have 64 × width dimensions", low=1, high=64)
    hidden: tuple[int, ...] = setting(
        (), "sizes of the mlp's hidden layers, as in [128, 64]; empty: two of 64 × width", later=True
    )
    dropout: float = setting(
        0.0, "share of the mlp's hidden units dropped in training", low=0, high=0.9, later=True
    )
    norm: str = setting(
        "batch",
        "a network's batch norm: batch, as it is; group: group norm instead; static: no statistics in "
        "training, those of the global model are gathered as sums from the round's clients after each mean",
        choices=("batch", "group", "static"),
        later=True,
    )
    trainable: str = setting(
        "all",
        "what is trained and travels: all, head (the classifier), or patterns over names of parameters with "
        "commas between them, such as trunk.stage3.*,classifier.*",
        later=True,
    )
    lora_rank: int = setting(
        0, "rank of adapters that are trained in the place of weights; 0: none", low=0, high=4096, later=True
    )
    lora_targets: str = setting("*", "layers with adapters, as patterns over their names", later=True)
    lora_alpha: float = setting(0.0, "adapters count alpha / rank times; 0: once", low=0, later=True)
    weights: str = setting(
        "",
        "start from these weights: a model file (like RUN/models/best.safetensors), or a run's last model; "
        "empty: from the seed",
        later=True,
    )
    weights_hash: str = setting(
        "", "SHA-256 of the tensors started from; filled in when empty, compared when given", later=True
    )

    @property
    def encoder(self) -> str:
        """The frozen encoder, as in ``hf:FOLDER``; empty where there is none."""
        return self.name.removeprefix(FROZEN) if self.name.startswith(FROZEN) else ""

    @property
    def trained(self) -> str:
        """The name of the network that clients train."""
        return self.head if self.encoder else self.name
