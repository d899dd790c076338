"""`python -m benchmarks broker`: measure a broker's memory over many versions of weights, and the
time to download them, without coordinator or training.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import click
import psutil

from coordinator.broker import local_broker as brokers
from coordinator.fleet.published_weights import WeightSlots
from coordinator.fleet.submodel_shipment import SLOTS
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.retained_blobs import Download, RetainedBlob

__all__ = ["command"]

RUN, SUBMODEL = "bench", "w1"


@click.command("broker")
@click.option(
    "--broker",
    "kind",
    type=click.Choice(["mosquitto", "embedded"]),
    default="embedded",
    show_default=True,
    help="broker to start",
)
@click.option(
    "--versions",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    metavar="N",
    help="number of versions",
)
@click.option(
    "--size",
    type=click.IntRange(min=1),
    default=45,
    show_default=True,
    metavar="N",
    help="size of a version in MB",
)
@click.option(
    "--agents",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="agents that download each version at the same time",
)
@FORMAT
def command(kind: str, versions: int, size: int, agents: int, form: str) -> None:
    """Measure a broker that distributes weights.

    Publish versions of the weights one after another. Agents download each, then it is deleted.
    Print the broker's memory (MB) and the download time.
    """
    with (
        report_errors("python -m benchmarks broker", "coordinator"),
        ExitStack() as stack,
    ):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-broker-")))
        broker = stack.enter_context(brokers.start(port=0, kind=kind, directory=folder / "broker"))
        coordinator = stack.enter_context(closing(open_link(broker.address, "coordinator")))
        links = [
            stack.enter_context(closing(open_link(broker.address, f"a{index}")))
            for index in range(agents)
        ]
        slots = WeightSlots(coordinator, RUN, folder / "shelf")
        memory, seconds = [measure_memory(broker)], list[float]()
        for version in range(versions):
            data = (os.urandom(size * 1_000_000),)
            sent = slots.put(f"r{version}", SUBMODEL, data, f"r{version % SLOTS}")
            slots.send(0.0)
            coordinator.flush(60)
            start = time.perf_counter()
            base = topics.model(RUN, sent.slot, SUBMODEL)
            blob = RetainedBlob(base, sent.manifest.sha256, sent.manifest.size)
            download(links, blob, folder)
            seconds.append(time.perf_counter() - start)
            slots.clear()
            coordinator.flush(60)
            memory.append(measure_memory(broker))
        early = min(10, versions)
        found = {
            "broker": broker.name,
            "versions": versions,
            "size_mb": size,
            "agents": agents,
            "rss_mb": {
                "idle": memory[0],
                f"after_{early}": memory[early],
                "last": memory[-1],
                "most": max(memory),
            },
            "download_s": {
                "median": round(statistics.median(seconds), 3),
                "most": round(max(seconds), 3),
            },
        }
        say = speaker(form)
        say(f"{broker.name}: {versions} versions of {size} MB, downloaded by {agents} at a time")
        say(
            f"memory, MB: {memory[0]} idle, {memory[early]} after {early} versions, "
            f"{memory[-1]} after the last, {max(memory)} at most"
        )
        say(
            f"a download takes {statistics.median(seconds):.2f} s (median), "
            f"{max(seconds):.2f} s (longest)"
        )
        print_result(found, form)


def measure_memory(broker: brokers.Broker) -> int:
    """Return the broker's resident memory in MB."""
    return int(
        sum(
            child.memory_info().rss for child in psutil.Process(broker.pid).children(recursive=True)
        )
        / 1e6
    )


def download(links: list[Link], blob: RetainedBlob, folder: Path) -> None:
    """Download the same weights over all links in turns, in one thread."""
    coming = {
        link: Download(link, blob, folder / f"{index}.weights", time.monotonic(), sync=False)
        for index, link in enumerate(links)
    }
    while coming:
        for link, one in list(coming.items()):
            delivery = link.receive(0.002)
            if delivery is not None and delivery.payload and not delivery.topic.startswith("$"):
                message = envelope.decode(delivery.payload)
                if isinstance(message, messages.Manifest | messages.Chunk) and one.take(
                    message, time.monotonic()
                ):
                    del coming[link]
            one.tick(time.monotonic())
