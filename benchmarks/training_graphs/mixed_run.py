"""`python -m benchmarks mixed`: train Fashion-MNIST in one run with an agent that has PyTorch and
one in an environment without it, and compare the accuracies of what they trained.

The agents are real processes on a real broker, and train on one half of the images each. In each
round, both begin with the same weights, and score the network that they trained on the published
test images, before the coordinator averages the two.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import click
import numpy as np

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Failure, Row, compare, compare_errors
from benchmarks.peers.environments import install_without_extras
from coordinator.broker import local_broker as brokers
from coordinator.simulate.demo_fleet import Running, process, python_command
from coordinator.store.run_store import Store
from federated.data import loading
from federated.data.dataset import Dataset
from federated.data.partitions import Shard
from federated.errors import FleetError
from federated.runtime.console import Say

__all__ = ["FREE", "TORCH", "command", "compare_means", "measure_run"]

RUN = "mixed"
FREE, TORCH = "without", "with"  # the agents
RUNTIMES = {FREE: "onnxruntime ", TORCH: "torch "}  # how the names of their runtimes begin
PYTORCH = "PyTorch"
SETTINGS = (
    *("method.name=fedavg", "method.widths=[1.0]", "model.name=lenet-5", "fleet.min_agents=2"),
    *("train.epochs=1", "train.batch=32", "train.lr=0.02", "evaluate.local=true"),
    *("evaluate.devices=false", "evaluate.between=false", "evaluate.every=1000", "fleet.wait=1800"),
)
LONGEST = 1800.0  # seconds of an export, and of a run after it


def measure_run(
    whole: Dataset, python: Path, rounds: int, seed: int, folder: Path
) -> dict[str, float]:
    """Train in one run, and return the accuracy of what each agent trained in the last round.

    whole: data, of whose training part each agent gets half. python: of the environment without
    PyTorch. folder: for the run. Raises FleetError if the run fails, or an agent has another
    runtime or did not train in the last round.
    """
    for index, name in enumerate(RUNTIMES):
        write_half(whole, index, seed, folder / f"{name}.npz")
    with ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "auto", folder / "broker"))
        start = make_coordinator_command(broker.address, rounds, seed, folder)
        coordinator = stack.enter_context(process("coordinator", start, folder))
        free = [str(python), *list_join_arguments(FREE, broker.address, folder)]
        stack.enter_context(process(FREE, free, folder))
        wait_for_graphs(folder, coordinator)  # without them, the other agent would train alone
        torch = [sys.executable, *list_join_arguments(TORCH, broker.address, folder)]
        stack.enter_context(process(TORCH, [*torch, "--trainer", "pytorch"], folder))
        wait_for_end(coordinator)
    return read_accuracies(folder, rounds)


def write_half(whole: Dataset, index: int, seed: int, path: Path) -> None:
    """Write a half of the training part, and the whole test part, as an agent's own data.

    The loaders of published data sets need PyTorch, so a device without it reads a file.
    """
    own = Shard(index, len(RUNTIMES), "iid", seed).of_dataset(whole)
    np.savez(
        path,
        x=whole.x[own],
        y=whole.y[own],
        x_test=whole.x_held,
        y_test=whole.y_held,
        outputs=np.array(whole.outputs),
    )


def make_coordinator_command(broker: str, rounds: int, seed: int, folder: Path) -> list[str]:
    return python_command(
        *("coordinator.cli", "start", "--broker", broker, "--runs", str(folder / "runs")),
        *("--name", RUN, "--data", str(folder / f"{FREE}.npz"), "--rounds", str(rounds)),
        *(part for one in SETTINGS for part in ("--set", one)),
        *("--seed", str(seed), "--format", "json"),
    )


def list_join_arguments(name: str, broker: str, folder: Path) -> list[str]:
    return [
        *("-m", "edge_agent.cli", "join", "--broker", broker, "--run", RUN, "--name", name),
        *("--data", str(folder / f"{name}.npz"), "--spool", str(folder / "spool" / name)),
        *("--wait", "600", "--format", "json"),
    ]


def wait_for_graphs(folder: Path, coordinator: Running) -> None:
    """Wait until the graphs of the only submodel are exported. Raises FleetError."""
    until = time.monotonic() + LONGEST
    # an export in progress has a folder named ORDER.part
    while not any(
        path.parent.suffix == "" for path in folder.glob(f"runs/{RUN}/graphs/*/step-*.onnx")
    ):
        if coordinator.popen.poll() is not None or time.monotonic() > until:
            raise FleetError(f"no graphs; the end of the run's log:\n{coordinator.tail()}")
        time.sleep(0.1)


def wait_for_end(coordinator: Running) -> None:
    """Wait until a run has ended. Raises FleetError if it fails or takes too long."""
    try:
        code = coordinator.popen.wait(LONGEST)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        how = f"did not end within {LONGEST:.0f} s" if code is None else f"ended with code {code}"
        raise FleetError(f"the run {how}; the end of its log:\n{coordinator.tail()}")


def read_accuracies(folder: Path, rounds: int) -> dict[str, float]:
    """Return the agents' accuracies after their training in the last round. Raises FleetError."""
    with closing(Store.open(folder / "runs", RUN, read_only=True)) as store:
        profiles, scores = store.agents.read_profiles(), store.read_scores(rounds)
    found = {one.agent: one.accuracy for one in scores if one.view == "after" and one.agent}
    if found.keys() != RUNTIMES.keys():
        raise FleetError(f"round {rounds}: expected scores of both agents, found {sorted(found)}")
    for name, runtime in RUNTIMES.items():
        if not profiles[name].runtime.startswith(runtime):
            raise FleetError(f"agent '{name}': expected {runtime}, found {profiles[name].runtime}")
    return found


def compare_means(several: list[Mapping[str, float]]) -> Iterator[Row | Failure]:
    """Yield the row of the means of all runs, and a failure if they differ by too much."""
    free, torch = (statistics.mean(one[name] for one in several) for name in (FREE, TORCH))
    row = compare_errors("mean of all seeds", free, PYTORCH, torch)
    yield row
    if not row.met:
        yield Failure(row.name, f"an accuracy of {free:.2%}, and of {torch:.2%} with PyTorch")


@benchmark(RUN, "coordinator,export")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="number of runs, with the seeds from 0",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="number of rounds of each run",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of the data set; if it is missing, it is downloaded",
)
def command(seeds: int, rounds: int, data_root: Path | None, say: Say) -> Iterator[Row | Failure]:
    """Train in one run with and without PyTorch.

    Install an agent without PyTorch into a new environment, let it train on Fashion-MNIST
    (downloaded) beside one with PyTorch, and compare the accuracies of what each trained. The exit
    code is 1 if their means differ by more than a percentage point.
    """
    whole, several = loading.load_central("fashion-mnist", data_root), list[Mapping[str, float]]()
    with tempfile.TemporaryDirectory(prefix="espalier-mixed-") as temporary:
        say("installing an agent without PyTorch")
        python = install_without_extras(Path(temporary) / "environment")
        for seed in range(seeds):
            folder = Path(temporary) / str(seed)
            folder.mkdir()
            found = measure_run(whole, python, rounds, seed, folder)
            say(f"seed {seed}: accuracy {found[FREE]:.2%}, with PyTorch {found[TORCH]:.2%}")
            several.append(found)
            error, other = (100 * (1 - found[name]) for name in (FREE, TORCH))
            # one seed has no goal, since the agents train on different images
            yield compare(f"seed {seed}, error (%)", error, peer=Baseline(PYTORCH, other))
    yield from compare_means(several)
