"""DynamicFL: Zhang et al., Towards Fairness-Aware and Privacy-Preserving Enhanced Collaborative
Learning for Healthcare (Nature Communications 2025, 10.1038/s41467-025-58055-3; not on arXiv, but
what it is built of is: Ding et al., Diverse Branch Block, arXiv 2103.13425).

Against FedAvg, all on the device: every device exchanges the same plain network, and a stronger one
trains more parallel branches of its layers, which merge without loss before it sends
(`models.layers.branches`: eqs. 14 to 18).

A device of B branches may spend the multiply-adds of B branches in every layer. In its first round
it spends them from the bottom to the top; later on the layers of the highest scores first, so that
what is redundant is merged and what is important expanded. A layer's score is that of its best
branch,

    S_b = sum_t || grad_b ||_1 / #parameters(b)    over the steps t of the last local epoch, the
    lower layer first where scores tie.

A network with attention keeps its plan until its device gets another B. All branches are drawn anew
each round, as W and its optimiser start anew: of what is linear in its branches sgd moves their sum
alone, whatever they are. A layer of n copies so learns n times as fast, and weight decay shrinks W
as it does without branches. Neither holds of adam and of low-rank branches.

What the paper's text leaves open: the measure of the budget, the scores' average, the spread of new
branches (a tenth of the weight's) and the weighting by examples are ours; a norm within each branch
is not offered, as under batch statistics it would not merge without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, varied
from federated.methods import fedavg as base
from federated.task import Profile, Recipe
from federated.training.hooks import Hooks, Session
from federated.training.loop import cuts
from models.branching import BranchableLayer, branchable_layers
from models.families.catalogue import full
from models.layers.attention import Attention
from models.layers.branches import Branch, join, originals, split
from models.submodel import Network, Submodel

__all__ = ["SCORES", "allotted", "dynamicfl"]

SCORES = "scores/"  # in a device's memory: of each layer, one score per branch that it had


@dataclass
class Growth:
    """One training with branches. scores: of each layer, summed so far; start: the step from which
    they count.
    """

    scores: dict[str, Tensor]
    start: int


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """The whole network with 1, 2, ... branches. Raises ConfigError for more than its layers can
    have.
    """
    whole, wanted = full(network), settings["branches"]
    able = branchable_layers(whole, wanted - 1, settings["linear"], settings["rank"])
    most = 1 + max((len(layer.kinds) for layer in able.values()), default=0)
    if wanted > most:
        raise ConfigError(
            f"setting 'branches' of dynamicfl: {network.family} has layers of at most "
            f"{most}, found {wanted}"
        )
    return tuple(replace(whole, branches=count) for count in range(1, wanted + 1))


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """The one with most branches."""
    return max(affordable, key=lambda submodel: submodel.branches)


def recipe(state: State, submodel: Submodel) -> Recipe:
    """FedAvg's, with branches where there is more than one, which needs PyTorch."""
    made = base.recipe(state, submodel)
    if submodel.branches == 1:
        return made
    known = {key: state.settings[key] for key in ("init", "linear", "rank")}
    return replace(made, hook="dynamicfl", options={**known, "most": state.settings["branches"]})


def allotted(
    able: Mapping[str, BranchableLayer], count: int, order: Iterable[str]
) -> dict[str, list[Branch]]:
    """The branches of each layer beside its origin: the work of `count` in every layer, spent in
    this order on all that a layer can have.
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
    """Puts the branches in place, and has them trained with all other parameters."""
    options = session.recipe.options
    # of its own: the order of examples is that of a plain device
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
    for name, branches in allotted(able, session.submodel.branches, order).items():
        if branches:
            split(session.net.get_submodule(name), branches, options["init"], generator)
    session.parameters = list(session.net.parameters())
    scores = {
        name: torch.zeros(len(originals(session.net.get_submodule(name))), device=session.device)
        for name in able
    }
    per_epoch = len(cuts(len(session.y), session.recipe.batch))
    session.own = Growth(scores, (session.steps - 1) // per_epoch * per_epoch)


def score(session: Session) -> None:
    if session.step >= session.own.start:
        for name, scores in session.own.scores.items():
            for index, branch in enumerate(originals(session.net.get_submodule(name))):
                size = sum(p.numel() for p in branch)
                for p in branch:
                    scores[index] += 0 if p.grad is None else p.grad.abs().sum() / size


def collapse(session: Session) -> None:
    """Merges every branch into its layer, and remembers the scores."""
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
            4, "most parallel branches per layer, those of the strongest devices", least=1
        ),
        "init": Setting(
            "normal", "how new branches start; the whole stays what it was", ("normal", "zeros")
        ),
        "linear": Setting(
            "copy",
            "branches of a linear layer: as large as it, or products of two thin ones",
            ("copy", "low-rank"),
        ),
        "rank": Setting(8, "of low-rank branches", least=1),
    }
    settings = varied(plain.settings, sharing=None, **own)
    return replace(
        plain,
        name="dynamicfl",
        summary="one network for all; stronger devices train it with parallel branches, merged "
        "before they send",
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
