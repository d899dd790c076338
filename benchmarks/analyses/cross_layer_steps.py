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
    """Return two panels, layers by rounds: the percentage of kernels with beta > 0, and the mean of
    theta.
    """
    lines, panels = read_history(folder), []
    for prefix, title, scale in ((BETA, "beta", 100), (THETA, "theta", 1)):
        found = {
            (home.removeprefix(prefix).removesuffix(".weight"), str(line.round)): scale * value
            for line in lines
            for home, value in line.numbers.items()
            if home.startswith(prefix)
        }
        if not found:
            raise ConfigError(
                f"run '{folder.name}' has no beta and theta: analyse a run of inco-avg or another "
                "InCo method with method.record = true"
            )
        panels.append(make_panel(title, found))
    return panels
