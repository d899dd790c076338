"""What a recipe can require of a trainer beyond plain SGD, as words that a device's profile lists.

Every trainer follows the rest of a recipe: SGD with momentum and weight decay for some epochs or
steps, the share of hidden tokens, scores and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from federated.task import Recipe

__all__ = ["CAPABILITIES", "hook", "missing", "required"]

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "adam": "the optimiser Adam",
        "adamw": "the optimiser AdamW",
        "clip": "a bound on the norm of the gradient",
        "feddyn": "FedDyn's last gradient, kept between rounds",
        "frozen": "parameters that stay as they were received",
        "keep": "tensors that stay on the device",
        "masked": "a loss over the classes that the device holds",
        "pull": "a pull towards the received weights (FedProx)",
        "scaffold": "SCAFFOLD's variates, kept between rounds",
        "tracked": "running statistics of batch norm that travel with the weights",
    }
)
"""What data alone can describe. A hook is code, which a trainer has or lacks: `hook:METHOD`."""


def hook(name: str) -> str:
    """The capability of running the hooks of a name."""
    return f"hook:{name}"


def required(recipe: Recipe) -> frozenset[str]:
    """The capabilities that a trainer needs for a recipe."""
    asked = {
        recipe.optimiser: recipe.optimiser != "sgd",
        "clip": recipe.clip > 0,
        "frozen": bool(recipe.frozen),
        "keep": bool(recipe.keep),
        "masked": recipe.masked,
        "pull": recipe.pull != 0,
        recipe.variate: bool(recipe.variate),
        "tracked": recipe.norm == "tracked",
        hook(recipe.hook): bool(recipe.hook),
    }
    return frozenset(name for name, needed in asked.items() if needed)


def missing(needed: Iterable[str], able: Iterable[str]) -> str:
    """The needed capabilities that a trainer lacks, in words; empty if it has all."""
    lacking = sorted(set(needed) - set(able))
    return ", ".join(
        f"{name} ({CAPABILITIES[name]})" if name in CAPABILITIES else name for name in lacking
    )
