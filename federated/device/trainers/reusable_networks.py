"""Build the module of a submodel once, and restore its initial state for each further task.

To build a small network takes longer than a training step of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from models.submodel import Submodel
from models.submodel_building import arrange_channels, build

__all__ = ["ReusableNetworks"]

KEPT = 16  # networks of a trainer
# bytes of parameters and buffers; the time to build a larger network is small beside its training
LARGEST = 2**22
STATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
CONTAINERS = (dict, list, set)
PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type),
    *(BuiltinFunctionType, torch.dtype, torch.device),
)


class ReusableNetwork:
    """A module that can be restored to the state in which it was built: the values of its tensors
    and the attributes of all modules in it.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.tensors = net.state_dict()
        self._modules = [(module, *divide_attributes(vars(module))) for module in net.modules()]
        self._parameters = [(p, p.requires_grad) for p in net.parameters()]
        every = [*net.parameters(), *net.buffers()]
        self._values = [value.detach() for value in every]
        self._initial = [value.clone() for value in self._values]

    def restore(self) -> None:
        for module, values, empty, filled in self._modules:
            own = vars(module)
            own.clear()
            own.update(values)
            for container in filter(None, empty):
                container.clear()
            for name, container in filled:
                own[name] = container.copy()
        for parameter, trained in self._parameters:
            parameter.grad = None
            if parameter.requires_grad is not trained:
                parameter.requires_grad_(trained)
        with torch.no_grad():
            torch._foreach_copy_(self._values, self._initial)


class ReusableNetworks:
    """The networks of a trainer on the CPU that wait for their next task."""

    def __init__(self) -> None:
        self._idle = OrderedDict[tuple[Submodel, int], ReusableNetwork]()

    @contextmanager
    def borrow(
        self, submodel: Submodel, seed: int
    ) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
        """Provide an initial network. It may be changed, but its tensors must not be replaced, or
        used afterwards.
        """
        key = submodel, seed
        found = self._idle.pop(key, None)
        if found is None:
            net = arrange_channels(build(submodel, seed=seed), submodel)
            if not can_restore(net):
                yield net, net.state_dict()
                return
            found = ReusableNetwork(net)
        else:
            found.restore()
        yield found.net, found.tensors
        self._idle[key] = found
        if len(self._idle) > KEPT:
            self._idle.popitem(last=False)


def divide_attributes(
    attributes: dict[str, Any],
) -> tuple[dict[str, Any], list[Any], list[tuple[str, Any]]]:
    """Return the attributes of a module, those of its containers that are empty, such as most of
    hooks, and copies of the others by name.
    """
    containers = {k: v for k, v in attributes.items() if isinstance(v, CONTAINERS)}
    filled = [(name, value.copy()) for name, value in containers.items() if value]
    return attributes.copy(), [value for value in containers.values() if not value], filled


def can_restore(net: nn.Module) -> bool:
    """Return True for a small network whose only state is its parameters, its buffers, and
    attributes with plain values or containers of them.
    """
    size = sum(value.nbytes for value in (*net.parameters(), *net.buffers()))
    return size <= LARGEST and all(
        name in STATE or is_plain(value) or is_container_of_plain(value)
        for module in net.modules()
        for name, value in vars(module).items()
    )


def is_container_of_plain(value: object) -> bool:
    if isinstance(value, dict):  # of hooks, for example
        return all(map(is_plain, (*value.keys(), *value.values())))
    return isinstance(value, CONTAINERS) and all(map(is_plain, value))


def is_plain(value: object) -> bool:
    """Return True for a value that cannot change."""
    if isinstance(value, tuple | frozenset):
        return all(map(is_plain, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None and not vars(value)
    return isinstance(value, PLAIN)
