"""Find the submodel that a person fixed for an agent: with the setting `assign.submodels`, or with
`coordinator pin` while the run is in progress. Imports no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from federated.errors import ConfigError, Unknown
from models.submodel import Submodel

__all__ = ["Pin", "Pins", "index_submodels", "match_pins"]


@dataclass(frozen=True)
class Pin:
    """The submodel that a person fixed for an agent.

    submodel: of the menu.
    source: the setting or the command that fixed it.
    """

    submodel: Submodel
    source: str = "assign.submodels"


@dataclass(frozen=True)
class Pins:
    """The submodels that the configuration fixes.

    known: submodels of the menu by name, as `index_submodels` returns them.
    configured: shell pattern -> key of `known`; the first pattern that matches an agent counts.
    """

    known: Mapping[str, Submodel]
    configured: Mapping[str, str]

    def find(self, agent: str, requested: Mapping[str, str] | None = None) -> Pin | None:
        """Return the pin of an agent. requested: agent -> submodel, by `coordinator pin`, which
        precedes the configuration.
        """
        if requested and (submodel := self.known.get(requested.get(agent, ""))) is not None:
            return Pin(submodel, "coordinator pin")
        for pattern, name in self.configured.items():
            if fnmatchcase(agent, pattern):
                return Pin(self.known[name])
        return None


def index_submodels(menu: Sequence[Submodel]) -> dict[str, Submodel]:
    """Return the submodels of a menu by name, also by their names without the method's features:
    `w0.5-d2.2` for `w0.5-d2.2-scaler`.
    """
    return {replace(submodel, features=()).name: submodel for submodel in menu} | {
        submodel.name: submodel for submodel in menu
    }


def match_pins(menu: Sequence[Submodel], wanted: Mapping[str, str]) -> Pins:
    """Return the pins of a configuration: shell pattern -> submodel. Raises ConfigError for a
    submodel that the menu lacks.
    """
    known = index_submodels(menu)
    for pattern, name in wanted.items():
        if name not in known:
            raise ConfigError(
                f"assign.submodels: {pattern}: {Unknown('submodel', name, [s.name for s in menu])}"
            )
    return Pins(known, wanted)
