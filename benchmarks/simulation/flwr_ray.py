"""Simulate with Flower, whose clients run in processes of Ray, one per processor."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from benchmarks.simulation.meter import Measured, Meter
from benchmarks.simulation.task import (
    CHOSEN,
    DEVICES,
    LR,
    build_network,
    load_devices,
    measure_accuracy,
)

__all__ = ["simulate"]


@lru_cache
def keep_network() -> nn.Module:
    """Return the network of this process."""
    torch.set_num_threads(1)
    return build_network()


def train(message: Any, context: Any) -> Any:
    """Train on a device, in a process of Ray."""
    app = import_module("flwr.app")
    net = keep_network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), LR)
    optimiser.zero_grad()
    x, y = load_devices()[int(context.node_config["partition-id"])]
    F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    content = app.RecordDict(
        {
            "arrays": app.ArrayRecord(net.state_dict()),
            "metrics": app.MetricRecord({"num-examples": len(y)}),
        }
    )
    return app.Message(content=content, reply_to=message)


def simulate(rounds: int) -> Measured:
    # in this peer's environment alone
    app = import_module("flwr.app")
    client, server = (
        import_module("flwr.clientapp").ClientApp(),
        import_module("flwr.serverapp").ServerApp(),
    )
    average = import_module("flwr.serverapp.strategy").FedAvg
    run = import_module("flwr.simulation").run_simulation
    import_module("ray")

    net = build_network()
    meter = Meter(rounds)

    def end_round(number: int, arrays: Any) -> None:
        if number:
            meter.end_round()
        if number == rounds:
            net.load_state_dict(arrays.to_torch_state_dict())

    def serve(grid: Any, context: Any) -> None:
        strategy = average(CHOSEN / DEVICES, fraction_evaluate=0.0, min_available_nodes=DEVICES)
        weights = app.ArrayRecord(net.state_dict())
        strategy.start(grid, weights, num_rounds=rounds, evaluate_fn=end_round)

    client.train()(train)
    server.main()(serve)
    run(server, client, DEVICES, backend_config={"client_resources": {"num_cpus": 1}})
    return meter.conclude(measure_accuracy(net))
