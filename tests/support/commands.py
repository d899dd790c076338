"""Run a command in its own process, and report the modules that it imported and its cost."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

__all__ = ["Cost", "cost_of", "is_quick"]

ROOT = Path(__file__).parents[2]
CODE = """
import atexit, json, resource, sys

def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {"modules": sorted(sys.modules), "cpu": used.ru_utime + used.ru_stime}
    print(json.dumps(found), file=sys.stderr)

atexit.register(tell)
from PACKAGE.cli.main import main
main()
"""


@dataclass(frozen=True)
class Cost:
    """Output and usage of a command.

    out: its standard output.
    modules: all that it imported.
    cpu: seconds of processor time, user and system.
    """

    out: str
    modules: frozenset[str]
    cpu: float


def cost_of(package: str, *arguments: str, folder: Path) -> Cost:
    """Run a command of `coordinator` or `edge_agent` in a folder, which also caches its bytecode,
    so that the second run takes as long as that of an installed package.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder / "pyc"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("PACKAGE", package), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode(done.stderr.splitlines()[-1])
    return Cost(done.stdout, frozenset(told["modules"]), told["cpu"])


def is_quick(package: str, *arguments: str, folder: Path, most: float) -> bool:
    """Check that the median of five runs (the first may also cache the bytecode) takes
    less than `most` seconds of processor time. Three runs on one side of it decide.
    """
    quick = slow = 0
    while max(quick, slow) < 3:
        if cost_of(package, *arguments, folder=folder).cpu < most:
            quick += 1
        else:
            slow += 1
    return quick > slow
