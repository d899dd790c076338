"""ScaleFL: submodels are narrow and shallow at once, and their last exit teaches the others (Ilhan,
Su and Liu, Resource-Adaptive Federated Learning with Heterogeneous Clients, CVPR 2023; not on
arXiv).

Difference from FedAvg: a level is narrow and shallow at once. Level l keeps a fraction v_l of all
channels and ends at exit h_l (section 3.1; `models.layers.early_exits`, exits-conv), by default v =
(.7, .7, .75, 1) and h = (1, 2, 3, 4); a network with fewer exits ends at its last one. A Scaler
divides by v before each norm, in evaluation too, as in the authors' code. A device trains all its
exits z_1 .. z_n, and the last one teaches the others (section 3.3):

    ( sum_(j < n) j (CE(z_j) + gamma T^2 KL(softmax(z_n / T) || softmax(z_j / T))) + n CE(z_n) )
    / (n (n + 1) / 2),    T = 3

with gamma 0 in the first quarter of the rounds, and .05 after it: the authors' value for BERT.
Their code leaves it at 0 for images, which switches off the paper's self-distillation. The learning
rate falls to a tenth after each third of the rounds: their code has rounds 100 and 200 for CIFAR
without a number of rounds, and 30 and 60 of 90 for ImageNet.

`variant` chooses where paper and code differ: "code" averages KL over examples and classes and lets
its gradient reach the teacher, "clean" averages over examples and does not. The mean is uniform
over the devices that hold a weight. The code also asks if a weight had a gradient, since its levels
carry exits that they do not train; here a submodel ends at its last exit, and all of it has one.
The code rounds kept channels down, here they are rounded up (.7 of 16 is 12, not 11). It evaluates
batch norm with the statistics of the batch; here they are static, measured by the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.exit_submodels import exit_submodels, inner_submodels, sort_menu
from federated.methods.common.inactive_mechanisms import one_exit, one_round, one_size
from federated.methods.fedavg import fedavg, recipe
from federated.task import Recipe
from federated.training.hooks import Hooks
from models.submodel import Network, Submodel

__all__ = ["scalefl", "weighted_loss"]

FEATURES = ("exits-conv", "scaler-always")
WIDTHS, EXITS = (0.7, 0.7, 0.75, 1.0), (1, 2, 3, 4)
WITHOUT_DISTILLATION = 0.25  # fraction of the rounds
THIRDS = (0.333, 0.667)


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return one level for each pair of width and exit.

    ConfigError: the settings do not fit the network.
    """
    widths, ends = settings["widths"], settings["depths"]
    if not widths or len(widths) != len(ends):
        raise ConfigError(
            "scalefl: expected at least one level, and as many widths as depths, found widths "
            f"{list(widths)} and depths {list(ends)}"
        )
    if network.objective == "value" and settings["gamma"] > 0:
        raise ConfigError(
            "scalefl distils class probabilities, which regression does not have: set "
            "method.gamma = 0"
        )
    sizes = exit_submodels(network, FEATURES)
    return sort_menu(
        replace(sizes[min(h, len(sizes)) - 1], width=float(v))
        for v, h in zip(widths, ends, strict=True)
    )


def distillation_recipe(state: State, submodel: Submodel) -> Recipe:
    settings = state.settings
    gamma = settings["gamma"] if state.round > WITHOUT_DISTILLATION * settings["rounds"] else 0.0
    options = {
        "gamma": float(gamma),
        "temperature": float(settings["temperature"]),
        "variant": settings["variant"],
    }
    return replace(recipe(state, submodel), hook="scalefl", options=options)


def weighted_loss(
    outs: Sequence[Tensor], own: Sequence[Tensor], options: Mapping[str, Any]
) -> Tensor:
    """Return the mean over exits, the j-th with weight j. All but the last include the distillation
    from the last one.
    """
    losses = [
        loss + options["gamma"] * distillation_loss(out, outs[-1], options)
        for loss, out in zip(own[:-1], outs[:-1], strict=True)
    ]
    losses.append(own[-1])
    return torch.stack([j * one for j, one in enumerate(losses, 1)]).sum(0) / (
        len(outs) * (len(outs) + 1) / 2
    )


def distillation_loss(out: Tensor, last: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return T^2 KL between the last exit and this one, for each example."""
    clean, heat = options["variant"] == "clean", options["temperature"]
    teacher = F.softmax((last.detach() if clean else last) / heat, 1)
    divergence = F.kl_div(F.log_softmax(out / heat, 1), teacher, reduction="none").flatten(1)
    found: Tensor = heat**2 * (divergence.sum(1) if clean else divergence.mean(1))
    return found


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["gamma"] == 0:
        yield (
            "gamma = 0 lets no exit learn from the last one: set method.gamma above 0, such as 0.05"
        )
    else:
        yield from one_round(menu, settings, effect="distillation has not begun")
    yield from one_exit(menu, settings)
    yield from one_size(menu, settings, remedy="method.widths and method.depths to several levels")


def scalefl() -> Method:
    base = fedavg()
    # the authors' values for CIFAR
    training = {"epochs": 5, "batch": 16, "lr": 0.1, "decay": 5e-4, "milestones": THIRDS}
    choices = {
        "depths": Setting(
            EXITS,
            "exit at which each submodel ends, one for each entry of widths",
            least=1,
            each=int,
        ),
        "gamma": Setting(
            0.05,
            "weight of the distillation from the last exit, after a quarter of the rounds; 0: none",
            least=0,
        ),
        "temperature": Setting(3.0, "temperature of the distillation", above=0),
        "variant": Setting(
            "code",
            "distillation: averaged over classes, with a gradient to the teacher, as in the "
            "authors' code (code); or neither (clean)",
            ("code", "clean"),
        ),
    }
    return replace(
        base,
        name="scalefl",
        summary="narrower and shallower submodels with exits; the last exit teaches the others",
        paper="Ilhan, Su and Liu, ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous "
        "Clients, CVPR 2023 (not on arXiv)",
        settings=vary(
            base.settings,
            widths=WIDTHS,
            weighting="uniform",
            norm="static",
            sharing=None,
            **training,
            **choices,
        ),
        features=FEATURES,
        menu=propose,
        recipe=distillation_recipe,
        trains=inner_submodels,
        hooks=Hooks("scalefl", exit_loss=weighted_loss),
        inactive=inactive,
    )
