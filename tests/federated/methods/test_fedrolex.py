"""FedRolex: windows that roll."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.fedrolex import cut_window
from federated.task import Update
from models.menu import menu
from models.named_network import network
from models.slicing import corner
from models.submodel import Submodel
from models.submodel_building import build, initial, shapes, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.smallest_networks import SMALL, small

FEATURES = ("scaler",)


def start(net, round_, tensors=None, **given):
    chosen = find_method("fedrolex")
    settings = configure(chosen, {"norm": "tracked", **given})
    state = chosen.start(tensors or initial(net, 0, FEATURES), chosen.menu(net, settings), settings)
    return chosen, replace(state, round=round_)


def spread(net):
    """Return tensors of the whole network in which no two channels are equal."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(value.shape, generator=generator) + 0.1
        for name, value in initial(net, 0, FEATURES).items()
    }


def answer(submodel, tensors, x):
    net = build(submodel).eval()
    net.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        return net(x)


def draw_examples(net):
    """Return some examples, drawn from the seed."""
    generator = torch.Generator().manual_seed(1)
    if net.objective in {"next", "masked"}:
        return torch.randint(net.outputs, (2, *net.inputs), generator=generator)
    return torch.rand((2, *net.inputs), generator=generator)


def test_a_window_wraps_around():
    """3 of 5 from 3 on: 3, 4, then 0."""
    assert cut_window(3, 5, 3) == (((0, 2), (3, 5)), ((2, 3), (0, 1)))
    assert cut_window(3, 5, 2) == (((0, 3), (2, 5)),)


@pytest.mark.parametrize("direction", ["author", "paper"])
@pytest.mark.parametrize("family", [*SMALL, "tests.support.user_networks:cnn"])
def test_a_narrow_network_is_the_whole_one_with_the_channels_of_a_window(family, direction):
    """Rolling every channel of the whole network changes nothing that it says; a narrow network is
    a corner of that.
    """
    net = small(family) if family in SMALL else network(family, (1, 8, 8), 10)
    whole, narrow = (menu(net, (width,), (9,), FEATURES)[0] for width in (1.0, 0.5))
    tensors, turn = spread(net), 3
    chosen, state = start(net, turn, tensors, direction=direction)
    wide, kept, one = (
        shapes(s) | statistics(s) for s in (whole, narrow, replace(whole, width=1e-6))
    )
    by = turn if direction == "author" else -turn
    rolled = {}
    for name, value in tensors.items():
        axes = [
            axis for axis, (n, c) in enumerate(zip(kept[name], wide[name], strict=True)) if n < c
        ]
        rolled[name] = (
            torch.roll(value, [by * one[name][axis] for axis in axes], axes) if axes else value
        )
    assert any(not torch.equal(rolled[name], tensors[name]) for name in tensors)
    x = draw_examples(net)
    torch.testing.assert_close(
        answer(whole, rolled, x), answer(whole, tensors, x), rtol=1e-4, atol=1e-4
    )
    sent = chosen.dispatch(state, chosen.place(state, narrow))
    assert sent.keys() == kept.keys()
    for name, value in sent.items():
        assert torch.equal(value, rolled[name][tuple(slice(n) for n in kept[name])]), name


def test_an_update_is_folded_into_the_window_that_it_was_cut_from():
    """In the second round the window has 32 of 64 hidden channels: 63, then 0 to 30. All other
    channels stay unchanged.
    """
    net = network("mlp", (6,), 3)
    chosen, state = start(net, 1)
    submodel = menu(net, (0.5,), (2,), FEATURES)[0]  # 32 of 64
    sent = {
        name: torch.full_like(value, 5.0)
        for name, value in chosen.dispatch(state, chosen.place(state, submodel)).items()
    }
    sent["norm.weight"][0] = 7.0
    total = Total()
    update = Update("r", 2, 0, "a", "train", submodel, "1", 9, 1, sent, {"labels": [0, 2]})
    assert fold(total, chosen.parts(state, chosen.place(state, submodel), update), ("a",))
    after = chosen.finish(state, total, np.random.default_rng(0))
    assert after.round == 2
    assert after.tensors["norm.weight"].tolist() == [5.0] * 31 + [1.0] * 32 + [7.0]
    old, new = state.tensors["linear.weight"], after.tensors["linear.weight"]
    held = [*range(31), 63]
    assert new[0, held].tolist() == new[2, held].tolist() == [5.0] * 32
    assert torch.equal(new[1], old[1]), "a class that nobody holds"
    assert torch.equal(new[:, 31:63], old[:, 31:63])


@pytest.mark.parametrize("direction", ["author", "paper"])
def test_in_time_every_channel_is_trained_equally_often(direction):
    net = network("mlp", (6,), 3)
    counts = torch.zeros(64)
    for round_ in range(64):
        chosen, state = start(net, round_, direction=direction)
        for row in chosen.place(state, menu(net, (0.25,), (2,), FEATURES)[0]).rows:
            if row.home == "norm.weight":
                counts[slice(*row.there[0])] += 1
    assert counts.tolist() == [16.0] * 64


def test_the_first_round_is_heterofls():
    net = small("preresnet")
    chosen, state = start(net, 0)
    for submodel in chosen.menu(net, state.settings):
        assert all(
            row.here == row.there == corner([stop for _, stop in row.here])
            for row in chosen.place(state, submodel).rows
        )


def test_layers_that_a_dense_block_lacks_do_not_roll():
    """The inputs of the later layers follow the depth of the block, at every width."""
    net = small("densenet")
    chosen, state = start(net, 3)
    shallow = Submodel(net, 1.0, ((1, 1, 0),) * 3, FEATURES)
    assert all(row.here == row.there for row in chosen.place(state, shallow).rows)


@pytest.mark.slow
def test_three_sizes_learn_digits(tmp_path: Path) -> None:
    fleet = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
    pins = {"a0": "w0.25-d1.1.1-scaler", "a1": "w0.5-d1.1.1-scaler", "a2": "w1-d1.1.1-scaler"}
    given = {
        "method.name": "fedrolex",
        "model.name": "resnet-small",
        "method.widths": [0.25, 0.5, 1.0],
        "method.depths": [1],
    }
    done = federate(
        tmp_path,
        fleet,
        {
            **given,
            "rounds": 3,
            "train.epochs": 1,
            "train.batch": 32,
            "evaluate.every": 4,
            "assign.submodels": pins,
        },
    )
    assert {name: s.name for name, s in done.result.history.assigned.items()} == pins
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert central["w1-d1.1.1-scaler"] > 0.5
