"""A whole federation in one process: a coordinator and training agents over a broker in memory."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coordinator.fleet.message_loop import MessageLoop
from coordinator.http_transfers.transfer_urls import TransferUrls
from coordinator.observe.event_readers.terminal_output import LinePrinter
from coordinator.observe.events import Publish, publish_to
from coordinator.phases.run_context import PATIENCE
from coordinator.run import runner
from coordinator.run.rounds import Result
from coordinator.run.run_preparation import prepare
from coordinator.settings.config import Config, load
from edge_agent.join.participation import find_run
from federated.data import loading
from federated.data.dataset import Dataset
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.task_execution import carry_out
from federated.device.task_runner_interface import Outcome
from federated.device.trainers.catalogue import open_trainer
from federated.device.trainers.trainer import Trainer, uses_graphs
from federated.task import Profile, Task, Timing, Update
from federated.training.training_inputs import Execution
from federated.wire import envelope, messages, topics
from federated.wire.codecs.catalogue import CODECS, find_loaded_codec
from federated.wire.codecs.codec import decode_update, encode_update
from federated.wire.codecs.weights import decode_weights, list_weights_codecs
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.links.memory import MemoryBroker, MemoryLink

RUN = "test"
PYTORCH = open_trainer("pytorch")


class Here:
    """A task runner that runs its task immediately in the calling thread. change: modifies the
    update; stop: ends the task early; trainer: library to train with.
    """

    def __init__(
        self,
        data: Dataset,
        change: Callable[[Update], Update] = lambda update: update,
        stop: Callable[[], bool] = lambda: False,
        trainer: Trainer = PYTORCH,
    ) -> None:
        self.trainer = trainer
        self.data, self.change, self.stop, self.progress = data, change, stop, (0, 0)
        self.outcome: Outcome | None = None

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        try:
            execution = Execution(stop=self.stop)
            loss = carry_out(self.trainer, task, weights, result, self.data, execution)
            codec = find_loaded_codec(task.codec)
            received = decode_weights(weights.read_bytes(), task.weights_codec, task.decoded_size)
            update = decode_update(result.read_bytes(), codec, sys.maxsize, received)
            result.write_bytes(b"".join(encode_update(self.change(update), codec, received)))
        except Exception as error:  # any error in training is a failure of the task
            logging.getLogger(__name__).info("failed", exc_info=error)
            self.outcome = Outcome(task, None, str(error) or repr(error))
            return
        self.outcome = Outcome(task, result, loss=loss)

    def poll(self) -> Outcome | None:
        outcome, self.outcome = self.outcome, None
        return outcome

    def cancel(self) -> None:
        self.outcome = None


@dataclass
class Member:
    """An agent in a thread.

    speed: seconds per step that its profile claims.
    memory: bytes that its profile claims.
    uplink: bytes per second that its profile claims.
    pause: returns the reason why it does not work.
    codecs: codecs that it claims to have.
    weights_codecs: those with which it claims to decode weights.
    trainer: library to train with.
    """

    name: str
    data: Dataset
    speed: float = 0.01
    memory: int = 10**9
    uplink: float = 1e9
    change: Callable[[Update], Update] = lambda update: update
    pause: Callable[[], str] = lambda: ""
    codecs: tuple[str, ...] = tuple(CODECS)
    weights_codecs: tuple[str, ...] = field(default_factory=list_weights_codecs)
    trainer: Trainer = PYTORCH
    participant: AgentEventLoop | None = None
    error: BaseException | None = None
    # its coordinator is gone, and so may the test's process be at any moment
    abandoned: bool = False

    def measure(self, run: messages.Run) -> Profile:
        timed = () if uses_graphs(self.trainer) else run.calibration
        timings = tuple(Timing(s, run.batch, self.speed) for s in timed)
        facts = {
            "host": "h",
            "system": "s",
            "cpus": 1.0,
            "runtime": self.trainer.runtime,
            "survey": self.trainer.survey(run, self.data, self.memory),
            "capabilities": tuple(sorted(self.trainer.capabilities)),
        }
        return Profile(
            agent=self.name,
            memory=self.memory,
            uplink=self.uplink,
            chunk=262_144,
            data=self.data.card(),
            timings=timings,
            codecs=self.codecs,
            weights_codecs=self.weights_codecs,
            protocol=envelope.PROTOCOL,
            **facts,
        )

    def live(self, link: Link, folder: Path) -> None:
        try:
            torch.set_num_threads(1)
            run = find_run(link, RUN, 30)
            runner = Here(self.data, self.change, lambda: self.abandoned, self.trainer)
            equipment = Equipment(self.measure, runner, Spool(folder / self.name), self.pause)
            self.participant = AgentEventLoop(link, run, self.name, "s1", equipment)
            self.participant.join()
            while self.participant.turn(0.01):
                pass
            self.participant.leave()
        except BaseException as error:
            self.error = error
        finally:
            link.close()


def digits(index: int, of: int, partition: str = "dirichlet:1.0", seed: int = 0) -> Dataset:
    return loading.load_device(
        "digits", name=f"a{index}", shard=f"{index}/{of}", partition=partition, seed=seed
    )


def link_of(broker: MemoryBroker | str, member: Member) -> Link:
    """Open an agent's link: in memory, or over MQTT to a broker's address."""
    will = (
        topics.status(RUN, member.name),
        envelope.encode(messages.Status(member.name, "s1", False)),
    )
    return (
        open_link(broker, member.name, will)
        if isinstance(broker, str)
        else MemoryLink(broker, member.name, will)
    )


def make_config(settings: Mapping[str, Any], agents: int = 1) -> Config:
    """Return the configuration of a run of one round that waits for this number of agents. settings
    override it, by key.
    """
    given = {
        "name": RUN,
        "seed": 0,
        "rounds": 1,
        "fleet.min_agents": agents,
        "fleet.wait": 30.0,
        **settings,
    }
    return load(None, {}, list(given.items()))


@contextmanager
def run_members(
    members: Sequence[Member], broker: MemoryBroker | str, folder: Path
) -> Iterator[None]:
    """Run agents in threads. After the run, wait for them for a minute at most."""
    torch.set_num_threads(1)
    threads = [
        threading.Thread(target=m.live, args=(link_of(broker, m), folder), daemon=True)
        for m in members
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException:
        for member in members:
            member.abandoned = True
        raise
    for thread in threads:
        thread.join(60)


@dataclass
class Federation:
    """Result of a finished run. lines: printed lines; fleet: the coordinator's view at the end."""

    result: Result
    lines: list[str]
    fleet: MessageLoop
    members: dict[str, Member] = field(default_factory=dict)


def federate(
    folder: Path,
    members: list[Member],
    settings: Mapping[str, Any] | None = None,
    *,
    broker: MemoryBroker | str | None = None,
    resume: bool = False,
    watch: Callable[[MessageLoop], None] = lambda fleet: None,
    patience: float = PATIENCE,
    read: Publish = lambda event: None,
    urls: TransferUrls | None = None,
) -> Federation:
    """Run members and a coordinator to the end of the run; settings are keys of the configuration.

    broker: one in memory, or an address. read: is given the events of the run. urls: of transfers
    over HTTP.
    """
    broker = broker or MemoryBroker()
    lines: list[str] = []
    fleets: list[MessageLoop] = []
    prepared = prepare(make_config(settings or {}, len(members)), folder / "runs", resume=resume)
    link = (
        open_link(broker, "coordinator")
        if isinstance(broker, str)
        else MemoryLink(broker, "coordinator")
    )
    with run_members(members, broker, folder):
        try:
            result = runner.run(
                prepared,
                link,
                publish_to(LinePrinter(lines.append).read, read),
                lambda fleet: (fleets.append(fleet), watch(fleet))[0],
                runner.RunOptions(patience=patience, urls=urls),
            )
        finally:
            prepared.close()
            link.close()
    return Federation(result, lines, fleets[0], {m.name: m for m in members})
