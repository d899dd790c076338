"""Tables beside Flower: which rows it can run, its training loop, and its results."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn.utils import parameters_to_vector

from benchmarks.peers.environments import PEERS, folder
from benchmarks.reproduction.cells import read_log
from benchmarks.reproduction.command import command
from benchmarks.reproduction.flower import FLOWER, find_obstacle
from benchmarks.reproduction.flower_process import train
from coordinator.settings.config import load
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Recipe
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import train as train_here
from models.named_network import network
from models.submodel_building import build, full


def find(**settings: object) -> str:
    given = {key.replace("_", ".", 1): value for key, value in settings.items()}
    return find_obstacle(load(None, {}, [("method.name", "fedavg"), *given.items()]))


def test_flower_runs_plain_fedavg_and_fedprox_only() -> None:
    assert find() == find(method_name="fedprox") == find(method_depths=[2]) == ""
    assert "scaffold" in find(method_name="scaffold")
    assert "one size" in find(method_widths=[0.5, 1.0])
    assert "one size" in find(method_sharing="architecture", method_depths=[1, 2])
    assert "whole epochs" in find(train_steps=3)
    assert "masked" in find(train_masked=True)
    assert "tracked" in find(method_norm="static")


@pytest.mark.parametrize(("name", "optimiser"), [("fedavg", "sgd"), ("fedprox", "adam")])
def test_its_devices_train_like_those_of_a_simulation(name: str, optimiser: str) -> None:
    """Two epochs of one batch each, so that the order of examples does not matter."""
    rng, whole = np.random.default_rng(0), full(network("resnet-small", (1, 8, 8), 4))
    x, y = rng.integers(0, 255, (6, 1, 8, 8), dtype=np.uint8), np.array([0, 1, 2, 3, 0, 1])
    given = {"epochs": 2, "batch": 6, "optimiser": optimiser, "decay": 0.01, "clip": 0.5}
    settings = configure(find_method(name), {**given, **({"mu": 0.1} if name != "fedavg" else {})})
    ours = build(whole, seed=0)
    theirs, before = copy.deepcopy(ours), copy.deepcopy(ours)
    pull = 0.1 if name == "fedprox" else 0.0
    recipe = Recipe(**given, lr=0.05, norm="tracked", pull=pull)  # type: ignore[arg-type]
    train_here(ours, whole, recipe, TrainingSet(x, y, [0, 1, 2, 3]), seed=0)
    told = {"lr": 0.05, **({"proximal_mu": pull} if pull else {})}
    train(theirs, torch.from_numpy(x), torch.from_numpy(y), settings, told)
    one, other, start = (parameters_to_vector(net.parameters()) for net in (ours, theirs, before))
    # Adam's first steps turn the rounding of the smallest gradients into parts of a step; a
    # forgotten setting changes nine tenths of the parameters
    differing = (one - other).abs() > 1e-3 * one.abs() + 0.002 * told["lr"]
    assert differing.float().mean() < 0.05
    assert not torch.equal(other, start)


def test_a_table_without_such_a_row_is_refused(tmp_path: Path) -> None:
    given = [
        "nefl-table7",
        "--scale",
        "check",
        "--beside",
        "flower",
        "--log",
        str(tmp_path / "l.jsonl"),
    ]
    done = CliRunner().invoke(command, given)
    assert done.exit_code == 2
    assert "no row that Flower can run" in done.output


@pytest.mark.slow
def test_without_random_draws_flower_and_the_simulation_agree(tmp_path: Path) -> None:
    """All devices train in each round, with one batch per epoch: both do the same arithmetic."""
    if not (folder() / PEERS[FLOWER].replace("==", "-") / "installed").exists():
        pytest.skip("Flower's environment is not installed: run python -m benchmarks aggregation")
    log = tmp_path / "log.jsonl"
    changes = ("train.steps=0", "train.batch=200", "rounds=2", "simulate.partition=iid@60")
    # few small steps, and not of Adam, since training amplifies rounding
    changes += ("train.optimiser=sgd", "train.lr=0.01", "train.momentum=0", "train.epochs=1")
    changes += ("evaluate.examples=300",)
    given = ["inco-table1", "--scale", "check", "--beside", "flower", "--log", str(log)]
    given += [word for change in changes for word in ("--set", change)]
    given += ["--only", "IID with homo", "--only", "IID with homo, Flower"]
    done = CliRunner().invoke(command, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ours, theirs = (one.scores for one in read_log(log))
    assert theirs["global"] == pytest.approx(ours["global"])
    assert math.isclose(theirs["loss"], ours["loss"], rel_tol=1e-3)
