"""List the analyses of a run by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean

from benchmarks.analyses import (
    block_similarity,
    branch_plans,
    client_similarity,
    cross_layer_steps,
    feature_map,
    fine_tuning,
    gradient_distributions,
    step_sizes,
    weight_scales,
)
from benchmarks.analyses.panels import Panel
from federated.errors import ConfigError, Unknown

__all__ = ["ANALYSES", "find_analysis", "measure"]

ANALYSES: Mapping[str, Callable[[Path], list[Panel]]] = {
    "blocks": block_similarity.analyse,
    "branches": branch_plans.analyse,
    "clients": client_similarity.analyse,
    "cross-layer": cross_layer_steps.analyse,
    "features": feature_map.analyse,
    "fine-tuning": fine_tuning.analyse,
    "gradients": gradient_distributions.analyse,
    "scales": weight_scales.analyse,
    "steps": step_sizes.analyse,
}

OVERALL: Mapping[str, Callable[[Iterable[float]], float]] = {"min": min, "mean": fmean, "max": max}


def find_analysis(name: str) -> Callable[[Path], list[Panel]]:
    """Return an analysis by name. Raises Unknown."""
    if name not in ANALYSES:
        raise Unknown("analysis", name, ANALYSES)
    return ANALYSES[name]


def measure(score: str, folder: Path) -> float:
    """Return the mean of a row of a panel, such as that of all rounds.

    score: ANALYSIS:PANEL/ROW; `min`, `mean` or `max` as ROW: over the means of all rows.
    Raises Unknown, ConfigError for another form, and what the analysis raises.
    """
    name, _, place = score.partition(":")
    title, slash, row = place.partition("/")
    if not slash:
        raise ConfigError(f"score '{score}': expected a form like cross-layer:beta/LAYER")
    panels = {panel.title: panel for panel in find_analysis(name)(folder)}
    if title not in panels:
        raise Unknown("panel", title, panels)
    means = panels[title].means
    if row in OVERALL:
        return OVERALL[row](means.values())
    if row not in means:
        raise Unknown("row", row, means)
    return means[row]
