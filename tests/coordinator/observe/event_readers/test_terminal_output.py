"""Lines and tables of scores, by the target of the data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from coordinator.observe.event_readers.terminal_output import (
    LinePrinter,
    render_agents,
    render_scores,
)
from coordinator.observe.events import AgentsAwaited, RoundEnded, RoundStarted
from coordinator.observe.round_records import Entry, RoundRecord, Score
from models.named_network import network
from models.submodel_building import full

VALUES = Score(
    "w1", "central", -0.25, 1.25, 5, metrics={"accuracy": -0.25, "loss": 1.25, "rmse": 48123.4}
)
TEXTS = Score(
    "w1", "central", 0.125, 6.0, 5, metrics={"accuracy": 0.125, "loss": 6.0, "perplexity": 403.43}
)
CLASSES = Score(
    "w1", "central", 0.5, 1.0, 5, metrics={"accuracy": 0.5, "loss": 1.0, "macro_f1": 0.4}
)


@pytest.mark.parametrize(
    ("score", "lines"),
    [
        (VALUES, ["  R2 (central): w1 -0.250", "  rmse (central): w1 48,123"]),
        (TEXTS, ["  accuracy (central): w1 0.125", "  perplexity (central): w1 403.4"]),
        (CLASSES, ["  accuracy (central): w1 0.500"]),
    ],
)
def test_a_round_is_printed_with_the_metrics_of_its_data(score: Score, lines: list[str]) -> None:
    said: list[str] = []
    LinePrinter(said.append).read(RoundEnded(RoundRecord(1, 0.5, {}, {}, scores=(score,))))
    assert said[1:] == lines


@pytest.mark.parametrize(("agents", "said"), [(2, "a0 w1-d2.2, a1 w1-d2.2"), (20, "20 x w1-d2.2")])
def test_a_submodel_of_one_agent_is_printed_as_the_menu_lists_it(agents: int, said: str) -> None:
    whole, lines = full(network("lenet", (1, 16, 16), 10)), list[str]()
    LinePrinter(lines.append).read(
        RoundStarted(1, 2, {f"a{i}": replace(whole, owner=f"a{i}") for i in range(agents)})
    )
    assert lines == [f"round 1 of 2: {said.replace('w1-d2.2', whole.name)}"]


def test_a_view_that_a_submodel_lacks_is_a_dash() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(
            render_scores(
                [
                    VALUES,
                    Score(
                        "w0.5", "devices", 0.75, 0.25, 5, metrics={"accuracy": 0.75, "rmse": 2.0}
                    ),
                ]
            )
        )
        console.print(render_agents([("pi", "w1-x4", "w1", 10, 10**6)], [VALUES]))
    words = [line.split() for line in capture.get().splitlines()]
    assert words[0] == [
        "submodel",
        "R2",
        "(central)",
        "R2",
        "(devices)",
        "rmse",
        "(central)",
        "rmse",
        "(devices)",
    ]
    assert words[1:3] == [["w1", "-0.250", "-", "48,123", "-"], ["w0.5", "-", "0.750", "-", "2"]]
    assert "R2 (central)" in capture.get()
    assert "on the coordinator's own held-out data" in capture.get()
    assert "accuracy" not in capture.get()


def test_missing_agents_are_printed_again_after_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, lines = [0.0], list[str]()
    monkeypatch.setattr(
        "coordinator.observe.event_readers.terminal_output.time.monotonic", lambda: now[0]
    )
    told = LinePrinter(lines.append)
    for now[0] in (10.0, 20.0):
        told.read(AgentsAwaited(1, 2))
    told.read(RoundStarted(1, 2, {}))
    now[0] = 30.0
    told.read(AgentsAwaited(1, 2))
    assert [line for line in lines if line.startswith("waiting")] == ["waiting: 1 of 2 agents"] * 2


def test_only_some_of_many_missing_updates_are_named() -> None:
    entries = [Entry(f"a{i:02}", "w1", "silent") for i in range(20)]
    lines = list[str]()
    LinePrinter(lines.append).read(RoundEnded(RoundRecord(1, 0.5, {}, {}, entries=entries)))
    assert "0 of 20 updates" in lines[0]
    assert lines[0].endswith("a06 silent; a07 silent; and 12 more")
