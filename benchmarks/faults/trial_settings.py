"""Settings of the run that a fault trial breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.scale import make_flags

__all__ = ["AGENTS", "LIMIT", "ROUNDS", "RUN", "coordinator_arguments"]

RUN = "faults"
ROUNDS = 3
AGENTS = ("a0", "a1", "a2", "a3")
LIMIT = 150.0  # seconds until a run counts as not recovered
CHUNK = 16 << 10  # bytes; an update of 0.3 MB has 20 chunks
SETTINGS: dict[str, object] = {
    "method.name": "fedavg",
    "method.widths": [0.5, 1.0],
    "method.depths": [1],
    "model.name": "preresnet",
    "data.name": "digits",
    "assign.submodels": {"a0": "w0.5-d1.1.1", "*": "w1-d1.1.1"},
    "train.steps": 1,
    "evaluate.every": 1000,
    "evaluate.between": False,
    "evaluate.devices": False,
    "evaluate.calibrate": "coordinator",
    "evaluate.examples": 8,
    "fleet.wait": LIMIT,
    "fleet.deadline": LIMIT,
    "wire.chunk": CHUNK,
    "journal.every": 2,
}


def coordinator_arguments(
    where: Sequence[str], runs: Path, settings: dict[str, object], *, resume: bool
) -> list[str]:
    """Return the arguments of a coordinator. where: those that select its broker."""
    return [
        "start",
        "--name",
        RUN,
        *where,
        "--runs",
        str(runs),
        *make_flags({**SETTINGS, **settings}),
        *(["--resume"] if resume else []),
    ]
