"""Choose the simulated devices that attack the run, for research (`simulate.attackers`)."""

from __future__ import annotations

import math

import numpy as np

from coordinator.settings.config import Config
from coordinator.simulate.device_data import name_devices

__all__ = ["choose_malicious", "name_malicious"]

STREAM = 24  # apart from other draws from the run's seed


def choose_malicious(config: Config) -> frozenset[int]:
    """Return the indices of the malicious devices: the share `simulate.attackers` of all, rounded
    up, drawn from the run's seed.
    """
    settings = config.simulate
    count = math.ceil(round(settings.attackers * settings.agents, 9))
    order = np.random.default_rng([config.seed, STREAM]).permutation(settings.agents)
    return frozenset(order[:count].tolist())


def name_malicious(config: Config) -> list[str]:
    """Return the names of the malicious devices, sorted."""
    names = name_devices(config.simulate.agents)
    return [names[index] for index in sorted(choose_malicious(config))]
