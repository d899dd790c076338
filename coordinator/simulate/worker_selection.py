"""Choose where the tasks of simulated devices are executed, and by how many workers."""

from __future__ import annotations

import torch

from coordinator.settings.config import Config
from coordinator.simulate.device_data import DataSource
from coordinator.simulate.worker_processes import ProcessPool
from coordinator.simulate.workers import ThreadPool, Worker, Workers
from federated.device.trainers.catalogue import DEFAULT
from federated.methods.catalogue import find_method
from federated.system.processors import list_processors

__all__ = ["GpuThreads", "open_workers"]

# ResNet-18 at batch 32 on an H200: 414 steps per second with one thread, 931 with four, 829 with
# eight
MAX_GPU_WORKERS = 4
STREAMS = 32  # that PyTorch has on a GPU; each thread needs one of its own


def open_workers(source: DataSource, config: Config) -> Workers:
    """Return workers on a Ray cluster, if the configuration names one; threads for a GPU, if a
    training there consists of replays of captured steps; else processes, since threads of one
    process would launch operations one at a time.
    """
    settings, hooks = config.simulate, find_method(config.method_name).hooks
    if isinstance(settings.workers, str):
        from coordinator.simulate.ray_workers import RayWorkers  # loads Ray

        return RayWorkers(source, config, settings.workers)
    count = settings.workers or choose_count(settings.device)
    captured = hooks is None or hooks.plain
    if settings.device == "cuda" and settings.trainer == DEFAULT and captured:
        return GpuThreads(source, config, min(count, STREAMS))
    return ProcessPool(source, config, count)


def choose_count(device: str) -> int:
    """Return one worker per processor, on a GPU at most `MAX_GPU_WORKERS`."""
    processors = len(list_processors())
    return min(MAX_GPU_WORKERS, processors) if device == "cuda" else processors


class GpuThreads(ThreadPool):
    """`Workers` in threads of this process, which compute on the same GPU at the same time.
    Processes would take turns on it.

    source: data of the devices. count: of threads.

    PyTorch computes with one thread meanwhile, so that sums do not wait for busy processors.
    """

    def __init__(self, source: DataSource, config: Config, count: int) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)
        super().__init__(count, lambda: Worker(source, config, self.stopped.is_set))

    def close(self) -> None:
        super().close()
        torch.set_num_threads(self._before)
