"""`--trainer auto` uses the trainer that `edge-agent profile --compare-trainers` found faster."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from edge_agent.device.heat_and_load import Load
from edge_agent.device.measurement_cache import MeasurementCache, describe_surroundings
from edge_agent.device.process_limits import Limits
from edge_agent.join import speed_calibration
from edge_agent.join.participation import JoinRequest, join
from edge_agent.join.speed_calibration import compare_trainers, export_step
from edge_agent.join.trainer_choice import GAIN, choose_trainer, find_ratio
from edge_agent.join.training_process_control import Job, Order, Worker
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.errors import ConfigError
from federated.wire.messages import Run
from models.menu import menu
from models.named_network import network
from tests.support.processes import COORDINATOR, Start, wait_for_words
from tests.support.small_tasks import PYTORCH
from tests.support.waiting import PATIENCE

JOB = Job("a", "digits", None, "0/8", "iid", 0, "cpu", "", Limits(), trainer="auto")
NETWORK = network("mlp", (1, 8, 8), 10)
RUN = Run("r", "fedavg", "mlp", NETWORK, menu(NETWORK, (0.25,), (1,)), 32, "s")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MeasurementCache:
    """The measurements of this device, which counts as idle."""
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Load, "share", lambda load: 0.0)
    return MeasurementCache(describe_surroundings(JOB.limits, PYTORCH.runtime))


@pytest.mark.parametrize(
    ("ratio", "chosen"), [(GAIN - 0.01, "onnx"), (GAIN, "auto"), (2.2, "auto"), (None, "auto")]
)
def test_graphs_are_used_if_they_were_measured_to_be_faster(
    cache: MeasurementCache, ratio: float | None, chosen: str
) -> None:
    if ratio is not None:
        find_ratio("mlp", cache, lambda: ratio)
    assert choose_trainer("mlp", cache, PYTORCH) == chosen
    assert choose_trainer("lenet", cache, PYTORCH) == "auto", "another family"
    assert choose_trainer("mlp", cache, OnnxTrainer("cpu")) == "auto", "it is in use"


def test_the_comparison_of_a_users_own_network_does_not_last(cache: MeasurementCache) -> None:
    assert find_ratio("mine:net", cache, lambda: 0.5) == 0.5
    assert find_ratio("mine:net", cache) == 0.0


def test_only_pytorch_on_the_processor_is_compared() -> None:
    with pytest.raises(ConfigError, match="expected PyTorch on the processor"):
        compare_trainers(JOB, None, Order("mlp", "onnx", 8), OnnxTrainer("cpu"))


@pytest.mark.slow
def test_a_step_is_timed_with_both_trainers_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timed: list[tuple[str, float]] = []
    real = speed_calibration.time_step

    def watch(submodel: object, batch: int, data: object, trainer: object) -> float:
        timed.append((trainer.runtime, real(submodel, batch, data, trainer)))
        return timed[-1][1]

    monkeypatch.setattr(speed_calibration, "time_step", watch)
    order = Order("mlp", "onnx", 8, threads=1)
    first = compare_trainers(JOB, None, order, PYTORCH)
    assert (first.ratio, timed) == (0.0, [])
    order = Order("mlp", "onnx", 8, 1, files=export_step(first.submodel, 8, tmp_path))
    found = compare_trainers(JOB, None, order, PYTORCH)
    (ours, graphs), (theirs, eager) = timed
    assert (ours.split()[0], theirs) == ("onnxruntime", PYTORCH.runtime)
    assert found.ratio == pytest.approx(graphs / eager)
    assert compare_trainers(JOB, None, order, PYTORCH).ratio == found.ratio
    assert len(timed) == 2


@pytest.mark.processes
@pytest.mark.usefixtures("forked_training")
def test_the_training_process_is_replaced_by_one_with_the_chosen_trainer(
    cache: MeasurementCache,
) -> None:
    with closing(Worker(JOB)) as worker:
        worker.load()
        started = worker.pid
        assert worker.measure(RUN).runtime == PYTORCH.runtime
        find_ratio("mlp", cache, lambda: 0.5)
        assert worker.measure(RUN).runtime == PYTORCH.runtime, "one choice per run"
        assert worker.pid == started
    with closing(Worker(JOB)) as worker:
        worker.load()
        found = worker.measure(RUN)
        assert (found.runtime.split()[0], found.timings) == ("onnxruntime", ())
        assert "graphs" in found.capabilities


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.usefixtures("forked_training")
def test_a_run_that_refuses_the_chosen_trainer_is_joined_with_pytorch(
    tmp_path: Path, start: Start, cache: MeasurementCache
) -> None:
    find_ratio("mlp", cache, lambda: 0.5)
    port, said = find_free_port("127.0.0.1", 0), list[str]()
    run = "--method moon --model mlp --min-agents 1 --rounds 1 --data digits --set train.epochs=1"
    own = ["--port", str(port), "--set", "broker.kind=embedded", "--format", "json"]
    process = start(*COORDINATOR, "start", *run.split(), *own)
    assert wait_for_words(process, tmp_path / "0.err", "agents join with")
    request = JoinRequest(JOB, f"127.0.0.1:{port}", None, 60.0, tmp_path / "spool")
    end = join(request, threading.Event(), said.append)
    process.communicate(timeout=PATIENCE)
    assert (end.refused, end.updates, process.returncode) == (False, 1, 0)
    (again,) = [
        line for line in said if line.startswith("joining again with the trainer 'pytorch'")
    ]
    assert "hook:moon" in again
