"""Run cells of a table with Flower, on the same data, partition and initial weights.

Flower's package has the strategies FedAvg and FedProx. FedNova, SCAFFOLD, MOON, HeteroFL, FjORD and
DepthFL exist only as projects in its repository, each with versions of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import set_up
from coordinator.settings.config import Config
from federated.errors import EspalierError

__all__ = ["BY_FLOWER", "FLOWER", "find_obstacle", "run_flower"]

FLOWER = "flwr"  # the peer
BY_FLOWER = ", Flower"  # end of the name of a row that Flower runs
ROOT = Path(__file__).parents[2]
METHODS = ("fedavg", "fedprox")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def find_obstacle(config: Config) -> str:
    """Return why Flower cannot run a configuration in the same way; empty if it can."""
    if config.method_name not in METHODS:
        return f"its package has no {config.method_name}"
    settings = config.settings
    single = len(settings["widths"]) == 1 and len(settings["depths"]) < 2
    wanted = {
        "one size of network": single and settings["sharing"] == "coverage",
        "weighting = 'samples'": settings["weighting"] == "samples",
        "norm = 'tracked'": settings["norm"] == "tracked",
        "whole epochs": not settings["steps"],
        "no augmentation": not settings["augment"],
        "no masked classes": not settings["masked"],
    }
    return ", ".join(f"it needs {name}" for name, holds in wanted.items() if not holds)


def run_flower(flags: Sequence[tuple[str, Any]]) -> dict[str, float]:
    """Return the scores of a simulation in Flower's environment. flags: all settings. Raises
    ConfigError without that environment, EspalierError if the process fails.
    """
    done = subprocess.run(  # noqa: S603
        [str(set_up(FLOWER)), "-m", "benchmarks.reproduction.flower_process"],
        input=json.dumps(list(flags)),
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise EspalierError(f"Flower's process failed: {last[0]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    accuracy = found["accuracy"]
    return {"global": accuracy, "worst": accuracy, "mean": accuracy, "loss": found["loss"]}
