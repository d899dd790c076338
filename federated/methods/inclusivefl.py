"""InclusiveFL: average networks of different depths, and pass momentum from each to the next
smaller one (Liu, Wu, Wu, Wang, Lyu, Chen and Xie, No One Left Behind: Inclusive Federated Learning
over Heterogeneous Devices, KDD 2022, arXiv 2202.08036). The authors use it for BERT, and
the authors of DepthFL for ResNets; here it works for every family of networks with sections.

A size is a submodel of the menu, a layer one of its blocks, and a section a stack of layers. BERT
has one section of 12 layers, and its sizes keep 4, 8 and 12 of them. By default, the sizes here
keep one, two and three thirds of each section. A size's top layer in a section is the last one that
it keeps there, if the whole network has more. The head is everything after the last section
(classifier, pooler, last norm). Difference from FedAvg, on the coordinator:

1. Within each size: the mean over its devices, by examples (homogeneous aggregation). Its gradient
   is g = received weights - mean.
2. Momentum distillation: the top layer of a size takes g <- beta m + (1 - beta) g, where m is the
   mean of this round's gradients of layers L_s .. L_l of the next larger size, and L_s and L_l are
   the numbers of layers that the two keep in that section. Only tensors of the top layer's shape
   count (a section's first block differs). Nothing is distilled if either size has no devices in a
   round.
3. A step of each size: w <- w - g, which is the mean (`server = "average"`), or AdamW's, with a
   state per size, as in the authors' code.
4. Between sizes: the mean over the sizes of a round by their examples (heterogeneous aggregation),
   of everything except top layers and heads. These belong to their size and are stored as
   `NAME@SIZE`; those of the whole network, which is never a smaller size, as `NAME`.

Where paper and code differ, this follows the paper: the code overwrites m in its loop and never
injects it. The code also keeps the gradient of one batch, while devices here train as their recipe
says, and counts sizes without devices in a round. Running statistics are averaged and never
distilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np
import torch
from torch import Tensor

from federated.engine.aggregate import Total, fold, mean
from federated.engine.server_optimizer import adamw, step
from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods import fedavg as base
from federated.methods.common.inactive_mechanisms import same_blocks
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.task import Update
from models.slicing import Plan, as_slices, corner, extract, is_statistic, read_home
from models.submodel import Network, Submodel, scale_count
from models.submodel_building import address, full, shapes, statistics

__all__ = ["find_own_tensors", "inclusivefl"]

THIRDS = (1 / 3, 2 / 3, 1.0)  # fractions of the blocks, like BERT's 4, 8 and 12 of 12
MOMENTUM = "m/"
SUMS = "it sums gradients as well as weights, separately for each submodel"


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return every width with every depth; by default a third, two thirds and all of each section's
    blocks.

    ConfigError: the network has no such submodels.
    """
    sections = full(network).mask
    if not sections or max(map(len, sections)) < 2:
        raise ConfigError(
            f"model '{network.title}' has no layers to leave out: inclusivefl needs a model with "
            "sections of blocks, such as preresnet, resnet or vit"
        )
    thirds = tuple(
        tuple(scale_count(share, len(section)) for section in sections) for share in THIRDS
    )
    return propose_sizes(
        network, msgspec.structs.replace(settings, depths=settings["depths"] or thirds)
    )


@lru_cache(maxsize=1024)
def find_own_tensors(submodel: Submodel) -> frozenset[str]:
    """Return the names of the tensors that belong to a size: its top layers and head; none for the
    whole network.
    """
    tops = {
        (section, count_blocks(submodel, section) - 1)
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


def count_blocks(submodel: Submodel, section: int) -> int:
    """Return the number of blocks of a section up to the last kept one."""
    return max((index for index, keep in enumerate(submodel.mask[section], 1) if keep), default=0)


def place(state: State, submodel: Submodel) -> Plan:
    """Return FedAvg's rows, with separate homes for the tensors of each size."""
    plan, own = base.place(state, submodel), find_own_tensors(submodel)
    return replace(
        plan,
        rows=tuple(
            base.move_to_group(row, submodel.plain.name) if row.local in own else row
            for row in plan.rows
        ),
    )


def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield FedAvg's parts, each for the sum of its size, `HOME/SIZE`, and the gradients that
    smaller sizes receive, for `m/NAME@SIZE`.
    """
    for part in base.parts(state, plan, update):
        yield replace(part, home=f"{part.home}/{plan.submodel.plain.name}")
    if state.settings["beta"]:
        yield from distillation_parts(state, plan, update)


def distillation_parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
    """Yield the gradients of layers L_s .. L_l, for each size and section for which this submodel
    is the next larger size.
    """
    network, local = plan.submodel.network, shapes(plan.submodel)
    places = {
        there: name
        for name in local
        if (there := address(network, name)) and name in update.tensors
    }
    received = extract(state.tensors, plan)
    for section in range(len(plan.submodel.mask)):
        for size in smaller_sizes(state, plan.submodel, section):
            top = count_blocks(size, section)
            for (where, block, rest), name in places.items():
                target = places.get((section, top - 1, rest))
                if (
                    where == section
                    and block >= top - 1
                    and target is not None
                    and local[target] == local[name]
                ):
                    gradient = received[name] - torch.as_tensor(update.tensors[name])
                    shape = local[target]
                    yield Part(
                        f"{MOMENTUM}{target}@{size.name}",
                        corner(shape),
                        shape,
                        gradient,
                        base.weight(state, update),
                    )


def smaller_sizes(state: State, submodel: Submodel, section: int) -> list[Submodel]:
    """Return the sizes of the menu for which this submodel is the next larger one in a section: the
    smallest that keeps more blocks there, with the same width.
    """
    menu = [size for size in state.menu if size.width == submodel.width]
    found = []
    for size in menu:
        kept = count_blocks(size, section)
        larger = (other for other in menu if count_blocks(other, section) > kept)
        if not all(size.mask[section]) and next(larger, None) == submodel.plain:
            found.append(size)
    return found


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return the state after each size's step and the mean over sizes."""
    shared, memory, settings = Total(), dict[str, Tensor](), state.settings
    adam = settings["server"] == "adamw"
    optimizer = adamw(settings["server_lr"], settings["server_decay"]) if adam else None
    for key, one in total.sums.items():
        if key.startswith(MOMENTUM):
            continue
        home, _, _ = key.rpartition("/")
        old = read_home(state.tensors, home, one.value.shape)
        momentum = total.sums.get(MOMENTUM + home)
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
            "blocks per section, a number or a list with one per section; empty: a third, two "
            "thirds and all of each section's blocks",
            least=1,
            each=int | tuple[int, ...],
        ),
        "beta": Setting(
            0.2,
            "weight of the larger submodel's momentum in the gradient of a smaller one's top layer",
            least=0,
            most=1,
        ),
        "server": Setting(
            "average",
            "update of a submodel: the mean of its devices, or an AdamW step with their mean "
            "gradient",
            ("average", "adamw"),
        ),
        "server_lr": Setting(0.001, "learning rate of the coordinator's AdamW", above=0),
        "server_decay": Setting(0.0, "weight decay of the coordinator's AdamW", least=0),
    }
    return replace(
        method,
        name="inclusivefl",
        summary="shallower submodels with their own top layers and heads; larger ones distil their "
        "momentum into the top layers of smaller ones",
        paper="Liu et al., No One Left Behind: Inclusive Federated Learning over Heterogeneous "
        "Devices, KDD 2022 (arXiv 2202.08036)",
        settings=vary(
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
