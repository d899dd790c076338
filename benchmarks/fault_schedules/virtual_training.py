"""Replace training in virtual time: compute a repeatable result from agent, round and weights."""

from __future__ import annotations

import errno
import hashlib
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fault_schedules.lying_agent import falsify_update
from benchmarks.fault_schedules.virtual_clock import World
from federated.data.dataset import Dataset
from federated.device.task_runner_interface import Outcome
from federated.device.trainers.catalogue import open_trainer
from federated.errors import Refused
from federated.task import Card, Task, Update
from federated.wire import tensors
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.codecs.codec import encode_update
from federated.wire.messages import Run
from models.submodel_building import statistics

__all__ = ["DATA", "PYTORCH", "VirtualRunner", "learn", "survey_once"]

DATA = Card("digits", (1, 4, 4), "uint8", 4, 100, 20, (5.0,), (6.0,))
PYTORCH = open_trainer("pytorch")  # only for surveys
NEARER = np.float32(0.1)  # fraction of the way to the agent's own point per training


def draw_value(task: Task) -> float:
    """Return a number from 0 to 1, by agent and round."""
    digest = hashlib.sha256(f"{task.agent}/{task.round}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def learn(task: Task, weights: Mapping[str, NDArray[Any]]) -> Update:
    """Return the result of a task."""
    value = draw_value(task)
    update = Update(
        task.run,
        task.round,
        task.attempt,
        task.agent,
        task.work,
        task.submodel,
        task.version,
        DATA.examples,
        0,
        {},
        {},
    )
    if task.work == "train":
        tracked = task.recipe.norm == "tracked"
        own = {
            name: found
            for name, found in weights.items()
            if "/" not in name and (tracked or "running_" not in name)
        }
        made = {
            name: np.ascontiguousarray(found + NEARER * (np.float32(value - 0.5) - found))
            for name, found in own.items()
        }
        return replace(
            update,
            steps=1,
            tensors=made,
            notes={"loss": 1.0 + value, **({"labels": [0, 1]} if task.recipe.labels else {})},
        )
    if task.work == "calibrate":
        made = {
            name: np.full(shape, value + 0.5, np.float32)
            for name, shape in statistics(task.submodel).items()
        }
        return replace(update, tensors=made, notes={"batches": 1})
    held = DATA.held_out
    return replace(
        update,
        samples=held,
        notes={
            "tallies": {
                "all": {
                    "count": [held],
                    "loss": [held * value],
                    "right": [math.floor(held * value)],
                }
            }
        },
    )


EXAMPLES = np.arange(64 * 16, dtype=np.uint8).reshape(64, 1, 4, 4) % 11
OWN = Dataset("survey", EXAMPLES, np.arange(64) % 4, EXAMPLES, np.arange(64) % 4, 4)
SURVEYS = dict[tuple[str, tuple[str, ...]], dict[str, Any]]()


def survey_once(run: Run) -> dict[str, Any]:
    """Return the survey of these examples, made once per method and menu."""
    key = run.method, tuple(submodel.name for submodel in run.menu)
    if key not in SURVEYS:
        SURVEYS[key] = PYTORCH.survey(run, OWN, 10**9)
    return SURVEYS[key]


@dataclass
class VirtualRunner:
    """Task runner of one agent.

    pace: approximate seconds of a task
    character: `mute` never answers, a `liar` returns false updates
    wake: called when a task is done
    offered: names of transfers that the agent has offered
    """

    world: World
    pace: float
    character: str = ""
    wake: Callable[[], None] = lambda: None
    offered: Container[str] = ()
    progress: tuple[int, int] = (0, 0)
    present: tuple[Task, Path, Path] | None = None
    due: float = 0.0

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        if task.work == "train":
            self.world.trainings += 1
            self.world.repeated += [task.agent] if task.transfer in self.offered else []
        seconds = self.pace * self.world.random.uniform(0.5, 1.5)
        self.present, self.due = (task, weights, result), self.world.now + seconds
        self.world.after(seconds, self.wake)

    def poll(self) -> Outcome | None:
        if self.character == "mute":
            self.progress = int(self.world.now), 10**9  # it claims to work
            return None
        if self.present is None or self.world.now < self.due:
            return None
        (task, weights, result), self.present = self.present, None
        try:
            received = tensors.decode(weights.read_bytes())[1]
            made = learn(task, received)
            if self.character == "liar":
                made = falsify_update(made, self.world.random)
            encoded = encode_update(made, find_loaded_codec(task.codec), received)
            result.write_bytes(b"".join(encoded))
        except Refused as error:  # a lie that the codec cannot represent
            return Outcome(task, None, str(error))
        except OSError as error:
            return Outcome(task, None, f"{error}", full=error.errno == errno.ENOSPC)
        return Outcome(task, result, loss=float(made.notes.get("loss", math.nan)))

    def cancel(self) -> None:
        self.present = None
