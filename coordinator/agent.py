"""One agent as the coordinator sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from federated.task import Profile

__all__ = ["Agent"]


@dataclass
class Agent:
    """Who it is and how it stands.

    state, loss: as its last heartbeat said. refused: why it cannot take part; excluded: why this run does not select it; paused: why it takes no
    task at present. All are empty where it is free.
    """

    name: str
    session: str = ""
    online: bool = False
    seen: float = 0.0
    profile: Profile | None = None
    state: str = "idle"
    submodel: str = ""
    loss: float = math.nan
    refused: str = ""
    excluded: str = ""
    paused: str = ""

    @property
    def ready(self) -> bool:
        return not self.absence

    @property
    def absence(self) -> str:
        """Why it cannot be asked at present, in words; empty where it can."""
        if self.refused:
            return f"refused: {self.refused}"
        if not self.online:
            return "not here"
        if self.profile is None:
            return "has not measured itself yet"
        return self.excluded or (f"paused: {self.paused}" if self.paused else "")
