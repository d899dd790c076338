"""A separate process measures each row, and may crash."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from edge_agent.bench.process import run_plans
from edge_agent.bench.row_process import Answer, Plan
from edge_agent.bench.target import find_network, prepare_target, select_submodels
from edge_agent.device.limits import Limits
from tests.support.waiting import eventually

pytestmark = pytest.mark.timed
PICTURE = Path(__file__).parents[2] / "export" / "image.onnx"
GRAPH = Plan("onnx", str(PICTURE), seconds=0.05)


def test_a_graph_is_measured_as_a_device_would_run_it() -> None:
    (answer,) = run_plans([GRAPH], Limits())
    found = answer.measured
    assert found is not None, answer.error
    assert (
        0
        < found.latency.least
        <= found.latency.p50
        <= found.latency.p90
        <= found.latency.p95
        <= found.latency.p99
        < 1
    )
    assert found.latency.runs >= 100
    assert 0 < found.load < 10
    assert 20e6 < found.memory.base <= found.memory.peak < 400e6
    assert (found.step, found.memory.training) == (None, None)
    assert 0 <= found.busy <= 1


def test_weights_are_measured_in_inference_and_in_training(tmp_path: Path) -> None:
    (submodel,) = select_submodels(find_network("preresnet", (1, 8, 8), 10), (0.25,), (1,), ())
    target = prepare_target("preresnet", submodel, ("torch",), 32, tmp_path)
    plan = Plan(
        "torch",
        str(target.files["torch"]),
        submodel=submodel,
        batch=32,
        runs=20,
        seconds=0.05,
        step_seconds=0.05,
    )
    first, second = run_plans([plan, replace(plan, batch=0)], Limits())
    assert first.measured is not None, first.error
    assert first.measured.step is not None
    assert 0 < first.measured.latency.p50 < first.measured.step.median
    assert first.measured.step.least <= first.measured.step.median
    assert first.measured.memory.training is not None
    assert (
        first.measured.memory.training
        >= first.measured.memory.peak
        >= first.measured.memory.base
        > 100e6
    )
    assert second.measured is not None
    assert second.measured.step is None


def test_memory_excludes_the_parent_process() -> None:
    hoard = bytearray(500_000_000)
    hoard[::4096] = b"x" * len(hoard[::4096])
    (answer,) = run_plans([GRAPH], Limits())
    assert answer.measured is not None
    assert answer.measured.memory.peak < 400e6
    del hoard


@pytest.mark.slow
def test_memory_excludes_stored_timings() -> None:
    # of 32 bytes each
    (few,), (many,) = (
        run_plans([GRAPH], Limits()),
        run_plans([replace(GRAPH, runs=500_000, seconds=0.0)], Limits()),
    )
    assert few.measured is not None
    assert many.measured is not None
    assert many.measured.memory.peak < few.measured.memory.peak + 8e6


def test_failed_plan_reports_and_next_continues(tmp_path: Path) -> None:
    bad, good = run_plans([replace(GRAPH, file=str(tmp_path / "nix.onnx")), GRAPH], Limits())
    assert (bad.measured, bad.error) == (
        None,
        f"ExportError: {tmp_path / 'nix.onnx'}: no such file; expected an ONNX file",
    )
    assert good.measured is not None


def test_process_killed_by_its_limit_reports_why() -> None:
    (submodel,) = select_submodels(find_network("preresnet", (1, 8, 8), 10), (0.25,), (1,), ())
    answers = run_plans(
        [Plan("torch", "nowhere", submodel=submodel)] * 2, Limits(memory=70_000_000)
    )
    assert [answer.measured for answer in answers] == [None, None]
    assert all("memory" in answer.error for answer in answers), answers


def test_graph_is_measured_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = sys.modules['scipy'] = None; "
        "from edge_agent.bench.row_process import main; main()"
    )
    given = msgspec.json.encode([GRAPH]).decode() + "\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = msgspec.json.decode(done.stdout, type=Answer)
    assert answer.measured is not None, answer.error


def test_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "from edge_agent.bench.process import run_plans; from edge_agent.bench.row_process import "
        "Plan; from edge_agent.device.limits import Limits; "
        f"run_plans([Plan('onnx', {str(PICTURE)!r}, seconds=600.0)], Limits(cpus=0.5))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as asking:
        (row,) = eventually(lambda: psutil.Process(asking.pid).children())
        # It asked the kernel to end with its parent before it loaded its library.
        eventually(lambda: [region for region in row.memory_maps() if "onnxruntime" in region.path])
        asking.kill()
    eventually(lambda: not row.is_running() or row.status() == psutil.STATUS_ZOMBIE)
