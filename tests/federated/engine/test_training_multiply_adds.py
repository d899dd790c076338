"""Multiply-adds of training: the passes that methods declare equal those that PyTorch counts while
a device trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.device.trainers.pytorch_trainer import to_tensors
from federated.engine.training_multiply_adds import Pass, effort, macs
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import open_session, train_session
from models.cost import cost, count_flops
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import build, full, initial

SAMPLES, BATCH = 12, 4
NET = network("resnet-small", (1, 8, 8), 3)
SIZES = {"widths": (0.25, 0.5)}
LEVELS = {"scalefl": {"widths": (0.25, 0.5), "depths": (1, 2)}}


class Device:
    """A device of a method on the smallest or largest size of a tiny menu, which trains as in a run
    and counts as PyTorch does.
    """

    def __init__(self, monkeypatch, name: str, *, index: int = -1, **given) -> None:
        self.method, self.monkeypatch = find_method(name), monkeypatch
        sizes = LEVELS.get(
            name, {key: value for key, value in SIZES.items() if key in self.method.settings}
        )
        settings = configure(self.method, {**sizes, "batch": BATCH, "epochs": 1, **given}, rounds=4)
        self.menu = self.method.menu(NET, settings)
        self.state = self.method.start(initial(NET, 0, self.method.features), self.menu, settings)
        self.submodel: Submodel = self.menu[index]
        self.recipe = self.method.recipe(self.state, self.submodel)
        self.memory: dict[str, torch.Tensor] = {}

    def expected(self, before: Submodel | None = None) -> tuple[float, float]:
        """Forward, and forward with backward, as the method says."""
        passes = self.method.passes(self.recipe, self.submodel, before)
        return tuple(
            SAMPLES * self.recipe.epochs * macs(passes, backward=backward)
            for backward in (False, True)
        )

    def counted(self, seed: int = 0) -> tuple[int, int]:
        """Return the count of PyTorch for the same local training."""
        rng = np.random.default_rng(0)
        x, y = rng.random((SAMPLES, 1, 8, 8), dtype=np.float32), rng.integers(0, 3, SAMPLES)
        plan = self.method.place(self.state, self.submodel)
        received = to_tensors(
            {name: value.numpy() for name, value in self.method.dispatch(self.state, plan).items()},
            "cpu",
        )
        net = build(self.submodel)
        net.load_state_dict(
            {name: value for name, value in received.items() if "/" not in name}, strict=False
        )
        session = open_session(
            net, self.submodel, self.recipe, TrainingSet(x, y, range(3)), seed=seed
        )
        session.received, session.memory = received, self.memory
        back = 0
        with count_flops() as flops, self.monkeypatch.context() as patch:
            backward = torch.Tensor.backward

            def counted(loss, *args, **kwargs):
                nonlocal back
                before = flops.get_total_flops()
                backward(loss, *args, **kwargs)
                back += flops.get_total_flops() - before

            patch.setattr(torch.Tensor, "backward", counted)
            train_session(
                session, find_method(self.recipe.hook).hooks if self.recipe.hook else None
            )
        self.memory = session.memory
        return (flops.get_total_flops() - back) // 2, flops.get_total_flops() // 2


@pytest.fixture
def device(monkeypatch) -> Callable[..., Device]:
    return lambda name, **given: Device(monkeypatch, name, **given)


# ---- methods -------------------------------------------------------------------------------------


FIXED = sorted(METHODS.keys() - {"fjord"})  # which draw no widths
OWN = [name for name in FIXED if find_method(name).passes is not find_method("fedavg").passes]


@pytest.mark.parametrize(
    ("name", "index"), [*((name, -1) for name in FIXED), *((name, 0) for name in ["fedavg", *OWN])]
)
def test_the_first_training_takes_the_declared_passes(device, name, index):
    one = device(name, index=index)
    assert one.counted() == pytest.approx(one.expected(), rel=1e-12)


@pytest.mark.parametrize("name", ["moon", "inco-moon"])
def test_moons_later_trainings_pass_the_received_and_the_previous_network_too(device, name):
    one = device(name)
    first = one.counted()
    later = one.counted()
    assert later == pytest.approx(one.expected(before=one.submodel), rel=1e-12)
    assert later[0] == 3 * first[0]
    assert later[1] - first[1] == 2 * first[0], "fixed networks have no backward pass"
    assert one.expected(before=one.menu[0]) == first, (
        "the previous network of another submodel is of no use"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kd", [False, True])
def test_fjord_passes_every_width_equally_often_and_with_kd_the_own_width_each_time(device, kd):
    """Three batches and two widths: over seeds whose draws are known, the mean over the eight
    equally likely rows of draws is what it says.
    """
    one = device("fjord", kd=kd)
    by_draws: dict[tuple[int, ...], tuple[int, int]] = {}
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        torch.randperm(SAMPLES, generator=generator)
        draws = tuple(
            int(torch.randint(2, (), generator=generator)) for _ in range(SAMPLES // BATCH)
        )
        if draws not in by_draws:
            by_draws[draws] = one.counted(seed)
        if len(by_draws) == 8:
            break
    assert len(set(by_draws.values())) == 4, "how many batches were narrow decides"
    assert tuple(np.mean(list(by_draws.values()), axis=0)) == pytest.approx(
        one.expected(), rel=1e-12
    )
    assert device("fjord", kd=kd, index=0).counted() == device("fjord", kd=kd, index=0).expected()


@pytest.mark.parametrize("given", [{"epochs": 3}, {"shrink": "depth"}, {"transfer": False}])
def test_recipfls_strong_device_trains_and_teaches_a_second_network(device, given):
    """The pass that measures the teacher's batch norm runs once per training, for any number of
    epochs.
    """
    strong = device("recipfl", **given)
    found = strong.counted()
    assert found == pytest.approx(strong.expected(), rel=1e-12)
    large, small = (
        SAMPLES * strong.recipe.epochs * cost(s).forward_macs
        for s in (strong.submodel, strong.menu[0])
    )
    measured = SAMPLES * cost(strong.submodel).forward_macs
    assert found[0] == (large if given == {"transfer": False} else 2 * large + measured + small)


def test_exits_all_count(device):
    """The head of the shallow exit is passed in training and not in inference."""
    for name in ("depthfl", "scalefl"):
        one = device(name)
        assert one.expected()[0] > SAMPLES * cost(one.submodel).macs


def test_branches_are_trained_merged(device):
    """A network with two branches per layer takes what the plain one takes, whereas the paper
    counts each branch by itself.
    """
    one = device("dynamicfl", branches=2)
    assert one.submodel.branches == 2
    assert (
        one.counted()[0]
        == SAMPLES * cost(full(NET)).forward_macs
        < SAMPLES * cost(one.submodel).forward_macs
    )


# ---- sums ----------------------------------------------------------------------------------------


def test_passes_add_up_by_their_number_and_by_whether_they_learn():
    whole = full(NET)
    half = replace(whole, width=0.5)
    passes = [Pass(whole), Pass(half, 0.25), Pass(whole, 2, learns=False)]
    assert macs(passes) == 3 * cost(whole).forward_macs + 0.25 * cost(half).forward_macs
    assert (
        macs(passes, backward=True)
        == cost(whole).training_macs
        + 0.25 * cost(half).training_macs
        + 2 * cost(whole).forward_macs
    )


def test_tmac_counts_the_rounds_to_the_target_and_the_total_all_of_them():
    """Two devices in the first round, one in the second, none in the third; three epochs each."""
    found = effort([[10.0, 40.0], [10.0], []], 3, reached=1)
    assert (found.mean, found.mace, found.total, found.tmac) == (20.0, 20.0, 180.0, 150.0)
    assert effort([[10.0, 40.0], [10.0], []], 3, reached=3).tmac == 180.0
    assert effort([[10.0]], 1, reached=None).tmac is None
    with pytest.raises(ValueError, match="no device"):
        effort([[]], 1, reached=None)
