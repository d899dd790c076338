"""Central differential privacy: bounds what each device adds to a round's sum, and covers it with
noise, before anyone sees the result.

A wrapper: of a method it is a method. DP-FedAvg with a fixed clip (McMahan et al., Learning
Differentially Private Recurrent Language Models, arXiv 1710.06963, Algorithm 1), for submodels that
nest. Of an update the whole change, over all its tensors, running statistics and variates included,
is one vector, shortened to L2 norm `clip`, and counts once, whatever its device says of its
examples. Then of each coordinate j

    new_j = old_j + ( sum_{i holds j} change_ij + N(0, (noise clip)^2) ) / m_j

with m_j the number of devices of the round that hold j.

The sum is one vector in the space of the largest network, and an update touches it in the
coordinates that it holds: two rounds that differ in what one device sent differ by at most `clip`
in L2, however many sizes there are, and noise of `noise` x `clip` on every covered coordinate is
the Gaussian mechanism of that multiplier. m_j says who took part with which submodel. That is
decided before anyone trains, from measured speed and memory, so dividing by it tells nothing of
what was learned. What no device holds is neither changed nor noised: there is nothing to hide.
Whatever the method makes of the noisy mean (`finish`) is made of it and of earlier such means
alone.

Two fleets count as neighbours that differ in one device's data, its change replaced by zero
(Kairouz et al., arXiv 2103.00039, Definition 1.1). What that does not cover: that a device took
part, with which submodel, and that it answered; see `coordinator.trust.defences` for the rest.

Sums are float64. The noise comes from the operating system's source of randomness: were it of the
run's seed, who knows that could take it away again. Continuous noise in floating point has gaps
that reveal something in theory (Mironov, CCS 2012); nothing is done about them.
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

from federated.engine.aggregate import Part, Sum, Total, bands
from federated.engine.blocks import blocks
from federated.engine.update_norms import clipped, counted, grounded
from federated.errors import ConfigError
from federated.method import Method, Setting, State, varied
from federated.task import Update
from models.slicing import Plan, as_slices, corner

__all__ = ["gaussian", "noised", "private", "uniform_settings"]

BLOCK = 1 << 18  # entries that get their noise at a time
BITS = 2.0**-53


def private(
    method: Method, noise: float, clip: float, random: Callable[[int], bytes] = os.urandom
) -> Method:
    """The method with every device's change shortened to `clip`, and noise of standard deviation
    noise x clip on their sum.

    random: gives so many bytes. ConfigError: the method does not stand it.
    """
    if why := method.forbids.get("private"):
        raise ConfigError(f"method {method.name} cannot be private: {why}")

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        wide = (
            replace(counted(part), value=part.value.double())
            for part in method.parts(state, plan, update)
        )
        yield from clipped(wide, state.tensors, clip)

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        sums = {home: noised(one, noise * clip, random) for home, one in total.sums.items()}
        return method.finish(grounded(state, sums), Total(sums, total.seen), rng)

    return replace(method, parts=parts, finish=finish, settings=uniform_settings(method.settings))


def uniform_settings(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """The settings of a private run: every update has the same weight."""
    if "weighting" not in settings:
        return settings
    uniform = Setting(
        "uniform", "every update has the same weight: a private run bounds each", ("uniform",)
    )
    return varied(settings, weighting=uniform)


def noised(total: Sum, deviation: float, random: Callable[[int], bytes]) -> Sum:
    """The sum with noise of this standard deviation on every entry that is covered; the one given
    stays as it is.
    """
    value = total.value.double().clone()
    for band, weight in bands(total):
        if isinstance(weight, Tensor):
            raise ValueError(
                "rows that a device leaves out by its classes tell of them: there is no "
                "private sum of such"
            )
        if weight > 0:
            add_noise(value[as_slices(band)], deviation, random)
    return Sum(value, total.cover)


def add_noise(view: Tensor, deviation: float, random: Callable[[int], bytes]) -> None:
    for block in blocks(corner(view.shape), BLOCK):
        here = view[as_slices(block)]
        here.add_(
            torch.from_numpy(gaussian(here.numel(), random).reshape(tuple(here.shape))),
            alpha=deviation,
        )


def gaussian(count: int, random: Callable[[int], bytes] = os.urandom) -> NDArray[np.float64]:
    """Independent standard normal numbers, of uniform ones with 53 random bits each (Box and
    Muller, 1958).
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(random(16 * pairs), np.uint64) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[:pairs] + 1) * BITS))  # of (0, 1]: log has no 0
    angle = 2 * math.pi * BITS * bits[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
