"""Two agents with the same name: the older one leaves soon. No agent leaves because its own
connection was lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_state import ANSWERS, Verdict, judge_status
from federated.device.agent_state import Namesake as Known
from federated.wire import envelope, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.messages import Status
from tests.support.brokers import BOTH, read_port
from tests.support.proxy import Proxy
from tests.support.scripted_coordinator import AGENT, CARD, RUN, Hand, open_spool, profile


def here(session: str) -> Status:
    return Status(AGENT, session, True)


def gone(session: str) -> Status:
    return Status(AGENT, session, False)


class Namesake:
    """The state of one agent."""

    def __init__(self, session: str) -> None:
        self.session, self.known = session, Known()

    def returned(self) -> None:
        self.known = replace(self.known, returned=True)

    def hear(self, status: Status, *, retained: bool) -> Verdict:
        self.known, verdict = judge_status(self.known, self.session, status, retained=retained)
        return verdict


def born(session: str = "m") -> Namesake:
    namesake = Namesake(session)
    assert namesake.hear(here(session), retained=False) == ""
    return namesake


def test_an_agent_leaves_after_a_later_birth_and_stays_after_an_earlier_one() -> None:
    """The broker delivers both messages in the same order to both agents, so exactly one leaves."""
    for older, newer in (("a", "b"), ("b", "a")):
        first, second = Namesake(older), Namesake(newer)
        assert [first.hear(here(one), retained=False) for one in (older, newer)] == ["", "leave"]
        assert [second.hear(here(one), retained=False) for one in (older, newer)] == ["", ""]
        assert second.hear(here(older), retained=False) == "stay", (
            "the older said so once more: it has not heard of the newer yet"
        )


def test_the_status_of_an_earlier_process_is_ignored() -> None:
    """Its status was retained at the join, and may be retained again after a broker lost later
    ones.
    """
    namesake = Namesake("m")
    assert [
        namesake.hear(here("old"), retained=True),
        namesake.hear(here("m"), retained=False),
    ] == ["", ""]
    namesake.returned()
    assert namesake.hear(here("old"), retained=True) == ""
    assert namesake.hear(gone("old"), retained=False) == "", "its will came late"
    assert born().hear(here("old"), retained=True) == "", (
        "a broker may be slow with what it retains"
    )


def test_an_agent_leaves_if_it_finds_the_same_namesake_at_two_returns() -> None:
    for mine in ("a", "z"):
        namesake = born(mine)
        namesake.returned()
        assert namesake.hear(gone(mine), retained=True) == "", "its own will"
        assert namesake.hear(gone("n"), retained=True) == "", "who came meanwhile is gone again"
        assert namesake.hear(here("n"), retained=True) == "", (
            "it may be an earlier life: a broker may have gone back to what it saved"
        )
        assert namesake.hear(here("n"), retained=True) == "", (
            "a broker may say it for each time that it is asked"
        )
        namesake.returned()
        assert namesake.hear(here("n"), retained=True) == "", (
            "its own birth was lost on the way, and took nobody's place"
        )
        assert namesake.hear(gone(mine), retained=False) == "", (
            "its own will takes a place, but not by a birth"
        )
        namesake.returned()
        assert namesake.hear(here("n"), retained=True) == ""
        assert namesake.hear(here(mine), retained=False) == ""
        namesake.returned()
        assert namesake.hear(here("n"), retained=True) == "leave"


def test_an_agent_leaves_when_a_namesake_that_it_found_answers() -> None:
    namesake = born()
    namesake.returned()
    assert namesake.hear(here("n"), retained=True) == ""
    assert namesake.hear(here("m"), retained=False) == ""
    assert namesake.hear(here("n"), retained=False) == "leave"


def test_one_of_two_namesakes_leaves_even_if_the_broker_forgot_the_older_one() -> None:
    """The newer agent does not see the older one, and the older one sees the newer. The newer
    leaves, since it hears a birth after its own.
    """
    older, newer = born("a"), born("b")
    older.returned()
    verdicts = [
        older.hear(here("b"), retained=True),
        older.hear(here("a"), retained=False),
        newer.hear(here("a"), retained=False),
    ]
    assert verdicts == ["", "", "leave"]


def test_two_agents_that_both_consider_themselves_newer_settle_it() -> None:
    pair = {"a": Namesake("a"), "b": Namesake("b")}
    for mine, namesake in pair.items():
        namesake.hear(here("b" if mine == "a" else "a"), retained=False)
        namesake.hear(here(mine), retained=False)
    verdicts = {
        mine: [namesake.hear(here("b" if mine == "a" else "a"), retained=False) for _ in range(9)]
        for mine, namesake in pair.items()
    }
    assert verdicts == {"a": ["stay"] * ANSWERS + ["leave"] * (9 - ANSWERS), "b": ["stay"] * 9}


def joined(link: Link, folder: Path, session: str) -> AgentEventLoop:
    participant = AgentEventLoop(
        link, CARD, AGENT, session, Equipment(profile, Hand(), open_spool(folder / session))
    )
    participant.join()
    return participant


def turned(
    participants: list[AgentEventLoop], seconds: float, until: Callable[[], bool] = lambda: False
) -> None:
    """Give each agent its turns until the time is over, one of them has ended, or a condition
    holds.
    """
    end, going = time.monotonic() + seconds, True
    while going and time.monotonic() < end and not until():
        for participant in participants:
            going = participant.turn(0.01) and going


def test_an_agent_stays_if_its_broker_restored_an_unknown_earlier_status(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    link = MemoryLink(broker, AGENT, (topics.status(RUN, AGENT), envelope.encode(gone("m"))))
    agent = joined(link, tmp_path, "m")
    turned([agent], 0.05)
    link.drop()
    broker.retained[topics.status(RUN, AGENT)] = envelope.encode(here("two-lives-ago"))
    link.restore()
    turned([agent], 0.05)
    assert agent.state.over == ""
    assert broker.retained[topics.status(RUN, AGENT)] == envelope.encode(here("m"))


def test_an_agent_that_only_lost_its_connection_stays(tmp_path: Path) -> None:
    link = MemoryLink(
        MemoryBroker(), AGENT, (topics.status(RUN, AGENT), envelope.encode(gone("m")))
    )
    agent = joined(link, tmp_path, "m")
    turned([agent], 0.05)
    for _ in range(3):
        link.drop()
        turned([agent], 0.02)
        link.restore()
        turned([agent], 0.05)
    assert agent.state.over == ""


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with brokers.start(port=0, kind=request.param, directory=tmp_path / "broker") as started:
        yield started


def linked(address: str, session: str) -> Link:
    return open_link(
        address, f"{RUN}-{AGENT}", (topics.status(RUN, AGENT), envelope.encode(gone(session)))
    )


@pytest.mark.broker
def test_over_a_real_broker_one_of_two_namesakes_leaves_within_seconds(
    broker: Broker, tmp_path: Path
) -> None:
    """The older is thrown out at once, tries again after 1 to 2 s and throws the newer out, which
    does the same: then the older leaves.
    """
    with contextlib.ExitStack() as stack:
        first = joined(
            stack.enter_context(contextlib.closing(linked(broker.address, "z"))), tmp_path, "z"
        )
        turned([first], 0.5)
        second = joined(
            stack.enter_context(contextlib.closing(linked(broker.address, "a"))), tmp_path, "a"
        )
        turned([first, second], 10.0)
        assert (first.state.refused, second.state.over) == (True, "")
        assert (
            first.state.over
            == f"another agent joined under the name '{AGENT}': give each its own (--name)"
        )
        first.leave()
        first.link.close()
        turned([second], 30.0, until=second.link._client.is_connected)
        assert second.link._client.is_connected()
        turned([second], 1.0)
        assert second.state.over == ""


@pytest.mark.broker
def test_over_a_real_broker_no_agent_leaves_after_a_lost_connection_or_a_device_restart(
    broker: Broker, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(Proxy(read_port(broker))))
        link = stack.enter_context(contextlib.closing(linked(f"127.0.0.1:{proxy.port}", "before")))
        agent = joined(link, tmp_path, "before")
        turned([agent], 0.3)
        proxy.cut()
        turned([agent], 0.3)
        proxy.mend()
        turned([agent], 30.0, until=link._client.is_connected)
        assert link._client.is_connected()
        turned([agent], 1.0)
        assert agent.state.over == ""
        # what was before hangs, and never says another word
        again = stack.enter_context(contextlib.closing(linked(broker.address, "after")))
        reborn = joined(again, tmp_path, "after")
        turned([reborn], 1.0)
        assert reborn.state.over == ""
