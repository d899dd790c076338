"""Whose data simulated devices hold: the names of the devices, and each one's part of a data
set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coordinator.settings.config import Config
from federated.data import catalogue
from federated.data.dataset import Dataset, Indices
from federated.data.partitions import parse

__all__ = ["Source", "names"]


def names(agents: int) -> tuple[str, ...]:
    """d0 to d9, or with as many leading zeros as keep the order of names that of numbers."""
    digits = len(str(agents - 1))
    return tuple(f"d{index:0{digits}d}" for index in range(agents))


@dataclass(frozen=True)
class Source:
    """Where the devices' data come from; each process that needs them loads them once."""

    data: str
    root: str | None
    agents: int
    partition: str
    seed: int
    held: float

    @classmethod
    def of(cls, config: Config) -> Source:
        chosen = config.simulate
        return cls(
            config.data.name,
            config.data.root,
            chosen.agents,
            chosen.partition,
            config.seed,
            chosen.held,
        )

    @cached_property
    def whole(self) -> Dataset:
        """All that is shared out, with the coordinator's own part held out."""
        return catalogue.central(self.data, self.root)

    @cached_property
    def parts(self) -> list[Indices]:
        """Each device's examples, its own held-out ones included. Raises DataError where one would
        be left without.
        """
        return parse(self.partition)(self.whole, self.agents, np.random.default_rng(self.seed))

    def device(self, index: int) -> Dataset:
        """What one device holds."""
        return catalogue.part(
            self.whole, self.parts[index], name=names(self.agents)[index], held=self.held
        )
