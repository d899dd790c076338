"""Central differential privacy: bound each device's contribution to a round's sum, and add noise to
the sum before anyone sees it.

`make_private` wraps a method and returns a method. It is DP-FedAvg with a fixed clip (McMahan et
al., Learning Differentially Private Recurrent Language Models, arXiv 1710.06963, Algorithm 1), for
nested submodels. The change of an update, over all its tensors including running statistics and
variates, is one vector. It is shortened to L2 norm `clip` and has weight 1, whatever number of
examples its device claims. Then for each coordinate j

    new_j = old_j + ( sum_{i holds j} change_ij + N(0, (noise clip)^2) ) / m_j

with m_j the number of devices of the round that hold j.

The sum is one vector in the space of the largest network, and an update adds to the coordinates
that it holds. Two rounds that differ in one device's update differ by at most `clip` in L2,
whatever the sizes, so noise of `noise` x `clip` on every covered coordinate is the Gaussian
mechanism with that multiplier. m_j reveals who took part with which submodel. That is decided
before training, from measured speed and memory, so dividing by it reveals nothing about the data.
Coordinates that no device holds are neither changed nor covered with noise. `finish` computes the
next state from this noisy mean and earlier ones alone.

Two fleets are neighbours if they differ in one device's data, its change replaced by zero (Kairouz
et al., arXiv 2103.00039, Definition 1.1). This does not hide that a device took part, with which
submodel, or that it answered; `coordinator.trust.configured_defences` covers the rest.

Sums are float64. The noise comes from the operating system's source of randomness: someone who
knows the run's seed could subtract noise drawn from it. Continuous noise in floating point has gaps
that can leak information in theory (Mironov, CCS 2012); this module does not close them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.aggregate import Sum, Total, bands
from federated.engine.update_contributions import Part
from federated.engine.update_norms import add_missing_homes, clip_parts, count_once
from federated.errors import ConfigError
from federated.method import Method, Setting, State, vary
from federated.task import Update
from models.slicing import Plan, as_slices, blocks, corner

__all__ = ["add_noise", "draw_normal", "make_private", "uniform_settings"]

BLOCK = 1 << 18  # entries that get noise at a time
UNIT = 2.0**-53  # distance of uniform numbers with 53 bits


def make_private(
    method: Method, noise: float, clip: float, random: Callable[[int], bytes] = os.urandom
) -> Method:
    """Return the method with every device's change shortened to `clip`, and noise of standard
    deviation noise x clip on their sum.

    random: returns that many random bytes
    ConfigError: the method does not support differential privacy.
    """
    if why := method.forbids.get("private"):
        raise ConfigError(f"method {method.name} does not support differential privacy: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        wide = (
            replace(count_once(part), value=part.value.double())
            for part in method.parts(state, plan, update)
        )
        yield from clip_parts(wide, state.tensors, clip)

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        sums = {home: add_noise(one, noise * clip, random) for home, one in total.sums.items()}
        return method.finish(add_missing_homes(state, sums), Total(sums, total.seen), rng)

    return replace(method, parts=parts, finish=finish, settings=uniform_settings(method.settings))


def uniform_settings(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the settings of a private run, in which every update has the same weight."""
    if "weighting" not in settings:
        return settings
    uniform = Setting(
        "uniform", "every update has the same weight, since a private run bounds each", ("uniform",)
    )
    return vary(settings, weighting=uniform)


def add_noise(total: Sum, deviation: float, random: Callable[[int], bytes]) -> Sum:
    """Return a copy of the sum with noise of this standard deviation on every covered entry."""
    value = total.value.double().clone()
    for band, weight in bands(total):
        if isinstance(weight, Tensor):
            raise ValueError(
                "cannot make a sum private if devices leave out rows by class: the missing rows "
                "reveal their classes"
            )
        if weight > 0:
            covered = value[as_slices(band)]
            for block in blocks(corner(covered.shape), BLOCK):
                view = covered[as_slices(block)]
                view.add_(
                    torch.from_numpy(draw_normal(view.numel(), random).reshape(tuple(view.shape))),
                    alpha=deviation,
                )
    return Sum(value, total.cover)


def draw_normal(count: int, random: Callable[[int], bytes] = os.urandom) -> NDArray[np.float64]:
    """Return independent standard normal numbers, made from uniform ones of 53 random bits each
    (Box and Muller, 1958).
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(random(16 * pairs), np.uint64) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[:pairs] + 1) * UNIT))  # in (0, 1], since log(0) is infinite
    angle = 2 * math.pi * UNIT * bits[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
