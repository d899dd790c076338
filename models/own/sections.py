"""Find blocks of a traced network that can be left out: runs of one class that keep the shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx, nn

from models.own.operation_rules import Value
from models.own.tracing import Call

__all__ = ["find_sections"]

Calls = Mapping[str, Sequence[Call]]
Tensors = Mapping[fx.Node, Value]


def find_sections(net: nn.Module, calls: Calls, found: Tensors) -> tuple[tuple[str, ...], ...]:
    """Return the names of the blocks of each section, outermost first; all but a section's first
    can be left out.
    """
    sections: list[tuple[str, ...]] = []
    for path, container in net.named_modules():
        inside = any(path.startswith(f"{block}.") for section in sections for block in section)
        if isinstance(container, nn.Sequential | nn.ModuleList) and not inside:
            sections += [
                tuple(run) for run in find_runs(net, path, container, calls, found) if len(run) > 1
            ]
    return tuple(sections)


def find_runs(
    net: nn.Module, path: str, container: nn.Module, calls: Calls, found: Tensors
) -> list[list[str]]:
    """Return the runs of consecutive blocks among a container's children. A block that does not
    follow the previous one begins a new run.
    """
    runs: list[list[str]] = [[]]
    for key, child in container.named_children():
        name = f"{path}.{key}" if path else key
        if not is_block(child, calls.get(name, ())):
            runs.append([])
        elif runs[-1] and follows(net, runs[-1][-1], name, calls, found):
            runs[-1].append(name)
        else:
            runs.append([name])
    return runs


def is_block(module: nn.Module, calls: Sequence[Call]) -> bool:
    """Return True if a module has layers, is not a mere `nn.Sequential`, and is called once with
    one tensor in and out.
    """
    return (
        not isinstance(module, nn.Sequential)
        and any(True for _ in module.children())
        and len(calls) == 1
        and calls[0] is not None
    )


def follows(net: nn.Module, last: str, name: str, calls: Calls, found: Tensors) -> bool:
    """Return True if a block has the previous one's class, takes its output and keeps the shape."""
    one, other = calls[last][0], calls[name][0]
    assert one is not None
    assert other is not None
    if type(net.get_submodule(last)) is not type(net.get_submodule(name)) or one[1] is not other[0]:
        return False
    return (
        other[0] in found and other[1] in found and found[other[0]].shape == found[other[1]].shape
    )
