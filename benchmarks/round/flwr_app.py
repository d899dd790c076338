"""The server and client of a Flower app that sends weights back, for Flower's current deployment,
which starts them in processes of its own.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.round.turns import Turns

__all__ = ["make_client", "make_server"]


def make_client() -> Any:
    """Return an app that returns what comes."""
    app = import_module("flwr.app")  # in this peer's environment alone
    client = import_module("flwr.clientapp").ClientApp()

    def send_back(message: Any, context: Any) -> Any:
        metrics = app.MetricRecord({"num-examples": 1})
        content = app.RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return app.Message(content=content, reply_to=message)

    client.train()(send_back)
    return client


def make_server() -> Any:
    """Return an app that runs rounds in turns."""
    app, strategies = import_module("flwr.app"), import_module("flwr.serverapp.strategy")
    server = import_module("flwr.serverapp").ServerApp()

    def run_rounds(grid: Any, context: Any) -> None:
        settings = context.run_config
        turns = Turns(Path(settings["turns"]))

        def end_round(number: int, arrays: Any) -> None:
            if number:
                turns.end()
            turns.begin()

        agents = settings["agents"]
        average = strategies.FedAvg(
            fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents
        )
        average.start(
            grid=grid,
            initial_arrays=app.ArrayRecord([np.zeros(settings["entries"], np.float32)]),
            num_rounds=settings["rounds"],
            evaluate_fn=end_round,
        )

    server.main()(run_rounds)
    return server
