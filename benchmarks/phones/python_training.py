"""Repeat a browser's training in Python, with the run's own graph and weights."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from coordinator.phases.training import complete_recipe
from coordinator.run.run_preparation import make_weights
from coordinator.settings.config import load
from coordinator.store.run_store import Store
from federated.data import loading
from federated.device.task_execution import perform
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.errors import StoreError
from federated.methods.catalogue import find_method
from federated.task import Graph, Task
from federated.training.training_inputs import Execution

__all__ = ["repeat_training"]


def repeat_training(
    runs: Path, run: str, number: int, agent: str, shard: str, folder: Path
) -> list[float]:
    """Return the loss of each step of an agent's training in a round, as a device with Python
    computes it.

    runs: folder of the runs. run: one of the method fedavg with a single submodel, whose method has
    no state. number: of the round; the checkpoint before it must still exist. shard: of the digits.
    folder: for a copy of the graph. Raises StoreError.
    """
    with closing(Store.open(runs, run, read_only=True)) as store:
        facts = store.read_facts()
        sent, _ = store.read_checkpoint(number - 1)
    if facts.network is None:
        raise StoreError(f"run '{run}' finished no round")
    config = load(None, {}, [], facts.config)
    method, (submodel,) = find_method(config.method_name), facts.menu
    state = method.start(make_weights(config, facts.network, method), facts.menu, config.settings)
    weights = {home: one.numpy() for home, one in sent.items() if "/" not in home}
    (path,) = (runs / run / "graphs").glob("*/step-*.onnx")
    digest = path.stem.removeprefix("step-")
    copy = Path(shutil.copy(path, folder / f"{digest}.graph"))
    task = Task(
        *(run, number, 1, agent, "train", submodel, "version", "0" * 64, 1),
        complete_recipe(method.recipe(state, submodel), config),
        deadline=60.0,
        graphs=(Graph("step", digest, path.stat().st_size),),
    )
    trainer, losses = OnnxTrainer("cpu"), list[float]()
    trainer.use_graphs({"step": copy})
    watched = Execution(on_step=lambda step, steps, loss: losses.append(loss))
    data = loading.load_device("digits", name=agent, shard=shard)
    perform(trainer, task, weights, data, execution=watched)
    return losses
