"""Define the record of a decision about an agent in a round: its submodel, whether it trains, and
why. Imports no PyTorch, so that commands can show it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decision"]


@dataclass(frozen=True)
class Decision:
    """The decision on one agent.

    agent: its name.
    submodel: by name; empty for none.
    asked: whether it trains in this round.
    reason: in words.
    step: predicted seconds of a training step; 0 without a submodel.
    seconds: predicted seconds of the round; 0 without a submodel.
    memory: predicted bytes; 0 without a submodel.
    """

    agent: str
    submodel: str = ""
    asked: bool = False
    reason: str = ""
    step: float = 0.0
    seconds: float = 0.0
    memory: int = 0
