"""`edge-agent profile`, from its flags to its sheet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_agent.cli.main import main
from edge_agent.join import profile_command
from edge_agent.join.training_process_control import Calibrated, Order, Worker
from federated.device.profile_file import read, select_profile
from federated.errors import MissingExtra
from tests.support.processes import AGENT, Start
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_training")]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["profile", *words])


@pytest.mark.slow
@pytest.mark.broker
def test_the_sheet_has_the_devices_facts_and_timings(tmp_path: Path, broker: str) -> None:
    out = tmp_path / "pi.json"
    limits = [
        "--limit-cpus",
        "0.5",
        "--limit-memory",
        "2GB",
        "--label",
        "eu",
        "--label",
        "attic",
        "--name",
        "pi-1",
    ]
    done = run(
        "--family",
        "lenet,mlp",
        "--runtime",
        "torch",
        "--batch",
        "8",
        "--broker",
        broker,
        *limits,
        "--out",
        str(out),
        "--format",
        "json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(out.read_text())
    sheet = read(out)
    assert (sheet.profile.agent, sheet.profile.labels, sheet.limit_cpus, sheet.limit_memory) == (
        "pi-1",
        ("eu", "attic"),
        0.5,
        2 * 10**9,
    )
    assert sheet.profile.cpus == 0.5
    assert 0 < sheet.profile.memory < 2 * 10**9
    assert sheet.profile.uplink > 0
    assert [(c.family, c.runtime, c.work) for c in sheet.calibrations] == [
        ("lenet", "torch", "train"),
        ("mlp", "torch", "train"),
    ]
    assert all(timing.batch == 8 for timing in select_profile(sheet, "mlp").timings)
    assert sheet.versions["torch"]
    for word in (
        "board",
        "processor",
        "MB free; by default, training may use 60% of it (assign.memory)",
        "gpu",
        "heat",
        "power",
        "uplink",
        "lenet, torch",
        "wrote",
    ):
        assert word in done.stderr


@pytest.mark.slow
def test_a_runtime_that_is_not_installed_is_skipped_unless_it_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(worker: Worker, order: Order) -> Calibrated:
        if order.runtime == "onnx":
            raise MissingExtra("an export to ONNX", "export", "onnxscript")
        return worker.calibrate(order)

    monkeypatch.setattr(profile_command, "_calibrate", lacking)
    done = run("--family", "mlp", "--batch", "8", "--threads", "1")
    assert done.exit_code == 0
    assert "mlp, onnx: skipped: an export to ONNX needs the package 'onnxscript'" in done.output
    assert "[export]" in done.output
    assert run("--family", "mlp", "--batch", "8", "--runtime", "onnx").exit_code == 4


@pytest.mark.parametrize(
    ("words", "exit_code", "match"),
    [
        (["--family", "nosuch"], 2, "unknown model 'nosuch'"),
        (["--family", "nosuch:network"], 3, "no module 'nosuch'"),
        (["--family", "mlp,transformer", "--data", "digits"], 3, "transformer: cannot take"),
    ],
)
def test_a_wrong_network_is_refused_before_the_first_output(
    words: list[str], exit_code: int, match: str
) -> None:
    done = run(*words, "--name", "a")
    assert (done.exit_code, match in done.output) == (exit_code, True), done.output
    assert done.output.startswith("error: ")


def test_a_sheet_that_cannot_be_written_is_refused_before_the_first_output(tmp_path: Path) -> None:
    done = run("--family", "lenet", "--out", str(tmp_path / "nosuch" / "pi.json"))
    assert done.exit_code == 3
    assert done.output.startswith("error: --out ")
    assert "nosuch does not exist" in done.output


@pytest.mark.slow
def test_default_families_that_do_not_fit_the_data_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profile_command, "FAMILIES", ("resnet1d", "mlp"))
    done = run(
        "--data", "digits", "--runtime", "torch", "--batch", "8", "--threads", "1", "--name", "a"
    )
    assert done.exit_code == 0, done.output
    assert "resnet1d, torch: skipped: resnet1d: cannot take examples" in done.output
    monkeypatch.setattr(profile_command, "FAMILIES", ("resnet1d",))
    done = run("--data", "digits", "--runtime", "torch", "--batch", "8", "--name", "a")
    assert done.exit_code == 3
    assert "error: no calibration possible: resnet1d: cannot take" in done.output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--runtime", "tf"], 2, "unknown runtime 'tf'; known: onnx, torch"),
        (["--label", "a b"], 2, "--label: expected 1 to 64 letters"),
        (["--out", "no-such-folder/x.json"], 3, "the folder no-such-folder does not exist"),
        (
            ["--limit-memory", "70MB"],
            3,
            "alone take about 400 MB: raise --limit-memory",
        ),
    ],
)
def test_errors_take_one_line(words: list[str], code: int, said: str) -> None:
    done = run(*words)
    assert done.exit_code == code, done.output
    assert said in (error := done.output.splitlines()[-1])
    assert error.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--family", "mobilnet"], 2, "unknown model 'mobilnet'; did you mean mobilenet"),
        (["--data", "no-such-data"], 2, "no-such-data"),
        (["--broker", "127.0.0.1:1"], 5, "127.0.0.1"),
        (["--model", "os:system"], 3, "os:system"),
    ],
)
def test_errors_of_the_training_process_take_one_line(
    start: Start, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    process = start(*AGENT, "profile", *words)
    process.communicate(timeout=PATIENCE)
    assert said in (error := (tmp_path / "0.err").read_text().splitlines()[-1])
    assert error.startswith("error: ")
    assert process.returncode == code


def test_a_profile_that_is_terminated_leaves_no_files(start: Start, tmp_path: Path) -> None:
    (folder := tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(folder), "ESPALIER_CACHE": str(tmp_path / "cache")}
    command = [*AGENT, "profile", "--family", "mlp", "--runtime", "torch"]
    process = start(*command, variables=places)
    eventually(lambda: (tmp_path / "0.out").read_text().startswith("board"))
    process.terminate()
    process.communicate(timeout=PATIENCE)
    err = (tmp_path / "0.err").read_text()
    assert process.returncode == 130
    # above it, a busy machine has a line on measurements that are not cached
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert not list(folder.iterdir())
