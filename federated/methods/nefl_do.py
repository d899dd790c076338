"""NeFL-D_O: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

NeFL-D whose steps begin where the paper's tables of NeFL-D_O have them: at 1 + n, n the number of
blocks left out right after a step's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Settings, varied
from federated.methods.nefl_d import nefl_d
from models.submodel import Submodel

__all__ = ["nefl_do"]


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["first_step"] == "one":
        yield (
            "first_step = 'one' starts every step as nefl-d does: set method.first_step = 'skipped'"
        )
    yield from nefl_d().inactive(menu, settings)


def nefl_do() -> Method:
    base = nefl_d()
    summary = "nefl-d whose steps begin as large as the blocks left out after them"
    return replace(
        base,
        name="nefl-do",
        summary=summary,
        settings=varied(base.settings, first_step="skipped"),
        inactive=inactive,
    )
