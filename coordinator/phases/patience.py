"""The time limit of a phase without a configured deadline."""

from __future__ import annotations

from coordinator.round.phase_rules import FIRST_LEASE, MEDIAN_CAP, SLACK
from coordinator.round.task_state import MAX_LEASES

__all__ = ["ENDLESS", "MIN_LIMIT", "PATIENCE", "limit_phase"]

PATIENCE = 6.0  # time limit of a phase, in predicted seconds of its slowest task
# the patience of a simulation: its devices wait for a worker as long as it takes, even with a
# deadline, which only chooses agents
ENDLESS = 1e9
MIN_LIMIT = 60.0  # seconds


def limit_phase(deadline: float, patience: float, slowest: float, typical: float) -> float:
    """Return the seconds after which a phase closes: the configured deadline, or `patience` times
    the predicted seconds of its slowest task.

    Predictions start from claims of devices, so a phase lasts no longer than the longest lease of
    an agent with typical progress.

    deadline: seconds; 0: none.
    slowest, typical: predicted seconds (see `coordinator.round.phase_rules.typical_seconds`).
    """
    if patience >= ENDLESS:
        return max(MIN_LIMIT, patience * slowest)
    longest = MAX_LEASES * max(FIRST_LEASE, SLACK * MEDIAN_CAP * typical)
    return deadline or max(MIN_LIMIT, min(patience * slowest, longest))
