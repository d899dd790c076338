"""`python -m benchmarks round`: time rounds in which agents send back a ResNet-18, in processes of
their own, compared with Flower and with MQTT clients that only move the same bytes through the same
broker. All take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare, compare_all
from benchmarks.round.fleets import (
    Course,
    RoundFleet,
    measure_model,
    start_bare_clients,
    start_flower,
    start_flower_deployment,
    start_ours,
    take_turns,
)
from coordinator.broker import local_broker as brokers
from federated.runtime.console import Say

__all__ = ["command", "make_rows", "measure"]

ROUNDS = 6  # the first is a warm-up
COUNTS = (2, 10)
KINDS = ("mosquitto", "embedded")
FLOWER, DEPLOYMENT, BARE, OURS = "flwr", "flwr deployment", "bare clients", "ours"
MOST_TIMES, LEAST_TIMES = 1.3, 1.5  # of the floor, and of the time of Flower's gRPC server
LEAST_DEPLOYMENT = 8.0
MOST_BASE, MOST_MODELS = 250.0, 3.0  # MB before the first round, and models more in a round

Courses = Mapping[tuple[str, str], Course]
"""What rounds needed, by the fleet's name and kind of broker; the latter is empty for Flower."""


def measure(
    folder: Path, kinds: Sequence[str], agents: int, peers: Sequence[str], rounds: int = ROUNDS
) -> Courses:
    """Measure rounds of our fleets, of bare clients at the same brokers, and of Flower, in turns.
    Raises FleetError if a process fails.
    """
    fleets = dict[tuple[str, str], RoundFleet]()
    with ExitStack() as stack:
        for kind in kinds:
            home = folder / kind
            home.mkdir(parents=True)
            broker = stack.enter_context(brokers.start("127.0.0.1", 0, kind, home / "broker"))
            for name, start in ((OURS, start_ours), (BARE, start_bare_clients)):
                own = home / name.replace(" ", "-")
                fleets[name, kind] = stack.enter_context(start(own, broker, agents, rounds))
        if peers:
            for name, start_peer in ((FLOWER, start_flower), (DEPLOYMENT, start_flower_deployment)):
                own = folder / name.replace(" ", "-")
                fleets[name, ""] = stack.enter_context(start_peer(own, agents, rounds))
        return take_turns(fleets, rounds)


def make_rows(found: Mapping[int, Courses]) -> list[Row]:
    """Return the comparisons of what was measured, by number of agents."""
    times, sizes = list[Row](), list[Row]()
    goals = {FLOWER: LEAST_TIMES, DEPLOYMENT: LEAST_DEPLOYMENT, BARE: 1 / MOST_TIMES}
    every = [
        (agents, kind) for agents, them in found.items() for name, kind in them if name == OURS
    ]
    for agents, kind in sorted(every, key=lambda one: KINDS.index(one[1])):
        them = found[agents]
        own, bare, name = them[OURS, kind], them[BARE, kind], f"{agents} agents, {kind}"
        peers = {peer: them[peer, ""] for peer in (FLOWER, DEPLOYMENT) if (peer, "") in them}
        times += compare_all(
            f"round, {name} (ms)",
            1000 * own.seconds,
            {peer: 1000 * one.seconds for peer, one in peers.items()},
            Baseline(BARE, 1000 * bare.seconds),
            goals,
        )
        times += compare_all(
            f"processor time, {name} (ms)",
            1000 * own.processor,
            {peer: 1000 * one.processor for peer, one in peers.items()},
            Baseline(BARE, 1000 * bare.processor),
            {},
        )
        grown = (own.peak - own.base) / measure_model()
        most = Baseline(AT_MOST, MOST_BASE), Baseline(AT_MOST, MOST_MODELS)
        sizes.append(compare(f"base memory, {name} (MB)", own.base / 1e6, 1.0, limit=most[0]))
        sizes.append(compare(f"growth, {name} (models)", grown, 1.0, limit=most[1]))
    return times + sizes


@benchmark("round", "coordinator", ("flwr",))
@click.option(
    "--agents",
    "counts",
    multiple=True,
    type=click.IntRange(min=1),
    default=COUNTS,
    show_default=True,
    metavar="N",
    help="number of agents; may be repeated",
)
@click.option(
    "--broker",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    default=KINDS,
    show_default=True,
    help="broker to start; may be repeated",
)
def command(
    counts: Sequence[int], kinds: Sequence[str], peers: tuple[str, ...], say: Say
) -> list[Row]:
    """Time rounds without training.

    Agents in processes of their own send a ResNet-18 back. Print the time of a round, compared with
    MQTT clients that only move the same bytes, with Flower's gRPC server and clients and with its
    SuperLink and SuperNodes, and the memory of the coordinator. All take turns, so that the
    processes of six fleets run at the same time; ten agents each need about 10 GB.
    """
    found = dict[int, Courses]()
    with tempfile.TemporaryDirectory(prefix="espalier-round-") as folder:
        for agents in counts:
            found[agents] = measure(Path(folder) / str(agents), kinds, agents, peers)
            for (name, kind), one in found[agents].items():
                say(f"{agents} agents, {name} {kind}: {1000 * one.seconds:.0f} ms a round")
    return make_rows(found)
