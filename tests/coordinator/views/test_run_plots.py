"""`coordinator plot` draws what a run recorded, and says why it skips a plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.observe.round_records import Entry
from coordinator.store.run_store import Store
from coordinator.views.run_plots import collect_assignments, collect_times
from tests.support.memory_federation import RUN, Member, digits, federate

pytest.importorskip("matplotlib")

PNG = b"\x89PNG"
SETTINGS = {
    "method.name": "fedavg",
    "model.name": "mlp-small",
    "method.widths": [0.25],
    "train.steps": 1,
    "rounds": 2,
    "fleet.min_agents": 2,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run whose every round was evaluated."""
    folder = tmp_path_factory.mktemp("finished")
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(folder, members, SETTINGS | {"evaluate.every": 1})
    return folder / "runs"


def run_plot(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["plot", *arguments])
    return result.exit_code, result.output


def test_a_run_has_four_plots(tmp_path: Path, runs: Path) -> None:
    out = str(tmp_path / "plots")
    code, output = run_plot("--runs", str(runs), "--out", out, "--format", "json")
    made = json.loads(output.splitlines()[-1])
    assert code == 0
    assert made["skipped"] == {}
    assert [Path(file).stem for file in made["files"]] == [
        "accuracy",
        "bytes",
        "times",
        "assignment",
    ]
    assert all(Path(file).read_bytes().startswith(PNG) for file in made["files"])


def test_a_run_without_scores_has_no_plot_of_them(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(tmp_path, members, SETTINGS | {"data.name": "agents", "evaluate.devices": False})
    code, output = run_plot("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "plots"))
    assert (code, "skipped accuracy: no round was evaluated" in output) == (0, True)
    assert not (tmp_path / "plots" / "accuracy.png").exists()
    assert (tmp_path / "plots" / "assignment.png").exists()


def test_a_run_without_a_round_and_a_folder_that_is_a_file_are_errors(
    tmp_path: Path, runs: Path
) -> None:
    Store.create(tmp_path / "runs", "empty").close()
    code, output = run_plot("empty", "--runs", str(tmp_path / "runs"))
    assert code != 0
    assert "no finished round" in output
    (tmp_path / "file").touch()
    code, output = run_plot(RUN, "--runs", str(runs), "--out", str(tmp_path / "file"))
    assert code != 0
    assert str(tmp_path / "file") in output


def test_a_late_update_belongs_to_the_round_of_its_task() -> None:
    entries = {
        1: [Entry("a", "w1", "folded", seconds=2.0), Entry("b", "w1", "lost")],
        2: [Entry("b", "w1", "folded", seconds=9.0, task=1)],
    }
    assert collect_times(entries) == {"a": [(1, 2.0)], "b": [(2, 9.0)]}
    assert collect_assignments(entries) == {"a": [(1, "w1", True)], "b": [(1, "w1", True)]}
    assert collect_assignments({1: entries[1]})["b"] == [(1, "w1", False)]
