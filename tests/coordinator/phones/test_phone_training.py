"""Browsers train as other devices do: the losses of each step, and the weights of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from benchmarks.phones.python_training import repeat_training
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from coordinator.store.run_store import Store
from tests.support.phone_pages import (
    PAGE_TEST,
    PATIENCE,
    RUN,
    find_violations,
    join,
    place_graphs,
    start_run,
)
from tests.support.processes import Start

pytestmark = [pytest.mark.slow, *PAGE_TEST]


def read_results(runs: Path, name: str) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return each agent's loss by round, and what a run learned, without statistics."""
    store = Store.open(runs, name, read_only=True)
    try:
        losses = {
            f"{entry.agent}/{number}": entry.loss
            for number in range(1, store.rounds_done + 1)
            for entry in store.read_entries(number)
        }
        last = store.read_last()
    finally:
        store.close()
    assert last is not None
    tensors = {home: one for home, one in last.tensors.items() if not home.startswith("stats/")}
    return losses, tensors


def test_browsers_learn_what_a_simulation_learns(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    """In three rounds, the losses of each agent and all weights agree, and the loss of each step is
    that of a device with Python.
    """
    settings = {
        "model.name": "mlp",
        "data.name": "digits",
        "method.name": "fedavg",
        "rounds": 3,
        "fleet.wait": 600.0,
        "fleet.min_agents": 2,
        "evaluate.between": False,
        "method.widths": [1.0],
    }
    own = {"name": "s", "simulate.agents": 2, "simulate.trainer": "onnx", "simulate.workers": 1}
    sources = ConfigSources(flags=[*settings.items(), *own.items()])
    place_graphs(tmp_path, "s")
    simulate_run(sources, tmp_path / "runs", Event(), lambda event: None, resume=False)
    flags = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    process, _ = start_run(tmp_path, start, *flags, "broker.kind=embedded")
    shutil.copytree(
        tmp_path / "runs" / "s" / "graphs", tmp_path / "runs" / RUN / "graphs", dirs_exist_ok=True
    )
    pages = [join(browser, tmp_path, f"d{index}", f"{index}/2") for index in range(2)]
    for page in pages:
        page.get_by_text("Finished").wait_for(timeout=PATIENCE * 1000)
        assert find_violations(page) == []
    assert process.wait(PATIENCE) == 0
    losses, tensors = read_results(tmp_path / "runs", RUN)
    wanted, trained = read_results(tmp_path / "runs", "s")
    for index, page in enumerate(pages):
        place = tmp_path / "runs", RUN, 3, f"d{index}", f"{index}/2", tmp_path
        steps = repeat_training(*place)
        assert len(steps) > 10
        last = page.evaluate("window.trainings")[-1]
        assert (last["round"], last["losses"]) == (3, pytest.approx(steps, abs=1e-4))
    assert losses == pytest.approx(wanted, abs=1e-4)
    assert len(losses) == 6
    assert tensors.keys() == trained.keys()
    for home, one in tensors.items():
        assert torch.allclose(one, trained[home], rtol=0, atol=1e-4), home
