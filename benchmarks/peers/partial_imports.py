"""Import one module of a compared project without the code of the packages around it, which may
load services that the module does not use, or fail beside the packages of this environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

__all__ = ["import_without"]


def import_without(packages: Iterable[str], name: str) -> ModuleType:
    """Import a module, but do not run the `__init__.py` of these packages, parents first. Raises
    ImportError if one is not installed.
    """
    for package in packages:
        if (spec := find_spec(package)) is None:
            raise ImportError(f"{package} is not installed", name=package)
        sys.modules[package] = module_from_spec(spec)
    return import_module(name)
