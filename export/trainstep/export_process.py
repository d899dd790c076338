"""`python -m export.trainstep.export_process FOLDER`: export the graphs of an order, which it reads
from standard input as JSON, into a folder as KIND-SHA256.onnx.

Writes the reason to standard output, and exits with 1, if the submodel cannot be exported. An
export computes for seconds to minutes, so it has a process of its own, which ends with its parent.
"""

from __future__ import annotations

import logging
import os
import sys
from hashlib import sha256
from pathlib import Path

import msgspec

from export.trainstep.calibration_and_evaluation import make_calibration, make_evaluation
from export.trainstep.graph_export import export_graph
from export.trainstep.graph_order import GraphOrder
from export.trainstep.training_step import make_step
from federated.device.trainers.graph_checks import refuse_contents
from federated.errors import EspalierError, ExportError, Refused
from federated.system.child_processes import take_output
from federated.system.process_limits import end_with_parent, lower_priority
from models.submodel_building import statistics

__all__ = ["main"]


def export_graphs(order: GraphOrder, folder: Path) -> None:
    """Write the graphs of an order. Raises ExportError, MissingExtra."""
    submodel, recipe = order.submodel, order.recipe
    # a last batch of one example joins the one before it
    slots = recipe.batch + 1
    functions = [make_step(submodel, recipe, slots), make_evaluation(submodel, slots)]
    if recipe.norm == "static" and statistics(submodel):
        functions.append(make_calibration(submodel, slots))
    for function in functions:
        data = export_graph(function)
        try:
            refuse_contents(function.title, data)
        except Refused as error:
            raise ExportError(str(error)) from error
        (folder / f"{function.kind}-{sha256(data).hexdigest()}.onnx").write_bytes(data)


def main() -> None:
    """Export an order."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    end_with_parent()
    lower_priority(5)  # rounds go on
    with os.fdopen(take_output(), "w") as output:
        try:
            order = msgspec.json.decode(sys.stdin.buffer.read(), type=GraphOrder)
            export_graphs(order, Path(sys.argv[1]))
        except (EspalierError, ValueError) as error:
            print(error, file=output)
            sys.exit(1)


if __name__ == "__main__":
    main()
