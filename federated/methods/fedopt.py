"""FedOpt and FedAvgM: the coordinator moves towards the devices' mean with an optimiser of its own.
FedOpt: Reddi et al., Adaptive Federated Optimization (arXiv 2003.00295, Algorithm 2). FedAvgM: Hsu,
Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (arXiv 1909.06335, section 4.3).

Difference from FedAvg: the coordinator does not replace its weights by the devices' mean. It takes
mean - w as a negative gradient and makes one step with its own optimiser; the formulas are in
`federated.engine.server_optimizer`. Devices train as under FedAvg.

With several sizes, the mean is FedAvg's coverage mean per coordinate. A coordinate that no device
of a round holds keeps its value, its momentum and its mean square. Running statistics of batch norm
take the plain mean, since they are measurements, not sums of steps, and a variance must stay
positive.

Algorithm 2 takes a uniform mean; here it is weighted by examples, as in the paper's experiments
(`weighting`). It requires an initial v of at least tau^2; here v starts at tau^2. FedAdagrad has no
momentum by default (`beta1 = 0`), as Adagrad. The paper tunes the coordinator's learning rate per
data set; 0.01 for Adam and Yogi and 0.1 for Adagrad are starting points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from federated.engine.aggregate import Total
from federated.engine.server_optimizer import ServerOptimizer, coverage_mask, step
from federated.method import Method, Setting, Settings, State, vary
from federated.methods.common.inactive_mechanisms import one_round
from federated.methods.fedavg import fedavg
from federated.methods.fedavg import finish as finish_mean
from models.slicing import is_statistic, read_home
from models.submodel import Submodel

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]

MakeOptimizer = Callable[[Settings], ServerOptimizer]
STEP = "the coordinator's optimiser takes a step towards the mean"
BREAKS = {"alone": STEP, "fedavg": STEP}
MOMENTUM = {"identity": "the coordinator's momentum continues"}
BELOW_1 = 0.9999
LR = "learning rate of the coordinator"
BETA2 = Setting(0.99, "fraction of the mean square kept in each round", least=0, most=BELOW_1)


def make_sgd(settings: Settings) -> ServerOptimizer:
    return ServerOptimizer("sgd", settings["server_lr"], beta1=settings["server_momentum"])


def make_adagrad(settings: Settings) -> ServerOptimizer:
    """Return Adagrad, which keeps the whole mean square: it has no beta2."""
    lr, beta1, tau = settings["server_lr"], settings["beta1"], settings["tau"]
    return ServerOptimizer("adagrad", lr, beta1, tau=tau)


def make_adam(settings: Settings) -> ServerOptimizer:
    return replace(make_adagrad(settings), rule="adam", beta2=settings["beta2"])


def make_yogi(settings: Settings) -> ServerOptimizer:
    return replace(make_adam(settings), rule="yogi")


def finish(
    state: State, total: Total, rng: np.random.Generator, *, optimizer: MakeOptimizer
) -> State:
    """Return FedAvg's state, with a step towards each mean instead of the mean itself."""
    after, chosen = finish_mean(state, total, rng), optimizer(state.settings)
    new: dict[str, Tensor] = {}
    for home, one in total.sums.items():
        if is_statistic(home):
            continue
        old = read_home(state.tensors, home, one.value.shape)
        change = after.tensors[home] - old
        new[home], moments = step(chosen, state.tensors, home, old, change, coverage_mask(one))
        new |= moments
    return replace(after, tensors={**after.tensors, **new})


def tau_too_large(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield a reason if tau hides all differences between mean squares."""
    if settings["tau"] >= 1:
        yield (
            f"tau = {settings['tau']:g} is far above the change of a weight in a round, so all "
            "weights have the same step size: set method.tau below 0.1, such as 0.001"
        )


def make_adaptive(
    rule: str, optimizer: MakeOptimizer, lr: float, beta1: float, **more: Setting
) -> Method:
    """Return a method with a step size per weight. lr, beta1: defaults of the settings."""
    base = fedavg()
    settings = {
        "server_lr": Setting(lr, LR, above=0),
        "beta1": Setting(
            beta1, "fraction of the momentum kept in each round", least=0, most=BELOW_1
        ),
        **more,
        "tau": Setting(
            1e-3,
            "number added to the denominator of a step; larger values make steps more uniform",
            above=0,
        ),
    }
    return replace(
        base,
        name=f"fed{rule}",
        summary=f"FedAvg with {rule.capitalize()} on the coordinator, with a step size per weight",
        paper="Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv 2003.00295)",
        settings=vary(base.settings, **settings),
        finish=partial(finish, optimizer=optimizer),
        inactive=tau_too_large,
        breaks=BREAKS | (MOMENTUM if beta1 else {}),
    )


def fedadam() -> Method:
    return make_adaptive("adam", make_adam, 0.01, 0.9, beta2=BETA2)


def fedyogi() -> Method:
    return make_adaptive("yogi", make_yogi, 0.01, 0.9, beta2=BETA2)


def fedadagrad() -> Method:
    return make_adaptive("adagrad", make_adagrad, 0.1, 0.0)


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
        0.9, "fraction of the last step that is added to the next one", least=0, most=BELOW_1
    )
    return replace(
        base,
        name="fedavgm",
        summary="FedAvg with SGD with momentum on the coordinator",
        paper="Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for "
        "Federated Visual Classification (arXiv 1909.06335)",
        settings=vary(base.settings, server_lr=Setting(1.0, LR, above=0), server_momentum=momentum),
        finish=partial(finish, optimizer=make_sgd),
        inactive=without_momentum,
        breaks=BREAKS | MOMENTUM,
    )
