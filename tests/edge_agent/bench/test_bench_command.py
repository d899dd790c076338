"""`edge-agent bench`: flags, table, files and exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edge_agent.bench import bench_command
from edge_agent.bench.report import read
from edge_agent.cli.main import main

KEPT = Path(__file__).parents[2] / "export"
PICTURE, TOY = str(KEPT / "image.onnx"), str(KEPT / "toy.onnx")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return rows that take a moment; their values are tested elsewhere."""
    for name in ("SECONDS", "STEP_SECONDS", "PROBE_SECONDS"):
        monkeypatch.setattr(bench_command, name, 0.05)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def edited(path: Path, old: Path, **changes: Any) -> Path:
    """Return a report with changed values in its first row."""
    found = json.loads(old.read_text())
    found["rows"][0] |= changes
    path.write_text(json.dumps(found))
    return path


@pytest.mark.processes
def test_files_are_measured_in_command_line_order(tmp_path: Path) -> None:
    done = run(PICTURE, TOY, "--threads", "1,2", "--out", str(tmp_path / "a.json"))
    assert done.exit_code == 0, done.output
    report = read(tmp_path / "a.json")
    assert [(row.submodel, row.runtime, row.threads) for row in report.rows] == [
        ("image.onnx", "onnx", 1),
        ("image.onnx", "onnx", 2),
        ("toy.onnx", "onnx", 1),
        ("toy.onnx", "onnx", 2),
    ]
    assert all(
        row.p90_ms
        and row.load_ms
        and row.peak_bytes
        and row.file_bytes == Path(KEPT / row.submodel).stat().st_size
        for row in report.rows
    )
    assert "4/4 toy.onnx onnx, threads 2: p90" in done.output
    assert "image.onnx onnx" in done.output


@pytest.mark.slow
def test_submodels_are_measured_and_predicted(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    words = (
        "--model",
        "mlp-small",
        "--inputs",
        "1,8,8",
        "--submodels",
        "w1-*",
        "--runtime",
        "torch,onnx",
        "--batch",
        "8",
    )
    done = run(
        *words,
        "--out",
        str(tmp_path / "a.json"),
        "--plot",
        str(tmp_path / "a.png"),
        "--format",
        "json",
    )
    assert done.exit_code == 0, done.output
    report = read(tmp_path / "a.json")
    torch, onnx = report.rows
    assert json.loads(done.stdout.splitlines()[-1])["rows"][1]["p90_ms"] == onnx.p90_ms
    assert (torch.submodel, torch.parameters, torch.batch) == ("w1-d2", 13_322, 8)
    assert torch.macs == onnx.macs
    assert len(report.probes) >= 3
    assert torch.p50_ms
    assert torch.predicted_ms
    assert torch.step_least_ms
    assert torch.predicted_step_ms
    assert onnx.p50_ms
    assert onnx.predicted_ms
    # An order of magnitude: how well it predicts is measured by `python -m benchmarks predict`,
    # alone.
    assert 0.1 < torch.predicted_step_ms / torch.step_least_ms < 10
    assert (onnx.batch, onnx.step_least_ms, onnx.predicted_step_ms) == (None, None, None)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_crashed_row_reports_and_others_continue(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    words = (
        "--inputs",
        "1,8,8",
        "--submodels",
        "w0.25-*",
        "--runtime",
        "torch,onnx",
        "--no-predict",
        "--limit-memory",
        "90MB",
    )
    done = run(*words, "--out", str(tmp_path / "a.csv"))
    assert done.exit_code == bench_command.FAILED
    assert "failed: w0.25-d4.4.4 torch, threads 1: " in done.output
    assert "2/2 w0.25-d4.4.4 onnx, threads 1: p90" in done.output
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 3


@pytest.mark.processes
def test_comparison_may_fail_the_command(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert run(PICTURE, "--out", str(old)).exit_code == 0
    quick = edited(tmp_path / "quick.json", old, p90_ms=1e-6)
    done = run(PICTURE, "--compare", str(quick))
    assert done.exit_code == 0
    assert "slower" in done.output
    assert (
        run(PICTURE, "--compare", str(quick), "--fail-above", "1.2").exit_code
        == bench_command.FAILED
    )
    slow = edited(tmp_path / "slow.json", old, p90_ms=1e6)
    done = run(PICTURE, "--compare", str(slow), "--fail-above", "1.2")
    assert done.exit_code == 0
    assert "quicker" in done.output
    assert "nothing to compare" in run(TOY, "--compare", str(old)).output


@pytest.mark.processes
def test_unwritable_file_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.json"
    check = bench_command.bench_report.check_writable
    # afterwards it is in the way
    monkeypatch.setattr(
        bench_command.bench_report,
        "check_writable",
        lambda flag, path, *kinds: (check(flag, path, *kinds), path.mkdir()),
    )
    done = run(PICTURE, TOY, "--out", str(out), "--no-predict")
    assert done.exit_code == 3
    assert "cannot save the rows" in done.output
    assert "2/2 toy.onnx onnx, threads 1: p90" in done.output
    assert "parameters" in done.output, "the table is there"
    assert "a.json: cannot be written: Is a directory" in done.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (
            ("--threads", "one", PICTURE),
            2,
            "expected whole numbers separated by commas, found 'one'",
        ),
        (("--threads", "0", PICTURE), 2, "--threads: expected numbers from 1 to 1024, found 0"),
        (
            ("--threads", "100000", PICTURE),
            2,
            "--threads: expected numbers from 1 to 1024, found 100000",
        ),
        (
            ("--fail-above", "nan", "--compare", "old.json", PICTURE),
            2,
            "'--fail-above': expected a finite number, found nan",
        ),
        (("--threads", "1,1", PICTURE), 2, "each number once"),
        (("--batch", "1", PICTURE), 2, "--batch: expected at least 2"),
        (("--runtime", "torch", PICTURE), 2, "--runtime torch"),
        (("--model", "preresnet", PICTURE), 2, "--model cannot be combined with ONNX files"),
        (("--provider", "abacus", PICTURE), 2, "unknown provider 'abacus'"),
        (("--runtime", "torch", "--provider", "abacus"), 2, "--provider abacus: PyTorch"),
        (("--runtime", "onnx", "--provider", "abacus"), 2, "unknown provider 'abacus'"),
        (("--out", "a.txt", PICTURE), 2, "ends in one of .csv, .json"),
        (("--plot", "no/a.png", PICTURE), 3, "cannot be written"),
        (("--fail-above", "1.2", PICTURE), 2, "--compare OLD.json"),
        (("--compare", PICTURE, PICTURE), 3, "not the JSON of edge-agent bench"),
        (("--limit-memory", "1MB", PICTURE), 2, "at least 64MiB"),
        (("nix.onnx",), 3, "nix.onnx: no such file"),
        (("--widths", "2"), 2, "--widths: expected numbers above 0 and at most 1, found 2"),
        (("--widths", ","), 2, "--widths: expected numbers above 0 and at most 1, found none"),
        (("--inputs", "3,0,32"), 2, "--inputs: expected sizes of at least 1"),
        (("--inputs", "99999999999,3,3"), 2, "at most 268435456 values in all"),
        (("--depths", "0"), 2, "--depths: expected numbers of at least 1, found 0"),
        (("--model", "./no.py:net"), 3, "the file no.py does not exist"),
        (("--model", "preresnat"), 2, "unknown model 'preresnat'; did you mean preresnet"),
        (("--submodels", "w3-*"), 2, "unknown submodel 'w3-*'"),
        (("--runtime", "onxx"), 2, "unknown runtime 'onxx'"),
        (("--inputs", "3,x"), 2, "expected whole numbers"),
        (("--inputs", "3,32"), 3, "--inputs and --classes"),
    ],
)
def test_invalid_options_are_refused_before_measuring(
    words: tuple[str, ...], code: int, told: str
) -> None:
    done = run(*words)
    assert (done.exit_code, told in done.output) == (code, True), done.output


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_benchmark_keeps_finished_rows(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "a.json"
    # tests that run in the background ignore it
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from edge_agent.cli.main import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "bench",
        PICTURE,
        TOY,
        "--threads",
        "1,2",
        "--out",
        str(out),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1/4 image.onnx")
        process.send_signal(number)
        rest = process.stdout.read()
    assert process.returncode == bench_command.INTERRUPTED
    assert "interrupted; kept 1 of 4 rows" in rest
    assert "image.onnx" in rest
    assert [row.submodel for row in read(out).rows] == ["image.onnx"]
