"""Surveys of devices: those of every method fit, and all others are refused before they are
stored.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.trust.message_checks import check_profile
from federated.data.dataset import Dataset
from federated.device.trainers.catalogue import open_trainer
from federated.errors import Refused
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker
from models.named_network import network
from tests.support.scripted_agent import PROFILE, ScriptedAgent, forget_profile, listen
from tests.support.scripted_coordinator import CARD

SURVEYING = sorted(
    name
    for name, made in METHODS.items()
    if (hooks := made().hooks) is not None and hooks.survey is not None
)
BOUND = CARD.survey_limit
BODY = msgpack.unpackb(envelope.encode(PROFILE))["body"]


def make_card(name: str, classes: int) -> messages.Run:
    """Return the card of a run with this method, which requests the largest survey that it can."""
    made, net = find_method(name), network("resnet-small", (1, 8, 8), classes)
    settings = configure(made, {"choice": "zico"} if "choice" in made.settings else {})
    return replace(CARD, method=name, network=net, settings=settings, menu=made.menu(net, settings))


def test_a_survey_may_hold_a_number_for_each_class_and_submodel() -> None:
    assert CARD.survey_limit == 1024 + 16 * 10 + 144 * len(CARD.menu)
    assert replace(CARD, network=None, menu=()).survey_limit == 1024


@pytest.mark.parametrize("classes", [10, 1000])
@pytest.mark.parametrize("name", SURVEYING)
def test_the_survey_of_every_method_fits(name: str, classes: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (16, 1, 8, 8), np.uint8), rng.integers(0, classes, 16)
    y[:2] = 0, classes - 1
    run = make_card(name, classes)
    found = open_trainer("pytorch").survey(
        run, Dataset("noise", x, y, x[:2], y[:2], classes), 10**12
    )
    assert all(len(value) in (classes, len(run.menu)) for value in found.values())
    assert found
    check_profile(replace(PROFILE, survey=found), run)


@pytest.mark.parametrize("classes", [2, 10, 21_841])
def test_the_largest_survey_of_a_card_fits(classes: int) -> None:
    """With the longest possible names of submodels."""
    run = make_card("fedfa", classes)
    names = [f"{i:0{topics.UNOWNED}}" for i in range(len(run.menu))]
    check_profile(
        replace(PROFILE, survey={"zico": dict.fromkeys(names, 0.1), "histogram": [0.1] * classes}),
        run,
    )


@pytest.mark.parametrize("more", [0, 1])
def test_a_survey_beyond_the_limit_of_the_card_is_refused(more: int) -> None:
    """{"a": "xx..."} takes six bytes besides a text of 256 characters or more."""
    large = replace(PROFILE, survey={"a": "x" * (BOUND - 6 + more)})
    assert len(msgpack.packb(large.survey)) == BOUND + more
    if not more:
        check_profile(large, CARD)
        return
    with pytest.raises(
        Refused,
        match=f"expected a survey of at most {BOUND} bytes, found {BOUND + 1}",
    ):
        check_profile(large, CARD)


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        [[1]],
        {"a": [1]},
        {"a": {"b": 1}},
        {b"a": 1},
        [b"\xff"],
        nested(400),
        math.nan,
        [math.inf],
        {"a": 1e101},
    ],
)
def test_a_survey_may_hold_only_finite_numbers_and_strings(value: Any) -> None:
    with pytest.raises(
        Refused,
        match=r"expected a survey of finite numbers .* in 'odd'",
    ):
        check_profile(replace(PROFILE, survey={"zico": {"w1": 1.0}, "odd": value}), CARD)


@pytest.mark.parametrize(
    "survey", [{"histogram": [0.1] * 60_000}, {"a": nested(400)}], ids=["large", "deep"]
)
def test_the_coordinator_refuses_a_profile_with_such_a_survey_and_continues(
    fleet: MessageLoop, memory: MemoryBroker, survey: dict[str, Any]
) -> None:
    peer = ScriptedAgent(memory, "a")
    listen(fleet)
    peer.heard()
    forget_profile(fleet)
    said = {"v": envelope.PROTOCOL, "kind": "profile", "body": {**BODY, "survey": survey}}
    peer.link.publish(topics.profile("r", "a"), msgpack.packb(said), retain=True)
    listen(fleet)
    assert fleet.list_ready() == []
    (told,) = peer.heard()
    assert isinstance(told, messages.Refusal)
    assert "expected a survey of" in told.reason
    peer.say(PROFILE, topics.profile("r", "a"))
    listen(fleet)
    assert [agent.name for agent in fleet.list_ready()] == ["a"]
