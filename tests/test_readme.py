"""The README is short, and its Python code runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.optional_torchvision import import_torchvision

README = Path(__file__).parents[1] / "README.md"


def find_section() -> str:
    return README.read_text().split("## From Python\n")[1].split("\n## ")[0]


def test_the_page_and_its_section_are_short() -> None:
    assert len(README.read_text().splitlines()) <= 150
    assert len(find_section().rstrip().splitlines()) < 25


@pytest.mark.slow
def test_the_code_for_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_torchvision("models")  # also a torchvision whose operators do not fit this torch
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", find_section(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [f"# {lines[0]}" in code, *(line.split()[0] for line in lines[1:])] == [True, "1", "2"]
    assert (tmp_path / "release" / "w0.5-d2.2.2.onnx").is_file()
    assert (tmp_path / "runs" / "mine" / "run.sqlite").is_file()
