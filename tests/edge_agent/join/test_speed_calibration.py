"""Calibration of each family on random examples, and the cache of timings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edge_agent.device import measurement_cache, profiling
from edge_agent.device.heat_and_load import Load
from edge_agent.device.process_limits import Limits
from edge_agent.join import speed_calibration
from edge_agent.join.speed_calibration import (
    build_network,
    calibrate,
    draw_examples,
    export_graphs,
    select_probes,
)
from edge_agent.join.training_process_control import Job, Order
from federated.data import loading
from federated.errors import ConfigError, Unknown
from models.families.catalogue import FAMILIES
from models.named_network import find_typical_data
from models.submodel import Submodel
from tests.support.small_tasks import PYTORCH
from tests.support.toy_extensions import MEMBERS

JOB = Job("a", "", None, "", "iid", 0, "cpu", "", Limits())


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return names of the submodels whose step was timed; the machine counts as idle."""
    timed: list[str] = []

    def step(submodel: Submodel, batch: int, data: object, trainer: object) -> float:
        timed.append(submodel.name)
        return 0.01 * submodel.width

    monkeypatch.setattr(profiling, "time_step", step)
    monkeypatch.setattr(Load, "share", lambda load: 0.0)
    return timed


@pytest.mark.parametrize("name", [*FAMILIES, MEMBERS["espalier.families"]])
def test_every_family_has_examples_and_a_few_small_probes(name: str) -> None:
    """So does a family of another package: its file declares the data that it usually learns."""
    typical, drawn = find_typical_data(name), draw_examples(name, 4)
    assert (drawn.x.shape, drawn.outputs) == ((4, *typical.inputs), typical.outputs)
    made = build_network(name, drawn)
    chosen = select_probes(made)
    assert 2 <= len(chosen) <= 4
    assert max(submodel.width for submodel in chosen) <= 0.5
    assert {submodel.network for submodel in chosen} == {made}


def test_step_times_are_cached(counted: list[str]) -> None:
    first = calibrate(JOB, None, Order("lenet", "torch", 8, threads=1), PYTORCH)
    assert counted == [
        submodel.name
        for submodel in select_probes(build_network("lenet", draw_examples("lenet", 8)))
    ]
    timed = first.calibration
    assert (timed.family, timed.threads, first.taken) == ("lenet", 1, len(counted))
    assert [(t.batch, t.seconds) for t in timed.timings] == [
        (8, 0.01 * t.submodel.width) for t in timed.timings
    ]
    counted.clear()
    again = calibrate(JOB, None, Order("lenet", "torch", 8, threads=1), PYTORCH)
    assert (counted, again.taken, again.calibration.timings) == ([], 0, timed.timings)
    calibrate(JOB, None, Order("lenet", "torch", 16, threads=1), PYTORCH)
    calibrate(JOB, None, Order("lenet", "torch", 8, threads=2), PYTORCH)
    calibrate(JOB, None, Order("lenet", "torch", 8, threads=1, fresh=True), PYTORCH)
    assert len(counted) == 3 * len(timed.timings), "another batch, other threads, and fresh=True"


def test_the_networks_inputs_follow_the_devices_own_data(counted: list[str]) -> None:
    data = loading.load_device("digits", name="a", shard="0/8", partition="iid")
    found = calibrate(JOB, data, Order("mlp", "torch", 8, threads=1), PYTORCH)
    assert {timing.submodel.network.inputs for timing in found.calibration.timings} == {(1, 8, 8)}
    with pytest.raises(ConfigError, match=r"resnet1d: cannot take examples of shape \(1, 8, 8\)"):
        calibrate(JOB, data, Order("resnet1d", "torch", 8), PYTORCH)


@pytest.mark.slow
def test_submodels_that_exceed_the_memory_are_skipped_unless_all_do(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_network("mobilenet", draw_examples("mobilenet", 8))
    needed = [PYTORCH.training_memory(submodel, 8) for submodel in select_probes(made)]
    monkeypatch.setattr(profiling, "measure_free_memory", lambda limits: needed[0])
    found = calibrate(JOB, None, Order("mobilenet", "torch", 8, threads=1), PYTORCH)
    assert [timing.submodel for timing in found.calibration.timings] == [
        s for s, bytes_ in zip(select_probes(made), needed, strict=True) if bytes_ <= needed[0]
    ]
    monkeypatch.setattr(profiling, "measure_free_memory", lambda limits: min(needed) - 1)
    with pytest.raises(
        ConfigError,
        match=r"cannot calibrate: w0.* at batch 8 needs about \d+ MB to train.*"
        r"\d+ MB are left after PyTorch",
    ):
        calibrate(JOB, None, Order("mobilenet", "torch", 8, threads=1, fresh=True), PYTORCH)


def test_a_submodel_whose_step_runs_out_of_memory_is_skipped(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(submodel: Submodel, batch: int, data: object, trainer: object) -> float:
        if submodel.width >= 0.3:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 9 bytes"
            )
        return 0.01

    monkeypatch.setattr(profiling, "time_step", step)
    found = calibrate(JOB, None, Order("lenet", "torch", 8, threads=1), PYTORCH)
    assert found.calibration.timings
    assert all(timing.submodel.width < 0.3 for timing in found.calibration.timings)


def test_an_unknown_model_is_rejected(counted: list[str]) -> None:
    with pytest.raises(Unknown, match="unknown model 'mobilnet'; did you mean mobilenet"):
        calibrate(JOB, None, Order("mobilnet", "torch", 8), PYTORCH)
    with pytest.raises(ConfigError, match="os:system"):
        calibrate(JOB, None, Order("os:system", "torch", 8), PYTORCH)


def test_times_of_a_users_own_network_are_not_cached(counted: list[str]) -> None:
    for _ in range(2):
        calibrate(
            JOB, None, Order("tests.support.user_models:small", "torch", 8, threads=1), PYTORCH
        )
    assert len(counted) == 2 * len(set(counted))


@pytest.mark.slow
def test_graphs_are_timed_after_their_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(Load, "share", lambda load: 0.0)
    monkeypatch.setattr(speed_calibration, "SECONDS", 0.05)
    order = Order("lenet", "onnx", 8)
    asked = calibrate(JOB, None, order, PYTORCH)
    assert (asked.missing, asked.calibration.timings, asked.dtype) == (
        select_probes(build_network("lenet", draw_examples("lenet", 8))),
        (),
        "uint8",
    )
    files = export_graphs(asked.missing, asked.dtype, tmp_path)
    found = calibrate(JOB, None, Order("lenet", "onnx", 8, files=files), PYTORCH)
    assert [(timing.submodel, timing.batch) for timing in found.calibration.timings] == [
        (submodel, 1) for submodel in asked.missing
    ]
    assert all(0 < timing.seconds < 1 for timing in found.calibration.timings)
    known = calibrate(JOB, None, order, PYTORCH)
    assert (known.missing, known.calibration.timings, known.taken) == (
        (),
        found.calibration.timings,
        0,
    )


def test_a_new_version_of_a_library_invalidates_the_cache(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(JOB, None, Order("lenet", "torch", 8, threads=1), PYTORCH)
    counted.clear()
    real = measurement_cache.read_versions()
    monkeypatch.setattr(measurement_cache, "read_versions", lambda: {**real, "torch": "9.9"})
    calibrate(JOB, None, Order("lenet", "torch", 8, threads=1), PYTORCH)
    assert counted
