"""What a fleet needs: the measured lines, continued to its size, and counts of messages, bytes and
connections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.capacity.measured_points import BROKER, COORDINATOR, MEMORY, WORKERS, Line
from coordinator.broker.broker_profiles import find_profile, limit_heartbeats
from coordinator.round.round_state import find_least_heartbeat
from coordinator.settings.service_tables import ProfileName
from federated.errors import ConfigError
from federated.task import HEARTBEAT
from federated.wire import envelope, messages, topics
from federated.wire.chunks import GRANT_CHUNKS
from federated.wire.link import CHUNK

__all__ = ["BEAT_BYTES", "BrokerTraffic", "FleetNeeds", "FleetPlan", "find_needs"]

DAY = 86_400.0  # seconds
STATES = 4  # heartbeats of a task: download, train, send, idle
MQTT_HEADER = 5  # bytes of a message beside its topic and payload: type, two lengths
BEAT_TOPIC = topics.heartbeat("run", "device-000001")
BEAT = messages.Heartbeat("device-000001", "0" * 16, "idle", 0)
BEAT_BYTES = len(envelope.encode(BEAT)) + len(BEAT_TOPIC) + MQTT_HEADER


@dataclass(frozen=True)
class FleetPlan:
    """The fleet, and what is known about its broker and prices. None: unknown.

    agents: number of devices
    rounds_per_day: number of rounds
    fraction: of the agents that take part in a round, 0 to 1
    hours: of a round in which updates arrive, evenly
    model_bytes, update_bytes: that an agent downloads and sends in a round
    devices_per_site: devices behind each gateway; 0: no gateways
    heartbeat_us: microseconds of the coordinator's processor time for a heartbeat
    broker_profile: `broker.profile` of the run
    node_connections, node_messages: most of a node of the broker; messages a second, in and out
    node_cores: processors that a node uses
    price_core_hour: of a processor of the coordinator and its workers, rented all day
    price_node_hour: of a node of the broker
    price_gb_down, price_gb_up: of 10^9 bytes from the broker to agents, and back
    price_million_messages: of a million messages into and out of the broker
    price_million_minutes: of a million minutes of a connection
    """

    agents: int
    rounds_per_day: float
    fraction: float
    hours: float
    model_bytes: int
    update_bytes: int
    devices_per_site: int = 0
    heartbeat_us: float | None = None
    broker_profile: ProfileName | None = None
    node_connections: int | None = None
    node_messages: float | None = None
    node_cores: float = 1.0
    price_core_hour: float | None = None
    price_node_hour: float | None = None
    price_gb_down: float | None = None
    price_gb_up: float | None = None
    price_million_messages: float | None = None
    price_million_minutes: float | None = None

    @property
    def window(self) -> float:
        """Seconds of a round in which updates arrive."""
        return 3600 * self.hours

    @property
    def connected(self) -> int:
        """Agents of the coordinator: gateways, or else devices."""
        return math.ceil(self.agents / (self.devices_per_site or 1))

    @property
    def participants(self) -> int:
        """Agents that take part in a round."""
        return math.ceil(round(self.connected * self.fraction, 9))


@dataclass(frozen=True)
class BrokerTraffic:
    """Messages and bytes at the broker.

    messages_per_second: in and out, while updates arrive, with heartbeats
    heartbeats_per_second: to the coordinator
    messages_per_day: in and out
    bytes_down_per_round, bytes_up_per_round: weights to agents, and their updates
    bytes_down_per_day, bytes_up_per_day: the same in a day, and heartbeats
    """

    messages_per_second: float
    heartbeats_per_second: float
    messages_per_day: float
    bytes_down_per_round: int
    bytes_up_per_round: int
    bytes_down_per_day: float
    bytes_up_per_day: float


@dataclass(frozen=True)
class FleetNeeds:
    """What the fleet needs at the coordinator and its broker. None: unknown.

    connected: connections of agents
    participants: agents in a round
    coordinator_cores, worker_cores, broker_cores: processors that are busy while updates arrive
    heartbeat_cores: processors of the coordinator for heartbeats; None: their cost was not given
    fits: whether one process of the coordinator is fast enough, as far as known
    most_connected: agents that one process of the coordinator can serve
    least_devices_per_site: devices behind each gateway until it can serve all; None: it never can
    coordinator_bytes: memory
    traffic: messages and bytes
    nodes: nodes of the broker, by what requires them; a broker needs the largest number
    costs: of a day, by what it is paid for
    total: of the known costs; None: no price was given
    """

    connected: int
    participants: int
    coordinator_cores: float
    worker_cores: float
    broker_cores: float
    heartbeat_cores: float | None
    fits: bool
    most_connected: int
    least_devices_per_site: int | None
    coordinator_bytes: float
    traffic: BrokerTraffic
    nodes: dict[str, int | None]
    costs: dict[str, float | None]
    total: float | None


def find_needs(plan: FleetPlan, lines: Mapping[str, Line]) -> FleetNeeds:
    """Return what a fleet needs. Raises ConfigError if updates arrive for longer than a round."""
    if plan.hours * plan.rounds_per_day > 24 + 1e-9:
        raise ConfigError(
            f"--hours: expected at most {24 / plan.rounds_per_day:g}, the hours of a round with "
            f"--rounds-per-day {plan.rounds_per_day:g}, found {plan.hours:g}"
        )
    cores = {
        name: lines[name].predict(plan.participants) / plan.window if name in lines else 0.0
        for name in (COORDINATOR, WORKERS, BROKER)
    }
    traffic = find_traffic(plan)
    beating = (
        None
        if plan.heartbeat_us is None
        else traffic.heartbeats_per_second * plan.heartbeat_us / 1e6
    )
    nodes = count_nodes(plan, cores[BROKER], traffic.messages_per_second)
    processors = max(1, math.ceil(cores[COORDINATOR] + (beating or 0.0)))
    costs = find_costs(plan, traffic, processors + math.ceil(cores[WORKERS]), nodes)
    known = [cost for cost in costs.values() if cost is not None]
    most = find_most_connected(plan, lines[COORDINATOR])
    return FleetNeeds(
        connected=plan.connected,
        participants=plan.participants,
        coordinator_cores=cores[COORDINATOR],
        worker_cores=cores[WORKERS],
        broker_cores=cores[BROKER],
        heartbeat_cores=beating,
        fits=plan.connected <= most,
        most_connected=most,
        least_devices_per_site=math.ceil(plan.agents / most) if most else None,
        # a slope below 0 is noise: memory does not fall
        coordinator_bytes=max(lines[MEMORY].predict(plan.participants), lines[MEMORY].measured),
        traffic=traffic,
        nodes=nodes,
        costs=costs,
        total=sum(known) if known else None,
    )


def find_traffic(plan: FleetPlan) -> BrokerTraffic:
    """Return the messages and bytes at the broker."""
    each_round = plan.participants * count_messages(plan)
    beats = plan.connected / find_heartbeat_interval(plan)
    down, up = plan.participants * plan.model_bytes, plan.participants * plan.update_bytes
    return BrokerTraffic(
        messages_per_second=each_round / plan.window + 2 * beats,
        heartbeats_per_second=beats,
        messages_per_day=plan.rounds_per_day * each_round + 2 * beats * DAY,
        bytes_down_per_round=down,
        bytes_up_per_round=up,
        bytes_down_per_day=plan.rounds_per_day * down,
        bytes_up_per_day=plan.rounds_per_day * up + beats * DAY * BEAT_BYTES,
    )


def find_costs(
    plan: FleetPlan, traffic: BrokerTraffic, processors: int, nodes: Mapping[str, int | None]
) -> dict[str, float | None]:
    """Return the cost of a day, by what it is paid for; None where the price is unknown."""
    amounts = {
        "processors": (plan.price_core_hour, 24 * processors),
        "broker nodes": (plan.price_node_hour, 24 * max(n for n in nodes.values() if n)),
        "bytes to agents": (plan.price_gb_down, traffic.bytes_down_per_day / 1e9),
        "bytes from agents": (plan.price_gb_up, traffic.bytes_up_per_day / 1e9),
        "messages": (plan.price_million_messages, traffic.messages_per_day / 1e6),
        "connections": (plan.price_million_minutes, plan.connected * 1440 / 1e6),
    }
    return {
        name: None if price is None else price * amount for name, (price, amount) in amounts.items()
    }


def find_most_connected(plan: FleetPlan, line: Line) -> int:
    """Return the number of agents with which one processor of the coordinator is just busy: that
    many agents' heartbeats, as rare as in this fleet, and the fraction's updates, which arrive
    during `hours`.
    """
    per_agent = plan.fraction * line.per_agent / plan.window
    per_agent += (plan.heartbeat_us or 0.0) / 1e6 / find_heartbeat_interval(plan)
    return max(0, math.floor(round((1 - line.fixed / plan.window) / per_agent, 6)))


def find_heartbeat_interval(plan: FleetPlan) -> float:
    """Return the seconds between two heartbeats of an agent without a short lease."""
    limit = limit_heartbeats(find_profile(plan.broker_profile or ""))
    return max(HEARTBEAT, find_least_heartbeat(plan.connected, limit))


def count_messages(plan: FleetPlan) -> int:
    """Return the messages of an agent in a round, into and out of the broker.

    Each comes in once and goes out once; but the weights' manifest and chunks, which the broker
    keeps, come in once for all agents, which is not counted.
    """
    received, sent = chunks(plan.model_bytes), chunks(plan.update_bytes)
    from_agent = 1 + sent + STATES  # offer, chunks, heartbeats
    to_agent = 1 + 1 + math.ceil(sent / GRANT_CHUNKS) + 1  # task, grants: first and later, receipt
    return 2 * (from_agent + to_agent) + 1 + received


def chunks(size: int) -> int:
    return math.ceil(size / CHUNK)


def count_nodes(plan: FleetPlan, cores: float, rate: float) -> dict[str, int | None]:
    """Return the nodes of the broker that each limit requires, at least 1."""
    limits = {
        "connections": (float(plan.connected), plan.node_connections),
        "messages": (rate, plan.node_messages),
        "processor time": (cores, plan.node_cores),
    }
    return {
        name: None if limit is None else max(1, math.ceil(needed / limit))
        for name, (needed, limit) in limits.items()
    }
