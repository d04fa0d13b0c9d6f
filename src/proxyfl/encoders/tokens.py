"""Texts as a transformer takes them: numbers of tokens, by ``tokenizer.json``, which is data, not code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.errors import ConfigError, missing_extra
from proxyfl.core.files import sha256

FILE = "tokenizer.json"
LIMITS = (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length"))
"""Files beside it that may say how many tokens are read, and under which name."""
POOLING = "1_Pooling/config.json"
"""How a sentence encoder makes one vector of its tokens'."""
MOST = 1 << 16
OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Kinds of networks that count the places of tokens from behind the number of the padding."""

Find = Callable[[str], Path | None]
"""The name of a file that belongs to a model → where it is."""


class Tokens:
    """Texts → the numbers of their tokens (N, T) and a mask (N, T) that is 0 where a text is over."""

    def __init__(self, find: Find, config: Mapping[str, Any]) -> None:
        """``config`` is what the network's own file says, of which nothing need be there."""
        positions, padding = (config.get(key) or 0 for key in ("max_position_embeddings", "pad_token_id"))
        if config.get("model_type") in OFFSET:
            positions = max(0, positions - padding - 1)
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise missing_extra("tokenizers", "encoders") from error
        file = find(FILE)
        if file is None:
            raise ConfigError(
                f"{FILE} is missing: it defines how texts are split into tokens; get it from the source"
            )
        try:
            self.tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing more precise
            raise ConfigError(f"{file} cannot be read by tokenizers: {str(error)[:200]}") from None
        self.most = _most(find, positions)
        self.tokenizer.enable_truncation(self.most)
        self.tokenizer.enable_padding(pad_id=padding)
        self.hash = f"{sha256(file)} {self.most} {padding}"

    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        found = self.tokenizer.encode_batch(texts)
        numbers = torch.tensor([one.ids for one in found], dtype=torch.int64)
        return numbers, torch.tensor([one.attention_mask for one in found], dtype=torch.int64)


def _most(find: Find, positions: int) -> int:
    """How many tokens of a text are read."""
    found = [positions] if positions else []
    for name, key in LIMITS:
        value = settings_in(find, name).get(key)
        if isinstance(value, int | float) and 2 < value <= MOST:
            found.append(int(value))
    return min(found, default=512)


def pools_first(find: Find) -> bool:
    """Whether a model's vector is that of the first token; else it is the mean of all."""
    return settings_in(find, POOLING).get("pooling_mode_cls_token") is True


def settings_in(find: Find, name: str) -> dict[str, Any]:
    """What a file says, where there is one."""
    file = find(name)
    try:
        found = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); get it from the source") from None
    return found if isinstance(found, dict) else {}


def pooled(hidden: Tensor, mask: Tensor, first: bool) -> Tensor:
    """One vector (N, d) of those of all tokens (N, T, d)."""
    if first:
        return hidden[:, 0]
    weights = mask.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
