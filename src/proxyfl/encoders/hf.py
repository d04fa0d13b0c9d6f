"""Image encoders that transformers reads: ViT, DINO, the vision tower of CLIP, and others.

They come from a folder or the user's cache. Nothing is downloaded unless that is allowed, no code that comes
with a model is run, and weights are read from safetensors files alone, since others can hold code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError, missing_extra
from proxyfl.core.network import ALLOW_DOWNLOAD
from proxyfl.core.state import content_hash
from proxyfl.encoders.encoder import Encoder
from proxyfl.encoders.preparation import FILE, preparation

UNUSED = ("pooler.", "text_model.", "text_projection.", "logit_scale")
"""Parts of networks that make no feature of an image."""


def read_hf(place: str) -> Encoder:
    """The encoder in a folder, or one by its name on the hub, as far as it was downloaded before."""
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("transformers", "encoders") from error
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    folder, local = Path(place).expanduser(), not os.environ.get(ALLOW_DOWNLOAD)
    source = str(folder) if folder.is_dir() else place
    told: dict[str, Any] = {"local_files_only": local or folder.is_dir(), "trust_remote_code": False}
    try:
        file = folder / FILE if folder.is_dir() else _fetched(place, local)
        network, info = transformers.AutoModel.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **told
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(_why(place, folder, local, error)) from error
    if not file.is_file():
        raise ConfigError(f"{file} is missing: it says how images are prepared; take it from the source")
    if getattr(network, "main_input_name", "") not in ("pixel_values", "input_ids") or not _sees(network):
        raise ConfigError(f"hf:{place} is a {type(network).__name__}, which takes no images")
    missing = sorted(name for name in info["missing_keys"] if not _is_unused(name))
    if missing:
        raise ConfigError(f"hf:{place} lacks weights that features need: {', '.join(missing[:5])}")
    kept = {name: value for name, value in network.state_dict().items() if not _is_unused(name)}
    weights = f"{type(network).__name__} {content_hash(kept)} {_sizes(network)}"
    return Encoder(_Vision(network), channels=3, weights_hash=weights, **preparation(file))


class _Vision(nn.Module):
    """One vector for an image: CLIP's embedding, else the class token, else the mean over places."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.has_token = any(name.endswith("cls_token") for name, _ in network.named_parameters())

    def forward(self, images: Tensor) -> Tensor:
        if hasattr(self.network, "get_image_features"):
            found = self.network.get_image_features(pixel_values=images)
            embedding: Tensor = found if isinstance(found, Tensor) else found.pooler_output
            return embedding
        hidden: Tensor = self.network(pixel_values=images).last_hidden_state
        if hidden.dim() == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.has_token else hidden.mean(1)


def _sees(network: Any) -> bool:
    return hasattr(network, "get_image_features") or network.main_input_name == "pixel_values"


def _is_unused(name: str) -> bool:
    return any(name.startswith(part) or f".{part}" in name for part in UNUSED)


def _sizes(network: Any) -> str:
    """What a config says beside weights, such as the number of heads: it decides what is computed."""
    told = network.config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"):
        told.pop(name, None)
    return str(sorted((name, str(value)) for name, value in told.items() if not isinstance(value, dict)))


def _fetched(name: str, local: bool) -> Path:
    """The description of a model by name, from the user's cache or, where that is allowed, downloaded."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name, FILE, local_files_only=local))


def _why(place: str, folder: Path, local: bool, error: Exception) -> str:
    text = str(error)
    if not folder.is_dir():
        if local:
            return (
                f"hf:{place} is neither a folder nor in the cache of transformers; give a folder, or allow "
                "the download with proxyfl --allow-download"
            )
        return f"hf:{place} cannot be downloaded: {_line(text)}"
    if "trust_remote_code" in text:
        return f"hf:{place} needs code that comes with it, which is never run; choose another encoder"
    if not any(folder.glob("*.safetensors")):
        return (
            f"hf:{place} has no weights in safetensors files, and other files can hold code; convert them, "
            "or take the model's safetensors files"
        )
    return f"hf:{place} cannot be read by transformers: {_line(text)}"


def _line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
