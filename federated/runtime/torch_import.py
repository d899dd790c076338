"""Import PyTorch in less time and memory: without its compiler and the algebra of symbolic shapes
until something uses them, and without garbage collections. Does not import torch itself.

An optimiser and the meta device mark functions as not to be compiled when they first run, and
PyTorch imports its whole compiler to set this mark: 1.5 s of processor time and 75 MB (PyTorch 2.13
on x86-64) in each agent and coordinator, none of which compiles. torchvision imports it for a
function that few of its users call. The meta device imports SymPy, 40 MB, to find out that shapes
have no symbols.
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

__all__ = ["defer_compiler", "pause_collection", "spare_collection"]

COMPILER = "torch._dynamo"
UTILS = f"{COMPILER}.utils"
SHAPES = "torch.fx.experimental.symbolic_shapes"
ALGEBRA = "sympy"

# what the functions of SHAPES return for numbers, which are never symbols before it is loaded
CONCRETE: dict[str, Callable[..., Any]] = {
    "expect_true": lambda condition, skip=0: condition,
    "free_unbacked_symbols": lambda values: frozenset(),
    "guard_int": lambda number: number,
    "guard_or_false": lambda condition: condition,
    "guard_or_true": lambda condition: condition,
    "guard_size_oblivious": lambda condition: condition,
    "guarding_hint_or_throw": lambda number: number,
    "has_guarding_hint": lambda number: True,
    "is_nested_int": lambda number: False,
    "statically_known_true": lambda condition: condition,
    "sym_and": lambda *conditions: all(conditions),
    "sym_eq": lambda one, other: one == other,
    "sym_or": lambda *conditions: any(conditions),
}


def defer_compiler() -> None:
    """Put modules in the place of the compiler and the algebra, which load these as soon as more
    than a mark or a number is needed.
    """
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


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


@contextmanager
def spare_collection() -> Iterator[None]:
    """Leave out what exists now, such as all that imports made, from garbage collections until the
    end of the context. Otherwise they take up to a twelfth of the time of a small network's run.
    """
    if gc.get_freeze_count():  # the caller did so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class StandIn(ModuleType):
    """Stands for a module until something is used that this one does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: `Finder` finds its submodules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)  # asked by the import system, not by a user of the module
        return getattr(load(self), name)


def load(module: StandIn) -> ModuleType:
    """Import and return the real module, and copy its content into the stand-in, which other
    modules may have imported.
    """
    for name in STAND_INS:
        within = f"{name}.".startswith(f"{module.__name__}.")
        if within and isinstance(sys.modules.get(name), StandIn):
            sys.modules.pop(name, None)
    loaded = importlib.import_module(module.__name__)
    vars(module).update(vars(loaded))
    return loaded


def find_loaded(module: StandIn) -> ModuleType | None:
    """Return the module that another one stands for, if it was loaded."""
    found = sys.modules.get(module.__name__)
    return None if found is module else found


class DeferredCompiler(StandIn):
    """Stands for `torch._dynamo`."""

    def disable(
        self, fn: Callable[..., Any], recursive: bool = True, **options: Any
    ) -> Callable[..., Any]:
        """Return a function that calls `fn`, uncompiled even after the compiler was loaded."""
        disabled: list[Callable[..., Any]] = []

        @wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            if (loaded := find_loaded(self)) is None:
                return fn(*args, **kwargs)
            if not disabled:
                disabled.append(loaded.disable(fn, recursive, **options))
            return disabled[0](*args, **kwargs)

        return run

    def graph_break(self, msg: str = "") -> None:
        """Do nothing: outside the compiler there is no graph."""


class DeferredUtils(StandIn):
    """Stands for `torch._dynamo.utils`, from which torchvision imports one function."""

    def is_compile_supported(self, device_type: Any) -> Any:
        """Call the compiler's own function."""
        return load(self).is_compile_supported(device_type)


class DeferredShapes(StandIn):
    """Stands for the functions with which PyTorch compares shapes that may have symbols."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        importlib.import_module("torch.fx.experimental._config")  # which the module imports

    def __getattr__(self, name: str) -> Any:
        if name not in CONCRETE:
            return super().__getattr__(name)

        def decide(*values: Any) -> Any:
            loaded = find_loaded(self)
            return (CONCRETE[name] if loaded is None else getattr(loaded, name))(*values)

        return decide


class DeferredAlgebra(StandIn):
    """Stands for SymPy, of which PyTorch asks whether a number is one of its expressions."""

    class Basic:
        """Stands for the base class of expressions; nothing is an instance of it."""


STAND_INS: dict[str, type[StandIn]] = {
    COMPILER: DeferredCompiler,
    UTILS: DeferredUtils,
    SHAPES: DeferredShapes,
    ALGEBRA: DeferredAlgebra,
}


class Finder(MetaPathFinder, Loader):
    """Finds the stand-ins, each once, and loads a module before its first submodule, as an import
    of the module would.
    """

    def __init__(self) -> None:
        self._made = set[str]()

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if isinstance(parent, StandIn) or (name in STAND_INS and name not in {*self._made, UTILS}):
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in STAND_INS and spec.name not in self._made:
            self._made.add(spec.name)
            return STAND_INS[spec.name](spec.name)
        parent = sys.modules[spec.name.rpartition(".")[0]]
        if isinstance(parent, StandIn):
            load(parent)
        return importlib.import_module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `create_module` returned a module that needs no execution."""
