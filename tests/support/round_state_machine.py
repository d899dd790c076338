"""The state machine of a round without a driver: tests apply events and read the actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.round_state import Round, Rules, list_phase_tasks, list_tasks
from coordinator.round.round_step import step
from coordinator.round.task_state import Planned, TaskState
from federated.task import Key, Recipe, Task
from models.menu import menu
from models.named_network import network
from tests.support.scripted_agent import PROFILE

__all__ = ["OTHER", "SUBMODEL", "Machine", "task"]

OTHER, SUBMODEL = menu(network("mlp-small", (1, 8, 8), 10), (0.5, 1.0), (2,))


def task(agent: str, round: int = 1, work: str = "train") -> Task:
    return Task("r", round, 1, agent, work, SUBMODEL, "r0", "0" * 64, 1000, Recipe(), 60.0)  # type: ignore[arg-type]


class Machine:
    """A round, and all actions that `step` returned for its events. Each fold is answered
    immediately with its event, as a driver does.
    """

    def __init__(self, rules: Rules = Rules(), agents: Sequence[str] = "") -> None:  # noqa: B008  # frozen
        self.round, self.now, self.actions, self.order = Round(rules), 0.0, list[do.Action](), ""
        for name in agents:
            self.see(on.AgentConnected(0.0, name, "s"))
            self.see(on.ProfileCame(0.0, name, PROFILE))

    def see(self, event: on.RoundEvent) -> list[do.Action]:
        """Apply an event. Return its actions, including those of the folds that follow."""
        self.now = max(self.now, event.now)
        self.round, out = step(self.round, event)
        found = list(out)
        for action in out:
            if isinstance(action, do.Fold):
                self.order += action.key.agent
                found += self.see(on.UpdateFolded(self.now, action.key))
        self.actions += out
        return found

    def begin(self, agents: Sequence[str], seconds: float = 0.0, **settings: object) -> Machine:
        """Begin a training phase. Return this machine."""
        planned = tuple(Planned(task(name), seconds) for name in agents)
        began = on.PhaseBegan(self.now, "train", 1, planned, 600.0, len(planned))
        self.see(replace(began, **settings))
        return self

    def arrive(self, agents: str, round: int = 1) -> None:
        for name in agents:
            self.see(on.UpdateCame(self.now, task(name, round).key, 1, "t", "d" * 64, 0.5))

    def leave(self, agent: str) -> list[do.Action]:
        return self.see(on.AgentLeft(self.now, agent, "s", "went away"))

    def beat(self, agent: str, step: int = 0, state: str = "train") -> list[do.Action]:
        return self.see(on.AgentBeat(self.now, agent, "s", state, math.nan, step))

    def wait(self, seconds: float, waiting: frozenset[Key] = frozenset()) -> list[do.Action]:
        known = self.round.waiting
        return self.see(on.Ticked(self.now + seconds, waiting - known, known - waiting))

    def stay(self, agent: str, seconds: float) -> list[do.Action]:
        """Let time pass while an agent sends equal heartbeats. Return the actions."""
        found, until = list[do.Action](), self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 15.0)
            found += self.beat(agent) + self.wait(0.0)
        return found

    def of(self, agent: str) -> TaskState:
        return next(state for state in list_phase_tasks(self.round) if state.task.agent == agent)

    def of_task(self, agent: str) -> TaskState:
        """Return the agent's last task, of any phase."""
        return list_tasks(self.round, agent)[-1]

    @property
    def closing(self) -> str:
        return (
            self.round.phase.closing
            if self.round.phase is not None and self.round.phase.closed
            else ""
        )
