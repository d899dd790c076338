"""Signals and progress bars of the console."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from federated.runtime.console import handle_sigterm
from tests.support.terminal import run_on_terminal

STEP = """
import time, click
from federated.runtime.console import show_progress
with show_progress("timing \\x1b[31m[bold]lenet") as show:
    time.sleep(0.5)
    click.echo("a line")
    show(2, 3)
    time.sleep(0.5)
click.echo("the end")
"""


def test_sigterm_interrupts_only_within_the_context() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), handle_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_shows_progress_above_which_lines_stay(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(STEP)
    text = run_on_terminal(["step"], tmp_path)
    assert "[bold]lenet" in text, "a label is no markup"
    assert "\x1b[31m" not in text, "a label cannot send control characters"
    assert "2/3" in text
    assert text.index("a line") < text.index("2/3") < text.index("the end")
    assert text.rstrip().endswith("the end")


def test_a_file_gets_no_progress(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEP], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("a line\nthe end\n", "")
