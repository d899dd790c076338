"""Scenarios of the faults benchmark with real agents, processes of `edge-agent join` that train.
Their training is repeated here to check that the results are equal bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from benchmarks.faults.parts.broker_kinds import CLUSTER
from benchmarks.faults.parts.trial_parts import Process, mount_small_disk
from benchmarks.faults.trial import Trial, break_later, fill_later
from benchmarks.faults.trial_settings import RUN
from coordinator.simulate.demo_fleet import python_command
from federated.data import loading
from federated.data.dataset import Dataset
from federated.device.task_execution import perform
from federated.device.trainers.catalogue import open_trainer
from federated.task import Task, Update

__all__ = [
    "NAMES",
    "choose_agents",
    "fill_agent_disk",
    "kill_agent",
    "start_agent",
    "use_real_agents",
]

NAMES = ("a0", "a1")
SETTINGS: dict[str, object] = {
    "train.steps": 80,  # so that a run lasts longer than the 1.5 s within which a fault happens
    "train.epochs": 100,
    "train.batch": 16,
    "assign.submodels": {"*": "w1-d1.1.1"},
}
# nodes of a cluster do not share retained messages
HTTP: dict[str, object] = {"broker.profile": "rabbitmq", "http.listen": "127.0.0.1:0"}
DISK = 16 << 20  # bytes of the spool's file system


@functools.cache
def load_data(name: str) -> Dataset:
    """Return the data of an agent."""
    return loading.load_device(
        "digits", name=name, shard=f"{NAMES.index(name)}/{len(NAMES)}", partition="iid", seed=0
    )


def train(task: Task, weights: Mapping[str, NDArray[Any]]) -> Update:
    return perform(open_trainer("pytorch"), task, weights, load_data(task.agent))[0]


def use_real_agents(
    trial: Trial, launcher: Sequence[str] = ("edge_agent.cli",)
) -> dict[str, Process]:
    """Make the trial start real agents. Return them; they exist once it has begun.

    launcher: module and arguments that start an agent
    """
    trial.names, trial.real = NAMES, train
    trial.settings = {**SETTINGS, **(HTTP if trial.kind == CLUSTER else {})}
    agents: dict[str, Process] = {}

    def begin() -> None:
        for name in NAMES:
            agents[name] = Process(name, trial.folder, forked=trial.forked)
            trial.stack.callback(agents[name].kill)
            start_agent(trial, agents[name], launcher)

    trial.after_begin.append(begin)
    return agents


def choose_agents(trial: Trial) -> None:
    """Make the trial start real agents if only they can work with its broker."""
    if trial.kind == CLUSTER:
        use_real_agents(trial)


def start_agent(
    trial: Trial, agent: Process, launcher: Sequence[str] = ("edge_agent.cli",)
) -> None:
    shard = [
        "--data",
        "digits",
        "--shard",
        f"{NAMES.index(agent.name)}/{len(NAMES)}",
        "--partition",
        "iid",
    ]
    where = [
        "--broker",
        f"127.0.0.1:{trial.broker.agent_port}",
        "--run",
        RUN,
        "--name",
        agent.name,
        "--spool",
        str(trial.folder / "spool" / agent.name),
    ]
    # one thread, as where the training is repeated: with more, sums are rounded otherwise
    agent.start(
        python_command(*launcher, "join", *where, "--wait", "120", *shard, "--limit-cpus", "1")
    )


def kill_agent(trial: Trial) -> None:
    """Kill an agent (kill -9) while it downloads, trains or sends, and restart it at once."""
    agents, victim = use_real_agents(trial), trial.rng.choice(NAMES)

    def cause_fault() -> None:
        agents[victim].kill()
        trial.record_fault()
        start_agent(trial, agents[victim])

    break_later(trial, cause_fault, trial.rng.uniform(0, 1.5))


def fill_agent_disk(trial: Trial) -> None:
    """Fill the disk of an agent's spool for two seconds. A task that the agent reports as failed is
    not a lost update.
    """
    use_real_agents(trial)
    space = trial.stack.enter_context(
        mount_small_disk(trial.folder / "spool" / trial.rng.choice(NAMES), DISK)
    )
    fill_later(trial, space, 1.0)
