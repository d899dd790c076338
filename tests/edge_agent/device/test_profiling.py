"""A device measures itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from edge_agent.device import energy, profiling
from edge_agent.device.heat_and_load import Heat
from edge_agent.device.measurement_cache import MeasurementCache
from edge_agent.device.process_limits import Limits
from edge_agent.device.profiling import (
    TimingSite,
    measure_profile,
    time_calls,
    time_step,
    time_submodels,
)
from federated.data import loading
from federated.data.dataset import Dataset
from federated.device.trainers.trainer import Trainer
from federated.errors import DataError
from federated.wire.messages import Run
from models.menu import menu
from models.named_network import network
from models.submodel import Submodel
from tests.support.small_tasks import PYTORCH

DATA = loading.load_device("digits", name="a", shard="0/8", partition="iid")
NETWORK = network("preresnet", (1, 8, 8), 10)
SMALL, LARGE = menu(NETWORK, (0.25,), (2, 4))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.timed
def test_a_deeper_network_takes_longer() -> None:
    torch.set_num_threads(1)
    assert 0 < time_step(SMALL, 32, DATA, PYTORCH) < time_step(LARGE, 32, DATA, PYTORCH)


@pytest.mark.parametrize(
    ("durations", "expected", "steps"),
    [
        pytest.param((10.0, 1.0, 1.02), 1.0, 6, id="two windows agree"),
        pytest.param((10.0, 2.0, 1.0, 1.0), 1.0, 8, id="the first was disturbed"),
    ],
)
def test_a_step_is_timed_until_two_windows_agree(
    durations: tuple[float, ...], expected: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window has the two steps that it needs at least. The first two steps are not timed."""
    taken, now = list[float](), [0.0]

    def step() -> None:
        window = len(taken) // 2
        taken.append(durations[min(window, len(durations) - 1)])
        now[0] += taken[-1]

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert time_calls(step) == expected
    assert len(taken) == steps


def test_profile_times_requested_submodels_and_sets_threads() -> None:
    card = Run("r", "fedfa", "preresnet", NETWORK, (SMALL, LARGE), 32, "s")
    found = measure_profile("a", card, DATA, Limits(cpus=1.5, memory=4 * 10**9), PYTORCH)
    assert [(t.submodel, t.batch) for t in found.timings] == [(SMALL, 32), (LARGE, 32)]
    assert torch.get_num_threads() in (1, 2)
    assert 0 < found.cpus <= 1.5
    assert 0 < found.memory < 4 * 10**9
    assert (found.data.examples, found.data.outputs) == (len(DATA.x), 10)


def test_profile_has_the_power_of_a_machine_that_measures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("ina219\n")
    (chip / "power1_input").write_text("2500000\n")  # microwatts
    for name in ("Meter", "read_counters", "read_watts"):
        monkeypatch.setattr(profiling, name, partial(getattr(energy, name), tmp_path))
    card = Run("r", "fedfa", "preresnet", NETWORK, (SMALL,), 8, "s")
    limits = Limits(cpus=1.0, memory=4 * 10**9)
    found = measure_profile("a", card, DATA, limits, PYTORCH, fresh=True)
    assert found.watts == pytest.approx(2.5)
    for microwatts in ("-4000", "1e300", "nan"):  # such as while a battery charges
        (chip / "power1_input").write_text(microwatts)
        assert measure_profile("a", card, DATA, limits, PYTORCH, fresh=True).watts == 0
    (chip / "name").write_text("coretemp\n")
    assert measure_profile("a", card, DATA, limits, PYTORCH, fresh=True).watts == 0


@pytest.mark.parametrize(
    ("shape", "largest_class", "said"),
    [((1, 9, 9), 9, "examples of shape"), ((1, 8, 8), 99, "this run has 10 classes")],
)
def test_data_that_do_not_fit_the_network_are_refused_before_a_training_step(
    shape: tuple[int, ...], largest_class: int, said: str
) -> None:
    x = np.zeros((4, *shape), np.float32)
    y = np.array([0, 1, 2, largest_class])
    data = Dataset("odd", x, y, x[:0], y[:0], largest_class + 1)
    card = Run("r", "fedfa", "preresnet", NETWORK, (SMALL,), 32, "s")
    with pytest.raises(DataError, match=said):
        measure_profile("a", card, data, Limits(), PYTORCH)


@pytest.mark.parametrize("field", ["calibration", "menu"])
def test_no_network_of_a_forged_card_is_built_for_other_data(field: str) -> None:
    card = Run("r", "fedfa", "preresnet", NETWORK, (SMALL,), 32, "s")
    texts = replace(SMALL, network=replace(NETWORK, vocabulary=2**20))
    with pytest.raises(DataError, match="texts of a vocabulary of 1048576 tokens"):
        measure_profile("a", replace(card, **{field: (texts,)}), DATA, Limits(), PYTORCH)


@pytest.mark.parametrize(("slower", "chosen"), [(1, 2), (2, 1)])
def test_the_number_of_threads_with_the_shorter_steps_is_used(
    slower: int, chosen: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps last 1 s, and 2 s with the slower number of threads. The choice is cached."""
    now, used = [0.0], list[int]()

    class Idle:
        def share(self) -> float:
            return 0.0

    class Clockwork:
        """A trainer whose steps let the clock advance."""

        runtime, accelerator = "clockwork", None

        def use_threads(self, threads: int) -> None:
            used.append(threads)

        def training_memory(self, submodel: Submodel, batch: int) -> int:
            return 0

        def stepper(self, *about: object) -> Callable[[], object]:
            return lambda: now.__setitem__(0, now[0] + (2.0 if used[-1] == slower else 1.0))

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(Limits, "threads", 2)
    cool = Heat(50.0, 2000.0, False, False, 3)
    notebook = MeasurementCache({}, where=tmp_path, heat=lambda: cool, load=Idle)
    site = TimingSite(Limits(), cast(Trainer, Clockwork()), notebook)
    threads, (timing,) = time_submodels((SMALL,), 32, DATA, site)
    assert (threads, used[-1], timing.seconds) == (chosen, chosen, 1.0)
    assert time_submodels((SMALL,), 32, DATA, site) == (threads, (timing,))
    assert (notebook.taken, notebook.known) == (2, 2)
