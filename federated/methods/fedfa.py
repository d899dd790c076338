"""FedFA: average networks of different widths and depths, after the blocks that a device lacks are
filled with its last one and layers are scaled to equal norms (Park and Joe-Wong, Federated Learning
with Flexible Architectures, arXiv 2406.09877, Algorithms 1 to 3).

Difference from FedAvg, on the coordinator only: a device drops the last blocks of each section,
then the last channels (Algorithm 3). When its update arrives, its last block of each section is
copied into the deeper ones that it lacks (grafting, Algorithm 2), and each layer is scaled by

    alpha_c = mean_k n_k / n_c,    n_c = || { w : |w| <= 95th percentile of |w| } ||

(Algorithm 1, lines 12 and 18) over the devices k of the round that hold that layer. Then M <- sum_c
N_c alpha_c M_c / sum_c N_c, where any device holds it. A layer of norm 0 keeps alpha = 1 and still
enters the mean. One pass suffices: parts carry the scale 1/n_c and the extras (n_c, 1), and
`finish_scaled` multiplies by the mean norm. The coordinator computes the percentile, since an agent
could forge its scale.

The paper leaves details open. Here the percentile is that of |w|, linearly interpolated and
inclusive. `scaling` is the norm, "l2" as written, "rms" (per entry) or "none". `scale_1d` scales
vectors too (off, since batch norm's weights and biases are not directions). `label_split_head`
takes only the rows of a device's own classes (off). Depths start at 2, so that a section's last
block changes no shape and can always be grafted; tensors that do not fit are left out. Masked
cross-entropy, static batch norm and recipe are HeteroFL's, since the paper's table of rounds and
rates is an image.

`choice` and `mac_budget` choose the size of a device (see
`federated.methods.common.fedfa_size_choice`).

"l2" is the default, although it enlarges narrow layers merely because they are small. Measured:
four devices of sizes w1-d4, w0.75-d3, w0.5-d3 and w0.5-d2 on skewed handwritten digits (Dirichlet
1), 3 epochs a round, mean accuracy over three seeds and rounds 8 to 10 on held-out digits: the
whole network reaches 0.958 with "l2", 0.924 with "rms" and 0.930 with "none", the smallest 0.949,
0.945 and 0.951.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Sum, Total, add_columns, mean, sum_extra
from federated.engine.update_contributions import Part
from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.fedfa_size_choice import CHOICES, choose
from federated.methods.common.inactive_mechanisms import one_size, same_blocks
from federated.methods.common.trimmed_norm import central_norm
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.methods.fedavg import fedavg, finish, parts, recipe
from federated.methods.heterofl import split_head
from federated.task import Recipe, Update
from federated.training.hooks import Hooks
from federated.training.zico_score import survey
from models.slicing import Plan, Row, graft, is_statistic
from models.submodel import Network, Submodel
from models.submodel_building import full, list_normalising

__all__ = ["fedfa", "fedfa_d", "fedfa_w", "is_scaled"]

# smaller norms count as 0: 1/n times the most examples of a device (2**40) must fit a float32
TINY = 1e-25
ZERO = "#zero"  # suffix of the homes of layers with norm 0, which are not scaled
BREAKS = {
    "fedavg": "all layers are scaled to one norm before averaging",
    "identity": "layers are scaled to one norm, and blocks are grafted into deeper ones",
}
LEVELS = (
    "each layer is divided by its own norm before averaging and multiplied by the mean norm "
    "afterwards, so a bound on the updates does not bound the result"
)
WIDTHS = (0.5, 0.75, 1.0)


def propose_depths(network: Network) -> tuple[tuple[int, ...], ...]:
    """Return two blocks per section (the first changes the channels and cannot be grafted), all of
    them, and halfway between, rounded up.
    """
    most = [len(section) for section in full(network).mask]
    return tuple(
        sorted({tuple((min(n, 2), -(-(min(n, 2) + n) // 2), n)[i] for n in most) for i in range(3)})
    )


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    blocks = settings["depths"] or propose_depths(network)
    return propose_sizes(network, msgspec.structs.replace(settings, depths=blocks))


def graft_and_scale(state: State, plan: Plan, update: Update) -> Iterable[Part]:
    """Return grafted parts, with each layer scaled to norm 1; its norm and a count of 1 are
    extras. A layer of norm 0 has a home of its own.
    """
    settings = state.settings
    whole = tuple((home, tuple(value.shape)) for home, value in state.tensors.items())
    found = replace(parts(state, plan, update), rows=graft_once(plan, whole))
    if settings["label_split_head"]:
        found = split_head(found, plan.submodel, update)
    layers = {k: v for k, v in update.tensors.items() if is_scaled(state, plan.submodel, k, v)}
    norms = {k: central_norm(torch.as_tensor(v), settings["scaling"]) for k, v in layers.items()}
    scaled = {
        name: replace(found.own.get(name, found.terms), scale=1 / norm, extra=(norm, 1.0))
        for name, norm in norms.items()
        if norm >= TINY
    }
    found = replace(found, own={**found.own, **scaled})
    if len(scaled) == len(norms):
        return found
    flat = norms.keys() - scaled.keys()
    return (
        replace(found.part(row), home=row.home + ZERO, extra=(0.0, 1.0))
        if row.local in flat
        else found.part(row)
        for row in found.rows
        if row.local in found.tensors
    )


@lru_cache(maxsize=16)
def graft_once(plan: Plan, whole: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Row, ...]:
    """Return the rows of a grafted plan, the same object for all updates of a submodel."""
    return graft(plan, dict(whole)).rows


def is_scaled(state: State, submodel: Submodel, name: str, tensor: Tensor) -> bool:
    """Return True if a tensor is a layer to scale. Biases and norms, with any number of axes, are
    scaled only with `scale_1d`, running statistics never.
    """
    if state.settings["scaling"] == "none" or is_statistic(name):
        return False
    weights = (
        tensor.ndim > 1 and not name.endswith("bias") and name not in list_normalising(submodel)
    )
    return weights or bool(state.settings["scale_1d"])


def own_recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe; updates name the device's classes only if the head is split
    by them.
    """
    return replace(
        recipe(state, submodel),
        labels=bool(state.settings["label_split_head"]) and submodel.network.objective != "value",
    )


def finish_scaled(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return the state with the coverage mean, each scaled layer times the mean of its norms."""
    plain = {
        home: one for home, one in total.sums.items() if len(next(iter(one.cover.values()))) == 1
    }
    homes = dict.fromkeys(home.removesuffix(ZERO) for home in total.sums if home not in plain)
    level = {home: mean(merge_sums(total, home), state.tensors[home]) for home in homes}
    after = finish(state, Total(plain), rng)
    return replace(after, tensors={**after.tensors, **level})


def merge_sums(total: Total, home: str) -> Sum:
    """Return the sum of a layer times its mean norm, plus the unscaled parts of norm 0. It takes
    the place of the layer's sum, which saves the memory of another one.
    """
    scaled, zero = total.sums.get(home), total.sums.get(home + ZERO)
    both = [one for one in (scaled, zero) if one is not None]
    average = sum(sum_extra(one, 1) for one in both) / sum(sum_extra(one, 2) for one in both)
    out, both[0].spent = Sum(both[0].value), True
    if scaled is not None:
        out.value.mul_(average)
    if scaled is not None and zero is not None:
        out.value.add_(zero.value)
    for one in both:
        for where, columns in one.cover.items():
            out.cover[where] = add_columns(out.cover.get(where), columns)
    return out


def inactive_without_grafting(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield the reasons that FedFA and FedFA-W share: one size, no scaling, or a choice without
    budget.
    """
    yield from one_size(menu, settings)
    if settings["scaling"] == "none":
        yield "scaling = 'none' does not scale layers to one norm: set method.scaling to l2 or rms"
    if settings["choice"] == "zico" and settings["mac_budget"] in (0, 1):
        yield (
            "choice = 'zico' without a budget nearly always takes the largest size: set "
            "method.mac_budget between 0 and 1, such as 0.5"
        )


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from inactive_without_grafting(menu, settings)
    if len(menu) > 1:
        yield from same_blocks(menu, settings, effect="no block is grafted")


def fedfa() -> Method:
    """Return FedFA-WD, with sizes in width and depth."""
    base = fedavg()
    blocks = replace(
        base.settings["depths"],
        help="blocks per section, a number or a list with one per section; empty: two, all, and "
        "halfway between",
    )
    sizes = {"widths": WIDTHS, "depths": blocks, "norm": "static"}
    training = {"epochs": 5, "batch": 32, "lr": 0.1, "decay": 5e-4, "clip": 1.0, "masked": True}
    choices = {
        "scaling": Setting(
            "l2",
            "norm to which layers are scaled: L2, root mean square of the entries, or no scaling",
            ("l2", "rms", "none"),
        ),
        "scale_1d": Setting(False, "also scale biases and the weights of normalisation layers"),
        "label_split_head": Setting(
            False, "average a row of the head only over devices with examples of its class"
        ),
    }
    return replace(
        base,
        name="fedfa",
        summary="narrower and shallower submodels; missing blocks are copies of the "
        "last one (grafting), and layers are scaled to a common norm",
        paper="Park and Joe-Wong, Federated Learning with Flexible Architectures (arXiv "
        "2406.09877)",
        settings=vary(base.settings, sharing=None, **sizes, **training, **choices, **CHOICES),
        forbids={"private": LEVELS, "robust": LEVELS},
        menu=propose,
        assign=choose,
        recipe=own_recipe,
        parts=graft_and_scale,
        finish=finish_scaled,
        hooks=Hooks("fedfa", survey=survey),
        inactive=inactive,
        breaks=BREAKS
        | {"uncovered": "a device's last block is grafted into the deeper ones that it lacks"},
    )


def fedfa_d() -> Method:
    """Return FedFA with sizes in depth; every layer has all its channels."""
    base = fedfa()
    return replace(
        base,
        name="fedfa-d",
        summary="FedFA with shallower submodels only",
        settings=vary(base.settings, widths=(1.0,)),
    )


def fedfa_w() -> Method:
    """Return FedFA with sizes in width. Every block is present, so nothing is grafted, and a
    channel that no device holds keeps its weights.
    """
    base, plain = fedfa(), fedavg()
    return replace(
        base,
        name="fedfa-w",
        summary="FedFA with narrower submodels only",
        settings=vary(base.settings, depths=plain.settings["depths"]),
        menu=plain.menu,
        inactive=inactive_without_grafting,
        breaks=BREAKS,
    )
