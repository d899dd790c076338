"""InCo Aggregation: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464, section 3.3), around five base methods.

Devices hold the first blocks of each section, so few devices train the deep blocks. After the base
method has finished a round, the step g_k = new - old of a deep layer takes up the step g_0 of a
shallow layer of its section. With a = g_k / ||g_k||, b = g_0 / ||g_0|| and
L = (||g_k|| + ||g_0||) / 2:

    code        clip((a + t b) L, -0.1, 0.1),   t = min(|<g_0, g_k>| / <g_0, g_0>, 5);
                all per kernel of a convolution, 1e-7 in denominators
    no_norm     clip(g_k + t g_0, -0.1, 0.1), else as code
    no_opt      as code, t = 1
    paper       (a - t b) L,   t = <b, a> / <b, b>, over the whole layer: the rest is orthogonal
                to g_0
    paper_cond  as paper, where <b, a> < 0 alone (Theorem 3.1); else t = 0
    unnormalised  as paper, t = <g_0, g_k> / <g_0, g_0>

The paper and the authors' code differ in sign, in t and in what a norm is taken of. The default is
the code, which produced the published results. A layer is taken as a whole where its kernels are
single numbers. Where g_k or g_0 is 0, and where no device of the round holds a coordinate, the step
stays as it is.

The layers are those of the authors' code: in a residual network, conv1 and conv2 of every block but
the first take up the first block's conv2; in blocks of attention, norm2's weight takes up norm1's.
In other networks, and for convolutions that these rules leave out, a weight of two axes or more
that does not belong to a norm takes up the weight of the same name and shape in the shallowest
block of its section. Everything else follows the base method: stem, shortcuts, norms, head,
variates.

For vision transformers the authors' code also divides every step by the number of epochs. The paper
does not mention this, and it is left out here. The authors publish the code for FedAvg only; the
other four follow the paper: devices and mean of the base method, then the cross-layer step.

`inco-nova`: the authors train with Adam, which FedNova's normaliser for SGD does not fit, and their
FedNova on ResNets stays at 10 to 15 %. Set `optimiser = "sgd"` for a fair comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Sum, Total, bands
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, Tensors, varied
from federated.methods.common.inactive import same_blocks
from federated.methods.fedavg import fedavg
from federated.methods.fednova import fednova
from federated.methods.fedprox import fedprox
from federated.methods.moon import moon
from federated.methods.scaffold import scaffold
from models.families.catalogue import address, full, normalising, shapes
from models.slicing import as_slices
from models.submodel import Network, Submodel

__all__ = [
    "crossed",
    "inco_avg",
    "inco_moon",
    "inco_nova",
    "inco_prox",
    "inco_scaffold",
    "references",
]

REFERENCES = "references"  # in a state's settings: layer -> the one whose step it takes up
VARIANTS = ("code", "no_norm", "no_opt", "paper", "paper_cond", "unnormalised")
KERNELS = VARIANTS[:3]  # per kernel, clipped
STEPS = 4  # from the smallest size to the largest
LARGEST, STEEPEST, EPS = 0.1, 5.0, 1e-7  # of a step's entry, of t; against division by 0


def references(network: Network) -> dict[str, str]:
    """The layers of a network that take up another's step, by name, each with that other."""
    whole, norms = shapes(full(network)), normalising(full(network))
    places = {place: name for name in whole if (place := address(network, name)) is not None}
    shallowest: dict[tuple[int, str, tuple[int, ...]], str] = {}
    found = {}
    for (section, block, rest), name in sorted(places.items()):
        other: str | None = shallowest.setdefault((section, rest, whole[name]), name)
        lead, norm1 = (
            places.get((section, 0, "conv2.weight")),
            places.get((section, block, "norm1.weight")),
        )
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


def crossed(step: Tensor, other: Tensor, variant: str) -> Tensor:
    """g_k as it takes up g_0, of the same shape, under a variant of the module's table."""
    kernels = variant in KERNELS and math.prod(step.shape[2:]) > 1
    x, y = (value.flatten(2) if kernels else value.reshape(1, 1, -1) for value in (step, other))
    norm_x, norm_y = x.norm(dim=-1, keepdim=True), y.norm(dim=-1, keepdim=True)
    eps = EPS if variant in KERNELS else torch.finfo(x.dtype).tiny
    a, b, level = x / (norm_x + eps), y / (norm_y + eps), (norm_x + norm_y) / 2
    along, square = (x * y).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    match variant:
        case "paper" | "paper_cond":
            cosine = (a * b).sum(-1, keepdim=True) / ((b * b).sum(-1, keepdim=True) + eps)
            new = (a - (cosine if variant == "paper" else cosine.clamp(max=0)) * b) * level
        case "unnormalised":
            new = (a - along / (square + eps) * b) * level
        case _:
            t = (
                torch.ones_like(along)
                if variant == "no_opt"
                else (along.abs() / (square + eps)).clamp(max=STEEPEST)
            )
            new = (x + t * y if variant == "no_norm" else (a + t * b) * level).clamp(
                -LARGEST, LARGEST
            )
    return torch.where((norm_x > 0) & (norm_y > 0), new, x).reshape(step.shape)


def taken_up(old: Tensor, new: Tensor, other: Tensor, one: Sum, variant: str) -> Tensor:
    """The new tensor with the crossed step instead of its own, where somebody holds it. other:
    g_0.
    """
    out, step = new.clone(), crossed(new - old, other, variant)
    for band, _ in bands(one):
        out[as_slices(band)] = old[as_slices(band)] + step[as_slices(band)]
    return out


def matched(network: Network) -> None:
    """Raises ConfigError where no layer takes up another's step."""
    if not references(network):
        raise ConfigError(
            f"model '{network.family}' has no two layers of one shape in a section, as "
            "InCo needs; models that have: preresnet, resnet, vit"
        )


def depths(network: Network) -> tuple[tuple[int, ...], ...]:
    """Blocks per section of five sizes, in equal steps from one block to all; what lies between two
    numbers is the lower one in the first half of the sections and the higher one in the others. Of
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
    matched(network)
    return base.menu(network, {**settings, "depths": settings["depths"] or depths(network)})


def start(
    tensors: Tensors, submodels: Sequence[Submodel], settings: Settings, *, base: Method
) -> State:
    """The base method's state, with the pairs of layers in its settings."""
    state = base.start(tensors, submodels, settings)
    pairs = references(submodels[0].network)
    return replace(state, settings={**state.settings, REFERENCES: pairs})


def finish(state: State, total: Total, rng: np.random.Generator, *, base: Method) -> State:
    """The base method's round, then the cross-layer step of every pair that the round touched."""
    after, variant = base.finish(state, total, rng), state.settings["variant"]
    known: Mapping[str, str] = state.settings[REFERENCES]
    old, new = state.tensors, after.tensors
    taken = {
        home: taken_up(old[home], new[home], new[other] - old[other], total.sums[home], variant)
        for home, other in known.items()
        if home in total.sums and other in total.sums
    }
    return replace(after, tensors={**new, **taken})


def inactive(menu: Sequence[Submodel], settings: Settings, *, base: Method) -> Iterator[str]:
    yield from base.inactive(menu, settings)
    yield from same_blocks(
        menu,
        settings,
        effect="the same devices train all layers and the cross-layer step corrects nothing",
    )


def inco(base: Method, name: str, **given: object) -> Method:
    """The base method with a cross-layer step after each round. given: other defaults."""
    authors = {"optimiser": "adam", "lr": 0.001, "batch": 64, "epochs": 5, "weighting": "uniform"}
    blocks = Setting(
        (),
        "kept blocks per section, one number or one per section; none: five sizes, from one block "
        "of each section to all",
        least=1,
        each=int | tuple[int, ...],
    )
    variant = Setting("code", "how a deep layer's step takes up a shallow one's", VARIANTS)
    settings = {**authors, **given, "depths": blocks, "variant": variant}
    mixed = "a deep layer takes up the step of a shallow one"
    return replace(
        base,
        name=name,
        summary=f"{base.name} with shallower copies; deep layers take up the steps of shallow ones",
        paper="Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to "
        "Heterogeneity in FL, ICLR 2024 (arXiv 2308.11464)",
        settings=varied(base.settings, sharing=None, **settings),
        menu=partial(propose, base=base),
        start=partial(start, base=base),
        finish=partial(finish, base=base),
        inactive=partial(inactive, base=base),
        breaks={**base.breaks, "alone": mixed, "fedavg": mixed},
    )


def inco_avg() -> Method:
    """Around FedAvg with one mean per weight over all who hold it: the paper's HeteroAvg."""
    return inco(fedavg(), "inco-avg")


def inco_moon() -> Method:
    return inco(moon(), "inco-moon")


def inco_nova() -> Method:
    return inco(fednova(), "inco-nova")


def inco_prox() -> Method:
    """The pull is ten times FedProx's default: the paper sets mu / 2 = 0.05."""
    return inco(fedprox(), "inco-prox", mu=0.1)


def inco_scaffold() -> Method:
    """The cross-layer step applies to the weights, not to the variates."""
    return inco(scaffold(), "inco-scaffold")
