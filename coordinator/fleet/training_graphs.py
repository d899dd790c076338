"""Export, in the background, the graphs with which agents without PyTorch train, and keep them on
the broker: each once, named by its digest.

    runs/NAME/graphs/ORDER/KIND-SHA256.onnx    see `export.trainstep.graph_order`

A process exports one submodel after the other, since an export computes for seconds to minutes.
Until it is done, agents that need its graphs get other submodels.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

import msgspec

from coordinator.fleet.published_weights import WeightSlots
from export.trainstep.graph_order import GraphOrder, make_order
from federated.errors import ExportError, StoreError, explain_os_errors
from federated.safe_text import make_safe
from federated.system.child_processes import OWN_GROUP
from federated.task import Graph, GraphKind, Profile, Recipe, Task
from federated.trainer_capabilities import GRAPHS
from federated.wire import topics
from models.given_objects import is_given
from models.submodel import Submodel

__all__ = ["TrainingGraphs"]

log = logging.getLogger(__name__)

EXPORTED = "its training graphs are being exported"
Files = Mapping[GraphKind, Path]


class TrainingGraphs:
    """The training graphs of a run. Call `close` at its end.

    slots: where graphs are published.
    folder: of the graphs that this run and its earlier processes exported.
    """

    def __init__(self, slots: WeightSlots, folder: Path) -> None:
        self._slots, self._folder = slots, folder
        self._worker = ThreadPoolExecutor(1, "graph export")
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._exports: dict[str, Future[Files]] = {}  # by the name of the order
        self._published: dict[Path, Graph] = {}

    @property
    def waiting(self) -> int:
        """Number of submodels that are still to be exported."""
        return len(self._exports) - self.finished

    @property
    def finished(self) -> int:
        """Number of submodels that were exported, or cannot be."""
        return sum(one.done() for one in self._exports.values())

    def close(self) -> None:
        """Stop exporting."""
        self._closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        if (process := self._process) is not None:
            process.kill()
        self._worker.shutdown()

    # ---- exports ---------------------------------------------------------------------------------

    def request(self, wanted: Iterable[tuple[Submodel, Recipe]]) -> None:
        """Export the graphs of submodels, in this order, unless that was requested before, or an
        earlier process of the run did it.
        """
        for order in (make_order(submodel, recipe) for submodel, recipe in wanted):
            if order.name in self._exports:
                continue
            # the code of a network that is not installed may have changed
            installed = ":" not in order.submodel.network.family
            if installed and (found := list_graphs(self._folder / order.name)):
                self._exports[order.name] = Future[Files]()
                self._exports[order.name].set_result(found)
            else:
                self._exports[order.name] = self._worker.submit(self._provide, order)

    def explain_absence(self, profile: Profile, submodel: Submodel, recipe: Recipe) -> str:
        """Return why a device cannot train a submodel for lack of its graphs; empty if it can."""
        if GRAPHS not in profile.capabilities:
            return ""
        made = self._exports.get(make_order(submodel, recipe).name)
        if made is None or not made.done():
            return EXPORTED
        error = made.exception()
        return f"it has no training graphs: {error}" if error is not None else ""

    def _provide(self, order: GraphOrder) -> Files:
        """Export an order and return its graphs. Runs in the thread of the exports. Raises
        ExportError.
        """
        folder, title = self._folder / order.name, order.submodel.name
        try:
            if is_given(order.submodel.network.family):
                raise ExportError(
                    "its network was passed as an object: name it as module:function instead"
                )
            self._export(order, folder)
        except (ExportError, OSError) as error:
            if not self._closed:
                log.warning("%s: devices without PyTorch cannot train it: %s", title, error)
            raise ExportError(make_safe(str(error))) from error
        log.info("%s: exported for devices without PyTorch", title)
        return list_graphs(folder)

    def _export(self, order: GraphOrder, folder: Path) -> None:
        """Export an order in a process, and put the whole result into place. Raises ExportError,
        OSError.
        """
        part = folder.with_name(f"{folder.name}.part")
        for old in (part, folder):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir(parents=True)
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "export.trainstep.export_process", str(part)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # ctrl-C at the coordinator must not reach it
            creationflags=OWN_GROUP,
            # it finds what this process finds, such as a network of the current folder
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        )
        if self._closed:
            self._process.kill()
        told, _ = self._process.communicate(msgspec.json.encode(order))
        if code := self._process.returncode:
            reason = told.decode(errors="replace").strip()
            raise ExportError(reason or f"its export ended with exit code {code}")
        part.rename(folder)

    # ---- tasks -----------------------------------------------------------------------------------

    def complete(self, task: Task, profile: Profile | None) -> Task:
        """Return a task with the graphs that the agent needs for it, and publish them. Without them
        the agent refuses the task, with that reason. Raises StoreError.
        """
        if profile is None or GRAPHS not in profile.capabilities:
            return task
        made = self._exports.get(make_order(task.submodel, task.recipe).name)
        if made is None or not made.done() or made.exception() is not None:
            return task
        files, needed = made.result(), list_needed(task)
        return replace(task, graphs=tuple(self._publish(k, files[k]) for k in needed if k in files))

    def restore(self, task: Task) -> None:
        """Publish the graphs of a task again that an earlier process sent. Raises StoreError."""
        wanted = {one.digest for one in task.graphs}
        folder = self._folder / make_order(task.submodel, task.recipe).name
        for kind, path in list_graphs(folder).items() if wanted else ():
            if read_digest(path) in wanted:
                self._publish(kind, path)

    def _publish(self, kind: GraphKind, path: Path) -> Graph:
        if path not in self._published:
            with explain_os_errors(StoreError, f"cannot read the training graph {path}"):
                data = path.read_bytes()
            digest = read_digest(path)
            self._slots.put(topics.GRAPHS, digest, (data,), topics.GRAPHS)
            self._published[path] = Graph(kind, digest, len(data))
        return self._published[path]


def list_needed(task: Task) -> tuple[GraphKind, ...]:
    """Return the kinds of graphs that a task needs, if the submodel has them."""
    if task.work == "train":
        return ("step", "calibration", "evaluation") if task.recipe.scores else ("step",)
    return ("calibration",) if task.work == "calibrate" else ("evaluation",)


def list_graphs(folder: Path) -> Files:
    """Return the graphs in a folder, by kind; none if one is damaged."""
    found = dict[GraphKind, Path]()
    for kind in get_args(GraphKind):
        for path in folder.glob(f"{kind}-*.onnx"):
            if sha256(path.read_bytes()).hexdigest() != read_digest(path):
                return {}
            found[kind] = path
    return found


def read_digest(path: Path) -> str:
    """Return the sha256 in the name of a graph's file."""
    return path.stem.rpartition("-")[2]
