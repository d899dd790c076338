"""Espalier from Python: slice a network into submodels, train them on simulated or real devices,
and merge, load and export the results.

    network, menu, cost, slice, merge      submodels of one network, without a run
    run, Simulation, Fleet, events         a run, as an iterator of typed events
    load_run, predict                      the results of a run
    export                                 ONNX files of a run, or of modules that were cut by hand

Only these names are stable; other modules of the project may change. Importing this package loads
no PyTorch: the functions that need it raise MissingExtra, with the command that installs it. It
defers the import of PyTorch's compiler until something compiles. All errors are subclasses of
EspalierError.
"""

from coordinator.observe import events
from espalier.networks import cost, menu, merge, network, slice
from espalier.results import export, load_run, predict
from espalier.runs import Fleet, Run, Simulation, run
from federated.errors import EspalierError
from federated.runtime.torch_import import defer_compiler
from models.submodel import Network, Submodel

__all__ = [
    "EspalierError",
    "Fleet",
    "Network",
    "Run",
    "Simulation",
    "Submodel",
    "cost",
    "events",
    "export",
    "load_run",
    "menu",
    "merge",
    "network",
    "predict",
    "run",
    "slice",
]

defer_compiler()
