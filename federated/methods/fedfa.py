"""FedFA: Park and Joe-Wong, Federated Learning with Flexible Architectures (arXiv 2406.09877,
Algorithms 1 to 3).

Against FedAvg, all on the coordinator: a device drops the last blocks of each section, then the
last channels (Algorithm 3). When its update arrives, its last block of each section stands in for
the deeper ones (grafting, Algorithm 2), and each layer is scaled by

    alpha_c = mean_k n_k / n_c,    n_c = || { w : |w| <= 95th percentile of |w| } ||

(Algorithm 1, lines 12 and 18) over the devices k of the round that give that layer; then M <- sum_c
N_c alpha_c M_c / sum_c N_c where somebody holds it. A layer of norm 0 keeps alpha = 1 and still
enters the mean. One pass suffices: parts carry scale 1/n_c and the extras (n_c, 1), and finish
multiplies by the mean. The percentile is taken here and not by the agent, which could forge its
scale otherwise.

What the paper leaves open: the percentile is of |w|, linearly interpolated and inclusive; `scaling`
is the norm, "l2" as written, "rms" (per entry) or "none"; `scale_1d` scales vectors too (off: batch
norm's weights and biases are no directions to be levelled); `label_split_head` takes only the rows
of a device's own classes (off). Depths start at 2, so that a section's last block changes no shape
and can always be grafted; what does not fit is left out. Masked cross-entropy, static batch norm
and recipe are HeteroFL's: the paper's table of rounds and rates was not to be had as text.

`choice` and `mac_budget` say which size a device gets (see `federated.methods.common.choice`).

"l2" is the default though it raises narrow layers merely for being small. Measured: four devices of
sizes w1-d4, w0.75-d3, w0.5-d3 and w0.5-d2 on skewed handwritten digits (Dirichlet 1), 3 epochs a
round, mean accuracy over three seeds and rounds 8 to 10 on held-out digits: the whole network gets
0.958 with "l2", 0.924 with "rms" and 0.930 with "none", the smallest 0.949, 0.945 and 0.951.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part, Sum, Total, added, extra, mean
from federated.method import Method, Setting, Settings, State, varied
from federated.methods.common.central import central_norm
from federated.methods.common.choice import CHOICES, choose
from federated.methods.common.inactive import one_size, same_blocks
from federated.methods.fedavg import fedavg, finish, parts, proposal, recipe
from federated.methods.heterofl import own_rows
from federated.task import Recipe, Update
from federated.training.hooks import Hooks
from federated.training.zico import survey
from models.families.catalogue import full, labelled, normalising
from models.slicing import Plan, graft, is_statistic
from models.submodel import Network, Submodel

__all__ = ["fedfa", "fedfa_d", "fedfa_w", "scaled"]

# a smaller norm is zero: 1/n times the most examples of a device (2**40) must stay a float32
TINY = 1e-25
ZERO = "#zero"  # suffix of the home of layers of norm 0, which are not scaled
BREAKS = {
    "fedavg": "layers are brought to one norm before the mean, of whole networks too",
    "identity": "layers are brought to one norm, and blocks of one device stand in for deeper ones",
}
LEVELS = (
    "each layer is divided by its own norm before the mean, and all by their mean norm after it: "
    "no bound on what came holds for what is made"
)
WIDTHS = (0.5, 0.75, 1.0)


def depths(network: Network) -> tuple[tuple[int, ...], ...]:
    """Two blocks per section (the first changes the channels, and can't be grafted), all of them,
    and halfway between, rounded up.
    """
    most = [len(section) for section in full(network).mask]
    return tuple(
        sorted({tuple((min(n, 2), -(-(min(n, 2) + n) // 2), n)[i] for n in most) for i in range(3)})
    )


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    return proposal(network, {**settings, "depths": settings["depths"] or depths(network)})


def fair_parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Grafts, then brings each layer to norm 1; its norm and a count of 1 travel as extras."""
    settings = state.settings
    grafted = graft(plan, {home: tuple(value.shape) for home, value in state.tensors.items()})
    layers = {k: v for k, v in update.tensors.items() if scaled(state, plan.submodel, k, v)}
    norms = {k: central_norm(torch.as_tensor(v), settings["scaling"]) for k, v in layers.items()}
    classes, labels = labelled(plan.submodel), update.notes.get("labels")
    for row in grafted.rows:
        for part in parts(state, replace(plan, rows=(row,)), update):
            if settings["label_split_head"] and row.home in classes and labels is not None:
                part = own_rows(part, list(labels), plan.submodel.network.outputs)
            yield levelled(part, norms.get(row.local))


def scaled(state: State, submodel: Submodel, name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a layer to be scaled; biases and norms, of however many axes, are with
    `scale_1d` alone, running statistics never.
    """
    if state.settings["scaling"] == "none" or is_statistic(name):
        return False
    weights = tensor.ndim > 1 and not name.endswith("bias") and name not in normalising(submodel)
    return weights or bool(state.settings["scale_1d"])


def fair_recipe(state: State, submodel: Submodel) -> Recipe:
    """FedAvg's; updates name the device's classes only where the head is split by them."""
    return replace(
        recipe(state, submodel),
        labels=bool(state.settings["label_split_head"]) and submodel.network.objective != "value",
    )


def levelled(part: Part, norm: float | None) -> Part:
    if norm is None:
        return part
    if norm < TINY:
        return replace(part, home=part.home + ZERO, extra=(0.0, 1.0))
    return replace(part, scale=1 / norm, extra=(norm, 1.0))


def fair_finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """The coverage mean, each scaled layer times the mean of its norms."""
    plain = {
        home: one for home, one in total.sums.items() if len(next(iter(one.cover.values()))) == 1
    }
    homes = dict.fromkeys(home.removesuffix(ZERO) for home in total.sums if home not in plain)
    level = {home: mean(together(total, home), state.tensors[home]) for home in homes}
    after = finish(state, Total(plain), rng)
    return replace(after, tensors={**after.tensors, **level})


def together(total: Total, home: str) -> Sum:
    """The sums of a layer with its mean norm multiplied back in, those of norm 0 beside it as they
    are.
    """
    both = [one for one in (total.sums.get(home), total.sums.get(home + ZERO)) if one is not None]
    average = sum(extra(one, 1) for one in both) / sum(extra(one, 2) for one in both)
    out = Sum(torch.zeros_like(both[0].value))
    for one in both:
        out.value.add_(one.value, alpha=1.0 if one is total.sums.get(home + ZERO) else average)
        for where, columns in one.cover.items():
            out.cover[where] = added(out.cover.get(where), columns)
    return out


def unscaled(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """What FedFA and FedFA-W have in common: several sizes, layers of one scale, and a score that
    chooses.
    """
    yield from one_size(menu, settings)
    if settings["scaling"] == "none":
        yield "scaling = 'none' does not bring layers to one scale: set method.scaling to l2 or rms"
    if settings["choice"] == "zico" and settings["mac_budget"] in (0, 1):
        yield (
            "choice = 'zico' without a budget nearly always takes the largest size: set "
            "method.mac_budget between 0 and 1, such as 0.5"
        )


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from unscaled(menu, settings)
    if len(menu) > 1:
        yield from same_blocks(menu, settings, effect="no block is grafted")


def fedfa() -> Method:
    """FedFA-WD: sizes in width and depth."""
    base = fedavg()
    blocks = replace(
        base.settings["depths"],
        help="kept blocks per section, one number or one per section; none: two, all, and halfway "
        "between",
    )
    sizes = {"widths": WIDTHS, "depths": blocks, "norm": "static"}
    training = {"epochs": 5, "batch": 32, "lr": 0.1, "decay": 5e-4, "clip": 1.0, "masked": True}
    choices = {
        "scaling": Setting(
            "l2",
            "norm by which layers are brought to one scale; rms: per entry",
            ("l2", "rms", "none"),
        ),
        "scale_1d": Setting(False, "biases and norms are scaled too"),
        "label_split_head": Setting(False, "a device gives the rows of its own classes only"),
    }
    return replace(
        base,
        name="fedfa",
        summary="narrower and shallower copies; blocks that a device lacks are grafted, layers "
        "brought to one scale",
        paper="Park and Joe-Wong, Federated Learning with Flexible Architectures (arXiv "
        "2406.09877)",
        settings=varied(base.settings, sharing=None, **sizes, **training, **choices, **CHOICES),
        forbids={"private": LEVELS, "robust": LEVELS},
        menu=propose,
        assign=choose,
        recipe=fair_recipe,
        parts=fair_parts,
        finish=fair_finish,
        hooks=Hooks("fedfa", survey=survey),
        inactive=inactive,
        breaks=BREAKS
        | {"uncovered": "a device's last block stands in for the deeper ones that it lacks"},
    )


def fedfa_d() -> Method:
    """Sizes in depth: every layer has all its channels."""
    base = fedfa()
    return replace(
        base,
        name="fedfa-d",
        summary="FedFA with shallower copies only",
        settings=varied(base.settings, widths=(1.0,)),
    )


def fedfa_w() -> Method:
    """Sizes in width: every block is there, so nothing is grafted, and a channel that no device
    holds keeps its weights.
    """
    base, plain = fedfa(), fedavg()
    return replace(
        base,
        name="fedfa-w",
        summary="FedFA with narrower copies only",
        settings=varied(base.settings, depths=plain.settings["depths"]),
        menu=plain.menu,
        inactive=unscaled,
        breaks=BREAKS,
    )
