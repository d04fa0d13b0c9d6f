"""How views of vectors are drawn: the settings of the section ``[vectors]``."""

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

    noise: float = setting(0.1, "noise of weak views", low=0)
    strong_noise: float = setting(0.5, "noise of strong views", low=0)
    dropout: float = setting(0.1, "share of features that strong views set to their mean", low=0, high=1)
    mix: float = setting(
        0.1, "share of features that strong views take from another sample of the batch", low=0, high=1
    )

    def __post_init__(self) -> None:
        check_fields(self, "vectors.")
