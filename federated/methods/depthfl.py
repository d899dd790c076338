"""DepthFL: devices train networks of different depths, whose exits teach each other (Kim, Yu, Kim
and Moon, Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023, OpenReview
pf8RIZTMU58), with FedDyn.

Difference from FedAvg: a device of depth n keeps sections 1 to n whole, with an exit after each of
them (`models.layers.early_exits`). It trains all its exits at once, each with the others as
teachers (mutual self-distillation, section 3.2; z_i are logits and p_i their softmax, T = 1):

    sum_i [ CE(z_i) + lambda_t / (n - 1) * sum_(j != i) KL(p_j || p_i) ],
    lambda_t = exp(-5 (1 - min(t, ramp) / ramp)^2)

in round t, from 1, with no gradient through p_j. The mean is uniform. The authors' ramp is 300 of
1000 rounds. The default is the same fraction, 0.3 of the run's rounds, because a ramp of 300 in a
run of 20 rounds would leave lambda at 0.013.

FedDyn (Acar et al., arXiv 2111.04263, Algorithm 1) is added, as in the authors' code. `solver =
"fedavg"` leaves it out, for comparisons that give every method the same solver. Its device half is
in the recipe (`federated.training.step_corrections`). For weights and biases, with N the number of
agents and count the number of those whose update of this round holds the coordinate,

    h <- h - alpha count / N (mean - w),    w <- mean - h / alpha

`distillation = 0` trains each exit on its own, and `exit = "adapter"` makes exits small; both
together are the DepthFL baseline of NeFL (arXiv 2308.07761, section V-A2). Running statistics take
the plain mean. Neither noise nor late updates are allowed, since h would never forget them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.aggregate import Total, bands
from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import MODES, Method, Setting, Settings, State, Tensors, round_at, vary
from federated.methods import fedavg as base
from federated.methods.common.exit_submodels import exit_submodels, inner_submodels, sort_menu
from federated.methods.common.inactive_mechanisms import one_exit, one_size
from federated.task import Recipe, Update
from federated.training.hooks import Hooks
from models.slicing import Plan, as_slices, is_statistic, read_home
from models.submodel import Network, Submodel
from models.submodel_building import initial

__all__ = ["consistency", "depthfl"]

FEATURES = ("exits",)
EXITS = {"attention": "exits", "adapter": "exits-adapter"}  # as features of the network
TRAINING = {  # the authors' values for CIFAR-100
    "epochs": 5,
    "batch": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "momentum": 0.0,
    "decay": 1e-3,
}
CHOICES: Mapping[str, Setting] = {
    "depths": Setting(
        (),
        "sections that a submodel keeps, with an exit after each; empty: one submodel "
        "per number of sections",
        each=int,
    ),
    "solver": Setting(
        "feddyn",
        "server optimisation: feddyn corrects the mean with the state of devices and "
        "coordinator, fedavg does not",
        ("feddyn", "fedavg"),
    ),
    "alpha": Setting(
        0.1, "weight of FedDyn's regularisation towards the received weights", least=0
    ),
    "distillation": Setting(
        1.0, "weight of the distillation between exits after the ramp; 0: none", least=0
    ),
    "exit": Setting(
        "attention",
        "exits: the authors' (attention), or a convolution and a linear layer (adapter)",
        tuple(EXITS),
    ),
    "ramp": Setting(
        0.3,
        "round in which the weight of the distillation reaches its maximum; 0: constant from "
        "the first round; the authors use 300",
        least=0,
        schedule=True,
    ),
}
MEMORY = (
    "FedDyn accumulates all updates in its state h, so late updates, noise and attacks affect all "
    "later rounds"
)
FEDDYN = "FedDyn corrects the mean by all updates so far"


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return every width with every depth; a depth is a number of sections.

    ConfigError: the settings do not fit the network.
    """
    if network.objective == "value" and settings["distillation"] > 0:
        raise ConfigError(
            "depthfl distils class probabilities, which regression does not have: set "
            "method.distillation = 0"
        )
    if settings["solver"] == "feddyn" and settings["alpha"] <= 0:
        raise ConfigError(
            "setting 'alpha' of depthfl: expected a number above 0 for feddyn, found "
            f"{settings['alpha']}"
        )
    widths, depths = settings["widths"], settings["depths"]
    sizes = exit_submodels(network, (EXITS[settings["exit"]],))
    if not widths or not all(1 <= depth <= len(sizes) for depth in depths):
        raise ConfigError(
            f"depthfl: expected at least one width, and depths from 1 to {len(sizes)} sections, "
            f"found widths {list(widths)} and depths {list(depths)}"
        )
    chosen = [sizes[depth - 1] for depth in depths] or sizes
    return sort_menu(replace(size, width=float(width)) for size in chosen for width in widths)


def start(tensors: Tensors, submodels: Sequence[Submodel], settings: Settings) -> State:
    """Return FedAvg's state; draw exits that the initial network lacks from the seed."""
    drawn = initial(submodels[0].network, settings["seed"], submodels[0].features)
    fitting = {
        name: tensors[name]
        for name, value in drawn.items()
        if name in tensors and tensors[name].shape == value.shape
    }
    return base.start({**drawn, **fitting}, submodels, settings)


def consistency(number: int, ramp: int) -> float:
    """Return lambda_t of round t = `number`, from 1.

    ramp: in rounds; 0: lambda is 1 in every round
    """
    return math.exp(-5 * (1 - min(number, ramp) / ramp) ** 2) if ramp > 0 else 1.0


def distillation_recipe(state: State, submodel: Submodel) -> Recipe:
    settings = state.settings
    weight = settings["distillation"] * consistency(
        state.round + 1, round_at(settings["ramp"], settings["rounds"])
    )
    made = replace(base.recipe(state, submodel), hook="depthfl", options={"weight": weight})
    return (
        replace(made, variate="feddyn", pull=float(settings["alpha"]))
        if settings["solver"] == "feddyn"
        else made
    )


def mutual_loss(
    outs: Sequence[Tensor], own: Sequence[Tensor], options: Mapping[str, Any]
) -> Tensor:
    """Return the sum over exits of their own losses and the distillation from the others."""
    weight = options["weight"] / max(1, len(outs) - 1)
    logs = [F.log_softmax(out, 1) for out in outs] if len(outs) > 1 else []
    taught = [
        F.kl_div(log, other.detach(), reduction="none", log_target=True).flatten(1).sum(1)
        for i, log in enumerate(logs)
        for j, other in enumerate(logs)
        if i != j
    ]
    return torch.stack([*own, *(weight * one for one in taught)]).sum(0)


def count_parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield FedAvg's parts, each with a count of 1 beside its weight."""
    return (replace(part, extra=(1.0,)) for part in base.parts(state, plan, update))


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return the state with the mean, corrected by FedDyn's h if that is the solver."""
    after = base.finish(state, total, rng)
    if state.settings["solver"] != "feddyn":
        return after
    alpha, new = state.settings["alpha"], dict[str, Tensor]()
    agents = max(sum(state.fleet.values()), len(total.seen))
    for home, one in total.sums.items():
        if is_statistic(home):
            continue
        w, old = after.tensors[home].clone(), read_home(state.tensors, home, one.value.shape)
        h = state.tensors.get("h/" + home, torch.zeros_like(old)).clone()
        for where, count in bands(one, 1):
            here = as_slices(where)
            h[here] -= alpha * count / agents * (w[here] - old[here])
            w[here] -= h[here] / alpha
        new |= {home: w, "h/" + home: h}
    return replace(after, tensors={**after.tensors, **new})


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    rounds, ramp = settings["rounds"], round_at(settings["ramp"], settings["rounds"])
    if settings["distillation"] == 0:
        yield (
            "distillation = 0 lets no exit learn from another: set method.distillation above 0, "
            "such as 1.0"
        )
    elif ramp > rounds > 0:
        share = f"{consistency(rounds, ramp):.2g}"
        late = f"ramp = {ramp} exceeds the run's rounds ({rounds})"
        yield (
            f"{late}, so the weight of distillation never exceeds {share}: set method.ramp to a "
            "fraction such as 0.3"
        )
    yield from one_exit(menu, settings)
    yield from one_size(menu, settings)


def depthfl() -> Method:
    fedavg = base.fedavg()
    return replace(
        fedavg,
        name="depthfl",
        summary="shallower submodels with an exit after each section; the exits learn from each "
        "other",
        paper="Kim, Yu, Kim and Moon, DepthFL, ICLR 2023 (not on arXiv); Acar et al., FedDyn "
        "(arXiv 2111.04263)",
        settings=vary(fedavg.settings, weighting="uniform", sharing=None, **TRAINING, **CHOICES),
        features=FEATURES,
        forbids=dict.fromkeys(MODES, MEMORY),
        menu=propose,
        start=start,
        recipe=distillation_recipe,
        parts=count_parts,
        finish=finish,
        trains=inner_submodels,
        hooks=Hooks("depthfl", exit_loss=mutual_loss),
        inactive=inactive,
        breaks={
            "alone": FEDDYN,
            "fedavg": FEDDYN,
            "identity": "FedDyn keeps moving the weights after the first update",
        },
    )
