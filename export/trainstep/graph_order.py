"""An order for the training graphs of a submodel, which a separate process exports. Does not import
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import msgspec

from federated.task import Recipe
from models.submodel import Submodel

__all__ = ["GraphOrder", "make_order"]


@dataclass(frozen=True)
class GraphOrder:
    """What to export.

    submodel: without an owner.
    recipe: with the fields that decide about the graphs; the others have their defaults.
    """

    submodel: Submodel
    recipe: Recipe

    @property
    def name(self) -> str:
        """A digest of the order, as the name of a folder."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:32]


def make_order(submodel: Submodel, recipe: Recipe) -> GraphOrder:
    """Return the order for a submodel under a recipe. Numbers of the recipe are inputs of its
    graphs, so only those that are zero leave out a term.
    """
    kept = Recipe(
        batch=recipe.batch,
        optimiser=recipe.optimiser,
        masked=recipe.masked,
        norm=recipe.norm,
        variate=recipe.variate,
        frozen=tuple(sorted(recipe.frozen)),
        hook=recipe.hook,
        options={
            name: 0.0 if isinstance(value, float) else value
            for name, value in recipe.options.items()
        },
        pull=float(bool(recipe.pull)),
        clip=float(bool(recipe.clip)),
    )
    return GraphOrder(submodel.unowned, kept)
