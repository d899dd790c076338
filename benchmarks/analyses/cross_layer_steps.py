"""Show InCo's beta and theta over the rounds, for each layer with a cross-layer step (Chan et al.,
arXiv 2308.11464, section 5.4, Table 3 and Figure 9).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.analyses.panels import Panel, make_panel
from benchmarks.analyses.round_history import read_history
from federated.errors import ConfigError
from federated.methods.inco import BETA, THETA

__all__ = ["analyse"]


def analyse(folder: Path) -> list[Panel]:
    """Return three panels, layers by rounds: beta, 100 where beta > 0 and 0 elsewhere, so that a
    layer's mean is a percentage of rounds, and the mean of theta.
    """
    betas, thetas = (_read_layers(folder, prefix) for prefix in (BETA, THETA))
    if not betas:
        raise ConfigError(
            f"run '{folder.name}' has no beta and theta: analyse a run of inco-avg or another InCo "
            "method with method.record = true"
        )
    positive = {place: 100.0 * (beta > 0) for place, beta in betas.items()}
    tables = {"beta": betas, "beta > 0": positive, "theta": thetas}
    return [make_panel(title, table) for title, table in tables.items()]


def _read_layers(folder: Path, prefix: str) -> dict[tuple[str, str], float]:
    """Return the recorded numbers of a kind by layer and round."""
    return {
        (home.removeprefix(prefix).removesuffix(".weight"), str(line.round)): value
        for line in read_history(folder)
        for home, value in line.numbers.items()
        if home.startswith(prefix)
    }
