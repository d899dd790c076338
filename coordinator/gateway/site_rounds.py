"""Carry out the tasks of a gateway: hand each to all devices of the site, and combine their
updates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.fleet.message_loop import MessageLoop
from coordinator.gateway.site_sum import SiteSum
from coordinator.round import round_events as on
from coordinator.round.leases import SLACK
from coordinator.round.round_state import Agent
from coordinator.round.task_state import MAX_LEASES, Planned
from coordinator.trust.configured_defences import Defences
from federated.device.agent_run_files import GRAPH
from federated.device.task_runner_interface import Outcome
from federated.errors import EspalierError, Refused, describe_os_error
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count
from federated.system.file_mapping import map_file
from federated.task import Profile, Task
from federated.wire import messages, topics
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.codecs.codec import encode_update
from federated.wire.codecs.raw import RAW
from models.families.catalogue import has_family

__all__ = ["SiteRounds"]

log = logging.getLogger(__name__)

# share of the time for a task that its devices get; the rest is for the gateway's own upload
SHARE = 0.9
STEPS = 1 << 62  # more than a message can state
NO_DEVICES = "no device of this site is connected and able to do it"
# module:function, for example, which a check of an update would import
NO_FAMILY = "this gateway lacks the network's code"
NOTHING = "no device of this site delivered: see the gateway's log"


class SiteRounds:
    """The task runner of a gateway (see `federated.device.task_runner_interface.TaskRunner`): the
    work itself is a phase of the site's devices. `MessageLoop.turn` moves it on, and `poll` notices
    that it is over.

    The devices get the same attempt as the gateway. So a device that has finished offers its update
    again to a gateway that restarted, and does not train twice.

    progress: steps that the devices took in the current task, as they report them, and 0.
    """

    def __init__(
        self,
        fleet: MessageLoop,
        defences: Defences,
        list_devices: Callable[[], Sequence[Profile]],
        say: Say,
    ) -> None:
        """list_devices: returns the profiles of the devices that may get tasks."""
        self.progress = (0, 0)
        self._fleet, self._defences, self._say = fleet, defences, say
        self._list_devices = list_devices
        self._current: tuple[Task, SiteSum, Path] | None = None
        self._outcome: Outcome | None = None

    # ---- as a task runner ------------------------------------------------------------------------

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        """Publish the weights at the site's broker, once for all devices, and send the tasks."""
        self._outcome, self.progress = None, (0, 0)
        if not has_family(task.submodel.network.family):
            self._outcome = Outcome(task, None, NO_FAMILY)
            return
        cards = {one.agent: one.data for one in self._list_devices()}
        devices = [
            one for one in self._fleet.list_ready() if one.name in cards and is_able(one, task)
        ]
        if not devices:
            self._outcome = Outcome(task, None, NO_DEVICES, full=True)
            return
        try:
            slot = self._publish(task, weights)
            collector = SiteSum(task, cards, weights, self._defences)
            if task.work == "train":
                self._defences.begin(task.round, (task.submodel,))
        except (EspalierError, OSError, ValueError) as error:
            self._outcome = make_failure(task, error)
            return
        self._current = task, collector, result
        plain = replace(task, since=0, lease=0.0, slot=slot, codec=RAW.name)
        seconds = task.lease / SLACK
        planned = [Planned(replace(plain, agent=one.name), seconds) for one in devices]
        limit = SHARE * min(task.deadline, MAX_LEASES * task.lease or math.inf)
        now = self._fleet.clock()
        began = on.PhaseBegan(now, task.work, task.round, tuple(planned), limit, len(planned))
        self._fleet.driver.begin(began, collector)
        work = f"{task.work} {task.submodel.name}"
        self._say(f"round {task.round}: {format_count(len(devices), 'device')} to {work}")

    def poll(self) -> Outcome | None:
        """Return the outcome of the task once all devices delivered or failed."""
        if self._current is not None:
            shown = [one.shown[1] + one.came for one in self._fleet.tasks]
            # only a change counts, and no device may claim more than a message can hold
            self.progress = (sum(shown) % STEPS, 0)
            if self._fleet.driver.phase.closed:
                self._finish(*self._current)
        outcome, self._outcome = self._outcome, None
        return outcome

    def cancel(self) -> None:
        """Cancel the task at all devices."""
        self._outcome = None
        if self._current is None:
            return
        task, self._current = self._current[0], None
        fleet = self._fleet
        keys = tuple(state.key for state in fleet.tasks if not state.outcome)
        for key in keys:
            reason = "the coordinator gave up the task"
            fleet.endpoint.tell(key.agent, messages.Abort(task.round, task.attempt, reason))
        fleet.driver.handle(on.TasksDropped(fleet.clock(), keys, "given up", False))
        fleet.driver.end()

    # ---- the work --------------------------------------------------------------------------------

    def _publish(self, task: Task, weights: Path) -> str:
        """Publish weights and training graphs, instead of those of earlier rounds. Return the slot
        of the weights. Raises OSError, StoreError, Refused.
        """
        slots, data = self._fleet.endpoint.slots, map_file(weights)
        if task.work == "train":
            slots.clear(keep=(task.version, topics.GRAPHS))
        sent = slots.put(task.version, task.submodel.name, (data,), task.slot)
        if sent.manifest.sha256 != task.digest:  # the coordinator began the round anew
            slots.clear(keep=(topics.GRAPHS,))
            sent = slots.put(task.version, task.submodel.name, (data,), task.slot)
        if sent.manifest.sha256 != task.digest:
            raise Refused(f"weights of {task.submodel.name}: their digest changed on the disk")
        for graph in task.graphs:
            file = map_file(weights.with_name(f"{graph.digest}{GRAPH}"))
            slots.put(topics.GRAPHS, graph.digest, (file,), topics.GRAPHS)
        return sent.slot

    def _finish(self, task: Task, collector: SiteSum, result: Path) -> None:
        """End the phase, and write the update of the site."""
        self._current = None
        missing = {one.key.agent: one.outcome for one in self._fleet.tasks if not one.came}
        self._fleet.driver.end()
        if not collector.agents:
            # the reasons name devices, and stay here
            why = "; ".join(f"{name}: {outcome}" for name, outcome in sorted(missing.items()))
            log.warning("round %d: no device delivered: %s", task.round, why)
            self._outcome = Outcome(task, None, NOTHING)
            return
        try:
            self._defences.write()
            update = collector.make_update()
            encoded = encode_update(update, find_loaded_codec(task.codec), collector.weights)
            with result.open("wb") as file:
                file.writelines(encoded)
        except (EspalierError, OSError) as error:
            self._outcome = make_failure(task, error)
            return
        delivered = f"{len(collector.agents)} of {len(collector.agents) + len(missing)}"
        self._say(f"round {task.round}: combined the {task.work} updates of {delivered} devices")
        loss = float(update.notes.get("loss", math.nan))
        self._outcome = Outcome(task, result, loss=loss)


def is_able(agent: Agent, task: Task) -> bool:
    """Return True if a device can do a task: scores need held-out examples."""
    assert agent.profile is not None, "it is ready"
    return task.work != "evaluate" or agent.profile.data.held_out > 0


def make_failure(task: Task, error: Exception) -> Outcome:
    reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
    return Outcome(task, None, f"the gateway cannot carry it out: {reason}")
