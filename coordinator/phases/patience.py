"""How long a phase waits for its agents."""

from __future__ import annotations

from coordinator.round.rules import CAP, FIRST, SLACK
from coordinator.round.task_state import HARD

__all__ = ["ENDLESS", "PATIENCE", "limit_phase"]

# a phase without a deadline lasts this many times what its slowest task is predicted to need
PATIENCE = 6.0
# the patience of a simulation: its devices wait for a worker as long as it takes, whatever deadline
# they were chosen by
ENDLESS = 1e9
LEAST = 60.0  # seconds of a phase without a deadline


def limit_phase(deadline: float, patience: float, slowest: float, typical: float) -> float:
    """Seconds after which a phase closes: the configured deadline, or much more than its slowest
    task is predicted to need.

    Predictions start from what devices say, so a phase lasts no longer than the longest lease of an
    agent whose progress is typical can last. deadline: seconds; 0: none. slowest, typical:
    predicted seconds (see `coordinator.round.rules.typical`).
    """
    if patience >= ENDLESS:
        return max(LEAST, patience * slowest)
    return deadline or max(LEAST, min(patience * slowest, HARD * max(FIRST, SLACK * CAP * typical)))
