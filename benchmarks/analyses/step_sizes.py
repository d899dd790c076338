"""Show NeFL's learnable step sizes over the rounds, for each block of each submodel."""

from __future__ import annotations

from pathlib import Path

from benchmarks.analyses.panels import Panel, make_panel
from benchmarks.analyses.round_history import read_history
from federated.errors import ConfigError
from federated.methods.common.nefl_submodels import is_step

__all__ = ["analyse"]


def analyse(folder: Path) -> list[Panel]:
    """Return a panel for each submodel: blocks by rounds."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for line in read_history(folder):
        for home, value in line.numbers.items():
            name, _, submodel = home.partition("@")
            if is_step(name):
                block = name.removeprefix("sections.").removesuffix(".step")
                found.setdefault(submodel, {})[block, str(line.round)] = value
    if not found:
        raise ConfigError(
            f"run '{folder.name}' has no step sizes: analyse a run of nefl-w, nefl-d, nefl-do or "
            "nefl-wd"
        )
    if len(found) > 1:
        found.pop("", None)  # of the initial network; each submodel has steps of its own
    return [make_panel(submodel or "all submodels", one) for submodel, one in found.items()]
