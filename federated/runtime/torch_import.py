"""Import PyTorch in less time: without its compiler until something compiles, and without garbage
collections. Does not import torch itself.

An optimiser and the meta device mark functions as not to be compiled when they first run, and
PyTorch imports its whole compiler to set this mark: 1.5 s of processor time and 75 MB (PyTorch 2.13
on x86-64) in each agent and coordinator, none of which compiles. torchvision imports it for a
function that few of its users call.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["defer_compiler", "pause_collection"]

NAME = "torch._dynamo"
UTILS = f"{NAME}.utils"


def defer_compiler() -> None:
    """Put a module in the compiler's place that loads it as soon as more than a mark is needed."""
    if NAME not in sys.modules:
        sys.modules[NAME] = DeferredCompiler(NAME)
        sys.meta_path.insert(0, SubmoduleFinder())


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the garbage collector while something makes many objects that stay in use, such as the
    import of PyTorch, of whose time it takes up to an eighth.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class DeferredCompiler(ModuleType):
    """Stands for `torch._dynamo` until it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: its submodules are found by `SubmoduleFinder`

    def disable(
        self, fn: Callable[..., Any], recursive: bool = True, **options: Any
    ) -> Callable[..., Any]:
        """Return a function that calls `fn`, uncompiled even after the compiler was loaded."""
        disabled: list[Callable[..., Any]] = []

        @wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            if sys.modules[NAME] is self:
                return fn(*args, **kwargs)
            if not disabled:
                disabled.append(sys.modules[NAME].disable(fn, recursive, **options))
            return disabled[0](*args, **kwargs)

        return run

    def graph_break(self, msg: str = "") -> None:
        """Do nothing: outside the compiler there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system, not by a user of the compiler
            raise AttributeError(name)
        return getattr(load_compiler(), name)


class DeferredUtils(ModuleType):
    """Stands for `torch._dynamo.utils`, from which torchvision imports one function."""

    def is_compile_supported(self, device_type: Any) -> Any:
        """Call the compiler's own function."""
        return load_compiler().utils.is_compile_supported(device_type)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load_compiler().utils, name)


class SubmoduleFinder(MetaPathFinder, Loader):
    """Loads the package before its first submodule, as an import of the package would, except for
    `UTILS`.
    """

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}.") or not isinstance(
            sys.modules.get(NAME), DeferredCompiler
        ):
            return None
        if name != UTILS:
            load_compiler()
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if isinstance(sys.modules.get(NAME), DeferredCompiler):
            return DeferredUtils(spec.name)
        return importlib.import_module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` returned a module that needs no execution."""


def load_compiler() -> ModuleType:
    if isinstance(sys.modules.get(NAME), DeferredCompiler):
        del sys.modules[NAME]
        sys.modules.pop(UTILS, None)
    return importlib.import_module(NAME)
