"""FedOpt: Reddi et al., Adaptive Federated Optimization (arXiv 2003.00295, Algorithm 2), and
FedAvgM: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification (arXiv 1909.06335, section 4.3).

Against FedAvg, the coordinator does not replace its weights by the devices' mean. It takes mean - w
as a negative gradient and makes one step with an optimiser of its own; the formulas are in
`federated.engine.server_optimizer`. Devices do what FedAvg's do.

With several sizes, the mean is FedAvg's coverage mean per coordinate. A coordinate that no device
of a round holds keeps its value, its momentum and its mean square. Running statistics of batch norm
are measurements and no sums of steps, and a variance must stay positive: they take the plain mean.

Algorithm 2 takes the mean uniformly; here it is FedAvg's, by examples, as in the paper's
experiments (`weighting`). It asks for v at the beginning of at least tau^2; here v begins at tau^2.
FedAdagrad has no momentum by default (`beta1 = 0`), as Adagrad. The paper tunes the coordinator's
learning rate per data set; 0.01 for Adam and Yogi and 0.1 for Adagrad are places to start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from torch import Tensor

from federated.engine.aggregate import Total
from federated.engine.server_optimizer import ServerOptimizer, covered, step
from federated.method import Method, Setting, Settings, State, varied
from federated.methods.common.inactive import one_round
from federated.methods.fedavg import fedavg
from federated.methods.fedavg import finish as averaged
from models.slicing import is_statistic, present
from models.submodel import Submodel

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]

Rule = Literal["adagrad", "adam", "sgd", "yogi"]
STEP = "the coordinator makes a step of its own towards the mean"
BREAKS = {"alone": STEP, "fedavg": STEP}
MOMENTUM = {"identity": "the coordinator's momentum goes on"}
BELOW_1 = 0.9999
LR = "learning rate of the coordinator"
BETA2 = Setting(0.99, "share of the mean square that stays in each round", least=0, most=BELOW_1)


def optimizer(rule: Rule, settings: Settings) -> ServerOptimizer:
    """The optimiser of a rule with the settings that it has."""
    if rule == "sgd":
        return ServerOptimizer("sgd", settings["server_lr"], beta1=settings["server_momentum"])
    return ServerOptimizer(
        rule,
        settings["server_lr"],
        settings["beta1"],
        settings.get("beta2", 0.0),
        settings["tau"],
    )


def finish(state: State, total: Total, rng: np.random.Generator, *, rule: Rule) -> State:
    """FedAvg's round, then a step towards each mean instead of the mean itself."""
    after, chosen = averaged(state, total, rng), optimizer(rule, state.settings)
    new: dict[str, Tensor] = {}
    for home, one in total.sums.items():
        if is_statistic(home):
            continue
        old = present(state.tensors, home, one.value.shape)
        change = after.tensors[home] - old
        new[home], moments = step(chosen, state.tensors, home, old, change, covered(one))
        new |= moments
    return replace(after, tensors={**after.tensors, **new})


def alike(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """A tau that hides every difference between mean squares."""
    if settings["tau"] >= 1:
        yield (
            f"tau = {settings['tau']:g} is far above what a weight moves in a round, so all "
            "weights have one step size: set method.tau below 0.1, such as 0.001"
        )


def adaptive(rule: Rule, lr: float, beta1: float, **more: Setting) -> Method:
    """A method with a step size of its own for each weight. lr, beta1: defaults of the settings."""
    base = fedavg()
    settings = {
        "server_lr": Setting(lr, LR, above=0),
        "beta1": Setting(
            beta1, "share of the momentum that stays in each round", least=0, most=BELOW_1
        ),
        **more,
        "tau": Setting(
            1e-3,
            "added to the root of the mean square; the larger, the more alike are the steps",
            above=0,
        ),
    }
    return replace(
        base,
        name=f"fed{rule}",
        summary=f"FedAvg whose coordinator moves by {rule.capitalize()}, with a step size of its "
        "own for each weight",
        paper="Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295)",
        settings=varied(base.settings, **settings),
        finish=partial(finish, rule=rule),
        inactive=alike,
        breaks=BREAKS | (MOMENTUM if beta1 else {}),
    )


def fedadam() -> Method:
    return adaptive("adam", 0.01, 0.9, beta2=BETA2)


def fedyogi() -> Method:
    return adaptive("yogi", 0.01, 0.9, beta2=BETA2)


def fedadagrad() -> Method:
    return adaptive("adagrad", 0.1, 0.0)


def without_momentum(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if settings["server_momentum"] == 0:
        yield (
            "server_momentum = 0 forgets the steps of earlier rounds: set method.server_momentum "
            "above 0, such as 0.9"
        )
    else:
        yield from one_round(menu, settings, effect="no momentum has built up")


def fedavgm() -> Method:
    base = fedavg()
    momentum = Setting(
        0.9, "share of the last step that the next one takes along", least=0, most=BELOW_1
    )
    return replace(
        base,
        name="fedavgm",
        summary="FedAvg whose coordinator moves by SGD with momentum",
        paper="Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for "
        "Federated Visual Classification (arXiv 1909.06335)",
        settings=varied(
            base.settings, server_lr=Setting(1.0, LR, above=0), server_momentum=momentum
        ),
        finish=partial(finish, rule="sgd"),
        inactive=without_momentum,
        breaks=BREAKS | MOMENTUM,
    )
