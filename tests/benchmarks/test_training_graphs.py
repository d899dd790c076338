"""The benchmark of training graphs: a measured network, and how exact it must be."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.comparison.result import BenchmarkResult
from benchmarks.training_graphs import command as training_graphs
from benchmarks.training_graphs.command import Deviation, compare_steps
from benchmarks.training_graphs.step_and_pytorch_training import Trial, train_with_pytorch
from edge_agent.join.speed_calibration import build_network, draw_examples
from federated.task import Recipe
from models.submodel_building import full

FAILING = "tests.support.user_networks:Growing"


@pytest.mark.slow
def test_a_network_is_compared_with_pytorch_although_another_one_cannot_be_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_graphs, "TURNS", 1)
    words = ["trainstep", "--batch", "3", "--steps", "4", "--format", "json"]
    done = CliRunner().invoke(main, [*words, "--model", FAILING, "--model", "mlp-small"])
    assert done.exit_code == 1
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=BenchmarkResult)
    (failure,) = found.failures
    assert failure.name == FAILING
    assert "aten.convolution_backward has no translation" in failure.reason
    assert all(row.name.startswith("mlp-small, ") for row in found.rows)
    export, error, losses, time, memory, ready = found.rows
    assert 0 < error.ours < 1e-4
    assert losses.ours > 0
    assert memory.ratio is not None
    assert memory.ratio > 1
    assert min(row.ours for row in (export, time, memory, ready)) > 0


def test_an_error_above_the_limit_passes_only_where_pytorch_has_one_like_it() -> None:
    assert compare_steps("mlp", Deviation(1e-6, 0.0), Deviation(1e-7, 0.0)).met
    assert compare_steps("mlp", Deviation(1e-3, 0.0), Deviation(6e-4, 0.0)).met
    assert not compare_steps("mlp", Deviation(1e-3, 0.0), Deviation(1e-7, 0.0)).met


def test_pytorch_trains_in_both_layouts_and_leaves_the_threads_alone() -> None:
    submodel = full(build_network("resnet-tiny", draw_examples("resnet-tiny", 2)))
    trial = Trial(submodel, Recipe(batch=3, steps=1, lr=0.01), torch.float32)
    function, threads = trial.make_function(), torch.get_num_threads()
    last = replace(trial, layout=torch.channels_last, threads=threads + 1)
    weights = [one for one in last.build_network().parameters() if one.dim() == 4]
    assert weights
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in weights)
    found = [train_with_pytorch(one, function) for one in (trial, last)]
    assert torch.get_num_threads() == threads
    assert found[0].distance(found[1]) < 1e-3
