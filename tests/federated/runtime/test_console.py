"""Signals and progress bars of the console."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from federated.runtime.console import handle_sigterm, report_errors
from models.extension_lookup import import_member
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


def test_an_error_of_an_extension_ends_a_command_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_rule.py").write_text("def rule():\n    return [].pop()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as end, report_errors("x", "y"):
        import_member("broken_rule:rule")()
    text = capsys.readouterr().err
    assert end.value.code == 3
    assert "'broken_rule' failed at broken_rule.py, line 2: IndexError" in text
    monkeypatch.setattr("models.extension_lookup.FOREIGN_MODULES", set())  # also without `tests`
    with pytest.raises(IndexError), report_errors("x", "y"):
        [].pop()


@pytest.mark.parametrize("why", ["", "interrupted; resume it"])
def test_ctrl_c_ends_a_command_with_its_text(why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, report_errors("x", "y"):
        raise KeyboardInterrupt(*filter(None, [why]))
    assert (end.value.code, capsys.readouterr().err) == (130, f"{why or 'interrupted'}\n")


def test_an_error_in_another_module_of_an_extension_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_package").mkdir()
    plugin = "def rule():\n    from broken_package.inner import fail\n\n    return fail\n"
    (tmp_path / "broken_package" / "plugin.py").write_text(plugin)
    inner = "def fail():\n    import no_such_module\n"
    (tmp_path / "broken_package" / "inner.py").write_text(inner)
    monkeypatch.syspath_prepend(tmp_path)
    fail = import_member("broken_package.plugin:rule")()  # no frame of the plug-in remains
    with pytest.raises(SystemExit) as end, report_errors("x", "y"):
        fail()
    text = capsys.readouterr().err
    assert end.value.code == 3
    assert (
        "'broken_package.plugin' failed in its module 'broken_package.inner' at inner.py, line 2: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ) in text
