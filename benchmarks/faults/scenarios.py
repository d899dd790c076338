"""Scenarios of the faults benchmark: each prepares a trial, and breaks a part of it at a moment
drawn from the trial's seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from benchmarks.faults.broker_kinds import CLUSTER, KINDS
from benchmarks.faults.power_cuts import (
    cut_power_of_agent,
    cut_power_of_coordinator,
    explain_unmountable,
)
from benchmarks.faults.proxy import Proxy
from benchmarks.faults.real_agent_scenarios import fill_agent_disk, kill_agent, use_real_agents
from benchmarks.faults.trial import AGENTS, ROUNDS, Trial, break_later, fill_later
from benchmarks.faults.trial_parts import make_slow_link, mount_small_disk

__all__ = ["SCENARIOS", "Scenario", "explain_impossible", "list_scenarios"]

Scenario = Callable[[Trial], None]

SHARE = 0.01  # fraction of chunks damaged, doubled or reordered
# bytes per second of the slow link, and seconds each way (300 ms round trip)
RATE, DELAY = 1_000_000, 0.150
CHUNKS = 20  # chunks of an update
PACE = 0.5  # seconds of a training in scenarios with a random time
LASTING = ROUNDS * PACE  # least seconds of the rounds


# ---- coordinator -----------------------------------------------------------------------------


def kill_at_stage(stage: str, when: str, times: int) -> Scenario:
    """Kill the coordinator (kill -9) at one of the first `times` times of a stage."""

    def prepare(trial: Trial) -> None:
        trial.fuse = (stage, when, str(trial.rng.randint(1, times)), f"{trial.rng.random():.3f}")

    return prepare


def kill_at_random(trial: Trial) -> None:
    """Kill the coordinator (kill -9) at a random moment of its three rounds."""
    trial.how = replace(trial.how, delay=PACE)

    def cause_fault() -> None:
        trial.coordinator.kill()
        trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


# ---- broker and agents ----------------------------------------------------------------------


def kill_broker(*, persistent: bool) -> Scenario:
    """Kill the broker, or one of two with a bridge (kill -9), and restart it within a second;
    without persistence it forgets everything.
    """

    def prepare(trial: Trial) -> None:
        trial.persistent, trial.how = persistent, replace(trial.how, delay=PACE)
        away = trial.rng.uniform(0, 1.0)

        def cause_fault() -> None:
            trial.broker.victim = trial.rng.choice(trial.broker.servers)
            trial.broker.kill()
            trial.record_fault()
            trial.call_later(away, trial.broker.start)

        break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))

    return prepare


def kill_node(trial: Trial) -> None:
    """Kill a node of a cluster (kill -9) for up to ten seconds. Transfers use HTTP, since the nodes
    do not share retained messages.
    """
    use_real_agents(trial)
    trial.settings = {
        **trial.settings,
        "broker.profile": "rabbitmq",
        "http.listen": "127.0.0.1:0",
    }
    away = trial.rng.uniform(0, 10.0)

    def cause_fault() -> None:
        trial.broker.victim = trial.rng.choice(trial.broker.servers)
        trial.broker.kill()
        trial.record_fault()
        trial.call_later(away, trial.broker.victim.start)

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def kill_agents(trial: Trial) -> None:
    """Kill two agents without a message; they restart without memory."""
    trial.how = replace(trial.how, delay=PACE)

    def cause_fault() -> None:
        for name in trial.rng.sample(AGENTS, 2):
            trial.fleet.sockets[name].kill()
            trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


# ---- link ------------------------------------------------------------------------------------


def cut_links(way: str) -> Scenario:
    """Cut the agents' connections at 10 to 90 % of a transfer, once in each round."""

    def prepare(trial: Trial) -> None:
        trial.how = replace(trial.how, chunk=16 << 10)

        def begin() -> None:
            proxy = Proxy((trial.host, trial.broker.agent_port))
            trial.stack.callback(proxy.close)
            trial.fleet.how = replace(
                trial.fleet.how,
                addresses=dict.fromkeys(trial.names[1:2], ("127.0.0.1", proxy.port)),
            )
            size = CHUNKS * (16 << 10)
            first = 20_000 + int(trial.rng.uniform(0.1, 0.9) * size)  # after the messages to join
            (proxy.cut_up if way == "up" else proxy.cut_down).extend(
                [first, *(int(trial.rng.uniform(0.1, 0.9) * size) for _ in range(ROUNDS - 1))]
            )

            def each() -> None:
                while proxy.cut > len(trial.fault_times):
                    trial.record_fault()

            trial.each_turn.append(each)

        trial.after_begin.append(begin)

    return prepare


def disturb_chunks(what: Callable[[bytes, random.Random], list[bytes]]) -> Scenario:
    """Damage, double or hold back one in a hundred chunks of updates, and at least one."""

    def prepare(trial: Trial) -> None:
        first, seen = trial.rng.randrange(CHUNKS), 0
        held: dict[str, list[tuple[str, bytes]]] = {}

        def alter(agent: str, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
            nonlocal seen
            waiting = held.pop(agent, [])
            if "/up/" not in topic:
                return [(topic, payload), *waiting]
            seen += 1
            if seen - 1 != first and trial.rng.random() >= SHARE:
                return [(topic, payload), *waiting]
            trial.record_fault()
            made = what(payload, trial.rng)
            if not made:
                held[agent] = [(topic, payload)]
            return [*((topic, one) for one in made), *waiting]

        trial.how = replace(trial.how, chunk=16 << 10, alter=(*trial.how.alter, alter))

    return prepare


def damage(payload: bytes, rng: random.Random) -> list[bytes]:
    """Flip one bit."""
    at = rng.randrange(len(payload))
    return [payload[:at] + bytes([payload[at] ^ (1 << rng.randrange(8))]) + payload[at + 1 :]]


def double(payload: bytes, rng: random.Random) -> list[bytes]:
    """Send it twice."""
    return [payload, payload]


def hold_back(payload: bytes, rng: random.Random) -> list[bytes]:
    """Send nothing now; the chunk follows the next one."""
    return []


def slow_subscriber(trial: Trial) -> None:
    """Let one agent receive 100 kB/s while the others receive at full speed."""
    trial.how = replace(trial.how, slow={trial.rng.choice(AGENTS): 100_000.0})
    break_later(trial, trial.record_fault, 0.1)


def slow_link(trial: Trial) -> None:
    """Limit the agents' link to the broker to 1 MB/s with a round trip of 300 ms."""
    host, under = trial.stack.enter_context(make_slow_link(1 + trial.seed % 250, RATE))
    trial.host, trial.under = host, under
    trial.how = replace(trial.how, chunk=64 << 10)

    def begin() -> None:
        proxy = Proxy((host, trial.broker.agent_port), delay=DELAY)
        trial.stack.callback(proxy.close)
        trial.fleet.how = replace(
            trial.fleet.how, addresses=dict.fromkeys(trial.names, ("127.0.0.1", proxy.port))
        )
        break_later(trial, trial.record_fault, 0.1)

    trial.after_begin.append(begin)


# ---- disk ------------------------------------------------------------------------------------


def fill_disk(trial: Trial) -> None:
    """Fill the disk of the coordinator's runs for two seconds, except for up to 300 kB."""
    trial.how = replace(trial.how, delay=PACE)
    fill_later(trial, trial.stack.enter_context(mount_small_disk(trial.runs, 48 << 20)), LASTING)


FOLDS = ROUNDS * len(AGENTS)
SCENARIOS: dict[str, Scenario] = {
    "coordinator before a fold": kill_at_stage("fold", "before", FOLDS),
    "coordinator during a fold": kill_at_stage("fold", "during", FOLDS),
    "coordinator after a fold": kill_at_stage("fold", "after", FOLDS),
    "coordinator in a snapshot": kill_at_stage("snapshot", "during", FOLDS // 2),
    "coordinator before finish": kill_at_stage("finish", "before", ROUNDS),
    "coordinator during finish": kill_at_stage("finish", "during", ROUNDS),
    "coordinator after finish": kill_at_stage("finish", "after", ROUNDS),
    "coordinator while it stores": kill_at_stage("save", "during", ROUNDS),
    "coordinator after it stored": kill_at_stage("save", "after", ROUNDS - 1),
    "coordinator at any moment": kill_at_random,
    "broker killed": kill_broker(persistent=True),
    "broker without persistence": kill_broker(persistent=False),
    "node of a cluster killed": kill_node,
    "agents killed": kill_agents,
    "agent process killed": kill_agent,
    "upload cut": cut_links("up"),
    "download cut": cut_links("down"),
    "chunks damaged": disturb_chunks(damage),
    "chunks doubled": disturb_chunks(double),
    "chunks reordered": disturb_chunks(hold_back),
    "slow subscriber": slow_subscriber,
    "disk full": fill_disk,
    "disk of an agent full": fill_agent_disk,
    "1 MB/s and 300 ms": slow_link,
    "power cut": cut_power_of_coordinator,
    "power cut of an agent": cut_power_of_agent,
}
# kinds of brokers on which a scenario is possible, if not on all single ones
POSSIBLE = {
    "broker killed": ("mosquitto", "nats", "rabbitmq", "bridge"),  # they store messages
    "broker without persistence": ("mosquitto", "embedded", "bridge"),
    "node of a cluster killed": (CLUSTER,),
    "1 MB/s and 300 ms": ("mosquitto",),  # it has a second listener
}
SINGLE = tuple(kind for kind in KINDS if kind != CLUSTER)
NEED_FUSE = ("power cut", "power cut of an agent")


def list_scenarios(kind: str) -> list[str]:
    """Return the scenarios that are possible on a kind of broker."""
    return [name for name in SCENARIOS if kind in POSSIBLE.get(name, SINGLE)]


def explain_impossible(name: str) -> str:
    """Return why this machine cannot run a scenario; empty if it can."""
    return explain_unmountable() if name in NEED_FUSE else ""
