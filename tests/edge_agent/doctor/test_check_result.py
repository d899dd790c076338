"""The output and the exit code of `edge-agent doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_agent.cli.main import main
from federated.wire.checks.check_result import Check, find_exit_code, format_check, format_json


def test_the_first_failure_gives_the_exit_code() -> None:
    checks = [
        Check("a", "ok", ""),
        Check("b", "warn", "x", "y", 4),
        Check("c", "fail", "x", "y", 7),
        Check("d", "fail", "x", "y", 5),
    ]
    assert find_exit_code(checks) == 7
    assert json.loads(format_json(checks))["exit"] == 7
    assert find_exit_code(checks[:2]) == 0
    assert format_check(Check("run", "ok", "a\x1b[2J\nb")) == "ok    run          a?[2J b"


@pytest.mark.slow
def test_the_command_prints_text_or_json_and_exits_accordingly(tmp_path: Path) -> None:
    refused = CliRunner().invoke(
        main,
        [
            "doctor",
            "--broker",
            "127.0.0.1:1",
            "--name",
            "pi",
            "--spool",
            str(tmp_path),
            "--format",
            "json",
        ],
    )
    told = json.loads(refused.output.splitlines()[-1])
    assert refused.exit_code == told["exit"] == 5
    assert not told["fit"]
    assert [row["check"] for row in told["checks"]][:2] == ["dns", "tcp"]
    device = CliRunner().invoke(main, ["doctor", "--spool", str(tmp_path)])
    assert device.exit_code == 0, device.output
    assert device.output.startswith("ok    disk ")
    wrong = CliRunner().invoke(main, ["doctor", "--broker", "http://x"])
    assert wrong.exit_code == 2
