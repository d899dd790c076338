"""NeFL: submodels of different widths and depths share most weights, and keep their own norms and
learnable step sizes (Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated
Learning with System Heterogeneous Clients, arXiv 2308.07761).

Submodels are narrower (nefl-w), lack blocks (nefl-d, nefl-do) or both (nefl-wd); see
`common.nefl_submodels`, which also chooses the one that a device trains in a round.

Difference from FedAvg: each residual function has a learnable step s, y = shortcut(x) + s F(x)
(section III), and parameters are of two kinds. *Inconsistent* ones, the steps and everything that
batch norm learns or measures, belong to their submodel and are averaged among the devices that
trained it in a round. All others are averaged per coordinate over all devices that hold it
(NeFedAvg). Every device has the same weight. A block that no device holds keeps its value; the
authors' code sets it to 0.

The initial step is 1. Under nefl-do it is 1 + n, with n the number of blocks left out right after
it, as in the tables of NeFL-D_O: the block replaces those. With layer norm (vision transformer) the
paper found shared norms better, so there `inconsistent = "auto"` means the steps only.

The projection of a section's skipped first block is still executed, so its convolution is averaged
over all devices that train it. The authors' code keeps only its norm (`projection_owner = "mask"`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, Tensors, vary
from federated.methods import fedavg as base
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.nefl_submodels import (
    FEATURES,
    GAMMAS,
    by_cycle,
    by_index,
    is_step,
    sizes,
)
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.task import Profile, Recipe, Update
from models.slicing import Plan, extract
from models.submodel import Network, Submodel
from models.submodel_building import address, list_normalising, shapes, statistics

__all__ = ["nefl_d", "nefl_do", "nefl_w", "nefl_wd"]

SETTINGS: Mapping[str, Setting] = {
    "gammas": Setting(
        GAMMAS, "fraction of the parameters that each submodel keeps", above=0, most=1
    ),
    "widths": Setting(
        (),
        "fractions of the channels of every layer; replace gammas, together with `depths`",
        above=0,
        most=1,
    ),
    "first_step": Setting(
        "one",
        "initial step size of a block: 1, or 1 + the number of blocks left out after it",
        ("one", "skipped"),
    ),
    "step_sizes": Setting(
        "learnable", "train the step sizes, or keep their initial values", ("learnable", "fixed")
    ),
    "inconsistent": Setting(
        "auto",
        "parameters that submodels do not share; auto: step sizes and batch norm",
        ("auto", "norms+steps", "steps", "none"),
    ),
    "projection_owner": Setting(
        "executes",
        "devices whose update of a projection counts: all that execute it, or those that have "
        "its block",
        ("executes", "mask"),
    ),
    "tiers": Setting(
        "measured",
        "tier of a device: the largest submodel that it can train, or, as in the paper, its "
        "position in the list of agent names",
        ("measured", "index"),
    ),
    "flex": Setting(
        2,
        "maximum distance of a submodel from its device's tier; measured tiers also train smaller "
        "ones, but less often",
        least=0,
    ),
}


def propose(network: Network, settings: Settings, *, scaling: str) -> tuple[Submodel, ...]:
    """Return one submodel for each of the gammas, or of the widths with the depths. ConfigError:
    the settings contradict each other, or no such submodel exists.
    """
    gammas = tuple(settings["gammas"])
    if settings["depths"] and not settings["widths"]:
        raise ConfigError(
            f"depths {list(settings['depths'])} without widths: set both, or use gammas"
        )
    if not gammas:
        raise ConfigError("gammas []: expected at least one fraction of the parameters")
    if settings["first_step"] == "skipped" and settings["inconsistent"] == "none":
        raise ConfigError(
            "first_step = 'skipped' makes the submodels' steps differ, and inconsistent "
            "= 'none' shares them: change one of the two"
        )
    try:
        return (
            propose_sizes(network, settings, FEATURES)
            if settings["widths"]
            else sizes(network, tuple(map(float, gammas)), scaling)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def find_inconsistent(settings: Settings, submodel: Submodel) -> frozenset[str]:
    """Return the names of the tensors that belong to their submodel."""
    kind = settings["inconsistent"]
    if kind == "auto":
        kind = "norms+steps" if statistics(submodel) else "steps"
    steps = frozenset(filter(is_step, shapes(submodel))) if kind != "none" else frozenset()
    return steps | list_normalising(submodel) if kind == "norms+steps" else steps


def place(state: State, submodel: Submodel) -> Plan:
    """Return FedAvg's plan, with separate homes for the tensors of each submodel."""
    plan, own = base.place(state, submodel), find_inconsistent(state.settings, submodel)
    return replace(
        plan,
        rows=tuple(
            base.move_to_group(row, submodel.plain.name) if row.local in own else row
            for row in plan.rows
        ),
    )


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return FedAvg's state, with norms and steps for every submodel. Norms start as the corner of
    the whole network's.
    """
    state, own = base.start(tensors, submodels, settings), dict[str, Tensor]()
    for submodel in submodels:
        rows = tuple(row for row in place(state, submodel).rows if "@" in row.home)
        steps = initial_steps(submodel) if settings["first_step"] == "skipped" else {}
        for row, value in zip(
            rows, extract(state.tensors, Plan(submodel, rows)).values(), strict=True
        ):
            own[row.home] = (
                torch.full_like(value, steps[row.local]) if row.local in steps else value.clone()
            )
    return replace(state, tensors={**state.tensors, **own})


def initial_steps(submodel: Submodel) -> dict[str, int]:
    """Return the initial steps of NeFL-D_O: 1 + the number of blocks left out between a block and
    the next one of its section. Kept blocks 1 0 0 1 give 3 and 1.
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
) -> Submodel:
    names = sorted(state.agents)
    place = names.index(profile.agent) if profile is not None and profile.agent in names else None
    if state.settings["tiers"] == "measured" or place is None:
        return by_cycle(state, place, affordable, rng)
    return by_index(state, place, affordable, rng)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe; with fixed step sizes, freeze the steps."""
    made = base.recipe(state, submodel)
    return (
        replace(made, frozen=tuple(filter(is_step, shapes(submodel))))
        if state.settings["step_sizes"] == "fixed"
        else made
    )


def parts(state: State, plan: Plan, update: Update) -> Iterable[Part]:
    """Return FedAvg's parts, with or without the projections of skipped blocks."""
    if state.settings["projection_owner"] == "mask":
        plan = without_skipped(plan)
    return base.parts(state, plan, update)


@lru_cache(maxsize=16)
def without_skipped(plan: Plan) -> Plan:
    """Return the plan without projections of skipped blocks, the same object for all updates of a
    submodel.
    """
    rows = (r for r in plan.rows if "@" in r.home or not is_skipped(plan.submodel, r.local))
    return replace(plan, rows=tuple(rows))


def is_skipped(submodel: Submodel, name: str) -> bool:
    """Return True if a tensor belongs to a block that the submodel lacks."""
    block = address(submodel.network, name)
    return block is not None and not submodel.mask[block[0]][block[1]]


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from one_size(menu, settings, remedy="method.gammas to several fractions")
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
    """Return a NeFL method. scaling: "w", "d" or "wd", how its submodels are smaller."""
    plain = base.fedavg()
    training = {"epochs": 5, "batch": 32, "lr": 0.1, "momentum": 0.0, "milestones": (0.5, 0.75)}
    return replace(
        plain,
        name=name,
        summary=summary,
        paper="Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning "
        "with System Heterogeneous Clients (arXiv 2308.07761)",
        settings=vary(plain.settings, weighting="uniform", sharing=None, **training, **SETTINGS),
        features=FEATURES,
        menu=partial(propose, scaling=scaling),
        start=start,
        assign=assign,
        place=place,
        recipe=recipe,
        parts=parts,
        inactive=inactive,
    )


def nefl_w() -> Method:
    """Return the method that keeps every block, and sqrt(gamma) of the channels of each layer:
    about a fraction gamma of the parameters (section III).
    """
    return nefl(
        "nefl-w", "narrower submodels, each with its own norms and learnable step sizes", "w"
    )


def nefl_d() -> Method:
    """Return the method that keeps every channel, and fewer blocks."""
    return nefl(
        "nefl-d",
        "submodels with fewer blocks, each with its own norms and learnable step sizes",
        "d",
    )


def nefl_wd() -> Method:
    """Return the method with fewer channels and fewer blocks."""
    return nefl(
        "nefl-wd",
        "narrower submodels with fewer blocks, each with its own norms and learnable step sizes",
        "wd",
    )


def inactive_first_step(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["first_step"] == "one":
        yield (
            "first_step = 'one' starts every step at 1, as nefl-d does: set method.first_step = "
            "'skipped'"
        )
    yield from inactive(menu, settings)


def nefl_do() -> Method:
    """Return nefl-d with initial steps of 1 + n, as in the paper's tables of NeFL-D_O."""
    base = nefl_d()
    return replace(
        base,
        name="nefl-do",
        summary="nefl-d with larger initial step sizes where blocks are left out",
        settings=vary(base.settings, first_step="skipped"),
        inactive=inactive_first_step,
    )
