"""DynamicFL: stronger devices train parallel branches of a layer, and merge them before they send.

Zhang et al., Towards Fairness-Aware and Privacy-Preserving Enhanced Collaborative
Learning for Healthcare (Nature Communications 2025, 10.1038/s41467-025-58055-3; not on arXiv). It
builds on Ding et al., Diverse Branch Block (arXiv 2103.13425).

Difference from FedAvg, on the device only: every device exchanges the same plain network, and a
stronger one trains more parallel branches of its layers, which it merges without loss before it
sends (`models.layers.mergeable_branches`: eqs. 14 to 18).

A device of B branches may spend the multiply-adds of B branches in every layer. In its first round
it spends them from the bottom to the top; later on the layers with the highest scores first, so
that redundant branches are merged and important ones expanded. A layer's score is that of its best
branch,

    S_b = sum_t || grad_b ||_1 / #parameters(b)

over the steps t of the last local epoch; the lower layer comes first if scores tie.

A network with attention keeps its plan until its device gets another B. All branches are drawn anew
each round. W and its optimiser start anew as well, and SGD moves only the sum of linear branches,
so nothing is lost. A layer of n copies learns n times as fast, and weight decay shrinks W as
without branches. Neither is true of Adam and of low-rank branches.

The paper leaves open the measure of the budget, the average of scores, the spread of new branches
(here a tenth of the weight's) and the weighting by examples. A norm within each branch is not
offered, since with batch statistics it would not merge without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods import fedavg as base
from federated.task import Profile, Recipe
from federated.training.hooks import Hooks, Session
from federated.training.training_inputs import batch_bounds
from models.cost import BranchableLayer, branchable_layers
from models.layers.attention import Attention
from models.layers.mergeable_branches import Branch, join, originals, split
from models.submodel import Network, Submodel
from models.submodel_building import full

__all__ = ["SCORES", "allot_branches", "dynamicfl"]

SCORES = "scores/"  # prefix in a device's memory: one score per branch of a layer


@dataclass
class Growth:
    """One training with branches.

    scores: sum so far, of each layer
    start: step from which they count
    """

    scores: dict[str, Tensor]
    start: int


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return the whole network with 1, 2, ... branches.

    ConfigError: its layers cannot have that many.
    """
    whole, wanted = full(network), settings["branches"]
    able = branchable_layers(whole, wanted - 1, settings["linear"], settings["rank"])
    most = 1 + max((len(layer.kinds) for layer in able.values()), default=0)
    if wanted > most:
        raise ConfigError(
            f"setting 'branches' of dynamicfl: expected at most {most} for {network.family}, "
            f"found {wanted}"
        )
    return tuple(replace(whole, branches=count) for count in range(1, wanted + 1))


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the submodel with the most branches."""
    return max(affordable, key=lambda submodel: submodel.branches)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe; with more than one branch, add the hooks, which need PyTorch."""
    made = base.recipe(state, submodel)
    if submodel.branches == 1:
        return made
    known = {key: state.settings[key] for key in ("init", "linear", "rank")}
    return replace(made, hook="dynamicfl", options={**known, "most": state.settings["branches"]})


def allot_branches(
    able: Mapping[str, BranchableLayer], count: int, order: Iterable[str]
) -> dict[str, list[Branch]]:
    """Return the additional branches of each layer.

    count: with this number of branches in every layer, the work would equal the budget.
    order: names of the layers. Each gets all the branches that the remaining budget allows.
    """
    left = sum(
        layer.places * branch.floats
        for layer in able.values()
        for branch in layer.kinds[: count - 1]
    )
    chosen: dict[str, list[Branch]] = {name: [] for name in able}
    for name in order:
        for branch in able[name].kinds:
            work = able[name].places * branch.floats
            if work <= left:
                chosen[name].append(branch)
                left -= work
    return chosen


def expand(session: Session) -> None:
    """Add the branches, and train them with all other parameters."""
    options = session.recipe.options
    # a generator of its own keeps the order of examples that of a device without branches
    generator = torch.Generator().manual_seed(session.generator.initial_seed())
    able = branchable_layers(
        session.submodel.plain, options["most"] - 1, options["linear"], options["rank"]
    )
    fixed = any(isinstance(m, Attention | nn.MultiheadAttention) for m in session.net.modules())
    known = {
        name: float(session.memory[SCORES + name].max())
        for name in able
        if SCORES + name in session.memory and not fixed
    }
    order = sorted(able, key=lambda name: -known.get(name, 0.0))
    for name, branches in allot_branches(able, session.submodel.branches, order).items():
        if branches:
            split(session.net.get_submodule(name), branches, options["init"], generator)
    session.parameters = list(session.net.parameters())
    scores = {
        name: torch.zeros(len(originals(session.net.get_submodule(name))), device=session.device)
        for name in able
    }
    per_epoch = len(batch_bounds(len(session.y), session.recipe.batch))
    session.own = Growth(scores, (session.steps - 1) // per_epoch * per_epoch)


def score(session: Session) -> None:
    """Add up the gradients of each branch in the last local epoch."""
    if session.step >= session.own.start:
        for name, scores in session.own.scores.items():
            for index, branch in enumerate(originals(session.net.get_submodule(name))):
                size = sum(p.numel() for p in branch)
                for p in branch:
                    scores[index] += 0 if p.grad is None else p.grad.abs().sum() / size


def collapse(session: Session) -> None:
    """Merge every branch into its layer, and store the scores."""
    for name, scores in session.own.scores.items():
        layer = session.net.get_submodule(name)
        if len(originals(layer)) > 1:
            join(layer)
        session.memory[SCORES + name] = scores


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if len(menu) == 1:
        yield "branches = 1 gives no device a parallel branch: set method.branches to at least 2"


def dynamicfl() -> Method:
    plain = base.fedavg()
    own = {
        "branches": Setting(
            4, "maximum parallel branches per layer, for the strongest devices", least=1
        ),
        "init": Setting(
            "normal",
            "initial values of new branches; they do not change the output of the layer",
            ("normal", "zeros"),
        ),
        "linear": Setting(
            "copy",
            "branches of a linear layer: of its own size, or products of two thin matrices",
            ("copy", "low-rank"),
        ),
        "rank": Setting(8, "rank of low-rank branches", least=1),
    }
    # branches change between rounds
    settings = vary(plain.settings, sharing=None, keep_optimiser=None, **own)
    return replace(
        plain,
        name="dynamicfl",
        summary="one network for all; stronger devices train more parallel branches and merge "
        "them before the upload",
        paper="Zhang et al., Towards Fairness-Aware and Privacy-Preserving Enhanced Collaborative "
        "Learning for Healthcare, "
        "Nature Communications 2025 (10.1038/s41467-025-58055-3), on Ding et al., "
        "Diverse Branch Block, CVPR 2021 (arXiv 2103.13425)",
        settings={key: value for key, value in settings.items() if key not in {"widths", "depths"}},
        menu=propose,
        assign=assign,
        recipe=recipe,
        hooks=Hooks("dynamicfl", open=expand, step=score, close=collapse),
        inactive=inactive,
    )
