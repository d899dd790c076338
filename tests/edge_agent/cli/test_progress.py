"""Commands that take more than two seconds show on a terminal what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.terminal import run_on_terminal

TOY = str(ROOT / "tests/export/toy.onnx")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["bench", TOY, "--threads", "1"], "measuring toy.onnx with onnx, threads 1"),
        (["join", "--data", "digits", "--dry-run"], "measuring this device"),
    ],
    ids=["bench", "join"],
)
def test_a_long_command_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], shown: str
) -> None:
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path))
    assert shown in run_on_terminal(["edge_agent.cli", *words], tmp_path, until=shown)
