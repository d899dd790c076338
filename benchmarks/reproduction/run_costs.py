"""Count what a run cost: multiply-adds, bytes and seconds, in all and until a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

__all__ = ["COSTS", "read_costs"]

# title -> score
COSTS = {
    "MACE": "mace",
    "multiply-adds": "macs",
    "bytes": "bytes",
    "seconds": "seconds",
    "TMAC": "tmac",
    "rounds to target": "target_rounds",
    "bytes to target": "target_bytes",
    "seconds to target": "target_seconds",
}


def read_costs(path: Path) -> dict[str, float]:
    """Return what a run cost, from the results of its seed. `tmac` and the numbers to the target
    exist only if the run reached `simulate.target`.

    macs, mace, tmac: see "Multiply-adds" in `docs/simulation.md`.
    bytes, seconds: of all rounds; seconds are those of this machine.
    target_rounds, target_bytes, target_seconds: of the rounds until the target was reached.
    """
    found = msgspec.json.decode(path.read_bytes())
    effort, history = found["effort"], found["rounds"]
    costs = sum_rounds(history, "")
    if effort:
        costs |= {"macs": effort["total"], "mace": effort["mace"]}
    if effort and effort["rounds_to_target"] is not None:
        reached = effort["rounds_to_target"]
        costs |= {"tmac": effort["tmac"], "target_rounds": reached}
        costs |= sum_rounds([one for one in history if one["round"] <= reached], "target_")
    return costs


def sum_rounds(history: Sequence[Mapping[str, float]], prefix: str) -> dict[str, float]:
    """Return bytes and seconds of rounds."""
    return {
        f"{prefix}bytes": sum(one["bytes_up"] + one["bytes_down"] for one in history),
        f"{prefix}seconds": round(sum(one["seconds"] for one in history), 3),
    }
