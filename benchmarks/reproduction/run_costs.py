"""Count what a run cost: multiply-adds, bytes, seconds and joules, in all and until a target
accuracy.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["COSTS", "Progress", "read_costs", "read_progress"]

VIEW = "central"  # of the scores on the coordinator's test data


class Progress(msgspec.Struct, frozen=True):
    """How far a run had come after a round with scores.

    macs, bytes: multiply-adds and bytes of all rounds so far.
    scores: `global`, `worst` and `mean` accuracy of the submodels.
    """

    macs: float
    bytes: float
    scores: dict[str, float]


# title -> score
COSTS = {
    "MACE": "mace",
    "multiply-adds": "macs",
    "bytes": "bytes",
    "bytes uploaded": "uploads",
    "seconds": "seconds",
    "joules": "joules",
    "TMAC": "tmac",
    "rounds to target": "target_rounds",
    "bytes to target": "target_bytes",
    "seconds to target": "target_seconds",
    "joules to target": "target_joules",
}


def read_costs(path: Path) -> dict[str, float]:
    """Return what a run cost, from the results of its seed. `tmac` and the numbers to the target
    exist only if the run reached `simulate.target`.

    macs, mace, tmac: see "Multiply-adds" in `docs/simulation.md`.
    bytes, uploads, seconds, joules: of all rounds. Uploads are the bytes that devices sent, seconds
        are those of this machine, joules those of the devices' profiles, if all of them state
        their power (`simulate.watts`).
    target_rounds, target_bytes, ...: of the rounds until the target was reached.
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


def read_progress(path: Path) -> list[Progress]:
    """Return the progress of a run after each round in which its submodels were scored. Each round
    counts as the same number of multiply-adds.

    path: results of its seed; its scores are in the CSV file beside it.
    """
    found = msgspec.json.decode(path.read_bytes())
    history, effort = found["rounds"], found["effort"]
    accuracies: dict[int, dict[str, float]] = {}
    with path.with_suffix(".csv").open(newline="") as file:
        for line in csv.DictReader(file):
            if line["view"] == VIEW and line["accuracy"]:
                known = accuracies.setdefault(int(line["round"]), {})
                known[line["submodel"]] = float(line["accuracy"])
    largest = found["submodels"][-1]["name"] if found["submodels"] else ""
    return [
        Progress(
            effort["total"] / len(history) * number if effort else 0.0,
            sum_rounds([one for one in history if one["round"] <= number], "")["bytes"],
            {
                "worst": min(known.values()),
                "mean": statistics.fmean(known.values()),
                **({"global": known[largest]} if largest in known else {}),
            },
        )
        for number, known in sorted(accuracies.items())
    ]


def sum_rounds(history: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, float]:
    """Return bytes, uploads, seconds and, if they are known of each round, joules."""
    joules = [one["joules"] for one in history if one.get("joules") is not None]
    return {
        f"{prefix}bytes": sum(one["bytes_up"] + one["bytes_down"] for one in history),
        f"{prefix}uploads": sum(one["bytes_up"] for one in history),
        f"{prefix}seconds": round(sum(one["seconds"] for one in history), 3),
        **({f"{prefix}joules": sum(joules)} if len(joules) == len(history) else {}),
    }
