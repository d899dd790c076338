"""Run one simulation with Flower's server and its strategies FedAvg and FedProx, in a process of
Flower's environment: `python -m benchmarks.reproduction.flower_process`.

Standard input has the settings as JSON, a list of keys and values; the last line of standard output
is a JSON object with accuracy and loss. Flower's server samples devices, and averages what they
send; the devices train in this process, in a loop of plain PyTorch. Data, partition and initial
weights are those of this project's simulation. The draws are not: of devices, of the order of
examples, and of dropout.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from coordinator.assign.majority_network import build_network
from coordinator.settings.config import Config, load
from coordinator.simulate.device_data import DataSource
from federated.data.dataset import Dataset
from federated.methods.catalogue import find_method
from federated.methods.fedavg import learning_rate
from models.layers.batch_norm import set_norm
from models.submodel_building import build, initial, shapes, statistics

__all__ = ["main", "train"]

Arrays = list[NDArray[Any]]

BATCH = 256  # examples at a time in evaluation
PULL = "proximal_mu"  # Flower's name of mu


def make_optimiser(settings: Any, net: nn.Module, lr: float) -> torch.optim.Optimizer:
    decay = settings["decay"]
    match settings["optimiser"]:
        case "sgd":
            return torch.optim.SGD(net.parameters(), lr, settings["momentum"], weight_decay=decay)
        case "adam":
            return torch.optim.Adam(net.parameters(), lr, weight_decay=decay)
        case _:
            return torch.optim.AdamW(net.parameters(), lr, weight_decay=decay)


def train(net: nn.Module, x: Tensor, y: Tensor, settings: Any, told: dict[str, float]) -> None:
    """Train a network for the epochs of a round. told: learning rate and, under FedProx, mu."""
    optimiser = make_optimiser(settings, net, told["lr"])
    received = [p.detach().clone() for p in net.parameters()]
    net.train()
    for _ in range(settings["epochs"]):
        order = torch.randperm(len(y))
        for begin in range(0, len(y), settings["batch"]):
            chosen = order[begin : begin + settings["batch"]]
            optimiser.zero_grad()
            loss = F.cross_entropy(net(x[chosen]), y[chosen])
            if told.get(PULL):
                moved = zip(net.parameters(), received, strict=True)
                loss = loss + told[PULL] / 2 * sum((p - w).square().sum() for p, w in moved)
            loss.backward()  # type: ignore[no-untyped-call]
            if settings["clip"]:
                nn.utils.clip_grad_norm_(net.parameters(), settings["clip"])
            optimiser.step()


def evaluate(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    with torch.no_grad():
        net.eval()
        logits = torch.cat([net(x[at : at + BATCH]) for at in range(0, len(x), BATCH)])
    return {
        "accuracy": float((logits.argmax(1) == y).float().mean()),
        "loss": float(F.cross_entropy(logits, y)),
    }


def simulate(config: Config) -> dict[str, float]:
    """Return accuracy and loss after the last round."""
    random.seed(config.seed)  # Flower samples devices with it
    torch.manual_seed(config.seed)
    source, settings = DataSource.from_config(config), config.settings
    method = find_method(config.method_name)
    network = build_network(config, [source.whole.card()])
    [submodel] = method.menu(network, settings)
    net, known = build(submodel), initial(network, config.seed, method.features)
    names = [*shapes(submodel), *statistics(submodel)]
    set_norm(net, "tracked")

    def read(arrays: Sequence[NDArray[Any]]) -> None:
        values = {k: torch.from_numpy(np.array(v)) for k, v in zip(names, arrays, strict=True)}
        net.load_state_dict(values, strict=False)

    def fit(arrays: Arrays, data: Dataset, told: dict[str, float]) -> Arrays:
        read(arrays)
        train(net, torch.from_numpy(data.x), torch.from_numpy(data.y).long(), settings, told)
        state = net.state_dict()
        return [state[name].numpy().copy() for name in names]

    arrays = serve(config, [known[name].numpy() for name in names], source, fit)
    read(arrays)
    examples = len(source.whole.x_held)
    count = config.evaluate.examples or examples
    stride = max(1, examples // count)  # as the coordinator chooses them
    x, y = (part[::stride][:count] for part in (source.whole.x_held, source.whole.y_held))
    return evaluate(net, torch.from_numpy(x), torch.from_numpy(y).long())


def serve(
    config: Config,
    start: Arrays,
    source: DataSource,
    fit: Callable[[Arrays, Dataset, dict[str, float]], Arrays],
) -> Arrays:
    """Return the weights after all rounds of Flower's server. fit: trains on a device's data."""
    common, server = import_module("flwr.common"), import_module("flwr.server")
    manager = import_module("flwr.server.client_manager").SimpleClientManager()
    proxy = import_module("flwr.server.client_proxy").ClientProxy
    last = list[Arrays]()

    def answer(self: Any, ins: Any, timeout: float | None, group_id: int | None) -> Any:
        data = source.device(int(self.cid))
        made = fit(common.parameters_to_ndarrays(ins.parameters), data, ins.config)
        done = common.Status(common.Code.OK, "")
        return common.FitRes(done, common.ndarrays_to_parameters(made), len(data.y), {})

    unused = dict.fromkeys(("get_properties", "get_parameters", "evaluate", "reconnect"))
    device = type("Device", (proxy,), {**unused, "fit": answer})
    for index in range(source.agents):
        manager.register(device(str(index)))
    options = {
        "fraction_fit": config.fleet.fraction,
        "fraction_evaluate": 0.0,
        "min_fit_clients": 1,
        "min_available_clients": source.agents,
        "initial_parameters": common.ndarrays_to_parameters(start),
        "on_fit_config_fn": lambda number: {"lr": learning_rate(config.settings, number)},
        "evaluate_fn": lambda number, arrays, told: last.append(arrays),
        "accept_failures": False,
    }
    strategies = import_module("flwr.server.strategy")
    strategy = (
        strategies.FedProx(**options, proximal_mu=config.settings["mu"])
        if config.method_name == "fedprox"
        else strategies.FedAvg(**options)
    )
    running = server.Server(client_manager=manager, strategy=strategy)
    running.set_max_workers(1)  # the devices share a network
    running.fit(config.rounds, None)
    return last[-1]


def main() -> None:
    torch.set_num_threads(1)
    config = load(None, {}, [(key, value) for key, value in json.load(sys.stdin)])
    print(json.dumps(simulate(config)), flush=True)


if __name__ == "__main__":
    main()
