"""What a device does about the version that a run wants: `decide`, and the question to the run."""

from __future__ import annotations

import pytest

from edge_agent.update.environments import ROLLED_BACK, Refusal
from edge_agent.update.software_exchange import Question, exchange
from edge_agent.update.wanted_software import Decision, Held, decide, order
from federated.errors import FleetError
from federated.wire import envelope, messages, topics
from federated.wire.links.catalogue import open_link
from federated.wire.release_messages import Installed, Software, SoftwareCard, find_wanted

OLD, NOW, NEW = (Software(release, "ab" * 32) for release in ("0.1.0", "0.2.0", "0.10.0"))
BROKEN = Refusal("it broke")
HELD = Held(NOW.name, "first", "0.2.0")


@pytest.mark.parametrize(
    ("wanted", "withdrawn", "held", "step", "words"),
    [
        (None, "", HELD, "nothing", "no particular version"),
        (NOW, "", HELD, "nothing", "is installed"),
        (NEW, "", HELD, "install", "wants 0.10.0-abababab"),
        (OLD, "", HELD, "refuse", "older than 0.2.0"),
        (OLD, "", Held(NOW.name, OLD.name, "0.2.0"), "return", "wants 0.1.0"),
        (NEW, "", Held(NOW.name, NEW.name, "0.2.0", {NEW.name: BROKEN}), "refuse", "it broke"),
        (
            NEW,
            "",
            Held(NOW.name, NEW.name, "0.2.0", {NEW.name: ROLLED_BACK}),
            "return",
            "wants 0.10",
        ),
        (NEW, "", Held(NOW.name, "", "0.2.0", {NEW.name: ROLLED_BACK}), "install", "wants 0.10.0"),
        (None, NOW.name, HELD, "return", "was rolled back"),
        (OLD, NOW.name, HELD, "return", "was rolled back"),
        (NOW, NOW.name, HELD, "nothing", "is installed"),
        (None, NOW.name, Held(NOW.name, "", "0.2.0"), "refuse", "no other one"),
        (None, NOW.name, Held(NOW.name, "b", "0.2.0", {"b": BROKEN}), "refuse", "no other"),
        (
            NEW,
            NOW.name,
            Held(NOW.name, "b", "0.2.0", {"b": ROLLED_BACK}),
            "install",
            "wants 0.10.0",
        ),
        (NEW, NOW.name, Held(NOW.name, "", "0.2.0"), "install", "wants 0.10.0"),
        (None, NEW.name, HELD, "nothing", "no particular version"),
    ],
)
def test_a_device_decides_by_what_it_has(
    wanted: Software | None, withdrawn: str, held: Held, step: str, words: str
) -> None:
    decision = decide(wanted, withdrawn, held)
    assert decision.step == step, decision
    assert words in decision.reason
    assert isinstance(decision, Decision)


def test_versions_are_ordered_as_pip_orders_them() -> None:
    """A coordinator that someone took over must not undo a fix."""
    known = (
        "0.9.9 0.10.0 1.0.dev1 1.0a2 1.0b1 1.0rc1.dev1 1.0rc1 1.0 1.0.post1.dev2 1.0.post1 1!0.1"
    )
    keys = [order(one) for one in known.split()]
    assert keys == sorted(keys)
    assert len(keys) == len({str(one) for one in keys})
    assert order("1.0.0") == order("1.0") == order("1+local.1")
    assert order("unknown") < order("0.0.1.dev0")


@pytest.mark.parametrize("older", ["0.3.0", "0.3.0rc1", "0.3.0RC1", "0.3.0.post1.dev1"])
def test_an_older_version_with_the_same_numbers_is_refused(older: str) -> None:
    held = Held("0.3.0.post1-abababab", "", "0.3.0.post1")
    assert decide(Software(older, "cd" * 32), "", held).step == "refuse"


def test_a_card_wants_the_canary_on_its_agents_and_the_stable_version_on_those_named() -> None:
    some = Software("0.2.0", "ab" * 32, agents=("a", "b"))
    card = SoftwareCard("r", some, NEW, ("b", "c"))
    assert [find_wanted(card, agent) for agent in "abcd"] == [some, NEW, NEW, None]
    assert find_wanted(SoftwareCard("r", NOW), "d") == NOW
    assert find_wanted(SoftwareCard("r"), "d") is None


CARD = messages.Run("r", "fedavg", "mlp", None, (), 8, "s")


@pytest.mark.broker
def test_a_device_asks_the_run_and_reports(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.update.software_exchange.WAIT", 1.0)
    with pytest.raises(FleetError, match="no run named 'other'"):
        exchange(Question(broker, "other", "pi"))
    link = open_link(broker, "coordinator")
    link.publish(topics.run("r"), envelope.encode(CARD), retain=True)
    link.subscribe(topics.serving("r", "+", "software"))
    assert exchange(Question(broker, "", "pi")).wanted is None
    said = SoftwareCard("r", NOW, NEW, ("pi",), OLD.name)
    foreign = SoftwareCard("another", NEW)
    for card in (foreign, said):
        link.publish(topics.release_card("r", "software"), envelope.encode(card), retain=True)
    answer = exchange(Question(broker, "r", "pi", Installed("whoever", "", "0.2.0")))
    assert (answer.run, answer.agent) == ("r", "pi")
    assert (answer.wanted, answer.withdrawn) == (NEW, OLD.name)
    assert exchange(Question(broker, "r", "phone")).wanted == NOW
    delivery = link.receive(10)
    assert delivery is not None
    assert delivery.topic == topics.serving("r", "pi", "software")
    assert envelope.decode(delivery.payload) == Installed("pi", "", "0.2.0")
    link.close()
