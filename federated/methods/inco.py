"""InCo Aggregation: combine the steps of deep layers, which few devices train, with those of
shallow layers, around five base methods (Chan et al., Internal Cross-layer Gradients for Extending
Homogeneity to Heterogeneity in FL, arXiv 2308.11464, section 3.3).

Difference from the base method: devices hold the first blocks of each section, so few devices train
the deep blocks. After the base method has finished a round, the step g_k = new - old of a deep
layer is combined with the step g_0 of a shallow layer of its section. With a = g_k / ||g_k||, b =
g_0 / ||g_0|| and L = (||g_k|| + ||g_0||) / 2:

    code        clip((a + t b) L, -0.1, 0.1),   t = min(|<g_0, g_k>| / <g_0, g_0>, 5);
                all per kernel of a convolution, 1e-7 in denominators
    no_norm     clip(g_k + t g_0, -0.1, 0.1), else as code
    no_opt      as code, t = 1
    neither     clip(g_k + g_0, -0.1, 0.1): without normalisation and without t
    paper       (a - t b) L,   t = <b, a> / <b, b>, over the whole layer: the rest is orthogonal
                to g_0
    paper_cond  as paper, but t = 0 unless <b, a> < 0 (Theorem 3.1)
    unnormalised  as paper, t = <g_0, g_k> / <g_0, g_0>

The paper and the authors' code differ in sign, in t and in the extent of a norm. The default is the
code, which produced the published results. A layer whose kernels are single numbers is treated as a
whole. If g_k or g_0 is 0, or no device of the round holds a coordinate, the step does not change.

The layers are those of the authors' code: in a residual network, conv1 and conv2 of every block but
the first use the first block's conv2; in blocks of attention, norm2's weight uses norm1's. In other
networks, and for convolutions that these rules leave out, a weight of at least two axes that does
not belong to a norm uses the weight of the same name and shape in the shallowest block of its
section. Everything else follows the base method: stem, shortcuts, norms, head, variates.

For vision transformers the authors' code also divides every step by the number of epochs. The paper
does not mention this, and it is left out here. The authors publish the code for FedAvg only; the
other four follow the paper: devices and mean of the base method, then the cross-layer step.

With `record`, the state keeps two numbers of each such layer: `beta/NAME`, <g_0, g_k> over the
whole layer (Theorem 3.1), and `theta/NAME`, the mean of t over kernels (section 5.4, Figure 9).

`inco-nova`: the authors train with Adam, which FedNova's normaliser for SGD does not fit, and their
FedNova on ResNets stays at 10 to 15 %. Set `optimiser = "sgd"` for a fair comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Sum, Total, bands
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.inactive_mechanisms import same_blocks
from federated.methods.fedavg import fedavg
from federated.methods.fednova import fednova
from federated.methods.fedprox import fedprox
from federated.methods.moon import moon
from federated.methods.scaffold import scaffold
from models.slicing import as_slices
from models.submodel import Network, Submodel
from models.submodel_building import address, full, list_normalising, shapes

__all__ = [
    "BETA",
    "THETA",
    "cross_step",
    "find_references",
    "inco_avg",
    "inco_moon",
    "inco_nova",
    "inco_prox",
    "inco_scaffold",
]

BETA, THETA = "beta/", "theta/"  # prefixes of recorded numbers
VARIANTS = ("code", "no_norm", "no_opt", "neither", "paper", "paper_cond", "unnormalised")
KERNELS = VARIANTS[:4]  # per kernel, clipped
STEPS = 4  # from the smallest to the largest size
LARGEST, STEEPEST, EPS = 0.1, 5.0, 1e-7  # limits of a step's entries and of t; avoids 0 / 0


def find_references(network: Network) -> dict[str, str]:
    """Return the name of the reference layer of each layer with a cross-layer step."""
    whole, norms = shapes(full(network)), list_normalising(full(network))
    places = {place: name for name in whole if (place := address(network, name)) is not None}
    shallowest: dict[tuple[int, str, tuple[int, ...]], str] = {}
    found = {}
    for (section, block, rest), name in sorted(places.items()):
        other: str | None = shallowest.setdefault((section, rest, whole[name]), name)
        lead = places.get((section, 0, "conv2.weight"))
        norm1 = places.get((section, block, "norm1.weight"))
        if lead is None and norm1 is not None:
            other = norm1 if rest == "norm2.weight" else None
        elif (
            lead is not None
            and block
            and rest in {"conv1.weight", "conv2.weight"}
            and whole[name] == whole[lead]
        ):
            other = lead
        elif len(whole[name]) < 2 or name in norms or not rest.endswith("weight"):
            other = None
        if other is not None and other != name and whole[name] == whole[other]:
            found[name] = other
    return found


def flatten_kernels(value: Tensor, variant: str) -> Tensor:
    """Return a step as [out, in, kernel], or [1, 1, all] if the variant treats it as a whole."""
    kernels = variant in KERNELS and math.prod(value.shape[2:]) > 1
    return value.flatten(2) if kernels else value.reshape(1, 1, -1)


def find_theta(x: Tensor, y: Tensor, variant: str) -> Tensor:
    """Return t of each kernel, [out, in, 1], of steps [out, in, kernel]."""
    eps = EPS if variant in KERNELS else torch.finfo(x.dtype).tiny
    along, square = (x * y).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    match variant:
        case "paper" | "paper_cond":
            a, b = (value / (value.norm(dim=-1, keepdim=True) + eps) for value in (x, y))
            cosine: Tensor = (a * b).sum(-1, keepdim=True) / ((b * b).sum(-1, keepdim=True) + eps)
            return cosine if variant == "paper" else cosine.clamp(max=0)
        case "unnormalised":
            return along / (square + eps)
        case "no_opt" | "neither":
            return torch.ones_like(along)
        case _:
            return (along.abs() / (square + eps)).clamp(max=STEEPEST)


def cross_step(step: Tensor, other: Tensor, variant: str) -> Tensor:
    """Return g_k with g_0, of the same shape, under a variant of the module's table."""
    x, y = (flatten_kernels(value, variant) for value in (step, other))
    norm_x, norm_y = x.norm(dim=-1, keepdim=True), y.norm(dim=-1, keepdim=True)
    eps = EPS if variant in KERNELS else torch.finfo(x.dtype).tiny
    a, b, level = x / (norm_x + eps), y / (norm_y + eps), (norm_x + norm_y) / 2
    t = find_theta(x, y, variant)
    if variant in KERNELS:
        sums = x + t * y if variant in ("no_norm", "neither") else (a + t * b) * level
        new = sums.clamp(-LARGEST, LARGEST)
    else:
        new = (a - t * b) * level
    return torch.where((norm_x > 0) & (norm_y > 0), new, x).reshape(step.shape)


def record_pair(home: str, step: Tensor, other: Tensor, variant: str) -> dict[str, Tensor]:
    """Return beta and theta of a layer by home; nothing if none of its kernels moved."""
    x, y = (flatten_kernels(value, variant) for value in (step, other))
    moved = (x.norm(dim=-1) > 0) & (y.norm(dim=-1) > 0)
    if not moved.any():
        return {}
    theta = find_theta(x, y, variant).squeeze(-1)[moved]
    return {BETA + home: (x * y).sum(), THETA + home: theta.mean()}


def apply_cross_step(old: Tensor, new: Tensor, other: Tensor, one: Sum, variant: str) -> Tensor:
    """Return the new tensor with the cross-layer step, where any device holds it. other: g_0."""
    out, step = new.clone(), cross_step(new - old, other, variant)
    for band, _ in bands(one):
        out[as_slices(band)] = old[as_slices(band)] + step[as_slices(band)]
    return out


def propose_depths(network: Network) -> tuple[tuple[int, ...], ...]:
    """Return the blocks per section of five sizes, in equal steps from one block to all. A
    fractional number is rounded down in the first half of the sections and up in the others. For
    ResNet26 these are the paper's ResNet10, 14, 18, 22 and 26.
    """
    sections = [len(mask) for mask in full(network).mask]
    early = (len(sections) + 1) // 2
    return tuple(
        tuple(
            1 + ((blocks - 1) * step + (0 if place < early else STEPS - 1)) // STEPS
            for place, blocks in enumerate(sections)
        )
        for step in range(STEPS + 1)
    )


def propose(network: Network, settings: Settings, *, base: Method) -> tuple[Submodel, ...]:
    """Return the base method's menu, by default with five depths. ConfigError: no layer has a
    reference layer.
    """
    if not find_references(network):
        raise ConfigError(
            f"model '{network.title}' has no two layers of equal shape in a section, which InCo "
            "needs: use another model, such as preresnet, resnet or vit"
        )
    blocks = settings["depths"] or propose_depths(network)
    return base.menu(network, msgspec.structs.replace(settings, depths=blocks))


def finish(state: State, total: Total, rng: np.random.Generator, *, base: Method) -> State:
    """Return the base method's state, with the cross-layer step of every pair that the round folded
    into.
    """
    after, variant = base.finish(state, total, rng), state.settings["variant"]
    old, new, taken = state.tensors, after.tensors, dict[str, Tensor]()
    for home, other in find_references(state.menu[0].network).items():
        if home in total.sums and other in total.sums:
            shallow = new[other] - old[other]
            taken[home] = apply_cross_step(old[home], new[home], shallow, total.sums[home], variant)
            if state.settings["record"]:
                taken |= record_pair(home, new[home] - old[home], shallow, variant)
    return replace(after, tensors={**new, **taken})


def inactive(menu: Sequence[Submodel], settings: Settings, *, base: Method) -> Iterator[str]:
    yield from base.inactive(menu, settings)
    yield from same_blocks(
        menu,
        settings,
        effect="the same devices train all layers and the cross-layer step corrects nothing",
    )


def inco(base: Method, name: str, **given: object) -> Method:
    """Return the base method with a cross-layer step after each round. given: other defaults."""
    authors = {"optimiser": "adam", "lr": 0.001, "batch": 64, "epochs": 5, "weighting": "uniform"}
    blocks = Setting(
        (),
        "blocks per section, a number or a list with one per section; empty: five sizes, from one "
        "block of each section to all",
        least=1,
        each=int | tuple[int, ...],
    )
    variant = Setting("code", "formula that adds a shallow layer's step to a deep one's", VARIANTS)
    record = Setting(False, "keep beta and theta of each layer in the state, for an analysis")
    settings = {**authors, **given, "depths": blocks, "variant": variant, "record": record}
    mixed = "the step of a deep layer includes that of a shallow one"
    return replace(
        base,
        name=name,
        summary=f"{base.name} with shallower submodels; updates of deep layers include those of "
        "shallow ones",
        paper="Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to "
        "Heterogeneity in FL, ICLR 2024 (arXiv 2308.11464)",
        settings=vary(base.settings, sharing=None, **settings),
        menu=partial(propose, base=base),
        finish=partial(finish, base=base),
        inactive=partial(inactive, base=base),
        breaks={**base.breaks, "alone": mixed, "fedavg": mixed},
    )


def inco_avg() -> Method:
    """Return InCo on FedAvg with one mean per weight over all its holders: the paper's
    HeteroAvg.
    """
    return inco(fedavg(), "inco-avg")


def inco_moon() -> Method:
    return inco(moon(), "inco-moon")


def inco_nova() -> Method:
    return inco(fednova(), "inco-nova")


def inco_prox() -> Method:
    """Return InCo on FedProx. The pull is ten times FedProx's default: the paper sets mu / 2 =
    0.05.
    """
    return inco(fedprox(), "inco-prox", mu=0.1)


def inco_scaffold() -> Method:
    """Return InCo on SCAFFOLD. The cross-layer step applies to the weights, not to the variates."""
    return inco(scaffold(), "inco-scaffold")
