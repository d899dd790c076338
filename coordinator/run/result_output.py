"""Print the result of a run, and describe it as plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.observe.event_readers.terminal_output import render_agents, render_scores
from coordinator.observe.fleet_scores import list_untrained, select_overall
from coordinator.run.rounds import Result
from coordinator.settings.config import Config
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count, human_bytes
from federated.safe_terminal_table import render_table
from models.cost import cost

__all__ = ["describe_result", "print_result"]

WIDTH = 110  # columns of a table in a log file


def print_result(result: Result, *, live: bool, say: Say) -> None:
    """Print the closing tables."""
    rows = [
        (agent, s.unowned.name, s.plain.name, cost(s).parameters, cost(s).macs)
        for agent, s in sorted(result.history.assigned.items())
    ]
    tables = (render_agents(rows, result.scores), render_scores(result.scores))
    width = None if live else WIDTH
    say("\n".join(render_table(table, width, styled=False) for table in tables))
    if names := list_untrained(result.scores):
        say(
            f"not trained: {', '.join(names)}; no device trained "
            f"{'it' if len(names) == 1 else 'them'} as a whole, only parts inside other "
            "submodels"
        )
    say(
        f"{format_count(result.rounds, 'round')}, {result.seconds:.1f} s, "
        f"{human_bytes(result.bytes_up)} up, {human_bytes(result.bytes_down)} down"
    )
    if result.epsilon:
        say(
            f"epsilon {result.epsilon:.4g} at the run's delta, for the device with the largest "
            "privacy loss"
        )


def describe_result(result: Result, config: Config) -> dict[str, Any]:
    """Return the result as plain values.

    accuracy: of the largest evaluated submodel.
    worst_accuracy: of the worst evaluated submodel, trained or not.
    untrained: the evaluated submodels that no update trained.
    """
    scores = select_overall(result.scores)
    return {
        "run": config.name,
        "method": config.method_name,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 3),
        "accuracy": scores[-1].accuracy if scores else None,
        "worst_accuracy": min((s.accuracy for s in scores), default=None),
        "untrained": list_untrained(result.scores),
        "scores": [msgspec.to_builtins(s) for s in result.scores],
        "agents": [
            {
                "id": agent,
                "submodel": s.unowned.name,
                "parameters": cost(s).parameters,
                "macs": cost(s).macs,
            }
            for agent, s in sorted(result.history.assigned.items())
        ],
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "target_reached": result.reached,
        **(
            {"epsilon": result.epsilon, "delta": config.private.delta}
            if config.private.noise
            else {}
        ),
    }
