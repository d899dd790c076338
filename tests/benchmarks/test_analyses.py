"""Analyses of runs: their arithmetic on small numbers, and each of them on a small simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from benchmarks.analyses import fine_tuning
from benchmarks.analyses.block_similarity import compare_layers, match_greedily
from benchmarks.analyses.client_similarity import align
from benchmarks.analyses.command import command
from benchmarks.analyses.feature_map import count_same, embed
from benchmarks.analyses.gradient_distributions import measure_overlap
from benchmarks.analyses.named_analyses import ANALYSES, measure
from benchmarks.analyses.panels import draw_panels, make_panel
from benchmarks.analyses.round_history import READER, read_history
from benchmarks.analyses.weight_scales import measure_scale
from coordinator.release.stored_run import find_submodel, load_stored_run
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from federated.errors import ConfigError, Unknown

TINY = {
    "name": "tiny",
    "rounds": 2,
    "data.name": "digits",
    "model.name": "preresnet-small",
    "train.batch": 16,
    "train.steps": 1,
    "evaluate.every": 2,
    "evaluate.examples": 20,
    "simulate.agents": 2,
    "simulate.partition": "iid@40",
    "observe.readers": [READER],
}


def simulate(folder: Path, method: str, **settings: Any) -> Path:
    """Simulate a tiny run in this thread; return its folder. settings: with _ for a dot."""
    given = TINY | {"method.name": method}
    given |= {key.replace("_", ".", 1): value for key, value in settings.items()}
    sources = ConfigSources(flags=list(given.items()))
    simulate_run(sources, folder, Event(), lambda event: None, resume=False)
    return folder / "tiny"


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sizes that share nothing."""
    return simulate(
        tmp_path_factory.mktemp("apart"),
        "exclusivefl",
        method_widths=[0.5, 1.0],
        method_depths=[2, 4],
        assign_submodels={"d0": "w0.5-d2.2.2", "d1": "w1-d4.4.4"},
    )


# ---- arithmetic ----------------------------------------------------------------------------------


def test_the_alignment_of_features_ignores_rotation_and_scale() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3))).Q
    assert align(x, x) == pytest.approx(1.0)
    assert align(x, 5 * x @ turn + 2) == pytest.approx(1.0)


def test_features_that_vary_on_different_examples_are_not_aligned() -> None:
    one, other = np.array([[1.0], [-1], [0], [0]]), np.array([[0.0], [0], [1], [-1]])
    assert align(one, other) == pytest.approx(0.0)


def test_each_row_takes_the_best_column_that_is_left() -> None:
    """Row 0 takes column 0 (0.9), which was better for row 1; that one is left with 0.1."""
    assert float(match_greedily(torch.tensor([[0.9, 0.8], [0.95, 0.1]]))) == pytest.approx(0.5)
    assert match_greedily(torch.tensor([[[0.2, 0.4]], [[0.6, 0.5]]])).tolist() == pytest.approx(
        [0.4, 0.6]
    )


def test_layers_are_similar_whatever_the_order_of_their_filters() -> None:
    layer = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    assert compare_layers(layer, layer) == pytest.approx(1.0)
    assert compare_layers(layer, 2 * layer[[2, 0, 3, 1]][:, [1, 2, 0]] + 1) == pytest.approx(1.0)
    assert compare_layers(layer, -layer) < 0.9


def test_the_scale_of_a_layer_is_the_mean_norm_of_its_maps() -> None:
    """Two maps of norms |1| + |-2| = 3 and |0| + |5| = 5."""
    assert measure_scale(torch.tensor([[[[1.0, -2.0]], [[0.0, 5.0]]]])) == pytest.approx(4.0)


def test_distributions_overlap_where_both_have_changes() -> None:
    """Shares .5 .5 0 and 0 .5 .5 have half in common; with a third, (.5 + .75 + .75) / 3."""
    one, other, third = (
        np.array([0.5, 0.5, 0]),
        np.array([0, 0.5, 0.5]),
        np.array([0.25, 0.5, 0.25]),
    )
    assert measure_overlap([one, other]) == pytest.approx(0.5)
    assert measure_overlap([one, other, third]) == pytest.approx(2 / 3)


def test_points_of_a_cluster_stay_together_in_two_dimensions() -> None:
    """Three clusters of 15 points in ten dimensions, 8 deviations apart."""
    rng, groups = np.random.default_rng(0), np.repeat([0, 1, 2], 15)
    x = rng.normal(size=(45, 10)) + 8 * np.eye(3, 10)[groups] * 2
    placed = embed(x, 5)
    assert placed.shape == (45, 2)
    assert count_same(x, groups) == 1
    assert count_same(placed, groups) > 0.95
    assert count_same(placed, rng.permutation(groups)) < 0.5


def test_the_means_of_a_panel_leave_out_missing_numbers() -> None:
    panel = make_panel("t", {("a", "1"): 1.0, ("a", "2"): 3.0, ("b", "2"): 5.0})
    assert panel.means == {"a": 2.0, "b": 5.0}
    assert math.isnan(panel.values[1, 0])


# ---- runs ----------------------------------------------------------------------------------------


def test_the_weights_of_sizes_are_compared_with_the_smallest_one(apart: Path) -> None:
    magnitude, distance, ratio = ANALYSES["scales"](apart)
    assert magnitude.columns == ("w0.5-d2.2.2",)
    assert set(distance.columns) == {"w0.5-d4.4.4", "w1-d2.2.2", "w1-d4.4.4"}
    assert (magnitude.values > 0).all()
    expected = np.nanmean(distance.values, axis=0) / magnitude.values.mean()
    assert ratio.values[:, 0] == pytest.approx(expected)
    assert measure("scales:ratio/max", apart) == pytest.approx(expected.max())


def test_blocks_are_compared_before_and_after_training(apart: Path) -> None:
    *sections, before, after = ANALYSES["blocks"](apart)
    assert [panel.title for panel in sections] == ["section 0", "section 1", "section 2"]
    assert sections[0].rows == ("1.conv1.weight", "1.conv2.weight")
    assert len(sections[0].columns) == 6
    assert all(0.3 < mean < 1 for panel in (before, after) for mean in panel.means.values())
    assert before.means != after.means


def test_the_features_of_devices_are_compared(apart: Path) -> None:
    *sections, mean = ANALYSES["clients"](apart)
    assert [panel.values.shape for panel in sections] == [(2, 2)] * 3
    for panel in sections:
        assert np.diag(panel.values) == pytest.approx(1.0)
        assert 0 < panel.values[0, 1] < 1
        assert panel.values[0, 1] == pytest.approx(panel.values[1, 0])
    assert mean.rows == ("section 0", "section 1", "section 2")


def test_devices_fine_tune_their_own_submodels(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices of 32 examples train two steps of 16; more epochs answer more correctly."""
    [panel] = ANALYSES["fine-tuning"](apart)
    assert panel.rows == ("d0", "d1")
    monkeypatch.setattr(fine_tuning, "EPOCHS", 30)
    [longer] = ANALYSES["fine-tuning"](apart)
    assert longer.values.mean() > panel.values.mean() + 0.2
    assert longer.values.max() <= 1


def test_fine_tuned_networks_are_generated_for_their_device(tmp_path: Path) -> None:
    """RecipFL generates weights for the classes of a device, which the run's database has."""
    run = simulate(
        tmp_path, "recipfl", model_name="mlp", method_hidden=8, simulate_partition="classes:5@40"
    )
    [panel] = ANALYSES["fine-tuning"](run)
    assert panel.rows == ("d0", "d1")
    assert ((panel.values >= 0) & (panel.values <= 1)).all()


def test_layers_that_a_device_keeps_are_fine_tuned_too(tmp_path: Path) -> None:
    run = simulate(
        tmp_path,
        "flexifed",
        method_strategy="basic",
        assign_submodels={"d0": "w1-d2.2.2", "d1": "w1-d4.4.4"},
        method_depths=[2, 4],
    )
    assert fine_tuning.find_own_layers(
        run, "d1", find_submodel(load_stored_run(run, tmp_path), "w1-d4.4.4"), 2
    )
    assert ANALYSES["fine-tuning"](run)[0].rows == ("d0", "d1")


def test_features_are_drawn_by_class_and_device(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = simulate(
        tmp_path,
        "fedavg",
        method_depths=[2, 4],
        assign_submodels={"d0": "w1-d2.2.2", "d1": "w1-d4.4.4"},
    )
    by_class, by_device, same = ANALYSES["features"](run)
    assert by_class.values.shape == (2 * 6 * 30, 2)
    assert set(by_class.groups) == {f"class {one}" for one in range(6)}
    assert set(by_device.groups) == {"d0", "d1"}
    assert np.isfinite(by_class.values).all()
    assert by_class.means == {}, "positions have no meaning"
    assert same.means.keys() == {"same class", "same device"}
    draw_panels(tmp_path / "features.png", [by_class, by_device, same], "features")
    assert (tmp_path / "features.png").stat().st_size > 10_000


def test_the_changes_of_layers_are_distributed(apart: Path) -> None:
    distribution, deviation, overlap = ANALYSES["gradients"](apart)
    assert distribution.values.sum(1) == pytest.approx(100)
    assert deviation.columns == ("d0", "d1")
    shallow, deep = "sections.0.0.conv1", "sections.2.3.conv1"
    assert {shallow, deep} <= {*deviation.rows}
    assert math.isnan(deviation.values[deviation.rows.index(deep), 0]), "d0 lacks the block"
    assert (deviation.values[deviation.rows.index(shallow)] > 0).all()
    assert deep not in overlap.rows
    assert ((overlap.values > 0) & (overlap.values <= 1)).all()


def test_step_sizes_of_every_submodel_are_shown_by_round(tmp_path: Path) -> None:
    run = simulate(tmp_path, "nefl-w", method_gammas=[0.5, 1.0], model_name="resnet-small")
    panels = ANALYSES["steps"](run)
    assert len(panels) == 2
    assert all(panel.columns == ("1", "2") and panel.rows[0] == "0.0" for panel in panels)
    assert any((panel.values != 1).any() for panel in panels), "training changes step sizes"


def test_beta_and_theta_are_shown_by_layer_and_round(tmp_path: Path) -> None:
    run = simulate(tmp_path, "inco-avg", method_record=True, model_name="resnet-small")
    beta, positive, theta = ANALYSES["cross-layer"](run)
    assert [panel.title for panel in (beta, positive, theta)] == ["beta", "beta > 0", "theta"]
    assert beta.rows == positive.rows == theta.rows
    assert "sections.0.1.conv1" in beta.rows
    assert (positive.values == 100 * (beta.values > 0)).all()
    assert (theta.values >= 0).all()
    assert measure("cross-layer:beta > 0/sections.0.1.conv1", run) == pytest.approx(
        positive.values[positive.rows.index("sections.0.1.conv1")].mean()
    )


def test_the_plan_of_branches_follows_the_scores_of_the_last_training(tmp_path: Path) -> None:
    """With half of the branches of all layers, the first plan goes from the bottom up."""
    run = simulate(
        tmp_path, "dynamicfl", method_branches=2, assign_submodels={"d*": "w1-d4.4.4-x2"}
    )
    first, second = ANALYSES["branches"](run)
    assert (first.title, second.title) == ("d0", "d1")
    assert first.columns == ("1", "2")
    assert (first.values[:, 0] == 2).all(), "two branches in every layer use up the budget"
    scores = read_history(run)[0].scores
    assert scores.keys() == {"d0", "d1"}
    assert scores["d0"].keys() == {*first.rows}


def test_a_run_without_the_numbers_is_refused_with_the_remedy(apart: Path, tmp_path: Path) -> None:
    for name, words in (
        ("steps", "nefl-w"),
        ("cross-layer", "method.record"),
        ("branches", "dynamicfl"),
    ):
        with pytest.raises(ConfigError, match=words):
            ANALYSES[name](apart)
    bare = simulate(tmp_path, "nefl-w", observe_readers=[])
    with pytest.raises(ConfigError, match="round_history:record"):
        ANALYSES["steps"](bare)
    with pytest.raises(Unknown, match="panel"):
        measure("scales:nothing/max", apart)
    with pytest.raises(ConfigError, match="cross-layer:beta"):
        measure("scales", apart)


def test_the_command_writes_numbers_and_a_picture(apart: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    given = ["scales", "tiny", "--runs", str(apart.parent), "--out", str(tmp_path / "made")]
    made = CliRunner().invoke(command, [*given, "--format", "json"], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert [panel["title"] for panel in found["panels"]] == ["magnitude", "distance", "ratio"]
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"scales.csv", "scales.png"}
    lines = (tmp_path / "made" / "scales.csv").read_text().splitlines()
    assert lines[0] == "panel,row,column,value"
    assert CliRunner().invoke(command, ["scales", "none", "--runs", str(tmp_path)]).exit_code != 0
