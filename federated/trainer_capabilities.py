"""Optional features of training that a recipe may need, such as Adam, clipping or SCAFFOLD. A
device's profile lists those that its trainer supports.

Every trainer supports the rest of a recipe: SGD with momentum and weight decay for some epochs or
steps, the fraction of hidden tokens, scores and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from federated.task import Recipe

__all__ = ["CAPABILITIES", "GRAPHS", "describe_missing", "list_required_capabilities", "name_hook"]

CAPABILITIES: Mapping[str, str] = {
    "adam": "the optimiser Adam",
    "adamw": "the optimiser AdamW",
    "augment": "random changes to images",
    "clip": "clipping of the gradient's norm",
    "feddyn": "FedDyn's last gradient, kept between rounds",
    "frozen": "parameters that stay as they were received",
    "keep": "tensors that stay on the device",
    "keep_optimiser": "the optimiser's state, kept between rounds",
    "masked": "a loss over the classes that the device holds",
    "portion": "another part of the device's data in each round",
    "pull": "a proximal term towards the received weights (FedProx)",
    "scaffold": "SCAFFOLD's variates, kept between rounds",
    "tracked": "running statistics of batch norm that are sent with the weights",
}
"""Capabilities that a recipe describes as data. A hook is code, named `hook:METHOD`."""

HOOK = "code that runs on devices"

GRAPHS = "graphs"
"""Capability of a trainer that has no code of networks: it trains with the graphs that a task names
(`Task.graphs`).
"""


def name_hook(name: str) -> str:
    """Return the capability of running a method's hooks."""
    return f"hook:{name}"


def list_required_capabilities(recipe: Recipe) -> frozenset[str]:
    """Return the capabilities that a recipe requires of a trainer."""
    conditions = {
        recipe.optimiser: recipe.optimiser != "sgd",
        "augment": bool(recipe.augment),
        "clip": recipe.clip > 0,
        "frozen": bool(recipe.frozen),
        "keep": bool(recipe.keep),
        "keep_optimiser": recipe.keep_optimiser,
        "masked": recipe.masked,
        "portion": recipe.portion < 1,
        "pull": recipe.pull != 0,
        recipe.variate: bool(recipe.variate),
        "tracked": recipe.norm == "tracked",
        name_hook(recipe.hook): bool(recipe.hook),
    }
    return frozenset(name for name, required in conditions.items() if required)


def describe_missing(required: Iterable[str], supported: Iterable[str]) -> str:
    """Return in words the required capabilities that are not supported; empty if all are."""
    lacking = sorted(set(required) - set(supported))
    return ", ".join(f"{name} ({CAPABILITIES.get(name, HOOK)})" for name in lacking)
