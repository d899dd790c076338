"""Move the weights of rounds with Flower's own gRPC server and clients, which send back what they
get.

`python -m benchmarks.round.flwr HOST:PORT FOLDER ROUNDS AGENTS MODEL` is the server, which takes
turns of FOLDER. With the name of an agent as a sixth argument it is that client.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.round.turns import Turns
from models.named_network import network
from models.submodel_building import full, shapes

__all__ = ["main"]

LARGEST = 2**30  # bytes of a message


def serve(address: str, turns: Turns, rounds: int, agents: int, model: str) -> None:
    # in this peer's environment alone
    common, server = import_module("flwr.common"), import_module("flwr.server")
    average = import_module("flwr.server.strategy").FedAvg

    def end_round(number: int, *_: Any) -> None:
        if number:
            turns.end()
        turns.begin()

    sizes = shapes(full(network(model, (1, 8, 8), 10)))
    weights = [np.zeros(shape, np.float32) for shape in sizes.values()]
    strategy = average(
        fraction_evaluate=0.0,
        min_fit_clients=agents,
        min_available_clients=agents,
        evaluate_fn=end_round,
        initial_parameters=common.ndarrays_to_parameters(weights),
    )
    print("listening", flush=True)
    server.start_server(
        server_address=address,
        config=server.ServerConfig(num_rounds=rounds),
        strategy=strategy,
        grpc_max_message_length=LARGEST,
    )


def answer(address: str) -> None:
    client = import_module("flwr.client")

    def fit(self: object, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
        return parameters, 1, {}

    echo = type("Echo", (client.NumPyClient,), {"fit": fit})()
    client.start_client(
        server_address=address,
        client=echo.to_client(),
        insecure=True,
        grpc_max_message_length=LARGEST,
    )


def main() -> None:
    address, folder, rounds, agents, model, *name = sys.argv[1:]
    if name:
        answer(address)
    else:
        serve(address, Turns(Path(folder)), int(rounds), int(agents), model)


if __name__ == "__main__":
    main()
