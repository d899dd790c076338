"""Commands that end at once: bad input, and dry runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main as coordinator
from edge_agent.cli.main import main as edge_agent
from tests.support.processes import AGENT, COORDINATOR, Start, result

pytestmark = [pytest.mark.processes, pytest.mark.broker]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ([*COORDINATOR, "start", "--method", "fedva"], 2, "unknown method 'fedva'; did you mean"),
        (
            [*COORDINATOR, "start", "--model", "prersnet"],
            2,
            "unknown model 'prersnet'; did you mean preresnet",
        ),
        ([*COORDINATOR, "start", "--data", "digit"], 2, "unknown data set 'digit'"),
        (
            [*COORDINATOR, "start", "--set", "train.lrr=1"],
            3,
            "unknown fedfa setting 'lrr'; did you mean lr",
        ),
        (
            [*COORDINATOR, "start", "--set", "train.lr=fast"],
            3,
            "train.lr: expected a number above 0, found 'fast'",
        ),
        ([*COORDINATOR, "start", "--resume"], 7, "no run in"),
        ([*COORDINATOR, "start", "--listen", "0.0.0.0"], 3, "password"),
        ([*COORDINATOR, "start", "--broker", "127.0.0.1:9"], 5, "127.0.0.1:9"),
        ([*COORDINATOR, "export", "none", "--out", "o"], 7, "no run 'none'"),
        ([*COORDINATOR, "release", "none", "--broker", "127.0.0.1:9"], 7, "no run 'none'"),
        ([*COORDINATOR, "release", "none"], 7, "no run 'none'"),
        (
            [*COORDINATOR, "release", "none", "--rollback", "--promote", "--broker", "h"],
            2,
            "--rollback and --status cannot",
        ),
        ([*AGENT, "join"], 2, "--broker is missing"),
        ([*AGENT, "join", "--broker", "h", "--name", "a/b"], 2, "--name: expected"),
        ([*AGENT, "join", "--broker", "h", "--model", "resnet"], 2, "--model: expected module:"),
        ([*AGENT, "join", "--broker", "h", "--codec", "fp16"], 2, "--codec: expected module:"),
        ([*AGENT, "bench", "--depths", "0"], 2, "--depths: "),
        ([*COORDINATOR, "runs", "--runs", "none"], 3, "--runs none: "),
        ([*AGENT, "join", "--broker", "h", "--partition", "iid"], 2, "require --shard"),
        ([*AGENT, "join", "--broker", "h", "--shard", "4/4"], 2, "--shard 4/4: expected an index"),
        ([*AGENT, "join", "--broker", "h", "--shard", "1-4"], 2, "--shard '1-4': expected a form"),
        ([*COORDINATOR, "start", "--name", "a/b"], 3, "'a/b'"),
        (
            [*COORDINATOR, "start", "--broker", "h", "--passwords", "p"],
            3,
            "broker.passwords and broker.url cannot be combined",
        ),
        (
            [*COORDINATOR, "start", "--broker", "h", "--port", "1884"],
            3,
            "broker.port and broker.url cannot be combined",
        ),
        (
            [*COORDINATOR, "start", "--broker", "h", "--listen", "0.0.0.0"],
            3,
            "broker.listen and broker.url cannot be combined",
        ),
        ([*COORDINATOR, "start", "--set", "rounds"], 2, "--set: expected KEY=VALUE"),
        ([*COORDINATOR, "start", "--set", "round=3"], 3, "unknown key 'round'; did you mean"),
        ([*AGENT, "join", "--broker", "h", "--when", "sunny"], 2, "--when: expected"),
        (
            [*COORDINATOR, "start", "--rounds", "0"],
            3,
            "rounds: expected a whole number of at least 1, found 0",
        ),
        ([*AGENT, "join", "--broker", "h", "--limit-memory", "lots"], 2, "expected a size"),
        ([*AGENT, "infer", "--model", "none.onnx", "x.npy"], 3, "expected an exported .onnx file"),
        (
            [*AGENT, "finetune", "--model", "none", "--data", "digits", "--out", "o"],
            3,
            "--model none: no such file or folder; expected the folder of a release, as",
        ),
        (
            [*AGENT, "join", "--token-file", "none"],
            3,
            "--token-file none: No such file or directory; run `coordinator enroll NAME`",
        ),
    ],
    ids=lambda value: " ".join(value[3:]) if isinstance(value, list) else None,
)
def test_bad_input_ends_a_command_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    main = coordinator if command[:3] == COORDINATOR else edge_agent
    ended = CliRunner().invoke(main, command[3:])
    assert words in ended.output
    assert ended.exit_code == code, ended.output
    assert isinstance(ended.exception, SystemExit), "a process would print a traceback"
    assert not list((tmp_path / "runs").glob("*")), "a run that never began leaves no files"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ([*COORDINATOR, "start", "--data", "none.npz"], 3, "no such file"),
        ([*AGENT, "join", "--broker", "127.0.0.1:9"], 5, "127.0.0.1:9"),
        ([*AGENT, "join", "--dry-run", "--data", "none.npz"], 3, "no such file"),
    ],
    ids=lambda value: " ".join(value[3:]) if isinstance(value, list) else None,
)
def test_bad_input_ends_a_process_with_its_exit_code(
    start: Start, tmp_path: Path, command: list[str], code: int, words: str
) -> None:
    process = start(*command)
    out, _ = process.communicate(timeout=60)
    said = out + (tmp_path / "0.err").read_text()
    assert words in said
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert not list((tmp_path / "runs").glob("*")), "a run that never began leaves no files"


def test_a_dry_run_shows_what_would_leave_and_sends_nothing(start: Start) -> None:
    words = ["--dry-run", "--name", "shy", "--limit-cpus", "1", "--format", "json"]
    shown = result(start(*AGENT, "join", *words))
    profile = shown["profile"]
    assert profile["agent"] == "shy"
    assert profile["data"]["examples"] > 0
    assert set(shown["train"]["header"]["notes"]) == {"loss", "seconds", "step", "peak"}
    assert shown["calibrate"]["header"]["notes"]["batches"] > 0
    assert all(
        name.endswith(("running_mean", "running_var")) for name in shown["calibrate"]["tensors"]
    )
    assert set(shown["evaluate"]["header"]["notes"]["tallies"]) == {"all", "labels"}
    assert shown["evaluate"]["tensors"] == {}
    assert sum(shown["train"]["tensors"]["sections.0.0.conv1.weight"]) > 0


def test_a_missing_run_at_the_broker_is_reported_after_a_timeout(
    start: Start, broker: str, tmp_path: Path
) -> None:
    process = start(*AGENT, "join", "--broker", broker, "--wait", "1")
    process.communicate(timeout=60)
    assert process.returncode == 6
    assert "no run at this broker after 1 s" in (tmp_path / "0.err").read_text()


def test_missing_data_are_reported_before_a_run_is_awaited(
    start: Start, broker: str, tmp_path: Path
) -> None:
    process = start(*AGENT, "join", "--broker", broker, "--data", "none.npz")
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert "no such file" in (tmp_path / "0.err").read_text()
