"""The server and client of a Flower app that sends weights back, for Flower's current deployment,
which starts them in processes of its own.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

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
    """Return an app that runs rounds, and appends the seconds of each to a file."""
    app, strategies = import_module("flwr.app"), import_module("flwr.serverapp.strategy")
    server = import_module("flwr.serverapp").ServerApp()

    def run_rounds(grid: Any, context: Any) -> None:
        settings, start = context.run_config, time.perf_counter()

        def end_round(number: int, arrays: Any) -> None:
            nonlocal start
            if number:
                with Path(settings["log"]).open("a", encoding="utf-8") as log:
                    log.write(f"round {time.perf_counter() - start:.3f}\n")
            start = time.perf_counter()

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
