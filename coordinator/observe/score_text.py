"""Scores in words for people: which metrics are shown, and how a value is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.observe.records import Score

__all__ = ["headline_metrics", "metric_text"]


def headline_metrics(scores: Sequence[Score]) -> dict[str, str]:
    """The metrics that people read these scores by, and what people call them: of values accuracy
    is R2, the share of the variance explained.
    """
    found = {name for s in scores for name in s.metrics}
    first = {"accuracy": "R2" if "rmse" in found else "accuracy"} if "accuracy" in found else {}
    return first | {name: name for name in ("perplexity", "rmse") if name in found}


def metric_text(metrics: Mapping[str, float], name: str) -> str:
    """Shares to a thousandth; what has no upper end to four digits, and before the point to all."""
    value = metrics.get(name)
    if value is None:
        return "-"
    return (
        f"{value:.3f}"
        if name == "accuracy"
        else f"{value:.4g}"
        if value < 10_000
        else f"{value:,.0f}"
    )
