"""Counts of trained submodels, and the marks of untrained ones in tables, exports and releases."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from coordinator.release.archive import Archive
from coordinator.release.export_run import ExportRequest, export_run
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import Rollout
from coordinator.release.serving_choice import choose_serving
from coordinator.run.config_sources import ConfigSources
from coordinator.run.result_output import describe_result, print_result
from coordinator.simulate.simulation import simulate
from coordinator.store.run_store import Store
from coordinator.store.training_counts import Trained, count_run
from coordinator.views.agent_table import describe_agents
from coordinator.views.agent_table import render_agents as overview_text
from coordinator.views.run_list import describe_runs, render_runs
from coordinator.views.run_status import describe_status
from coordinator.views.run_status import render_status as status_text
from export import release_reader
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.runtime.logs import EVENTS
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.named_network import network
from tests.support.memory_federation import RUN, Federation, Member, digits, federate, make_config

SMALL, WHOLE = "w0.5-d2", "w1-d2"
GIVEN: dict[str, Any] = {
    "method.name": "fedavg",
    "method.widths": [0.5, 1.0],
    "model.name": "mlp-small",
    "data.name": "digits",
    "rounds": 2,
    "train.steps": 2,
    "evaluate.devices": False,
    "evaluate.every": 1,
}


def equal_agents() -> list[Member]:
    """Return two agents that can both afford the whole network, so that neither trains the small
    one.
    """
    return [Member(f"a{i}", digits(i, 2)) for i in range(2)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Federation]:
    """Return a finished run of two equal agents and two rounds: its folder and results."""
    folder = tmp_path_factory.mktemp("counts")
    return folder, federate(folder, equal_agents(), GIVEN)


@pytest.fixture
def copied(done: tuple[Path, Federation], tmp_path: Path) -> Path:
    """Return a copy of that folder that a test may change."""
    return shutil.copytree(done[0], tmp_path / "copied")


def opened(folder: Path) -> Store:
    return Store.open(folder / "runs", RUN, read_only=True)


# ---- what is counted -----------------------------------------------------------------------------


def test_updates_and_their_rounds_are_counted_for_each_submodel(
    done: tuple[Path, Federation],
) -> None:
    store = opened(done[0])
    assert count_run(store).trained == {SMALL: Trained(), WHOLE: Trained(4, 2)}
    assert count_run(store, 1).trained == {SMALL: Trained(), WHOLE: Trained(2, 1)}
    assert count_run(store).untrained == [SMALL]


def test_a_resumed_run_continues_counting(copied: Path) -> None:
    again = federate(copied, equal_agents(), {**GIVEN, "rounds": 3}, resume=True)
    assert {s.submodel: s.trained_updates for s in again.result.scores if s.view == "central"} == {
        SMALL: 0,
        WHOLE: 6,
    }
    assert count_run(opened(copied)).trained[WHOLE] == Trained(6, 3)


def test_refused_updates_train_nothing(tmp_path: Path) -> None:
    def spoil(update: Any) -> Any:
        if update.work == "train":
            for value in update.tensors.values():
                value *= float("inf")
        return update

    members = [Member("a0", digits(0, 2), change=spoil), Member("a1", digits(1, 2))]
    federate(
        tmp_path, members, {**GIVEN, "rounds": 1, "assign.submodels": {"a0": WHOLE, "a1": SMALL}}
    )
    assert count_run(opened(tmp_path)).untrained == [WHOLE]


@pytest.mark.parametrize(
    ("name", "given", "trained"),
    [
        ("fedavg", {"widths": [0.5, 1.0]}, {1: [1]}),
        ("heterofl", {"widths": [0.5, 1.0]}, {1: [1]}),
        ("inclusivefl", {}, {1: [1]}),
        ("fjord", {"widths": [0.25, 0.5, 1.0]}, {0: [0], 1: [0, 1], 2: [0, 1, 2]}),
        ("depthfl", {}, {0: [0], 2: [0, 1, 2]}),
        ("scalefl", {"widths": [0.5, 0.5, 1.0], "depths": [1, 2, 3]}, {0: [0], 1: [0, 1], 2: [2]}),
        ("recipfl", {"widths": [0.25, 0.5, 1.0]}, {1: [1], 2: [0, 2]}),
        ("recipfl", {"transfer": False}, {1: [1]}),
    ],
)
def test_methods_report_which_submodels_an_update_trains(
    name: str, given: dict[str, Any], trained: dict[int, list[int]]
) -> None:
    """Positions in the menu of the trained submodels, by that of the device's submodel."""
    chosen = find_method(name)
    settings = configure(chosen, given)
    menu = chosen.menu(network("resnet-small", (1, 8, 8), 10), settings)
    for carried, expected in trained.items():
        assert (
            sorted(menu.index(one) for one in chosen.trains(settings, menu, menu[carried]))
            == expected
        )


def test_a_width_of_fjord_is_trained_by_its_own_blocks_only() -> None:
    chosen = find_method("fjord")
    settings = configure(chosen, {"widths": [0.5, 1.0], "depths": [1, 2]})
    menu = chosen.menu(network("resnet-small", (1, 8, 8), 10), settings)
    assert sorted(one.name for one in chosen.trains(settings, menu, menu[-1])) == [
        "w0.5-d2.2.2",
        "w1-d2.2.2",
    ]
    assert len(menu) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [("fjord", {}), ("depthfl", {"method.widths": [1.0]}), ("dynamicfl", {"method.branches": 2})],
)
def test_methods_that_train_all_sizes_mark_none_as_untrained(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    widths = {"method.widths": [0.5, 1.0]} if name == "fjord" else {}
    common = {key: value for key, value in GIVEN.items() if key != "method.widths"}
    federate(
        tmp_path,
        equal_agents(),
        {
            **common,
            **widths,
            **given,
            "method.name": name,
            "model.name": "resnet-small",
            "rounds": 1,
        },
    )
    found = count_run(opened(tmp_path))
    assert found.trained
    assert found.untrained == []


# ---- where it is shown ---------------------------------------------------------------------------


def test_the_tables_of_a_run_mark_an_untrained_submodel(done: tuple[Path, Federation]) -> None:
    _, left = done
    rounds = [line for line in left.lines if "accuracy (central)" in line]
    assert len(rounds) == 2
    assert all(f"{SMALL} (not trained) 0." in line and f"{WHOLE} 0." in line for line in rounds)
    lines: list[str] = []
    print_result(left.result, live=False, say=lines.append)
    assert any(line.startswith(f"{SMALL} (not trained) ") for line in lines[0].splitlines())
    assert any(line.startswith(f"not trained: {SMALL};") for line in lines)
    assert WHOLE not in next(line for line in lines if line.startswith("not trained:"))


def test_the_result_of_a_start_names_an_untrained_submodel(done: tuple[Path, Federation]) -> None:
    made = describe_result(done[1].result, make_config(GIVEN))
    assert made["untrained"] == [SMALL]
    assert {
        s["submodel"]: s["trained_updates"] for s in made["scores"] if s["view"] == "central"
    } == {SMALL: 0, WHOLE: 4}
    assert made["worst_accuracy"] == min(
        s["accuracy"] for s in made["scores"] if s["view"] == "central"
    )


def test_status_runs_and_devices_mark_an_untrained_submodel(done: tuple[Path, Federation]) -> None:
    runs = done[0] / "runs"
    seen = describe_status(RUN, runs)
    assert {s["submodel"]: s["trained_updates"] for s in seen["scores"]["values"]} == {
        SMALL: 0,
        WHOLE: 4,
    }
    assert f"{SMALL} (not trained) 0." in status_text(seen)
    found = describe_runs(runs)
    assert found[0]["untrained"] == [SMALL]
    assert f"{RUN}: not trained: {SMALL}" in render_runs(found, runs).splitlines()
    agents = describe_agents(RUN, runs)
    assert agents["untrained"] == [SMALL]
    assert f"not trained so far: {SMALL}" in overview_text(agents).splitlines()


def test_the_log_names_an_untrained_submodel_beside_the_worst_accuracy(
    done: tuple[Path, Federation],
) -> None:
    lines = (done[0] / "runs" / RUN / EVENTS).read_text().splitlines()
    ended = [event for line in lines if (event := json.loads(line)).get("event") == "round ended"]
    assert [event["untrained"] for event in ended] == [[SMALL], [SMALL]]


@pytest.mark.slow
def test_an_export_marks_an_untrained_submodel_and_recommends_a_trained_one(
    done: tuple[Path, Federation], tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    lines: list[str] = []
    made = export_run(
        ExportRequest(RUN, done[0] / "runs", tmp_path / "out", int8=False), lines.append
    )
    assert [(one["submodel"], one["trained_updates"]) for one in made["submodels"]] == [
        (SMALL, 0),
        (WHOLE, 4),
    ]
    manifest = json.loads((tmp_path / "out" / release_reader.MANIFEST).read_text())
    assert [one["trained_updates"] for one in manifest["submodels"]] == [0, 4]
    assert lines[0].startswith(f"{SMALL} (not trained): ")
    hint = next(line for line in lines if "try: edge-agent infer" in line)
    assert f"{WHOLE}.onnx" in hint
    assert SMALL not in hint
    card = (tmp_path / "out" / "MODEL.md").read_text()
    assert f"| {SMALL} (not trained) |" in card
    assert f"Not trained: {SMALL}." in card


def test_an_export_of_only_an_untrained_submodel_succeeds(
    done: tuple[Path, Federation], tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    lines: list[str] = []
    export_run(
        ExportRequest(RUN, done[0] / "runs", tmp_path / "out", (SMALL,), int8=False), lines.append
    )
    assert any(f"{SMALL}.onnx" in line for line in lines)


@pytest.mark.slow
def test_a_release_marks_an_untrained_submodel(copied: Path) -> None:
    pytest.importorskip("onnx")
    lines: list[str] = []
    link = MemoryLink(MemoryBroker(), "coordinator")
    rollout = Rollout(
        link,
        Archive(copied / "runs", RUN),
        choose_serving(opened(copied)),
        2,
        lines.append,
    )
    made = rollout.follow(ReleaseRequest(RUN, "memory"))
    assert any(line.startswith(f"  {SMALL} (not trained): ") for line in lines)
    assert any(line.endswith(f"no update of the run trained: {SMALL}") for line in lines)
    assert made["versions"][made["stable"]]["untrained"] == [SMALL]


def test_the_results_of_a_simulation_name_an_untrained_submodel(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        'rounds = 1\n[method]\nname = "fedavg"\nwidths = [0.5, 1.0]\n[model]\nname = '
        '"mlp-small"\n[train]\nsteps = 1\n'
        "[evaluate]\ndevices = false\n[simulate]\nagents = 2\nworkers = 1\n"
    )
    lines: list[str] = []
    made = simulate(ConfigSources(file), tmp_path / "runs", tmp_path / "out", say=lines.append)
    one = json.loads((tmp_path / "out" / "seed0.json").read_text())
    trained = {s["name"]: (s["trained_updates"], s["trained_rounds"]) for s in one["submodels"]}
    assert trained == {SMALL: (0, 0), WHOLE: (2, 1)}
    assert {
        s["submodel"]: s["trained_updates"] for s in one["scores"] if s["view"] == "central"
    } == {SMALL: 0, WHOLE: 2}
    assert made["untrained"] == {"0": [SMALL]}
    assert any(
        line.startswith("seed 0: global") and line.endswith(f"; not trained: {SMALL}")
        for line in lines
    )


# ---- runs without a record -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_without_recorded_updates_has_no_marks_and_is_exported(copied: Path) -> None:
    pytest.importorskip("onnx")
    database = sqlite3.connect(copied / "runs" / RUN / "run.sqlite")
    with database:
        database.execute("DELETE FROM updates")
    database.close()
    lines: list[str] = []
    made = export_run(ExportRequest(RUN, copied / "runs", copied / "out", int8=False), lines.append)
    assert [one["trained_updates"] for one in made["submodels"]] == [None, None]
    shown = [
        *lines,
        (copied / "out" / "MODEL.md").read_text(),
        status_text(describe_status(RUN, copied / "runs")),
    ]
    assert not any("ot trained" in text for text in shown)
