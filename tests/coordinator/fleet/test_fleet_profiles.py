"""Profiles: measured with the run's card, or refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coordinator.fleet.message_loop import ANNOUNCEMENT_PATIENCE, MessageLoop
from federated.task import Profile, Timing
from federated.wire import messages, topics
from federated.wire.links.memory import MemoryBroker
from models.menu import menu
from models.submodel import Submodel
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import PROFILE, ScriptedAgent, forget_profile, listen
from tests.support.scripted_coordinator import CARD, DATA, NETWORK, SMALL

(LARGE,) = menu(NETWORK, (1.0,), (2,))


@pytest.mark.parametrize(
    "profile",
    [
        replace(PROFILE, timings=()),
        replace(PROFILE, timings=(Timing(SMALL, 32, 0.0),)),
        replace(PROFILE, timings=(Timing(SMALL, 32, 5e-324),)),
        replace(PROFILE, timings=(Timing(SMALL, 32, 1e300),)),
        replace(PROFILE, timings=(Timing(SMALL, 16, 0.01),)),
        replace(
            PROFILE,
            timings=(
                Timing(replace(SMALL, network=replace(NETWORK, family="sys:exit")), 32, 0.01),
            ),
        ),
        replace(PROFILE, uplink=5e-324),
        replace(PROFILE, data=replace(DATA, examples=0)),
        replace(PROFILE, data=replace(DATA, mean=())),
        replace(PROFILE, data=replace(DATA, std=(math.nan,))),
    ],
    ids=[
        "no timings",
        "no time",
        "next to no time",
        "for ever",
        "another batch",
        "code by name",
        "no bytes a second",
        "no examples",
        "no mean",
        "NaN",
    ],
)
def test_a_profile_that_was_not_measured_with_the_card_is_refused(
    fleet: MessageLoop, memory: MemoryBroker, profile: Profile
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    peer.heard()
    forget_profile(fleet)
    peer.say(profile, topics.profile("r", "a"))
    listen(fleet)
    assert fleet.list_ready() == []
    assert [type(m) for m in peer.heard()] == [messages.Refusal]


@pytest.mark.parametrize(
    ("timed", "ready"),
    [((SMALL, LARGE), True), ((SMALL,), True), ((LARGE, SMALL), False), ((SMALL, SMALL), False)],
)
def test_a_device_times_the_submodels_that_fit_in_the_order_of_the_card(
    fleet: MessageLoop, memory: MemoryBroker, timed: tuple[Submodel], ready: bool
) -> None:
    fleet.reannounce(replace(CARD, calibration=(SMALL, LARGE)))
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    forget_profile(fleet)
    peer.say(
        replace(PROFILE, timings=tuple(Timing(submodel, 32, 0.01) for submodel in timed)),
        topics.profile("r", "a"),
    )
    listen(fleet)
    assert bool(fleet.list_ready()) is ready


def test_a_device_that_trains_with_graphs_need_not_be_timed(
    fleet: MessageLoop, memory: MemoryBroker
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    forget_profile(fleet)
    free = replace(PROFILE, timings=(), capabilities=("graphs",))
    peer.say(free, topics.profile("r", "a"))
    listen(fleet)
    assert [agent.name for agent in fleet.list_ready()] == ["a"]


def test_an_agent_whose_profile_did_not_arrive_is_asked_for_it(
    fleet: MessageLoop, memory: MemoryBroker, clock: Clock
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    forget_profile(fleet)
    peer.beat()
    listen(fleet)
    assert not peer.heard(), "it may be on its way"
    clock.now += ANNOUNCEMENT_PATIENCE
    peer.beat()
    peer.beat()
    listen(fleet)
    (request,) = peer.heard()
    assert isinstance(request, messages.Refusal)
    assert request.about == topics.profile("r", "a")
    peer.say(replace(PROFILE, agent="a"), topics.profile("r", "a"))
    clock.now += ANNOUNCEMENT_PATIENCE
    peer.beat()
    listen(fleet)
    assert fleet.list_ready()
    assert not peer.heard()
