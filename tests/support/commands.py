"""Run a command in its own process, and report the modules that it imported and its cost."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

__all__ = ["NOISE", "SLACK", "Cost", "compare_cost", "cost_of"]

ROOT = Path(__file__).parents[2]
MEASURED = """
import atexit, json, resource, sys

def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/status") as lines:  # ru_maxrss would be that of the parent, if larger
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    found = {
        "modules": sorted(sys.modules),
        "cpu": used.ru_utime + used.ru_stime,
        "memory": peak / 1024,
    }
    print(json.dumps(found), file=sys.stderr)

atexit.register(tell)
"""
COMMAND = """
from PACKAGE.cli.main import main
main()
"""
BARE = "import click, msgspec"  # what every command needs
NOISE = 1.5  # factor by which a command may exceed its usual time, so that twice the time fails
SLACK = 10.0  # MiB in addition to the usual memory: less than numpy takes


@dataclass(frozen=True)
class Cost:
    """Output and usage of a command.

    out: its standard output.
    modules: all that it imported.
    cpu: seconds of processor time, user and system.
    memory: peak in MiB.
    """

    out: str
    modules: frozenset[str]
    cpu: float
    memory: float


def cost_of(package: str, *arguments: str, folder: Path) -> Cost:
    """Run a command of `coordinator` or `edge_agent` in a folder, which also caches its bytecode,
    so that the second run takes as long as that of an installed package.
    """
    return measure(COMMAND.replace("PACKAGE", package), *arguments, folder=folder)


def measure(code: str, *arguments: str, folder: Path) -> Cost:
    """Run Python code in its own process, with the arguments of a command."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(folder / "pyc"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED + code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode(done.stderr.splitlines()[-1])
    return Cost(done.stdout, frozenset(told["modules"]), told["cpu"], told["memory"])


def compare_cost(
    package: str, *arguments: str, folder: Path
) -> tuple[float, float, frozenset[str]]:
    """Return a command's processor time as a multiple of that of `import click, msgspec`, its
    additional memory in MiB, and the modules that it imported. Both run in turns, so that a slow
    machine slows both; the least of three runs counts, since other processes only add to the time,
    and the first writes bytecode.
    """
    turns = [
        (cost_of(package, *arguments, folder=folder), measure(BARE, folder=folder))
        for _ in range(3)
    ]
    ours, bare = zip(*turns, strict=True)
    return (
        min(cost.cpu for cost in ours) / min(cost.cpu for cost in bare),
        min(cost.memory for cost in ours) - min(cost.memory for cost in bare),
        ours[0].modules,
    )
