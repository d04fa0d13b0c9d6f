"""What a site's people allow, in their ``site.toml``: what may leave, and what may be used of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from proxyfl.core.errors import ConfigError
from proxyfl.core.settings import setting
from proxyfl.deploy.form import ImageForm
from proxyfl.engines.flower.limits import SLOWEST, Limits


@dataclass(frozen=True)
class Allowed(ImageForm):
    """Beside the form of the samples: permissions and limits. 0 is no limit."""

    send_scores: bool = setting(
        True,
        "send counts of scores if the server requests AUROC and the like; never under differential privacy",
    )
    share_model: bool = setting(
        False,
        "let the server send the best model that this site trained to the other sites, which evaluate it",
    )
    device: str = setting(
        "",
        "torch device of this site, such as cuda:1; auto: the GPU with the most free memory; "
        "empty: the experiment's",
    )
    threads: int = setting(0, "threads that training may use; 0: the experiment's", low=0, high=1024)
    max_memory_mb: int = setting(
        0, "megabytes of memory that a round may use, estimated before it starts; 0: no limit", low=0
    )
    max_disk_mb: int = setting(0, "megabytes that state/ may use; 0: no limit", low=0)
    max_seconds: float = setting(
        0.0, "seconds that training, and an evaluation, may take in a round; 0: no limit", low=0
    )
    max_kbit: int = setting(0, "kilobits per second each way between site and server; 0: no limit", low=0)

    def check(self) -> None:
        super().check()
        if 0 < self.max_kbit < SLOWEST:
            raise ConfigError(
                f"max_kbit = {self.max_kbit} is too slow to send a model; use at least {SLOWEST:,}, or 0"
            )
        if self.max_kbit and self.insecure:
            raise ConfigError("max_kbit needs the connector of a secure federation; set it to 0")

    @property
    def limits(self) -> Limits:
        """What a round may use of this machine."""
        return Limits(self.threads, self.max_memory_mb, self.max_disk_mb, self.max_seconds)

    @property
    def limits_in_words(self) -> list[str]:
        """For the site's own console; empty where it sets none."""
        limits = {
            "threads": f"{self.threads} threads",
            "max_memory_mb": f"{self.max_memory_mb:,} MB of memory",
            "max_disk_mb": f"{self.max_disk_mb:,} MB of disk",
            "max_seconds": f"{self.max_seconds:g} s of training or evaluation",
            "max_kbit": f"{self.max_kbit:,} kbit/s each way",
        }
        found = [words for name, words in limits.items() if getattr(self, name)]
        return [f"limits of site.toml: {', '.join(found)}"] if found else []
