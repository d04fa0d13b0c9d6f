"""A config turned into objects: the one place where names become data, a network, a method, a federation."""

from __future__ import annotations

from proxyfl.core.config import Config
from proxyfl.core.state import Tensors
from proxyfl.engines.choose import EngineFactory
from proxyfl.methods import registry
from proxyfl.models import Network
from proxyfl.runs.federation import Federation
from proxyfl.runs.fit import require_fit, require_numbers
from proxyfl.runs.simulation import Simulation


def assemble(
    config: Config,
    simulation: Simulation,
    *,
    start: Tensors | None = None,
    workers: int | None = None,
    engine: EngineFactory | None = None,
) -> Federation:
    """The federation that a config describes, over data that is dealt."""
    dataset = simulation.dataset
    require_numbers(dataset)
    method = registry.method_of(config)
    network = Network.configured(config.model, len(dataset.classes), dataset.channels, dataset.image_size)
    federation = Federation.assembled(
        config, simulation, network, method, start, workers=workers, engine=engine
    )
    if dataset.is_vectors:  # most networks take images
        require_fit(federation.trainer)
    return federation
