"""How views are drawn: of vectors (section ``[vectors]``), and before a frozen encoder (``[encoder]``,
``[texts]``).
"""

from __future__ import annotations

from dataclasses import dataclass

from proxyfl.core.settings import check_fields, setting


@dataclass(frozen=True)
class VectorSettings:
    """Views of vectors. Noise is in standard deviations of each feature.

    >>> import proxyfl
    >>> proxyfl.Vectors(strong_noise=0.3).mix
    0.1
    """

    noise: float = setting(0.1, "noise added by weak views", low=0)
    strong_noise: float = setting(0.5, "noise added by strong views", low=0)
    dropout: float = setting(0.1, "share of features that strong views replace by their mean", low=0, high=1)
    mix: float = setting(
        0.1, "share of features that strong views take from another sample of the batch", low=0, high=1
    )

    def __post_init__(self) -> None:
        check_fields(self, "vectors.")


@dataclass(frozen=True)
class TextSettings:
    """Views of texts, drawn before a frozen encoder reads them.

    >>> import proxyfl
    >>> proxyfl.Texts(strong_dropout=0.5).dropout
    0.1
    """

    dropout: float = setting(0.1, "share of words that weak views drop", low=0, high=1)
    swap: float = setting(0.0, "share of words that weak views swap", low=0, high=1)
    strong_dropout: float = setting(0.3, "share of words that strong views drop", low=0, high=1)
    strong_swap: float = setting(0.3, "share of words that strong views swap", low=0, high=1)

    def __post_init__(self) -> None:
        check_fields(self, "texts.")


@dataclass(frozen=True)
class EncoderSettings:
    """Views that a frozen encoder is given of every training sample, beside the sample itself."""

    weak: int = setting(2, "weak views encoded per training sample", low=1, high=64)
    strong: int = setting(2, "strong views encoded per training sample", low=1, high=64)

    def __post_init__(self) -> None:
        check_fields(self, "encoder.")
