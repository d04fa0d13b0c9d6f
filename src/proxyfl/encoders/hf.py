"""Encoders that transformers reads: of images, such as ViT, DINO, the vision tower of CLIP, and of texts.

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
from proxyfl.encoders.encoder import Encoder, Frozen, TextEncoder
from proxyfl.encoders.preparation import FILE, preparation
from proxyfl.encoders.tokens import Find, Tokens, pooled, pools_first

UNUSED = ("pooler.",)
UNUSED_OF_IMAGES = (*UNUSED, "text_model.", "text_projection.", "logit_scale")
UNUSED_OF_TEXTS = ("vision_model.", "visual_projection.", "logit_scale")
"""Parts of networks that make no feature of a text, of an image, and of a text where there are two towers."""


def read_hf(place: str) -> Frozen:
    """The encoder in a folder, or one by its name on the hub, as far as it was downloaded before."""
    network, missing, find = _opened(place)
    weights = _weights(place, network, missing, UNUSED_OF_IMAGES if _sees(network) else UNUSED)
    if _sees(network):
        file, folder = find(FILE), Path(place).expanduser()
        if file is None:
            where = folder / FILE if folder.is_dir() else FILE
            raise ConfigError(
                f"{where} is missing: it defines how images are prepared; get it from the source"
            )
        return Encoder(_Vision(network), channels=3, weights_hash=weights, **preparation(file))
    if getattr(network, "main_input_name", "") != "input_ids" or network.config.is_encoder_decoder:
        raise ConfigError(f"hf:{place} is a {type(network).__name__}, which encodes neither images nor texts")
    tokens, first = Tokens(find, network.config.to_dict()), pools_first(find)
    hashed = f"{weights} {tokens.hash} {'first' if first else 'mean'}"
    return TextEncoder(_Reader(network, tokens, first), weights_hash=hashed)


def read_hf_text(place: str) -> Frozen:
    """The text tower of CLIP, from the same places."""
    network, missing, find = _opened(place)
    if network.config.model_type != "clip":
        name = type(network).__name__
        raise ConfigError(f"hf-text:{place} is a {name}, not a CLIP with two towers; write hf:{place}")
    tokens = Tokens(find, network.config.text_config.to_dict())
    weights = _weights(place, network, missing, UNUSED_OF_TEXTS)
    sizes = _sizes(network.config.text_config)
    return TextEncoder(_Tower(network, tokens), weights_hash=f"text {weights} {sizes} {tokens.hash}")


def _opened(place: str) -> tuple[Any, set[str], Find]:
    """A network, the names of weights that its files lack, and what finds other files beside it."""
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("transformers", "encoders") from error
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    loudness = transformers.utils.logging.get_verbosity()  # type: ignore[no-untyped-call, unused-ignore]
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
    folder, local = Path(place).expanduser(), not os.environ.get(ALLOW_DOWNLOAD)
    source = str(folder) if folder.is_dir() else place
    options: dict[str, Any] = {"local_files_only": local or folder.is_dir(), "trust_remote_code": False}
    try:
        network, info = transformers.AutoModel.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **options
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(_why(place, folder, local, error)) from error
    finally:  # what is missing is named below, and parts that make no feature may be
        transformers.utils.logging.set_verbosity(loudness)  # type: ignore[no-untyped-call, unused-ignore]
    return network, set(info["missing_keys"]), _finder(place, folder, local)


def _weights(place: str, network: Any, missing: set[str], unused: tuple[str, ...]) -> str:
    """What stands for the weights that make features; an error where some of them are missing."""
    if lacking := sorted(name for name in missing if not _is_in(name, unused)):
        raise ConfigError(f"hf:{place} lacks weights that features need: {', '.join(lacking[:5])}")
    kept = {name: value for name, value in network.state_dict().items() if not _is_in(name, unused)}
    return f"{type(network).__name__} {content_hash(kept)} {_sizes(network.config)}"


class _Reader(nn.Module):
    """One vector for a text: the mean over its tokens, or that of the first."""

    def __init__(self, network: Any, tokens: Tokens, first: bool) -> None:
        super().__init__()
        self.network, self.tokens, self.first = network, tokens, first

    def forward(self, texts: list[str]) -> Tensor:
        numbers, mask = self.tokens(texts)
        hidden: Tensor = self.network(input_ids=numbers, attention_mask=mask).last_hidden_state
        return pooled(hidden, mask, self.first)


class _Tower(nn.Module):
    """CLIP's embedding of a text, in the space of its images."""

    def __init__(self, network: Any, tokens: Tokens) -> None:
        super().__init__()
        self.network, self.tokens = network, tokens

    def forward(self, texts: list[str]) -> Tensor:
        numbers, mask = self.tokens(texts)
        found = self.network.get_text_features(input_ids=numbers, attention_mask=mask)
        embedding: Tensor = found if isinstance(found, Tensor) else found.pooler_output
        return embedding


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


def _is_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(name.startswith(part) or f".{part}" in name for part in parts)


def _sizes(config: Any) -> str:
    """What a config says beside weights, such as the number of heads: it decides what is computed."""
    settings = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"):
        settings.pop(name, None)
    return str(sorted((name, str(value)) for name, value in settings.items() if not isinstance(value, dict)))


def _finder(place: str, folder: Path, local: bool) -> Find:
    """Finds files of a model: in its folder, in the user's cache or, where that is allowed, by download."""

    def beside(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    def fetched(name: str) -> Path | None:
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(place, name, local_files_only=local))
        except (OSError, ValueError):  # it is not there, or the hub is out of reach
            return None

    return beside if folder.is_dir() else fetched


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
            f"hf:{place} has no weights in safetensors files, and other formats can "
            "contain code; convert them, or get the model's safetensors files"
        )
    return f"hf:{place} cannot be read by transformers: {_line(text)}"


def _line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
