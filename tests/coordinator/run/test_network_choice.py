"""Choice of the network by the majority of agents, which no minority can move beyond bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from coordinator.assign.eligibility import Eligibility
from coordinator.assign.majority_network import (
    build_network,
    explain_unit_mismatch,
    find_majority,
)
from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import AgentsAwaited
from coordinator.run.network_choice import wait_for_network
from coordinator.settings.config import load
from coordinator.trust.message_checks import check_profile
from federated.data.dataset import explain_misfit
from federated.errors import ConfigError, FleetError, Refused
from federated.task import Card, Profile
from federated.wire import envelope, messages, topics
from federated.wire.links.memory import MemoryBroker
from models.submodel import Network
from tests.support.scripted_agent import PROFILE, ScriptedAgent, listen
from tests.support.scripted_coordinator import CARD, DATA

GOOD = replace(DATA, held_out=20)
VALUES = replace(GOOD, target="value", outputs=2, shift=(0.0, 0.0), scale=(1.0, 1.0))
ODD: dict[str, Card] = {
    "shape": replace(GOOD, inputs=(1, 9, 9)),
    "target": VALUES,
    "classes": replace(GOOD, outputs=2**20),
    "mean": replace(GOOD, mean=(1e6,)),
    "mean of most examples": replace(GOOD, mean=(1e18,), examples=2**40 - 1),
    "deviation": replace(GOOD, std=(1e18,)),
}


def config(**settings: Any) -> Any:
    return load(
        None,
        {},
        [
            ("name", "r"),
            ("data.name", "agents"),
            ("model.name", "mlp-small"),
            ("method.name", "fedavg"),
            *settings.items(),
        ],
    )


def cards(*several: Card) -> dict[str, Card]:
    return {f"a{i}": card for i, card in enumerate(several)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mean": (1e200,)}, "'mean' as 1 numbers from -1e.18 to 1e.18, found 1: .1e.200,"),
        ({"mean": (math.nan,)}, "'mean' as 1 numbers"),
        ({"mean": (1.0, 2.0), "std": (1.0, 1.0)}, "'mean' as 1 numbers .* found 2"),
        ({"std": (1e200,)}, "'std' as 1 numbers from 1e-30 to 1e.18"),
        ({"std": (0.0,)}, "'std' as 1 numbers from 1e-30"),
        ({"outputs": 2**40}, "'outputs' from 2 to 1048576 for target 'class', found 1099511627776"),
        ({"outputs": 1}, "'outputs' from 2 to"),
        (
            {"inputs": (1, 2**40, 2**40)},
            "'inputs' as a shape of 1 to 8 axes and at most 67108864 numbers",
        ),
        ({"inputs": (1,) * 9}, "'inputs' as a shape of 1 to 8 axes"),
        ({"inputs": ()}, "'inputs' as a shape"),
        ({"examples": 2**40}, "'examples' from 1 to 1099511627775, found 1099511627776"),
        ({"held_out": -1}, "'held_out' from 0 to"),
        ({"shift": (0.0,), "scale": (1.0,)}, "'shift' as 0 numbers"),
        (
            {"target": "value", "shift": (1e200,), "scale": (1.0,), "outputs": 1},
            "'shift' as 1 numbers from -1e.18",
        ),
    ],
)
def test_a_card_with_impossible_numbers_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=f"profile of a: expected {said}"):
        check_profile(replace(PROFILE, data=replace(GOOD, **changed)), CARD)


def test_texts_of_another_tokenizer_are_others() -> None:
    """Their ids mean other words, although there are as many."""
    texts = replace(GOOD, inputs=(12,), dtype="int64", vocabulary=10, tokenizer="t")
    odd = replace(texts, tokenizer="other")
    agreed = find_majority(cards(texts, odd, texts))
    assert agreed.keys() == {"a0", "a2"}
    with pytest.raises(ConfigError, match=r"tokenizer 'other'.* tokenizer 't'"):
        build_network(config(), [texts, odd])
    network = Network("mine:net", "", (12,), 10, vocabulary=10, tokenizer="t")
    refuses = Eligibility(config(), network).explain_refusal
    assert not refuses(replace(PROFILE, data=texts))
    for card, found in ((odd, "'other'"), (replace(texts, tokenizer=""), "that name their")):
        why = refuses(replace(PROFILE, data=card))
        assert "by the tokenizer 't'" in why
        assert found in why


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_odd_card_of_three_does_not_count(odd: Card, place: int) -> None:
    several = [GOOD, replace(GOOD, mean=(6.0,), examples=300)]
    several.insert(place, odd)
    check_profile(replace(PROFILE, data=odd), CARD)
    agreed = find_majority(cards(*several))
    assert agreed.keys() == {"a0", "a1", "a2"} - {f"a{place}"}
    network = build_network(config(), list(agreed.values()))
    assert (network.inputs, network.outputs, network.mean) == (
        (1, 8, 8),
        10,
        (pytest.approx(5.75),),
    )
    assert explain_misfit(odd, network) or explain_unit_mismatch(odd, network)
    assert not any(
        explain_misfit(card, network) or explain_unit_mismatch(card, network)
        for card in agreed.values()
    )


@pytest.mark.parametrize("odd", [card for name, card in ODD.items() if name != "classes"])
@pytest.mark.parametrize("order", [1, -1])
def test_two_different_cards_have_no_majority(odd: Card, order: int) -> None:
    assert find_majority(cards(*[GOOD, odd][::order])) == {}


def test_three_of_five_are_a_majority_and_two_of_four_are_not() -> None:
    other = ODD["shape"]
    assert find_majority(cards(other, other, GOOD, GOOD)) == {}
    assert find_majority(cards(other, other, GOOD, GOOD, GOOD)).keys() == {"a2", "a3", "a4"}


def test_devices_with_spread_means_agree_and_an_outlier_does_not() -> None:
    """Each varies little around its own mean: 0, 10, 20, 30, 40. A mean of 500 does not belong to
    them.
    """
    several = [replace(GOOD, mean=(10.0 * i,), std=(0.1,)) for i in range(5)]
    assert len(find_majority(cards(*several))) == 5
    assert len(find_majority(cards(*several, replace(GOOD, mean=(500.0,), std=(0.1,))))) == 5


def test_a_device_may_have_up_to_twice_the_median_number_of_classes() -> None:
    known = [replace(GOOD, outputs=count) for count in (3, 5, 10)]
    assert build_network(config(), list(find_majority(cards(*known)).values())).outputs == 10
    assert (
        build_network(
            config(), list(find_majority(cards(*known, replace(GOOD, outputs=11))).values())
        ).outputs
        == 10
    )


def test_a_claim_of_examples_counts_for_at_most_ten_devices() -> None:
    """Two agents have a mean of 5; one claims a mean of 65 of almost all examples. It counts for
    ten devices: 5 + 60 x 10/12. The deviation keeps its order of magnitude.
    """
    several = [GOOD, GOOD, replace(GOOD, mean=(65.0,), std=(1e-30,), examples=2**40 - 1)]
    network = build_network(config(), several)
    assert network.mean == (pytest.approx(55.0),)
    assert network.std[0] > 1


def test_a_minority_moves_normalisation_and_size_only_within_bounds() -> None:
    """Two liars of five move the mean by at most 10 deviations of 6 plus the spread, and at most
    double the classes.
    """
    honest = [GOOD] * 3
    for mean in (-1e18, -60.0, 5.0, 66.0, 1e18):
        for std in (1e-30, 59.0, 1e18):
            liar = replace(GOOD, mean=(mean,), std=(std,), outputs=20, examples=2**40 - 1)
            network = build_network(
                config(), list(find_majority(cards(liar, liar, *honest)).values())
            )
            assert abs(network.mean[0] - 5) <= 66
            assert 1 < network.std[0] < 100
            assert network.outputs <= 20
            assert not any(explain_unit_mismatch(card, network) for card in honest)


# ---- at the start of a run -----------------------------------------------------------------------


def script_arrivals(
    fleet: MessageLoop, steps: Sequence[Callable[[], object]]
) -> list[AgentsAwaited]:
    """Take one step each time the run publishes that it waits. Return those events."""
    said, left = list[AgentsAwaited](), list(steps)

    def publish(event: object) -> None:
        if isinstance(event, AgentsAwaited):
            said.append(event)
            if left:
                left.pop(0)()
                listen(fleet)

    fleet.publish = publish  # type: ignore[assignment]
    return said


@pytest.fixture
def join(memory: MemoryBroker) -> Callable[[str, Card], ScriptedAgent]:
    def join_peer(name: str, card: Card) -> ScriptedAgent:
        peer = ScriptedAgent(memory, name)
        profile: Profile = replace(PROFILE, agent=name, data=card)
        peer.say(profile, topics.profile("r", name))
        return peer

    return join_peer


def test_the_network_is_not_chosen_before_enough_agents_agree(
    fleet: MessageLoop, join: Callable[[str, Card], ScriptedAgent]
) -> None:
    """A liar connects first, an honest agent second; the third one decides."""
    join("a", ODD["mean of most examples"])
    join("b", GOOD)
    listen(fleet)
    said = script_arrivals(fleet, [lambda: None, lambda: join("c", GOOD)])
    network = wait_for_network(fleet, config(**{"fleet.min_agents": 2}), fleet.publish)
    assert (network.mean, network.std) == (GOOD.mean, GOOD.std)
    assert {(one.ready, one.wanted) for one in said} == {(0, 2)}


def test_two_agents_that_disagree_wait_until_one_changes(
    fleet: MessageLoop, join: Callable[[str, Card], ScriptedAgent], caplog: pytest.LogCaptureFixture
) -> None:
    odd = join("a", ODD["shape"])
    join("b", GOOD)
    listen(fleet)
    script_arrivals(
        fleet,
        [
            lambda: None,
            lambda: odd.say(replace(PROFILE, agent="a", data=GOOD), topics.profile("r", "a")),
        ],
    )
    assert wait_for_network(fleet, config(**{"fleet.min_agents": 2}), fleet.publish).inputs == (
        1,
        8,
        8,
    )
    assert (
        "0 of 2 agents have data that fit together, 2 are needed: 1 x class of (1, 9, "
        "9); 1 x class of (1, 8, 8)" in caplog.text
    )


def test_without_a_majority_the_wait_ends_with_the_data_of_agents(
    fleet: MessageLoop, join: Callable[[str, Card], ScriptedAgent]
) -> None:
    join("a", ODD["shape"])
    join("b", GOOD)
    listen(fleet)
    with pytest.raises(
        FleetError,
        match=r"0 of 2 agents have data that fit together.*\(1, 9, 9\).*coordinator",
    ):
        wait_for_network(
            fleet, config(**{"fleet.min_agents": 2, "fleet.wait": 0.01}), fleet.publish
        )


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_misfit_is_refused_with_a_reason_and_judged_again_after_a_change(
    fleet: MessageLoop, join: Callable[[str, Card], ScriptedAgent], odd: Card
) -> None:
    liar = join("a", odd)
    join("b", GOOD)
    join("c", GOOD)
    listen(fleet)
    chosen = config(**{"fleet.min_agents": 2})
    network = wait_for_network(fleet, chosen, fleet.publish)
    fleet.admit(Eligibility(chosen, network))
    assert [agent.name for agent in fleet.list_ready()] == ["b", "c"]
    told = [message.reason for message in liar.heard() if isinstance(message, messages.Refusal)]
    assert len(told) == 1
    assert "this run" in told[0]
    liar.say(replace(PROFILE, agent="a", data=GOOD), topics.profile("r", "a"))
    listen(fleet)
    assert len(fleet.list_ready()) == 3
    liar.say(replace(PROFILE, agent="a", data=odd), topics.profile("r", "a"))
    listen(fleet)
    assert [agent.name for agent in fleet.list_ready()] == ["b", "c"]


def test_the_largest_accepted_profile_is_a_few_kilobytes_without_its_survey() -> None:
    large = replace(
        PROFILE, host="h" * 1000, system="s" * 1000, runtime="r" * 1000, labels=("l" * 128,) * 16
    )
    check_profile(envelope.decode(envelope.encode(large)), CARD)  # type: ignore[arg-type]
    wide = replace(
        large, data=replace(GOOD, inputs=(4000, 1, 1), mean=(0.0,) * 4000, std=(1.0,) * 4000)
    )
    with pytest.raises(
        Refused,
        match=f"expected at most {CARD.profile_limit} bytes",
    ):
        check_profile(wide, CARD)
    check_profile(wide, replace(CARD, network=None))
