"""Run one round of a method by hand, without agents: cut a submodel out of weights, read tensors of
any size as an update, and fold updates into the state of the largest network.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral

import numpy as np
from torch import Tensor, nn

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError, DataError
from federated.method import Method, State, Tensors, configure
from federated.runtime.extension_errors import report_failure
from federated.task import Update
from models.slicing import corners, extract
from models.submodel import Network, Submodel
from models.submodel_building import address, build, full, initial, shapes, statistics

__all__ = ["begin_round", "cut", "fold_by_hand", "rebuild"]

log = logging.getLogger(__name__)

WRAPPED = "net."  # before each name of a user's network, see `models.user_networks.user_network`


def begin_round(
    network: Network, weights: Tensors | None, method: Method, given: Mapping[str, object]
) -> State:
    """Return the state before the first round. weights: of the largest network; None: initial ones.
    given: settings of the method. Raises Unknown, ConfigError; DataError for a missing tensor.
    """
    settings = configure(method, given)
    try:
        tensors = initial(network, settings["seed"], method.features)
        if weights is not None:
            tensors |= read_tensors(full(network, method.features), weights, "weights")
        return method.start(tensors, method.menu(network, settings), settings)
    except ValueError as error:  # such as a network that cannot be narrowed
        raise ConfigError(str(error)) from error


def cut(submodel: Submodel, weights: Tensors | None) -> nn.Module:
    """Return a submodel with its part of the weights, in evaluation mode. weights: of the largest
    network; None: initial ones. Raises ConfigError; DataError for a missing tensor.
    """
    try:
        whole, net = initial(submodel.network, 0, submodel.features), build(submodel)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if weights is not None:
        given = read_tensors(full(submodel.network, submodel.features), weights, "weights")
        if statistics(submodel).keys() - given.keys():
            log.warning(
                "%s: the weights have no batch norm statistics: pass examples through the module "
                "in training mode before it predicts",
                submodel.name,
            )
        whole |= given
    local = shapes(submodel) | statistics(submodel)
    plan = corners({home: tuple(value.shape) for home, value in whole.items()}, submodel, local)
    net.load_state_dict(extract(whole, plan), strict=False)
    return net.eval()


def rebuild(submodel: Submodel, tensors: Tensors) -> nn.Module:
    """Return the module of a submodel that has these tensors, in evaluation mode. Raises
    ConfigError; DataError for a missing parameter, or a tensor of another shape.
    """
    try:
        net = build(submodel)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    net.load_state_dict(read_tensors(submodel, tensors, submodel.name), strict=False)
    return net.eval()


def fold_by_hand(
    method: Method, state: State, updates: Sequence[tuple[Tensors, int]], seed: int = 0
) -> State:
    """Return the state after a round with these updates: each the tensors of a submodel, with the
    number of examples that it was trained on. They are folded in the given order.

    Raises DataError for tensors that are not a submodel of the network, ConfigError if they lack
    what devices send with their weights.
    """
    total, network = Total(), state.menu[-1].network
    for index, (tensors, samples) in enumerate(updates):
        what = f"update {index}"
        if not isinstance(samples, Integral) or samples < 1:
            raise DataError(f"{what}: expected a whole number of examples, found {samples!r}")
        tensors = name_tensors(network, tensors)
        submodel = find_submodel(network, tensors, method.features, what)
        own, plan = read_tensors(submodel, tensors, what), method.place(state, submodel)
        extra = {row.local for row in plan.rows if "/" in row.local}
        if missing := sorted(extra - tensors.keys()):
            raise ConfigError(
                f"{what}: the devices of method {method.name} also send {missing[0]}: add such "
                "tensors, use a simulation or a fleet, or fold with another method"
            )
        update = Update(
            run="by hand",
            round=state.round + 1,
            attempt=0,
            agent=str(index),
            work="train",
            submodel=submodel,
            version=f"r{state.round}",
            samples=int(samples),
            steps=state.settings["epochs"] * math.ceil(samples / state.settings["batch"]),
            tensors=own | {name: tensors[name] for name in extra},
        )
        with report_failure("method", method.name):  # its devices may also send notes
            fold(total, method.parts(state, plan, update), (index,))
    return method.finish(state, total, np.random.default_rng(seed))


def find_submodel(
    network: Network, tensors: Tensors, features: Sequence[str], what: str
) -> Submodel:
    """Return the submodel that tensors belong to, from their names and shapes: its blocks are those
    that have tensors, and its width is the smallest kept fraction of any axis.

    Raises DataError for tensors of another network.
    """
    whole = full(network, features)
    known = shapes(whole)
    found = {name: tuple(value.shape) for name, value in tensors.items() if name in known}
    odd = [name for name, shape in found.items() if len(shape) != len(known[name])]
    if odd or not found:
        name = odd[0] if odd else next(iter(tensors), "nothing")
        raise DataError(
            f"{what}: expected tensors of {network.title} such as {next(iter(known))}, found {name}"
        )
    fractions = (
        kept / size
        for name, shape in found.items()
        for kept, size in zip(shape, known[name], strict=True)
    )
    places = {place[:2] for name in found if (place := address(network, name)) is not None}
    mask = tuple(
        tuple(int((section, block) in places) for block in range(len(blocks)))
        for section, blocks in enumerate(whole.mask)
    )
    return replace(whole, width=min(fractions), mask=mask)


def read_tensors(submodel: Submodel, tensors: Tensors, what: str) -> dict[str, Tensor]:
    """Return the parameters and running statistics of a submodel. Raises DataError if a parameter
    is missing, or a tensor has another shape.
    """
    tensors = name_tensors(submodel.network, tensors)
    try:
        wanted = shapes(submodel)
    except ValueError as error:
        raise DataError(f"{what}: {error}") from error
    # first those that are missing, because then the size may be wrong, too
    for name, shape in sorted(wanted.items(), key=lambda item: item[0] in tensors):
        found = tuple(tensors[name].shape) if name in tensors else "none"
        if found != shape:
            raise DataError(
                f"{what}: expected tensor {name} of shape {shape} for submodel {submodel.name}, "
                f"found {found}"
            )
    known = wanted | statistics(submodel)
    return {name: value.detach() for name, value in tensors.items() if name in known}


def name_tensors(network: Network, tensors: Tensors) -> Tensors:
    """Return tensors by the names that the project uses. Those of a user's own module lack the
    prefix of the module's place behind the normalisation.
    """
    known = shapes(full(network))
    if any(name in known for name in tensors):
        return tensors
    return {f"{WRAPPED}{name}": value for name, value in tensors.items()}
