"""InclusiveFL: Liu, Wu, Wu, Wang, Lyu, Chen and Xie, No One Left Behind: Inclusive Federated
Learning over Heterogeneous Devices (KDD 2022, arXiv 2202.08036), which its authors have for BERT,
and DepthFL's for ResNets. Here it serves every family of networks with sections.

A size is a submodel of the menu, a layer one of its blocks, and a section a stack of layers: BERT
is one section of 12, of which its sizes keep 4, 8 and 12, and so does every section here by
default, in thirds. A size's top layer in a section is the last one that it keeps there, if the
whole network has more. The head is all that follows the last section (classifier, pooler, last
norm). Against FedAvg, on the coordinator:

1. Within each size the mean over its devices, by examples (homogeneous aggregation). Its gradient
is g = received weights - mean.
2. Momentum distillation: the top layer of a size takes g <- beta m + (1 - beta) g, where m is the
mean of this round's gradients of layers L_s .. L_l
   of the next larger size, and L_s and L_l are how many layers the two keep in that section. Of
   those layers only tensors of the top layer's shape count (a section's first block differs).
   Without devices of either size in a round nothing is distilled.
3. A step of each size: w <- w - g, which is the mean (`server = "average"`), or AdamW's with a
state for each size, as in the authors' code.
4. Sizes share (heterogeneous aggregation): the mean over the sizes of a round by their examples, of
all but top layers and heads. These belong to
   their size and live in `NAME@SIZE`; those of the whole network, which is nobody's smaller size,
   in `NAME`.

Where paper and code disagree this is the paper: the code overwrites m in its loop and never injects
it. It keeps a gradient of one batch, where devices here train as their recipe says, and counts
sizes that had no device in a round. Running statistics are averaged and never distilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Part, Total, fold, mean
from federated.engine.server_optimizer import adamw, step
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, varied
from federated.methods import fedavg as base
from federated.methods.common.inactive import same_blocks
from federated.task import Update
from models.families.catalogue import address, full, shapes, statistics
from models.slicing import Plan, as_slices, corner, extract, is_statistic, present
from models.submodel import Network, Submodel, kept

__all__ = ["inclusivefl", "size_local"]

THIRDS = (1 / 3, 2 / 3, 1.0)  # of the blocks, as BERT's 4, 8 and 12 of 12
MOMENTUM = "m/"
SUMS = "parts go to sums of sizes, and what is in those is no mean of any weight"


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Every width with every depth; by default a third, two thirds and all of each section's
    blocks. Raises ConfigError.
    """
    sections = full(network).mask
    if not sections or max(map(len, sections)) < 2:
        raise ConfigError(
            f"model '{network.family}' has no layers to leave out; inclusivefl needs "
            "sections of blocks, as preresnet, resnet or vit have"
        )
    thirds = tuple(tuple(kept(share, len(section)) for section in sections) for share in THIRDS)
    return base.proposal(network, {**settings, "depths": settings["depths"] or thirds})


@lru_cache(maxsize=1024)
def size_local(submodel: Submodel) -> frozenset[str]:
    """Names of the tensors that a size keeps to itself: of its top layers, and of its head; none of
    the whole network's.
    """
    tops = {
        (section, depth(submodel, section) - 1)
        for section, mask in enumerate(submodel.mask)
        if not all(mask)
    }
    if not tops:
        return frozenset()
    found: set[str] = set()
    for names in (list(shapes(submodel)), list(statistics(submodel))):
        places = [address(submodel.network, name) for name in names]
        last = max((index for index, there in enumerate(places) if there), default=len(names))
        found |= {
            name
            for index, (name, there) in enumerate(zip(names, places, strict=True))
            if index > last or (there and there[:2] in tops)
        }
    return frozenset(found)


def depth(submodel: Submodel, section: int) -> int:
    """Blocks of a section up to the last that is kept."""
    return max((index for index, keep in enumerate(submodel.mask[section], 1) if keep), default=0)


def place(state: State, submodel: Submodel) -> Plan:
    plan, own = base.place(state, submodel), size_local(submodel)
    return replace(
        plan,
        rows=tuple(
            base.apart(row, submodel.plain.name) if row.local in own else row for row in plan.rows
        ),
    )


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """FedAvg's, each to the sum of its size, `HOME/SIZE`; and to `m/NAME@SIZE` the gradients that
    the smaller size is to take in.
    """
    for part in base.parts(state, plan, update):
        yield replace(part, home=f"{part.home}/{plan.submodel.plain.name}")
    if state.settings["beta"]:
        yield from lessons(state, plan, update)


def lessons(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """The gradients of layers L_s .. L_l, for each size and section that this submodel is the next
    larger of.
    """
    network, local = plan.submodel.network, shapes(plan.submodel)
    places = {
        there: name
        for name in local
        if (there := address(network, name)) and name in update.tensors
    }
    received = extract(state.tensors, plan)
    for section in range(len(plan.submodel.mask)):
        for size in pupils(state, plan.submodel, section):
            top = depth(size, section)
            for (where, block, rest), name in places.items():
                taught = places.get((section, top - 1, rest))
                if (
                    where == section
                    and block >= top - 1
                    and taught is not None
                    and local[taught] == local[name]
                ):
                    gradient = received[name] - torch.as_tensor(update.tensors[name])
                    shape = local[taught]
                    yield Part(
                        f"{MOMENTUM}{taught}@{size.name}",
                        corner(shape),
                        shape,
                        gradient,
                        base.weight(state, update),
                    )


def pupils(state: State, submodel: Submodel, section: int) -> list[Submodel]:
    """The sizes of the menu of which this one is the next larger in a section: the smallest that
    keeps more blocks there, of the same width.
    """
    menu = [
        size for size in propose(submodel.network, state.settings) if size.width == submodel.width
    ]
    return [
        size
        for size in menu
        if not all(size.mask[section])
        and submodel.plain
        == next((larger for larger in menu if depth(larger, section) > depth(size, section)), None)
    ]


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Each size's step, then the mean over sizes."""
    shared, memory, settings = Total(), dict[str, Tensor](), state.settings
    adam = settings["server"] == "adamw"
    optimizer = adamw(settings["server_lr"], settings["server_decay"]) if adam else None
    for key, one in total.sums.items():
        if key.startswith(MOMENTUM):
            continue
        home, _, _ = key.rpartition("/")
        old, momentum = (
            present(state.tensors, home, one.value.shape),
            total.sums.get(MOMENTUM + home),
        )
        new = mean(one, old)
        if momentum is not None:
            beta = settings["beta"]
            new = old - beta * mean(momentum) - (1 - beta) * (old - new)
        if optimizer is not None and not is_statistic(home):
            new, moments = step(optimizer, state.tensors, key, old, new - old)
            memory |= moments
        for where, (weight, *_) in one.cover.items():
            fold(
                shared,
                [Part(home, where, tuple(one.value.shape), new[as_slices(where)], weight)],
                (key, *map(str, where)),
            )
    after = base.finish(state, shared, rng)
    return replace(after, tensors={**after.tensors, **memory})


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["beta"] == 0:
        yield "beta = 0 switches momentum distillation off: set method.beta above 0, such as 0.2"
    yield from same_blocks(menu, settings, effect="no larger size teaches a smaller one")


def inclusivefl() -> Method:
    method = base.fedavg()
    choices = {
        "depths": Setting(
            (),
            "kept blocks per section, one number or one per section; none: a third, two "
            "thirds and all",
            least=1,
            each=int | tuple[int, ...],
        ),
        "beta": Setting(
            0.2,
            "share of the larger size's momentum in the gradient of a smaller one's top layer",
            least=0,
            most=1,
        ),
        "server": Setting(
            "average",
            "how a size moves by its devices' mean gradient: to their mean, or by AdamW",
            ("average", "adamw"),
        ),
        "server_lr": Setting(0.001, "learning rate of the coordinator's adamw", above=0),
        "server_decay": Setting(0.0, "weight decay of the coordinator's adamw", least=0),
    }
    return replace(
        method,
        name="inclusivefl",
        summary="shallower copies with top layers and heads of their own; larger ones teach the "
        "top layers of smaller ones",
        paper="Liu et al., No One Left Behind: Inclusive Federated Learning over Heterogeneous "
        "Devices, KDD 2022 (arXiv 2202.08036)",
        settings=varied(
            {key: setting for key, setting in method.settings.items() if key != "sharing"},
            **choices,
        ),
        forbids={"private": SUMS, "robust": SUMS},
        menu=propose,
        place=place,
        parts=parts,
        finish=finish,
        inactive=inactive,
    )
