"""Names of submodels: the longest are valid in topics, transfers and files, and longer ones are
refused before a run starts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet.published_weights import WeightSlots
from coordinator.run.run_preparation import propose_menu
from federated.device.agent_run_files import Spool
from federated.device.transfers import Uploads
from federated.errors import ConfigError
from federated.methods.catalogue import find_method
from federated.task import Recipe, Task
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.submodel import Network, Submodel
from tests.support.scripted_coordinator import CARD

NETWORK = Network("preresnet", "10", (1, 8, 8), 10)


def skip_first_block(blocks: int, owner: str = "") -> Submodel:
    """Return a submodel of one section without its first block: its name `w1-b0111...` has four
    characters and one for each block.
    """
    return Submodel(NETWORK, 1.0, ((0,) + (1,) * (blocks - 1),), owner=owner)


@pytest.mark.parametrize("owner", ["", "a" * 64])
def test_the_longest_names_are_accepted_with_and_without_an_owner(owner: str) -> None:
    longest = skip_first_block(topics.UNOWNED - 4, owner)
    assert len(longest.unowned.name) == topics.UNOWNED == 128
    made = replace(find_method("fedavg"), menu=lambda network, settings: (longest,))
    assert propose_menu(made, NETWORK, {}) == (longest,)


def test_a_name_that_is_too_long_is_an_error_with_its_length_and_the_limit() -> None:
    long = skip_first_block(topics.UNOWNED - 3)
    made = replace(
        find_method("fedavg"), menu=lambda network, settings: (skip_first_block(4), long)
    )
    with pytest.raises(
        ConfigError,
        match="method fedavg: expected names of submodels of at most 128 characters, found 129: "
        f"{long.name};",
    ):
        propose_menu(made, NETWORK, {})


def test_the_longest_name_is_valid_in_topics_transfers_and_files(tmp_path: Path) -> None:
    """With the longest agent name, and a round and an attempt of ten digits each; the update is
    offered again after a restart.
    """
    submodel = skip_first_block(topics.UNOWNED - 4, "a" * 64)
    agent, number = submodel.owner, 10**10 - 1
    task = Task(
        "r" * 64,
        number,
        number,
        agent,
        "calibrate",
        submodel,
        f"r{number}p",
        "0" * 64,
        2000,
        Recipe(),
        60.0,
    )
    assert envelope.decode(envelope.encode(task)) == task
    assert len(task.transfer) == 225
    broker, run = MemoryBroker(), replace(CARD, run=task.run)
    slots = WeightSlots(MemoryLink(broker, "coordinator"), task.run, tmp_path / "shelf")
    assert slots.put(task.version, submodel.name, (bytes(2000),), task.slot).manifest.size == 2000
    spool = Spool(tmp_path / "spool", lasting=True)
    spool.update_path(task.transfer).write_bytes(bytes(2000))
    link = MemoryLink(broker, agent)
    listener = MemoryLink(broker, "listener")
    listener.subscribe(topics.say(task.run, agent))
    uploads = Uploads(link, task.run, agent, spool)
    uploads.add(task, spool.update_path(task.transfer), run)
    uploads.offer(task, restart=True)
    assert list(Uploads(link, task.run, agent, spool).resume(run)) == [task]
    heard = listener.receive(0)
    assert heard is not None
    offer = envelope.decode(heard.payload)
    assert isinstance(offer, messages.Offer)
    assert offer.submodel == submodel.name
    assert (
        topics.parse(topics.chunk(topics.upload(task.run, agent, offer.manifest.transfer), 0))
        is not None
    )
