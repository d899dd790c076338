"""Simulate with Apple's pfl-research, in one process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
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


class Learner(nn.Module):
    """The network, with the loss and the metrics that the project asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        weighted = import_module("pfl.metrics").Weighted
        with torch.no_grad():
            return {"loss": weighted(float(self.loss(x, y)) * len(y), len(y))}


def simulate(rounds: int) -> Measured:
    # in this peer's environment alone
    algorithm = import_module("pfl.algorithm.base")
    averaging = import_module("pfl.algorithm.federated_averaging").FederatedAveraging
    backend = import_module("pfl.aggregate.simulate").SimulatedBackend
    callback = import_module("pfl.callback.base").TrainingProcessCallback
    data = import_module("pfl.data.federated_dataset").FederatedDataset
    examples = import_module("pfl.data.pytorch").PyTorchTensorDataset
    metrics = import_module("pfl.metrics").Metrics
    model = import_module("pfl.model.pytorch").PyTorchModel
    sampler = import_module("pfl.data.sampling").get_user_sampler
    training = import_module("pfl.hyperparam").NNTrainHyperParams
    weighting = import_module("pfl.aggregate.weighting").WeightByDatapoints

    torch.set_num_threads(1)
    net, every = build_network(), load_devices()
    meter = Meter(rounds)

    def end_round(*_: Any, **__: Any) -> tuple[bool, Any]:
        meter.end_round()
        return False, metrics()

    clock = type("Clock", (callback,), {"after_central_iteration": end_round})
    devices = data(lambda index: examples(every[index]), sampler("random", list(range(DEVICES))))
    learner = Learner(net)
    averaging().run(
        algorithm.NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=CHOSEN,
            val_cohort_size=None,
        ),
        backend(devices, devices, [weighting()]),
        model(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), 1.0)),
        training(local_num_epochs=1, local_learning_rate=LR, local_batch_size=None),
        callbacks=[clock()],
    )
    return meter.conclude(measure_accuracy(net))
