"""Selecting the version and the submodel of a release for an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.releases.assigned_release import (
    NotReleased,
    ReleaseWatch,
    Subscription,
    find_target,
)
from export.broker_publishing import announce
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Release, Version
from tests.support.handmade_releases import Clock

STABLE = Version("a" * 12, 7, "a" * 64, 1, ("s", "l"), {"pi": "s", "tv": "l"})
CANARY = Version("b" * 12, 8, "b" * 64, 1, ("s", "l"), {"pi": "l", "tv": "l"})


@pytest.mark.parametrize(
    ("card", "wanted", "submodel", "expected"),
    [
        (Release("r", STABLE, CANARY, ("pi",)), "pi", None, (CANARY, "l")),
        (Release("r", STABLE, CANARY, ("pi",)), "pi", "s", (CANARY, "s")),
        (Release("r", STABLE, CANARY, ("pi",)), "tv", None, (STABLE, "l")),
        (Release("r", STABLE, CANARY, ("pi",)), "s", None, (STABLE, "s")),
        (Release("r", STABLE, None, ("pi",)), "pi", None, (STABLE, "s")),
        (Release("r", None, CANARY, ("pi",)), "tv", None, None),
        (Release("r", STABLE), "new", None, None),
        (Release("r", STABLE), "new", "l", (STABLE, "l")),
        (Release("r", STABLE), "pi", "xl", None),
        (Release("r"), "pi", None, None),
    ],
)
def test_card_assigns_canary_to_its_agents_only(
    card: Release, wanted: str, submodel: str | None, expected: tuple[Version, str] | None
) -> None:
    found = find_target(card, wanted, submodel)
    assert (found and (found.version, found.submodel)) == expected


@pytest.mark.parametrize(
    ("run", "name", "submodel", "words", "version"),
    [
        (
            "r",
            "new",
            None,
            "a submodel for agent 'new' .*--submodel.* found only s, l",
            STABLE.name,
        ),
        ("r", "pi", "xl", "submodel 'xl', found only s, l", STABLE.name),
        (None, "new", None, "no run released a network for 'new'", ""),
    ],
)
def test_a_release_without_a_submodel_for_the_agent_is_reported(
    run: str | None, name: str, submodel: str | None, words: str, version: str, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    announce(MemoryLink(broker, "coordinator"), Release("r", STABLE))
    watch = ReleaseWatch(
        MemoryLink(broker, name), Subscription(run, name, submodel, tmp_path), clock=Clock()
    )
    with pytest.raises(NotReleased, match=words) as raised:
        watch.turn(9)
    assert (raised.value.version, raised.value.withdrawn) == (version, False)
