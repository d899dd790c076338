"""The outcome of one fault trial."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    injected: faults
    survived: True if the run finished
    lost: requested updates that are in no model
    doubled: updates that are in a model twice
    equal: True if the model equals, bit for bit, that of an undisturbed run with the same updates
    recovery: seconds from each fault until the next accepted update or the end of the run
    seconds: of the run
    why: failure, if any
    """

    scenario: str
    seed: int
    injected: int
    survived: bool
    lost: int
    doubled: int
    equal: bool
    recovery: tuple[float, ...]
    seconds: float
    why: str = ""
