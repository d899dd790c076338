"""NeFL: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

Submodels are narrower (nefl-w), lack blocks (nefl-d, nefl-do) or both (nefl-wd); see
`common.nested_sizes`. Which of them a device trains in a round: see `common.nested_tiers`.

Against FedAvg, each residual function has a learnable step, y = shortcut(x) + s F(x) (section III),
and parameters are of two kinds. The *inconsistent* ones, which are the steps and all that batch
norm learns or measures, belong to their submodel and are averaged among the devices that trained it
in a round. The others are averaged per coordinate over all that hold it (NeFedAvg). Every device
counts the same. A block that nobody holds keeps its value; the authors' code makes it 0.

A step is 1 at first; under nefl-do it is 1 + n, n the number of blocks left out right after it, as
in the tables of NeFL-D_O: the block does the work of those that it stands for. For layer norm
(vision transformer) the paper found shared norms better, so there `inconsistent = "auto"` means the
steps only.

The projection of a section's skipped first block is still executed, so its convolution is averaged
over all who train it. The authors' code drops all of it but the norm (`projection_owner = "mask"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, Tensors, varied
from federated.methods import fedavg as base
from federated.methods.common.inactive import one_size
from federated.methods.common.nested_sizes import FEATURES, GAMMAS, is_step, sizes
from federated.methods.common.nested_tiers import by_cycle, by_index
from federated.task import Profile, Recipe, Update
from models.families.catalogue import address, normalising, shapes, statistics
from models.slicing import Plan, extract
from models.submodel import Network, Submodel

__all__ = ["nefl_d", "nefl_do", "nefl_w", "nefl_wd"]

SETTINGS: Mapping[str, Setting] = {
    "gammas": Setting(GAMMAS, "share of the parameters that each submodel keeps", above=0, most=1),
    "widths": Setting(
        (), "kept shares of channels, with `depths`, in place of gammas", above=0, most=1
    ),
    "first_step": Setting(
        "one", "a step at first: 1, or 1 + the blocks left out after it", ("one", "skipped")
    ),
    "step_sizes": Setting(
        "learnable", "whether steps are learned or stay as they begin", ("learnable", "fixed")
    ),
    "inconsistent": Setting(
        "auto",
        "what belongs to its submodel; auto: steps and batch norm",
        ("auto", "norms+steps", "steps", "none"),
    ),
    "projection_owner": Setting(
        "executes",
        "who gives a skipped block's projection: who executes it, or who has the block",
        ("executes", "mask"),
    ),
    "tiers": Setting(
        "measured",
        "a device's tier: the largest it can afford, or its place among the names (the paper)",
        ("measured", "index"),
    ),
    "flex": Setting(
        2,
        "how many tiers from its own a device draws; under measured tiers it gets "
        "smaller ones too, but less often",
        least=0,
    ),
}


def propose(network: Network, settings: Settings, *, scaling: str) -> tuple[Submodel, ...]:
    gammas = tuple(settings["gammas"])
    if settings["depths"] and not settings["widths"]:
        raise ConfigError(
            f"depths {list(settings['depths'])} without widths: expected both, in place of gammas"
        )
    if not gammas:
        raise ConfigError("gammas []: expected at least one share of the parameters")
    if settings["first_step"] == "skipped" and settings["inconsistent"] == "none":
        raise ConfigError(
            "first_step = 'skipped' makes the submodels' steps differ, and inconsistent "
            "= 'none' shares them: change one of the two"
        )
    try:
        return (
            base.proposal(network, settings, FEATURES)
            if settings["widths"]
            else sizes(network, tuple(map(float, gammas)), scaling)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def inconsistent(settings: Settings, submodel: Submodel) -> frozenset[str]:
    """Names of the tensors that belong to their submodel."""
    kind = settings["inconsistent"]
    if kind == "auto":
        kind = "norms+steps" if statistics(submodel) else "steps"
    steps = frozenset(filter(is_step, shapes(submodel))) if kind != "none" else frozenset()
    return steps | normalising(submodel) if kind == "norms+steps" else steps


def place(state: State, submodel: Submodel) -> Plan:
    """FedAvg's, with homes of their own for what belongs to the submodel."""
    plan, own = base.place(state, submodel), inconsistent(state.settings, submodel)
    return replace(
        plan,
        rows=tuple(
            base.apart(row, submodel.plain.name) if row.local in own else row for row in plan.rows
        ),
    )


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Every submodel has norms from the first: its corner of the whole's; and steps."""
    state, own = base.start(tensors, submodels, settings), dict[str, Tensor]()
    for submodel in submodels:
        rows = tuple(row for row in place(state, submodel).rows if "@" in row.home)
        steps = carried(submodel) if settings["first_step"] == "skipped" else {}
        for row, value in zip(
            rows, extract(state.tensors, Plan(submodel, rows)).values(), strict=True
        ):
            own[row.home] = (
                torch.full_like(value, steps[row.local]) if row.local in steps else value.clone()
            )
    return replace(state, tensors={**state.tensors, **own})


def carried(submodel: Submodel) -> dict[str, int]:
    """Each step's beginning under NeFL-D_O: 1 + the blocks left out between its own and the next of
    its section; kept 1 0 0 1 gives 3 and 1.
    """
    found = {}
    for name in filter(is_step, shapes(submodel)):
        if (block := address(submodel.network, name)) is not None:
            behind = submodel.mask[block[0]][block[1] + 1 :]
            found[name] = 1 + (behind.index(1) if 1 in behind else len(behind))
    return found


def assign(
    state: State,
    profile: Profile | None,
    affordable: Sequence[Submodel],
    rng: np.random.Generator,
    *,
    scaling: str,
) -> Submodel:
    names = sorted(state.agents)
    place = names.index(profile.agent) if profile is not None and profile.agent in names else None
    if state.settings["tiers"] == "measured" or place is None:
        return by_cycle(state, place, affordable, rng)
    menu = propose(affordable[0].network, state.settings, scaling=scaling)
    return by_index(state, place, menu, affordable, rng)


def recipe(state: State, submodel: Submodel) -> Recipe:
    made = base.recipe(state, submodel)
    return (
        replace(made, frozen=tuple(filter(is_step, shapes(submodel))))
        if state.settings["step_sizes"] == "fixed"
        else made
    )


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    if state.settings["projection_owner"] == "mask":
        plan = replace(
            plan,
            rows=tuple(
                row for row in plan.rows if "@" in row.home or not skipped(plan.submodel, row.local)
            ),
        )
    return base.parts(state, plan, update)


def skipped(submodel: Submodel, name: str) -> bool:
    """Whether a tensor is what is left of a block that the submodel lacks."""
    block = address(submodel.network, name)
    return block is not None and not submodel.mask[block[0]][block[1]]


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from one_size(menu, settings, remedy="method.gammas to several shares")
    if settings["inconsistent"] == "none":
        yield (
            "inconsistent = 'none' leaves submodels no parameters of their own: set "
            "method.inconsistent = 'auto'"
        )
    if settings["step_sizes"] == "fixed":
        yield (
            "step_sizes = 'fixed' does not train the steps of residual functions: set "
            "method.step_sizes = 'learnable'"
        )


def nefl(name: str, summary: str, scaling: str) -> Method:
    """A NeFL of this name. scaling: "w", "d" or "wd", by what its submodels are smaller."""
    plain = base.fedavg()
    training = {"epochs": 5, "batch": 32, "lr": 0.1, "momentum": 0.0, "milestones": (0.5, 0.75)}
    return replace(
        plain,
        name=name,
        summary=summary,
        paper="Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning "
        "with System Heterogeneous Clients (arXiv 2308.07761)",
        settings=varied(plain.settings, weighting="uniform", sharing=None, **training, **SETTINGS),
        features=FEATURES,
        menu=partial(propose, scaling=scaling),
        start=start,
        assign=partial(assign, scaling=scaling),
        place=place,
        recipe=recipe,
        parts=parts,
        inactive=inactive,
    )


def nefl_w() -> Method:
    """Every block, and sqrt(gamma) of the channels of each layer: about a share gamma of the
    parameters (section III).
    """
    return nefl("nefl-w", "narrower copies, each with norms and learnable steps of its own", "w")


def nefl_d() -> Method:
    """Every channel, and fewer blocks."""
    return nefl(
        "nefl-d", "copies with fewer blocks, each with norms and learnable steps of its own", "d"
    )


def nefl_wd() -> Method:
    """Fewer channels and fewer blocks."""
    return nefl(
        "nefl-wd",
        "narrower copies with fewer blocks, each with norms and learnable steps of its own",
        "wd",
    )


def inactive_first_step(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["first_step"] == "one":
        yield (
            "first_step = 'one' starts every step as nefl-d does: set method.first_step = 'skipped'"
        )
    yield from inactive(menu, settings)


def nefl_do() -> Method:
    """nefl-d whose steps begin at 1 + n, as in the paper's tables of NeFL-D_O."""
    base = nefl_d()
    return replace(
        base,
        name="nefl-do",
        summary="nefl-d whose steps begin as large as the blocks left out after them",
        settings=varied(base.settings, first_step="skipped"),
        inactive=inactive_first_step,
    )
