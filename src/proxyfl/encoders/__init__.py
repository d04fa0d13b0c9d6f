"""Frozen encoders: samples are encoded once, and clients train a small network on cached features."""

from __future__ import annotations

from proxyfl.encoders.encoder import Encoder, Frozen, TextEncoder
from proxyfl.encoders.encoding import encode
from proxyfl.encoders.named import load_encoder, settle_encoder

__all__ = ["Encoder", "Frozen", "TextEncoder", "encode", "load_encoder", "settle_encoder"]
