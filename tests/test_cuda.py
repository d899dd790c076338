"""On a GPU: devices learn there what they learn on processors. Skipped where PyTorch sees no CUDA
device.

Both compute in float32 and add up in other orders, so what they learn differs by roundings. TF32,
to which PyTorch's convolutions round on newer GPUs, is left out here: errors of 1e-3 would hide
mistakes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.release.export_run import ExportRequest, write_release
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate
from coordinator.store.run_store import Store
from edge_agent.device.process_limits import Limits
from edge_agent.join.training_process_control import Job, Worker
from export import release_reader
from federated.data import loading
from federated.device import task_execution
from federated.device.task_execution import perform
from federated.device.task_runner_interface import Outcome
from federated.device.trainers.catalogue import open_trainer
from federated.device.trainers.pytorch_trainer import PyTorchTrainer
from federated.device.trainers.trainer import Trainer
from federated.methods.catalogue import METHODS
from federated.task import Task, Update
from federated.training import zico_score
from federated.training.state_between_rounds import PREFIX
from federated.training.training_inputs import Diverged, Execution, Stopped
from federated.wire import messages
from federated.wire import tensors as codec
from models.families.catalogue import FAMILIES
from models.menu import menu
from models.named_network import network
from models.submodel import Network
from models.submodel_building import example, full
from tests.support.memory_federation import Member, federate
from tests.support.processes import AGENT, COORDINATOR, Start, result
from tests.support.small_tasks import parameters, perform_task, task, weights
from tests.support.smallest_networks import small
from tests.support.waiting import eventually
from tests.test_every_method import AGENTS, PARTITION, settings, tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
if torch.cuda.is_available():
    # NVIDIA's libraries read it as they load, here and in every process that is started here
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"

# Of few and small steps, since steps multiply roundings, on a processor as well; Adam's first steps
# are signs, which a rounding may turn.
SMOOTH: dict[str, Any] = {
    "train.steps": 2,
    "train.batch": 64,
    "train.lr": 0.01,
    "train.optimiser": "sgd",
}
# after a few steps; weights are of the order of 1, and float32 rounds these by 6e-8
ROUNDING = 1e-5
CPU, GPU = "cpu", "cuda"
# which differed by 6e-8; probably the gradients of its interpolated exits are added in any order
UNORDERED = {"depthfl"}
# with dropout, for which a GPU draws other numbers
DRAWING = {"efficientnet", "mobilenet", "transformer", "vgg"}
NET = network("preresnet", (1, 8, 8), 10)
SMALL, WHOLE = menu(NET, (0.5, 1.0), (2,))


def trainer(device: str) -> Trainer:
    return open_trainer("pytorch", device)


def apart(some: Mapping[str, Any], others: Mapping[str, Any]) -> float:
    """Return the largest difference of any number between two sets of tensors with the
    same names.
    """
    assert some.keys() == others.keys()
    both = [(np.asarray(value), np.asarray(others[name])) for name, value in some.items()]
    return max((float(np.abs(one - other).max()) for one, other in both if one.size), default=0.0)


# ---- tasks ---------------------------------------------------------------------------------------


def examples(made: Network) -> SimpleNamespace:
    """Return three batches of eight random examples."""
    rng, shape = np.random.default_rng(0), (24, *made.inputs)
    tokens = example(made, 1).dtype == torch.int64
    x = rng.integers(0, made.outputs, shape) if tokens else rng.integers(0, 17, shape, np.uint8)
    y = np.roll(x, -1, 1) if tokens else np.arange(24) % made.outputs
    return SimpleNamespace(x=x, y=y, x_held=x[:8], y_held=y[:8], labels=tuple(range(made.outputs)))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - DRAWING))
def test_a_network_of_every_family_learns_the_same(family: str) -> None:
    submodel = full(small(family))
    given = (
        task(submodel=submodel, epochs=1, lr=0.02, pull=0.1, clip=1.0, masked=True),
        parameters(submodel),
        examples(submodel.network),
    )
    here, there = perform_task(*given), perform_task(*given, trainer=trainer(GPU))
    assert apart(here.tensors, {name: given[1][name] for name in here.tensors}) > 100 * ROUNDING, (
        "it did learn"
    )
    assert apart(here.tensors, there.tensors) < ROUNDING
    assert here.notes["loss"] == pytest.approx(there.notes["loss"], rel=ROUNDING)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_repeats_a_training_bit_for_bit(family: str) -> None:
    submodel = full(small(family))
    given = task(submodel=submodel, epochs=3), parameters(submodel), examples(submodel.network)
    assert (
        apart(
            perform_task(*given, trainer=trainer(GPU)).tensors,
            perform_task(*given, trainer=trainer(GPU)).tensors,
        )
        == 0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_of_every_family_is_measured_and_scored_the_same(family: str) -> None:
    submodel = full(small(family))
    held = examples(submodel.network)
    here, there = (
        perform_task(
            task("calibrate", submodel), parameters(submodel), held, trainer=trainer(where)
        ).tensors
        for where in (CPU, GPU)
    )
    assert apart(here, there) < ROUNDING * max(
        (float(np.abs(value).max()) for value in here.values()), default=1.0
    )
    here, there = (
        perform_task(
            task("evaluate", submodel), weights(submodel), held, trainer=trainer(where)
        ).notes["tallies"]
        for where in (CPU, GPU)
    )
    assert here["all"]["loss"] == pytest.approx(there["all"]["loss"], rel=ROUNDING)
    assert here["all"]["count"] == there["all"]["count"]


# ---- captured steps ------------------------------------------------------------------------------


def launching() -> PyTorchTrainer:
    """Return a trainer on the GPU that captures no step."""
    made = PyTorchTrainer(GPU)
    made.captured = None
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_step_of_every_family_computes_what_its_operations_do(family: str) -> None:
    """Three passes of four batches, the last of which is smaller."""
    submodel, replaying = full(small(family)), trainer(GPU)
    held = examples(submodel.network)
    for seed in (0, 1, 0):  # the second and third replay what the first captured
        given = (
            task(submodel=submodel, epochs=3, batch=7, lr=0.02 / (1 + seed)),
            parameters(submodel, seed),
            held,
        )
        launched, replayed = (
            perform_task(*given, trainer=made) for made in (launching(), replaying)
        )
        assert apart(launched.tensors, replayed.tensors) == 0
        assert launched.notes["loss"] == replayed.notes["loss"]


@pytest.mark.parametrize(
    "recipe",
    [
        {"optimiser": "adam", "decay": 0.01},
        {"optimiser": "adamw", "decay": 0.01},
        {"momentum": 0.0, "clip": 0.5},
        {"decay": 0.01, "norm": "tracked"},
        {"pull": 0.1, "masked": True},
        {"variate": "feddyn", "pull": 0.1},
        {"steps": 5, "frozen": ("linear.bias",)},
    ],
    ids=str,
)
def test_a_captured_step_of_every_recipe_computes_what_its_operations_do(
    recipe: dict[str, Any],
) -> None:
    replaying, given = trainer(GPU), weights(WHOLE)
    if recipe.get("norm") != "tracked":
        given = parameters(WHOLE)
    for labels in ((0, 1, 2), (4, 5)):
        held = SimpleNamespace(**{**vars(examples(NET)), "labels": labels})
        launched, replayed = (
            perform_task(task(submodel=WHOLE, **recipe), given, held, trainer=made)
            for made in (launching(), replaying)
        )
        assert apart(launched.tensors, replayed.tensors) == 0


def test_a_captured_training_that_diverges_names_the_step() -> None:
    given = task(submodel=WHOLE, epochs=20, lr=1e30), parameters(WHOLE), examples(NET)
    reasons = set()
    for made in (launching(), trainer(GPU)):
        with pytest.raises(Diverged, match=r"after \d+ of 60 steps") as raised:
            perform_task(*given, trainer=made)
        reasons.add(str(raised.value))
    assert len(reasons) == 1


def test_a_captured_training_stops_before_the_next_step() -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 5

    with pytest.raises(Stopped):
        perform_task(
            task(submodel=WHOLE),
            parameters(WHOLE),
            examples(NET),
            trainer=trainer(GPU),
            execution=Execution(stop=stop),
        )
    assert len(asked) == 5


def test_a_captured_training_reports_every_step() -> None:
    found: list[tuple[int, int]] = []
    watch = Execution(on_step=lambda done, planned, loss: found.append((done, planned)))
    given = task(submodel=WHOLE, epochs=2), parameters(WHOLE), examples(NET)
    perform_task(*given, trainer=trainer(GPU), execution=watch)
    assert found == [(step, 6) for step in range(1, 7)]


def test_a_task_that_runs_out_of_memory_fails_and_the_next_one_does_not() -> None:
    made, given = trainer(GPU), (task(submodel=WHOLE), parameters(WHOLE), examples(NET))
    expected = perform_task(*given, trainer=made).tensors
    large = full(network("resnet-18", (3, 224, 224), 10))
    many = SimpleNamespace(
        x=np.zeros((128, 3, 224, 224), np.uint8), y=np.arange(128) % 10, labels=tuple(range(10))
    )
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(MemoryError):
            perform_task(task(submodel=large, batch=128), parameters(large), many, trainer=made)
        assert apart(expected, perform_task(*given, trainer=made).tensors) == 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# ---- methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_task_of_every_method_gives_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of three devices. Each task runs on both processors from the same weights, since
    differences of rounding grow over rounds. On the GPU it also runs without captured steps.
    """
    found: list[tuple[str, float]] = []
    own = threading.local()  # of each device's thread, since a trainer serves one at a time

    def twice(
        _: Trainer, task: Task, tensors: Any, data: Any, kept: Any, watch: Execution
    ) -> tuple[Update, dict[str, Any]]:
        if not hasattr(own, "trainers"):
            own.trainers = trainer(CPU), trainer(GPU), launching()
        here, there, launched = (
            perform(where, task, tensors, data, kept) for where in own.trainers
        )
        most = ROUNDING if name in UNORDERED else 0
        assert all(
            apart(one, other) <= most
            for one, other in zip(relevant(there), relevant(launched), strict=True)
        )
        found.append(
            (
                task.work,
                max(
                    apart(one, other)
                    for one, other in zip(relevant(here), relevant(there), strict=True)
                ),
            )
        )
        return here

    monkeypatch.setattr(task_execution, "perform", twice)
    data = [
        loading.load_device("digits", name=f"d{i}", shard=f"{i}/{AGENTS}", partition="iid")
        for i in range(AGENTS)
    ]
    federate(
        tmp_path, [Member(f"d{i}", one) for i, one in enumerate(data)], {**settings(name), **SMOOTH}
    )
    assert [work for work, _ in found].count("train") == 2 * AGENTS
    *others, worst = sorted(difference for _, difference in found)
    assert max(others) < 10 * ROUNDING
    assert worst < 1e-3, (
        "a unit on the edge between silent and not may be tipped by a rounding; one "
        "task in 600 differed by 2e-4"
    )


def relevant(made: tuple[Update, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sent tensors and those stored for the next round; a variate is converted to the
    change of weights that it was computed from.
    """
    moved = SMOOTH["train.steps"] * SMOOTH["train.lr"]
    return [
        {name: value * (moved if name.startswith(PREFIX) else 1) for name, value in tensors.items()}
        for tensors in (made[0].tensors, made[1])
    ]


def test_the_score_of_a_submodel_is_the_same() -> None:
    held = examples(NET)
    batches = [
        (torch.from_numpy(held.x[part]), torch.from_numpy(held.y[part]))
        for part in (slice(12), slice(12, 24))
    ]
    there = [(x.cuda(), y.cuda()) for x, y in batches]
    # some spreads are mere roundings
    assert zico_score.score(SMALL, there, 0) == pytest.approx(
        zico_score.score(SMALL, batches, 0), rel=1e-3
    )


# ---- simulations ---------------------------------------------------------------------------------


def simulated(folder: Path, device: str, given: Mapping[str, Any], workers: int = 1) -> Path:
    """Run the experiment, and return the folder of the run `same-seed0`."""
    folder.mkdir()
    (folder / "same.toml").write_text("")
    here = [
        ("simulate.agents", AGENTS),
        ("simulate.partition", PARTITION),
        ("simulate.device", device),
        ("simulate.workers", workers),
    ]
    simulate(
        ConfigSources(folder / "same.toml", flags=[*given.items(), *here]),
        folder / "runs",
        folder / "results",
        say=lambda text: None,
    )
    return folder / "runs"


def test_a_simulation_learns_the_same(tmp_path: Path) -> None:
    given = {**settings("fedavg"), **SMOOTH}
    here, there = (
        tensors(simulated(tmp_path / device, device, given), "same-seed0")
        for device in ("cpu", "cuda")
    )
    assert apart(here, there) < ROUNDING


def test_a_simulation_on_a_gpu_repeats_bit_for_bit_whatever_the_workers(tmp_path: Path) -> None:
    first, second = (
        tensors(
            simulated(tmp_path / str(workers), "cuda", settings("fedfa"), workers), "same-seed0"
        )
        for workers in (1, 3)
    )
    assert apart(first, second) == 0


def test_a_network_trained_on_a_gpu_is_exported_with_the_same_accuracy(tmp_path: Path) -> None:
    runs = simulated(tmp_path / "cuda", "cuda", settings("fedfa"))
    made, _ = write_release(ExportRequest("same-seed0", runs, tmp_path / "release"))
    assert all(
        entry.variants[0] in release_reader.accurate_variants(entry) for entry in made.submodels
    )
    store = Store.open(runs, "same-seed0", read_only=True)
    scores = {
        score.submodel: score.accuracy
        for _, score in store.read_all_scores()
        if score.view == "central"
    }
    store.close()
    assert scores.keys() >= {entry.submodel for entry in made.submodels}
    assert all(entry.variants[0].max_abs_diff < 1e-3 for entry in made.submodels), (
        "as far from PyTorch on processors as any export"
    )


# ---- agents --------------------------------------------------------------------------------------


def working(device: str) -> Worker:
    return Worker(Job("a0", "digits", None, "0/2", "iid", 0, device, "", Limits()))


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Yield an agent's training process on the GPU."""
    started = working("cuda")
    try:
        started.load()
        yield started
    finally:
        started.close()


def carry_out(worker: Worker, given: Task, folder: Path) -> Outcome:
    (folder / "weights").write_bytes(codec.encode({}, parameters(given.submodel)))
    given = replace(given, digest="0" * 64)  # of another file, which the process does not compare
    worker.begin(given, folder / "weights", folder / f"result-{worker.job.device}")
    return eventually(worker.poll)


def update_of(outcome: Outcome) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return notes and tensors of an update."""
    assert outcome.path is not None, outcome.reason
    meta, found = codec.decode(outcome.path.read_bytes())
    return meta["notes"], found


@pytest.mark.processes
def test_a_training_process_sends_the_update_that_one_without_a_gpu_sends(
    worker: Worker, tmp_path: Path
) -> None:
    given = task(submodel=WHOLE, steps=6, batch=32, lr=0.02)
    notes, there = update_of(carry_out(worker, given, tmp_path))
    other = working("cpu")
    try:
        other.load()
        expected, here = update_of(carry_out(other, given, tmp_path))
    finally:
        other.close()
    assert apart(here, there) < ROUNDING
    assert notes["loss"] == pytest.approx(expected["loss"], rel=ROUNDING)
    assert sum(value.nbytes for value in here.values()) < notes["peak"] < 10**9, (
        "bytes of the GPU, the network's among them"
    )


@pytest.mark.processes
def test_an_agent_measures_its_gpu(worker: Worker) -> None:
    card = messages.Run("r", "fedavg", "preresnet", NET, (SMALL, WHOLE), 32, "s")
    found = worker.measure(card, fresh=True)
    assert found.runtime.endswith(" cuda")
    assert 0 < found.memory <= torch.cuda.get_device_properties(0).total_memory
    assert [timing.seconds > 0 for timing in found.timings] == [True, True]


@pytest.mark.processes
def test_a_training_process_that_a_cuda_error_spoiled_is_replaced(
    worker: Worker, tmp_path: Path
) -> None:
    """A label outside the classes aborts a kernel. Afterwards the process can no longer use the
    GPU.
    """
    before = worker.pid
    failed = carry_out(worker, task(submodel=full(network("preresnet", (1, 8, 8), 3))), tmp_path)
    assert failed.path is None
    assert worker.pid != before
    update_of(carry_out(worker, task(submodel=SMALL, steps=1), tmp_path))


@pytest.mark.processes
@pytest.mark.broker
def test_two_agents_with_a_gpu_take_part_in_a_run(
    tmp_path: Path, start: Start, broker: str
) -> None:
    quick = [
        "--set",
        "method.widths=[0.5]",
        "--set",
        "method.depths=[1]",
        "--set",
        "train.epochs=1",
        "--set",
        "fleet.wait=90",
    ]
    coordinator = start(
        *COORDINATOR,
        "start",
        "--broker",
        broker,
        "--min-agents",
        "2",
        "--rounds",
        "2",
        *quick,
        "--format",
        "json",
    )
    shards = [["--name", f"a{i}", "--data", "digits", "--shard", f"{i}/2"] for i in range(2)]
    agents = [
        start(*AGENT, "join", "--broker", broker, "--device", "cuda", *shard, "--format", "json")
        for shard in shards
    ]
    told = result(coordinator)
    assert told["rounds"] == 2
    assert told["accuracy"] > 0.3
    assert [result(agent, 60)["updates"] for agent in agents] == [2, 2]
