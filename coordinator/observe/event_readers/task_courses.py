"""Follow each task of the current phase from stage to stage, for the timeline in `now.json`."""

from __future__ import annotations

import math

from coordinator.observe.now_json import TASKS, TaskCourse
from coordinator.round.round_state import Round, list_phase_tasks, list_tasks
from coordinator.round.task_state import TaskState
from federated.task import Key

__all__ = ["TaskCourses", "classify_task"]

WORKING = ("train", "calibrate", "evaluate", "send")  # states of an agent that are stages


def classify_task(task: TaskState) -> str:
    """Return a task's state, one of TASKS."""
    if task.outcome:
        word = task.outcome.partition(":")[0]
        return word if word in TASKS else "other"
    if task.came:
        return "received"
    return "lost" if task.lost >= 0 else "open"


def find_stage(task: TaskState) -> str:
    """Return the stage of a task: see `TaskCourse`."""
    state = classify_task(task)
    if state != "open":
        return "wait" if state == "received" else state
    if task.sent >= task.moved:
        return "send"
    return task.shown[0] if task.shown[0] in WORKING else "fetch"


class TaskCourses:
    """The stages of each task of the current phase, with the times at which they began, in the
    coordinator's seconds.
    """

    def __init__(self) -> None:
        self._stages = dict[tuple[Key, int], list[tuple[str, float]]]()

    def note(self, r: Round, agent: str) -> None:
        """Note the stages of an agent's tasks, which may have changed just now."""
        for task in list_tasks(r, agent):
            self._note(task, r.now)

    def describe(self, r: Round, most: int) -> tuple[TaskCourse, ...]:
        """Return the tasks of the current phase, or of the last one, in the order of folding; at
        most this many.
        """
        tasks = list_phase_tasks(r)
        for task in tasks:
            self._note(task, r.now)
        self._stages = {name: self._stages[name] for name in map(identify, tasks)}
        began = r.phase.began if r.phase is not None else 0.0
        return tuple(
            TaskCourse(
                task.task.agent,
                task.task.submodel.unowned.name,
                tuple(
                    (stage, round(time - began, 3)) for stage, time in self._stages[identify(task)]
                ),
                round(task.due - began, 3) if task.open and math.isfinite(task.due) else None,
                task.late,
            )
            for task in tasks[:most]
        )

    def _note(self, task: TaskState, now: float) -> None:
        stages = self._stages.setdefault(identify(task), [("fetch", task.asked)])
        if (stage := find_stage(task)) != stages[-1][0]:
            stages.append((stage, now))


def identify(task: TaskState) -> tuple[Key, int]:
    return task.key, task.task.attempt
