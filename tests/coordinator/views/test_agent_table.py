"""Agents of a run as read from its folder, during the run and afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.views.agent_table import describe_agents, render_agents
from federated.errors import StoreError
from federated.task import Update
from tests.support.memory_federation import RUN, Member, digits, federate

SMALL = {
    "model.name": "mlp-small",
    "method.widths": [0.5, 1.0],
    "method.depths": [2],
    "train.steps": 2,
    "evaluate.every": 99,
    "evaluate.between": False,
}


def test_agents_are_shown_with_submodels_reasons_and_measurements(tmp_path: Path) -> None:
    """One agent reports times, one reports none, and one is not selected. During a round, the table
    shows the agents that have tasks.
    """
    seen: list[dict[str, Any]] = []

    def measured(update: Update) -> Update:
        if update.work != "train":
            return update
        if update.round == 2:
            seen.append(describe_agents(RUN, tmp_path / "runs"))
        return replace(update, notes={**update.notes, "step": 0.001, "seconds": 0.002, "peak": 123})

    fleet = [
        Member("a0", digits(0, 3), change=measured),
        Member("a1", digits(1, 3)),
        Member("b0", digits(2, 3)),
    ]
    federate(
        tmp_path, fleet, {**SMALL, "rounds": 2, "fleet.select": "name=a*", "fleet.min_agents": 2}
    )
    live, over = seen[0], describe_agents(None, tmp_path / "runs")
    assert (live["rounds_done"], live["round"], over["rounds_done"], over["round"]) == (1, 2, 2, 2)
    now, done = ({one["agent"]: one for one in made["agents"]} for made in (live, over))
    assert {name: one["state"] for name, one in now.items()} == {
        "a0": "asked in round 2",
        "a1": "asked in round 2",
        "b0": "not asked yet",
    }
    assert {name: one["state"] for name, one in done.items()} == {
        "a0": "folded in round 2",
        "a1": "folded in round 2",
        "b0": "not asked yet",
    }
    assert done["a0"]["measured"] | {"seconds": 1} == {
        "round": 2,
        "submodel": done["a0"]["submodel"],
        "outcome": "folded",
        "step": 0.001,
        "seconds": 1,
        "memory": 123,
    }
    assert (done["a1"]["measured"]["step"], done["a1"]["standing"]["trained"]) == (None, 0)
    assert done["a0"]["standing"]["trained"] == 2
    assert done["b0"]["reason"] == "not selected: name=a* not met: it has b0"
    assert done["a0"]["profile"]["board"]["kind"] == "generic"
    assert "survey" not in str(done["a0"]["profile"])
    shown = render_agents(over)
    assert shown.startswith("run 'test', 2 rounds done\n")
    assert render_agents(live).startswith("run 'test', 1 round done, in round 2\n")
    assert f"\na1: {done['a1']['reason']}" in shown
    assert "software" not in shown, "no device states its version"
    over["agents"][0]["profile"]["software"] = "edge-agent 9.1"
    assert render_agents(over).endswith("\nsoftware: edge-agent 9.1 (1 agent), unknown (2 agents)")


def test_the_command_shows_the_latest_run_and_names_what_is_missing(tmp_path: Path) -> None:
    federate(tmp_path, [Member("a0", digits(0, 2))], SMALL)
    done = CliRunner().invoke(
        main, ["devices", "--runs", str(tmp_path / "runs"), "--format", "json"]
    )
    assert json.loads(done.output)["agents"][0]["agent"] == "a0"
    assert (
        "a0: the largest submodel"
        in CliRunner().invoke(main, ["devices", RUN, "--runs", str(tmp_path / "runs")]).output
    )
    missing = CliRunner().invoke(main, ["devices", "other", "--runs", str(tmp_path / "runs")])
    assert (missing.exit_code, "no run 'other'" in missing.output) == (7, True)
    with pytest.raises(StoreError, match="no run in"):
        describe_agents(None, tmp_path)
