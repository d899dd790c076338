"""Run Python without the packages of extras, as on a device that trains with ONNX Runtime alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.processes import ROOT

__all__ = ["HIDDEN", "hide_packages", "write_python"]

HIDDEN = ("torch", "torchvision", "onnx", "onnxscript", "safetensors", "immutables")
MISSING = """
raise ModuleNotFoundError(f"No module named '{__name__}'", name=__name__)
"""


def hide_packages(folder: Path) -> str:
    """Return a PYTHONPATH with which a process can import this project, but not these packages."""
    hidden = folder / "hidden"
    hidden.mkdir()
    for name in HIDDEN:
        (hidden / f"{name}.py").write_text(MISSING)
    return os.pathsep.join([str(hidden), str(ROOT)])


def write_python(folder: Path) -> Path:
    """Write a program that is this Python without these packages."""
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={hide_packages(folder)} exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return program
