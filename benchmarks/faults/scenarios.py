"""Scenarios of the faults benchmark: each prepares a trial, and breaks a part of it at a moment
drawn from the trial's seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from benchmarks.faults.coordinator_scenarios import (
    LASTING,
    PACE,
    kill_at_random,
    kill_at_stage,
    kill_with_standby,
    suspend_with_standby,
)
from benchmarks.faults.parts.broker_kinds import CLUSTER, KINDS
from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.parts.trial_parts import make_slow_link, mount_small_disk
from benchmarks.faults.power_cuts import (
    cut_power_of_agent,
    cut_power_of_coordinator,
    explain_unmountable,
)
from benchmarks.faults.real_agent_scenarios import (
    choose_agents,
    cut_uplink,
    fill_agent_disk,
    kill_agent,
    kill_gateway,
)
from benchmarks.faults.transfer_scenarios import (
    AWAY,
    LONG_AWAY,
    cut_transfers,
    disable_store,
    explain_no_server,
    explain_no_store,
    kill_server,
    kill_store,
    lose_object,
)
from benchmarks.faults.trial import Trial, break_later, fill_later
from benchmarks.faults.trial_settings import AGENTS, ROUNDS

__all__ = [
    "LEFT_OUT",
    "SCENARIOS",
    "Scenario",
    "explain_impossible",
    "explain_left_out",
    "list_scenarios",
]

Scenario = Callable[[Trial], None]

SHARE = 0.01  # fraction of chunks damaged, doubled or reordered
# bytes per second of the slow link, and seconds each way (300 ms round trip)
RATE, DELAY = 1_000_000, 0.150
CHUNKS = 20  # chunks of an update


# ---- broker and agents ----------------------------------------------------------------------


def kill_broker(*, persistent: bool) -> Scenario:
    """Kill the broker, or one of two with a bridge (kill -9), and restart it within a second;
    without persistence it has forgotten everything.
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
    """Kill a node of a cluster (kill -9) for up to ten seconds."""
    choose_agents(trial)
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
    choose_agents(trial)
    trial.how = replace(trial.how, delay=PACE)
    fill_later(trial, trial.stack.enter_context(mount_small_disk(trial.runs, 48 << 20)), LASTING)


SCENARIOS: dict[str, Scenario] = {
    "coordinator before a fold": kill_at_stage("fold", "before"),
    "coordinator during a fold": kill_at_stage("fold", "during"),
    "coordinator after a fold": kill_at_stage("fold", "after"),
    "coordinator in a snapshot": kill_at_stage("snapshot", "during"),
    "coordinator before finish": kill_at_stage("finish", "before"),
    "coordinator during finish": kill_at_stage("finish", "during"),
    "coordinator after finish": kill_at_stage("finish", "after"),
    "coordinator while it stores": kill_at_stage("save", "during"),
    "coordinator after it stored": kill_at_stage("save", "after", but_last=1),
    "coordinator at any moment": kill_at_random,
    "coordinator killed, standby": kill_with_standby,
    "coordinator hangs, standby": suspend_with_standby,
    "broker killed": kill_broker(persistent=True),
    "broker without persistence": kill_broker(persistent=False),
    "node of a cluster killed": kill_node,
    "agents killed": kill_agents,
    "agent process killed": kill_agent,
    "gateway killed": kill_gateway,
    "uplink of a site cut": cut_uplink,
    "upload cut": cut_links("up"),
    "download cut": cut_links("down"),
    "chunks damaged": disturb_chunks(damage),
    "chunks doubled": disturb_chunks(double),
    "chunks reordered": disturb_chunks(hold_back),
    "slow subscriber": slow_subscriber,
    "HTTP upload cut": cut_transfers("up"),
    "HTTP download cut": cut_transfers("down"),
    "HTTP server killed": kill_server,
    "store killed": kill_store,
    "store answers 503": disable_store(AWAY),
    "store away for a minute": disable_store(LONG_AWAY),
    "store loses weights": lose_object("weights"),
    "store loses an update": lose_object("updates"),
    "disk full": fill_disk,
    "disk of an agent full": fill_agent_disk,
    "1 MB/s and 300 ms": slow_link,
    "power cut": cut_power_of_coordinator,
    "power cut of an agent": cut_power_of_agent,
}
ONE_SERVER = dict.fromkeys((kind for kind in KINDS if kind != CLUSTER), "it is one server")
OVER_HTTP = {CLUSTER: "its nodes do not share retained messages: transfers use HTTP"}
# scenario -> kind of broker -> why it is not tried there
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "broker killed": {
        "embedded": "it stores nothing: see 'broker without persistence'",
        CLUSTER: "see 'node of a cluster killed'",
    },
    "broker without persistence": {CLUSTER: "see 'node of a cluster killed'"},
    "node of a cluster killed": {**ONE_SERVER, "bridge": "see 'broker killed'"},
    "agents killed": {CLUSTER: "see 'agent process killed'"},
    "1 MB/s and 300 ms": {"embedded": "it listens on its own machine only", **OVER_HTTP},
    **dict.fromkeys(
        (
            "upload cut",
            "download cut",
            "chunks damaged",
            "chunks doubled",
            "chunks reordered",
            "slow subscriber",
        ),
        OVER_HTTP,
    ),
}
NEED_FUSE = ("power cut", "power cut of an agent")


def explain_left_out(name: str, kind: str) -> str:
    """Return why a scenario is not tried on a kind of broker; empty if it is."""
    return LEFT_OUT.get(name, {}).get(kind, "")


def list_scenarios(kind: str) -> list[str]:
    """Return the scenarios that are tried on a kind of broker."""
    return [name for name in SCENARIOS if not explain_left_out(name, kind)]


def explain_impossible(name: str) -> str:
    """Return why this machine cannot run a scenario; empty if it can."""
    if name in NEED_FUSE:
        return explain_unmountable()
    if name.startswith("HTTP"):
        return explain_no_server()
    return explain_no_store() if name.startswith("store") else ""
