"""Name the simulated devices, and divide a data set among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from coordinator.settings.config import Config
from federated.data import loading
from federated.data.dataset import Dataset, Indices
from federated.data.partitions import parse

__all__ = ["SIMULATED", "DataSource", "name_devices"]

SIMULATED = "simulation"  # the machine of simulated devices, in their profiles


@cache  # each device asks for its own
def name_devices(agents: int) -> tuple[str, ...]:
    """Return d0 to d9, with leading zeros so that names sort like numbers."""
    digits = len(str(agents - 1))
    return tuple(f"d{index:0{digits}d}" for index in range(agents))


@dataclass(frozen=True)
class DataSource:
    """The data of all devices; each process that needs them loads them once.

    data, root: data set and its folder (see `data.name` and `data.root`).
    agents: number of devices.
    partition: rule that divides the data among devices.
    seed: seed of the random partition.
    held: fraction of each device's examples to hold out.
    local_test: "own", or "global" to evaluate a device on the global test examples of its classes
        (as HeteroFL and FedFA do), and to hold out none of its own.
    """

    data: str
    root: str | None
    agents: int
    partition: str
    seed: int
    held: float
    local_test: str = "own"

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without loaded data, which another process loads itself."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Config) -> DataSource:
        settings, data = config.simulate, config.data
        return cls(
            data.name,
            data.root,
            settings.agents,
            settings.partition,
            config.seed,
            settings.held,
            settings.local_test,
        )

    @cached_property
    def whole(self) -> Dataset:
        """All data to be divided, with the coordinator's part held out."""
        return loading.load_central(self.data, self.root)

    @cached_property
    def parts(self) -> list[Indices]:
        """The examples of each device, including its held-out ones. Raises DataError if a device
        would get none.
        """
        return parse(self.partition)(self.whole, self.agents, np.random.default_rng(self.seed))

    def device(self, index: int) -> Dataset:
        """Return the data of one device."""
        name = name_devices(self.agents)[index]
        if self.local_test == "global":
            return loading.take_classes(self.whole, self.parts[index])
        return loading.take_part(self.whole, self.parts[index], name=name, held=self.held)
