"""A separate process measures each row, and may crash."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from edge_agent.bench.benchmark_targets import find_network, prepare_target, select_submodels
from edge_agent.bench.measurement_process import Plan
from edge_agent.bench.measurement_process_control import run_plans
from edge_agent.bench.report import Row
from edge_agent.device.process_limits import Limits
from tests.support.waiting import eventually

pytestmark = pytest.mark.processes
PICTURE = Path(__file__).parents[2] / "export" / "image.onnx"
GRAPH = Plan(Row("", "image.onnx", "onnx", "cpu", 1), str(PICTURE), seconds=0.05)


def test_a_graph_is_measured_as_a_device_would_run_it() -> None:
    (row,) = run_plans([GRAPH], Limits())
    assert row.error == ""
    assert 0 < row.least_ms <= row.p50_ms <= row.p90_ms <= row.p95_ms <= row.p99_ms < 1000
    assert row.runs >= 100
    assert 0 < row.load_ms < 10_000
    assert 20e6 < row.base_bytes <= row.peak_bytes < 400e6
    assert (row.step_least_ms, row.training_peak_bytes) == (None, None)
    assert 0 <= row.busy <= 1


def test_weights_are_measured_in_inference_and_in_training(tmp_path: Path) -> None:
    (submodel,) = select_submodels(find_network("preresnet", (1, 8, 8), 10), (0.25,), (1,), ())
    target = prepare_target("preresnet", submodel, ("torch",), 32, tmp_path)
    row = Row("preresnet", submodel.name, "torch", "cpu", 1, batch=32)
    plan = Plan(row, str(target.files["torch"]), submodel, runs=20, seconds=0.05, step_seconds=0.05)
    first, second = run_plans([plan, replace(plan, row=replace(row, batch=None))], Limits())
    assert first.error == ""
    assert 0 < first.p50_ms < first.step_median_ms
    assert first.step_least_ms <= first.step_median_ms
    assert first.training_peak_bytes >= first.peak_bytes >= first.base_bytes > 100e6
    assert second.p50_ms
    assert second.step_least_ms is None


def test_memory_excludes_the_parent_process() -> None:
    hoard = bytearray(500_000_000)
    hoard[::4096] = b"x" * len(hoard[::4096])
    (row,) = run_plans([GRAPH], Limits())
    assert row.peak_bytes < 400e6
    del hoard


@pytest.mark.slow
def test_memory_excludes_stored_timings() -> None:
    # of 32 bytes each
    (few,), (many,) = (
        run_plans([GRAPH], Limits()),
        run_plans([replace(GRAPH, runs=250_000, seconds=0.0)], Limits()),
    )
    assert many.peak_bytes < few.peak_bytes + 4e6


def test_failed_plan_reports_and_next_continues(tmp_path: Path) -> None:
    bad, good = run_plans([replace(GRAPH, file=str(tmp_path / "nix.onnx")), GRAPH], Limits())
    assert bad.p50_ms is None
    assert bad.error.startswith(f"ExportError: {tmp_path / 'nix.onnx'}: no such file")
    assert good.p50_ms


def test_process_killed_by_its_limit_reports_why() -> None:
    (submodel,) = select_submodels(find_network("preresnet", (1, 8, 8), 10), (0.25,), (1,), ())
    plan = Plan(Row("preresnet", submodel.name, "torch", "cpu", 1), "nowhere", submodel)
    rows = run_plans([plan] * 2, Limits(memory=70_000_000))
    assert [row.p50_ms for row in rows] == [None, None]
    assert all("memory" in row.error for row in rows), rows


def test_graph_is_measured_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = sys.modules['scipy'] = None; "
        "from edge_agent.bench.measurement_process import main; main()"
    )
    given = msgspec.json.encode([GRAPH]).decode() + "\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert msgspec.json.decode(done.stdout, type=Row).error == ""


def test_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "from edge_agent.bench.measurement_process_control import run_plans; "
        "from edge_agent.bench.measurement_process import Plan; "
        "from edge_agent.bench.report import Row; "
        "from edge_agent.device.process_limits import Limits; "
        "row = Row('', 'image.onnx', 'onnx', 'cpu', 1); "
        f"run_plans([Plan(row, {str(PICTURE)!r}, seconds=600.0)], Limits(cpus=0.5))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as asking:
        (row,) = eventually(lambda: psutil.Process(asking.pid).children())
        # It asked the kernel to end with its parent before it loaded its library.
        eventually(lambda: [region for region in row.memory_maps() if "onnxruntime" in region.path])
        asking.kill()
    eventually(lambda: not row.is_running() or row.status() == psutil.STATUS_ZOMBIE)
