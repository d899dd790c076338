"""Measure how similar the features of the devices' networks are: the centred kernel alignment (CKA)
of the outputs of each section, on the same held-out examples (Chan et al., InCo, arXiv 2308.11464,
sections 2.1 and 5.4; CKA: Kornblith et al., arXiv 1905.00414, equation 4 with linear kernels).

The networks are those of the run's last submodels after one more plain training on each device,
which the run's configuration must be able to repeat: a simulation. Batch norm is measured on the
held-out examples.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.analyses.panels import Panel, make_panel
from coordinator.release.stored_run import StoredRun, load_stored_run
from coordinator.simulate.device_data import DataSource, name_devices
from coordinator.simulate.device_gains import count_steps, simplify
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.device.trainers.trainer import Start
from federated.errors import ConfigError
from federated.training.training_inputs import Execution
from models.layers.batch_norm import calibrate, norms
from models.submodel import Submodel
from models.submodel_building import build

__all__ = ["align", "analyse", "choose_devices", "train_device"]

EXAMPLES = 256
MOST = 20  # devices
BLOCK = re.compile(r"sections\.(\d+)\.(\d+)")

Features = dict[int, NDArray[np.floating]]
"""Section -> features of the examples, [examples, numbers]."""


def align(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return the linear CKA of two sets of features of the same examples, [examples, numbers], from
    0 to 1.
    """
    first, second = (centre(x @ x.T) for x in (one, other))
    return float((first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))


def centre(kernel: NDArray[np.floating]) -> NDArray[np.floating]:
    """Subtract the means of rows and columns of a kernel matrix."""
    centred: NDArray[np.floating] = kernel - kernel.mean(0) - kernel.mean(1)[:, None]
    centred += kernel.mean()
    return centred


def choose_devices(run: StoredRun, source: DataSource) -> dict[str, Submodel]:
    """Return at most MOST devices of which an update was folded, each with its last submodel."""
    _, last = count_steps(run)
    chosen = sorted(last)[:: max(1, -(-len(last) // MOST))]
    if len(chosen) < 2 or not {*chosen} <= {*name_devices(source.agents)}:
        raise ConfigError(
            f"run '{run.name}': expected a simulation in which two devices trained, since the "
            "analysis trains their networks"
        )
    return {agent: last[agent] for agent in chosen}


def train_device(run: StoredRun, agent: str, submodel: Submodel, source: DataSource) -> nn.Module:
    """Return the device's network after a plain training like that of the last round."""
    data = source.device(name_devices(source.agents).index(agent))
    recipe = run.method.recipe(replace(run.state, round=run.rounds - 1), submodel)
    steps = recipe.epochs * -(-len(data.x) // recipe.batch)
    received = run.method.dispatch(run.state, run.method.place(run.state, submodel))
    weights = {name: value.numpy() for name, value in received.items() if "/" not in name}
    start = Start(submodel, simplify(recipe, recipe.steps or steps), weights, run.config.seed)
    with open_trainer(DEFAULT).load(start) as network:
        trained = network.train(data, Execution()).tensors
    net = build(submodel)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in trained.items()}, strict=False)
    return net


def read_features(net: nn.Module, x: Tensor) -> Features:
    """Return the outputs of the last block of each section."""
    last = dict[int, tuple[int, nn.Module]]()
    for name, module in net.named_modules():
        if place := BLOCK.fullmatch(name):
            last[int(place[1])] = max(
                last.get(int(place[1]), (-1, module)),
                (int(place[2]), module),
                key=lambda one: one[0],
            )
    found: Features = {}
    for section, (_, module) in last.items():

        def keep(_: nn.Module, __: object, out: Tensor, section: int = section) -> None:
            found[section] = out.flatten(1).double().numpy()

        module.register_forward_hook(keep)
    if norms(net):
        calibrate(net, [x])
    with torch.no_grad():
        net.eval()(x)
    return found


def analyse(folder: Path) -> list[Panel]:
    """Return a panel for each section, devices by devices, and `mean`, the mean over pairs of
    devices by section.
    """
    run = load_stored_run(folder, folder.parent)
    source = DataSource.from_config(run.config)
    chosen = choose_devices(run, source)
    x = torch.from_numpy(np.array(source.whole.x_held[:EXAMPLES]))
    found = {
        agent: read_features(train_device(run, agent, submodel, source), x)
        for agent, submodel in chosen.items()
    }
    panels, means = [], {}
    for section in sorted({section for features in found.values() for section in features}):
        having = [agent for agent in chosen if section in found[agent]]
        numbers = {
            (one, other): align(found[one][section], found[other][section])
            for one in having
            for other in having
        }
        panels.append(make_panel(f"section {section}", numbers))
        pairs = [value for (one, other), value in numbers.items() if one != other]
        if pairs:
            means[f"section {section}", "CKA"] = float(np.mean(pairs))
    return [*panels, make_panel("mean", means)]
