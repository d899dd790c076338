"""Scores as text: the metrics to show, and the format of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.observe.records import Score

__all__ = ["format_metric", "name_headline_metrics"]


def name_headline_metrics(scores: Sequence[Score]) -> dict[str, str]:
    """Return the main metrics of these scores, each with its title. For regression, accuracy is R2,
    the fraction of variance explained.
    """
    found = {name for s in scores for name in s.metrics}
    titles = {"accuracy": "R2" if "rmse" in found else "accuracy"}
    titles |= {"perplexity": "perplexity", "rmse": "rmse"}
    return {name: title for name, title in titles.items() if name in found}


def format_metric(metrics: Mapping[str, float], name: str) -> str:
    """Return accuracies with three decimals, other metrics with four digits (all digits of large
    numbers).
    """
    value = metrics.get(name)
    if value is None:
        return "-"
    if name == "accuracy":
        return f"{value:.3f}"
    return f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"
