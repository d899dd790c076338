"""Scenarios of the faults benchmark with real agents, processes of `edge-agent join` that train.
Their training is repeated here to check that the results are equal bit for bit.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.faults.parts.broker_kinds import CLUSTER
from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.parts.trial_parts import Process, mount_small_disk
from benchmarks.faults.trial import Trial, break_later, fill_later
from benchmarks.faults.trial_settings import RUN
from coordinator.broker.local_addresses import find_free_port
from coordinator.gateway.site_sum import SiteSum
from coordinator.round.task_state import TaskState
from coordinator.settings.config import Config
from coordinator.simulate.demo_fleet import python_command
from coordinator.trust.configured_defences import Defences
from coordinator.trust.norm_and_privacy_tables import open_tables
from federated.data import loading
from federated.data.dataset import Dataset
from federated.device.task_execution import perform
from federated.device.trainers.catalogue import open_trainer
from federated.task import Task, Update
from federated.wire import tensors

__all__ = [
    "NAMES",
    "choose_agents",
    "cut_uplink",
    "fill_agent_disk",
    "kill_agent",
    "kill_gateway",
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
SITE = "site"  # name of the gateway
COMBINED = "combined the train updates"  # in what a gateway says
DISK = 16 << 20  # bytes of the spool's file system
LASTING = 0.7  # seconds; the rounds of two agents that train last longer, also on a fast machine


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
    trial: Trial,
    agent: Process,
    launcher: Sequence[str] = ("edge_agent.cli",),
    port: int | None = None,
) -> None:
    """Start an agent. port: of its broker; None: that of the trial."""
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
        f"127.0.0.1:{port or trial.broker.agent_port}",
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

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def fill_agent_disk(trial: Trial) -> None:
    """Fill the disk of an agent's spool for two seconds. A task that the agent reports as failed is
    not a lost update.
    """
    use_real_agents(trial)
    space = trial.stack.enter_context(
        mount_small_disk(trial.folder / "spool" / trial.rng.choice(NAMES), DISK)
    )
    fill_later(trial, space, 1.0)


# ---- a site with a gateway -----------------------------------------------------------------------


@dataclass
class Gateway:
    """A gateway with two devices, and the proxies of its uplink.

    process: exists once the trial has begun.
    proxies: to the coordinator's HTTP server, if weights and updates travel over HTTP; once the
        trial has begun, the last one is that to the broker.
    """

    trial: Trial
    proxies: list[Proxy] = field(default_factory=list)
    port: int = field(default_factory=lambda: find_free_port("127.0.0.1", 0))
    devices: list[Process] = field(default_factory=list)
    process: Process = field(init=False)

    def open_proxy(self, port: int) -> int:
        """Return the port of a proxy of the uplink to a port of this machine."""
        proxy = Proxy(("127.0.0.1", port))
        self.trial.stack.callback(proxy.close)
        self.proxies.append(proxy)
        return proxy.port

    def set_uplink(self, *, away: bool) -> None:
        """Cut the uplink, or bring it back."""
        for proxy in self.proxies:
            proxy.away = away

    def begin(self) -> None:
        trial = self.trial
        self.open_proxy(trial.broker.agent_port)
        self.process = Process(SITE, trial.folder, forked=trial.forked)
        trial.stack.callback(self.process.kill)
        self.start()
        trial.each_turn.append(self._start_devices)

    def _start_devices(self) -> None:
        """Start the devices once the site has a broker."""
        if self.devices or not self.process.count("agents join with"):
            return
        for name in NAMES:
            device = Process(name, self.trial.folder, forked=self.trial.forked)
            self.trial.stack.callback(device.kill)
            start_agent(self.trial, device, port=self.port)
            self.devices.append(device)

    def start(self) -> None:
        """Start or restart the gateway, which starts the broker of the site."""
        where = ["--broker", f"127.0.0.1:{self.proxies[-1].port}", "--run", RUN, "--name", SITE]
        near = ["--port", str(self.port), "--min-devices", str(len(NAMES)), "--wait", "120"]
        spool = ["--spool", str(self.trial.folder / "spool" / SITE)]
        self.process.start(python_command("coordinator.gateway", *where, *near, *spool))

    def train(self, task: Task, weights: Mapping[str, NDArray[Any]]) -> Update:
        """Return the update of the site."""
        path = self.trial.folder / "weights"
        path.write_bytes(bytes(tensors.encode({}, weights)))
        cards = {name: load_data(name).card() for name in NAMES}
        tables = open_tables(Path(":memory:"))
        defences = Defences(Config(), tables, self.trial.folder, 0)
        site = SiteSum(task, cards, path, defences)
        for name in NAMES:
            own = replace(task, agent=name)
            site.fold(TaskState(own, 0, 0.0), train(own, weights))
        return site.make_update()


def use_gateway(trial: Trial) -> Gateway:
    """Make the trial start a gateway with two devices as its only agent."""
    gateway = Gateway(trial)
    trial.names, trial.real, trial.settings = (SITE,), gateway.train, SETTINGS
    if trial.kind == CLUSTER:
        port = find_free_port("127.0.0.1", 0)
        url = f"http://127.0.0.1:{gateway.open_proxy(port)}"
        addresses = {"http.listen": f"127.0.0.1:{port}", "http.url": url}
        trial.settings = {**SETTINGS, **HTTP, **addresses}
    trial.after_begin.append(gateway.begin)
    return gateway


def kill_gateway(trial: Trial) -> None:
    """Kill a gateway (kill -9) while its devices work on a round, or while it sends their update,
    and restart it at once. The broker of the site ends with it.
    """
    gateway = use_gateway(trial)

    def cause_fault() -> None:
        gateway.process.kill()
        trial.record_fault()
        gateway.start()

    break_later(trial, cause_fault, trial.rng.uniform(0, 1.5))


def cut_uplink(trial: Trial) -> None:
    """Cut the uplink of a site until its devices have finished their round, or for five seconds if
    they had finished it.
    """
    gateway = use_gateway(trial)

    def cause_fault() -> None:
        combined, until = gateway.process.count(COMBINED), time.monotonic() + 5.0
        gateway.set_uplink(away=True)
        trial.record_fault()

        def mend() -> None:
            if gateway.process.count(COMBINED) > combined or time.monotonic() > until:
                gateway.set_uplink(away=False)

        trial.each_turn.append(mend)

    break_later(trial, cause_fault, trial.rng.uniform(0, 1.5))
