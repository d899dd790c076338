"""InclusiveFL: parameters that a size owns, parameters that sizes share, and the gradient that a
larger size passes to a smaller.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.inclusivefl import find_own_tensors
from federated.task import Update
from models.menu import menu
from models.named_network import network
from models.submodel_building import initial, shapes, statistics
from tests.support.golden import register_toy
from tests.support.memory_federation import Member, digits, federate

NET = network("resnet-small", (1, 8, 8), 10)  # three sections of two blocks


@pytest.fixture
def stacks(monkeypatch):
    """Return a toy of two sections of three layers of one number each, between a stem and a head;
    its sizes of depth 1, 2 and 3.
    """
    layer = "sections.{}.{}.weight"

    def tensors(submodel):
        layers = {
            layer.format(s, b): (1,)
            for s, section in enumerate(submodel.mask)
            for b, keep in enumerate(section)
            if keep
        }
        return {"stem.weight": (1,), **layers, "linear.weight": (1,)}

    whole = register_toy(monkeypatch)(tensors, (3, 3))
    return tuple(replace(whole, mask=((1,) * n + (0,) * (3 - n),) * 2) for n in (1, 2, 3))


def begin_method(sizes, **given):
    """Return a state of zeros."""
    chosen = find_method("inclusivefl")
    before = {name: torch.zeros(shape) for name, shape in shapes(sizes[-1]).items()}
    return chosen, chosen.start(
        before, sizes, configure(chosen, {"norm": "static", "depths": [1, 2, 3], **given})
    )


def one_round(chosen, state, *updates):
    """Play one round. An update is (size, amount added to all received tensors, or to each by name,
    examples).
    """
    total = Total()
    for index, (size, moved, samples) in enumerate(updates):
        plan = chosen.place(state, size)
        received = chosen.dispatch(state, plan)
        tensors = {
            name: value + (moved.get(name, 0.0) if isinstance(moved, dict) else moved)
            for name, value in received.items()
        }
        update = Update("r", 0, 0, str(index), "train", size, "0", samples, 1, tensors)
        assert fold(total, chosen.parts(state, plan, update), (index,))
    return chosen.finish(state, total, np.random.default_rng(0))


def receive_size(chosen, state, size):
    """Return the received tensors by short names: 0.1 is the second layer of the first section."""
    found = chosen.dispatch(state, chosen.place(state, size))
    return {
        name.removeprefix("sections.").removesuffix(".weight"): round(value.item(), 5)
        for name, value in found.items()
    }


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "target", "depths"),
    [
        ("resnet-small", (1, 8, 8), "class", ["d1.1.1", "d2.2.2"]),
        ("preresnet", (1, 8, 8), "class", ["d2.2.2", "d3.3.3", "d4.4.4"]),
        ("resnet-34", (3, 32, 32), "class", ["d1.2.2.1", "d2.3.4.2", "d3.4.6.3"]),
        ("transformer-small", (8,), "token", ["d1", "d2"]),
    ],
)
def test_sizes_keep_a_third_two_thirds_and_all_of_each_section(model, inputs, target, depths):
    chosen = find_method("inclusivefl")
    assert [
        s.name.removeprefix("w1-")
        for s in chosen.menu(network(model, inputs, 12, target=target), configure(chosen, {}))
    ] == depths


def test_a_network_without_layers_to_leave_out_is_refused():
    chosen = find_method("inclusivefl")
    with pytest.raises(
        ConfigError, match=r"model 'lenet' has no layers to leave out: .* resnet or vit"
    ):
        chosen.menu(network("lenet", (1, 16, 16), 10), configure(chosen, {}))


def test_the_top_layer_of_each_shallower_section_and_the_head_are_a_sizes_own():
    """Depths 1, 2 and 1 of two blocks each: the second section is whole and shared."""
    (size,) = menu(NET, (1,), ((1, 2, 1),))
    own = {
        name
        for name in shapes(size)
        if name.startswith(("sections.0.0.", "sections.2.0.", "linear."))
    }
    assert find_own_tensors(size) == own | {
        name for name in statistics(size) if name.startswith(("sections.0.0.", "sections.2.0."))
    }
    assert {name.split(".")[0] for name in shapes(size).keys() - own} == {
        "stem",
        "norm",
        "sections",
    }


def test_nothing_is_the_whole_networks_own():
    (whole,) = menu(NET, (1,), (2,))
    assert find_own_tensors(whole) == set()
    chosen = find_method("inclusivefl")
    state = chosen.start(initial(NET, 0), [whole], configure(chosen, {}))
    assert all(row.home == row.local for row in chosen.place(state, whole).rows)


@pytest.mark.parametrize(
    ("model", "inputs", "target", "head"),
    [
        ("vit-micro", (1, 16, 16), "class", {"norm", "linear"}),
        ("transformer-small", (8,), "token", {"decoder"}),
        ("preresnet", (1, 8, 8), "class", {"norm", "linear"}),
    ],
)
def test_the_head_is_what_follows_the_last_section(model, inputs, target, head):
    """The last norm too, and of a text no embedding, though each has a row per token."""
    size = menu(network(model, inputs, 12, target=target), (1,), (1,))[0]
    assert {name.split(".")[0] for name in find_own_tensors(size)} == {"sections", *head}
    known = shapes(size).keys() | statistics(size).keys()
    assert {name for name in known if name.split(".")[0] in head} <= find_own_tensors(size)


# ---- sharing -------------------------------------------------------------------------------------


def test_sizes_share_by_examples_what_is_no_top_layer_and_no_head(stacks):
    """Within the small size (1 * 1 + 3 * 5) / 4 = 4; the stem of all (4 * 4 + 8 * 1 + 4 * 8) / 16;
    the first layers of the two larger ones (8 * 1 + 4 * 8) / 12.
    """
    chosen, state = begin_method(stacks, beta=0.0)
    small, middle, large = stacks
    after = one_round(
        chosen, state, (small, 1.0, 1), (small, 5.0, 3), (middle, 1.0, 8), (large, 8.0, 4)
    )
    shared = round(40 / 12, 5)
    assert receive_size(chosen, after, small) == {
        "stem": 3.5,
        "0.0": 4.0,
        "1.0": 4.0,
        "linear": 4.0,
    }
    assert receive_size(chosen, after, middle) == {
        "stem": 3.5,
        "0.0": shared,
        "0.1": 1.0,
        "1.0": shared,
        "1.1": 1.0,
        "linear": 1.0,
    }
    large_ones = {"0.1": 8.0, "0.2": 8.0, "1.1": 8.0, "1.2": 8.0, "linear": 8.0}
    assert receive_size(chosen, after, large) == {
        "stem": 3.5,
        "0.0": shared,
        "1.0": shared,
        **large_ones,
    }


def test_a_size_without_devices_takes_part_in_what_is_shared_and_keeps_its_own(stacks):
    chosen, state = begin_method(stacks, beta=0.0)
    small, _, large = stacks
    state = one_round(chosen, state, (small, 2.0, 1))
    state = one_round(chosen, state, (large, 1.0, 1))
    assert receive_size(chosen, state, small) == {
        "stem": 3.0,
        "0.0": 2.0,
        "1.0": 2.0,
        "linear": 2.0,
    }


def test_an_unused_size_starts_from_the_whole_network(stacks):
    chosen, state = begin_method(stacks)
    state = one_round(chosen, state, (stacks[2], 1.5, 1))
    assert set(receive_size(chosen, state, stacks[0]).values()) == {1.5}


# ---- momentum ------------------------------------------------------------------------------------


def test_the_next_larger_size_alone_teaches_the_top_layers(stacks):
    """Size 1 has moved by -1 and learns from layers 1 and 2 of size 2, which moved by -2 and -4: g
    = .8 * 1 + .2 * 3 = 1.4. Size 2's top moved by -4 and learns from layers 2 and 3 of size 3,
    which moved by -10 and -20: g = .8 * 4 + .2 * 15 = 6.2. Size 3 learns from nobody.
    """
    chosen, state = begin_method(stacks)
    small, middle, large = stacks
    moves = [
        {f"sections.{s}.{b}.weight": -size[b] for s in (0, 1) for b in range(len(size))}
        for size in ([1.0], [2.0, 4.0], [5.0, 10.0, 20.0])
    ]
    after = one_round(
        chosen, state, *((size, move, 1) for size, move in zip(stacks, moves, strict=True))
    )
    assert receive_size(chosen, after, small) == {
        "stem": 0.0,
        "0.0": -1.4,
        "1.0": -1.4,
        "linear": 0.0,
    }
    assert (
        receive_size(chosen, after, middle)["1.1"]
        == receive_size(chosen, after, middle)["0.1"]
        == -6.2
    )
    assert [receive_size(chosen, after, large)[name] for name in ("0.1", "0.2")] == [-10.0, -20.0]
    assert receive_size(chosen, after, large)["0.0"] == -3.5


def test_momentum_is_the_mean_over_the_larger_sizes_devices_by_examples(stacks):
    """Layers 1 and 2 of two devices with 1 and 3 examples moved by -1 and -1, -2 and -4: m = (1 + 1
    + 3 * (2 + 4)) / (2 * 4) = 2.5.
    """
    chosen, state = begin_method(stacks, beta=0.5)
    a, b = (
        {"sections.0.0.weight": -first, "sections.0.1.weight": -second}
        for first, second in ((1.0, 1.0), (2.0, 4.0))
    )
    after = one_round(chosen, state, (stacks[0], 0.0, 9), (stacks[1], a, 1), (stacks[1], b, 3))
    assert receive_size(chosen, after, stacks[0])["0.0"] == -1.25


def test_without_the_next_larger_size_nothing_is_distilled(stacks):
    chosen, state = begin_method(stacks)
    after = one_round(chosen, state, (stacks[0], -1.0, 1), (stacks[2], -5.0, 1))
    assert receive_size(chosen, after, stacks[0])["0.0"] == -1.0
    alone = one_round(chosen, state, (stacks[1], -5.0, 1))
    assert alone.tensors.keys() == {
        *state.tensors,
        *(f"{name}@w1-d2.2" for name in find_own_tensors(stacks[1])),
    }


def test_of_other_layers_only_tensors_of_the_same_shape_teach():
    """A section's first block reads 16 channels and its second 32: conv1 learns from the larger
    size's first block alone, conv2 from both. Running statistics learn nothing.
    """
    chosen = find_method("inclusivefl")
    sizes = chosen.menu(NET, configure(chosen, {}))
    state = chosen.start(initial(NET, 0), sizes, configure(chosen, {"beta": 0.5}))
    before = chosen.dispatch(state, chosen.place(state, sizes[0]))
    moves = {
        name: -1.0 if name.startswith("sections.1.0.") else -3.0
        for name in chosen.dispatch(state, chosen.place(state, sizes[1]))
    }
    after = one_round(chosen, state, (sizes[0], 0.0, 1), (sizes[1], moves, 1))
    moved = {
        name: (before[name] - value).mean().item()
        for name, value in chosen.dispatch(after, chosen.place(after, sizes[0])).items()
    }
    assert moved["sections.1.0.conv1.weight"] == pytest.approx(0.5 * 1.0, abs=1e-5)
    assert moved["sections.1.0.conv2.weight"] == pytest.approx(0.5 * 2.0, abs=1e-5)
    assert moved["sections.1.0.shortcut.conv.weight"] == pytest.approx(0.5 * 1.0, abs=1e-5)
    assert moved["sections.1.0.norm1.running_mean"] == 0.0
    assert moved["linear.weight"] == 0.0


# ---- AdamW ---------------------------------------------------------------------------------------


def test_adamw_steps_each_size_by_its_own_state(stacks):
    """The first step of AdamW equals the learning rate for any gradient; later steps equal
    PyTorch's; then the sizes share.
    """
    chosen, state = begin_method(stacks, server="adamw", server_lr=0.1, server_decay=0.01, beta=0.0)
    small, middle, _ = stacks
    weights = {size: torch.nn.Parameter(torch.zeros(1)) for size in (small, middle)}
    optimisers = {
        size: torch.optim.AdamW([w], lr=0.1, weight_decay=0.01) for size, w in weights.items()
    }
    state = one_round(chosen, state, (small, -4.0, 1), (middle, 0.5, 3))
    assert receive_size(chosen, state, small) == {
        "stem": 0.05,
        "0.0": -0.1,
        "1.0": -0.1,
        "linear": -0.1,
    }
    second = one_round(chosen, state, (small, 1.0, 1))
    for gradient in (4.0, -1.0):
        weights[small].grad = torch.tensor([gradient])
        optimisers[small].step()
    assert receive_size(chosen, second, small)["linear"] == pytest.approx(
        weights[small].item(), abs=1e-5
    )
    assert receive_size(chosen, second, middle)["linear"] == 0.1
    assert second.tensors["server/t/linear.weight@w1-d1.1/w1-d1.1"].item() == 2
    assert second.tensors["server/t/linear.weight@w1-d2.2/w1-d2.2"].item() == 1
    assert {
        name
        for home in second.tensors
        if home.startswith("server/m/stem")
        for name in [home.rpartition("/")[2]]
    } == {"w1-d1.1", "w1-d2.2"}


def test_adamw_leaves_running_statistics_to_the_mean():
    chosen = find_method("inclusivefl")
    sizes = chosen.menu(NET, configure(chosen, {}))
    state = chosen.start(initial(NET, 0), sizes, configure(chosen, {"server": "adamw"}))
    after = one_round(chosen, state, (sizes[-1], 2.0, 1))
    assert torch.equal(after.tensors["norm.running_mean"], torch.full((16,), 2.0))
    torch.testing.assert_close(after.tensors["norm.weight"], torch.full((16,), 1.001))
    assert not [home for home in after.tensors if home.startswith("server/") and "running_" in home]


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("model", "server"), [("preresnet", "average"), ("resnet-small", "adamw")])
def test_two_rounds_of_unequal_sizes_end_with_finite_scores(tmp_path, model, server):
    chosen = find_method("inclusivefl")
    names = [
        size.name for size in chosen.menu(network(model, (1, 8, 8), 10), configure(chosen, {}))
    ]
    pins = {f"a{i}": names[min(i, len(names) - 1)] for i in range(3)}
    given = {
        "method.name": "inclusivefl",
        "model.name": model,
        "method.server": server,
        "assign.submodels": pins,
    }
    rounds = {
        "rounds": 2,
        "evaluate.every": 2,
        "train.steps": 2,
        "evaluate.devices": False,
        "evaluate.examples": 20,
    }
    done = federate(
        tmp_path, [Member(f"a{i}", digits(i, 30)) for i in range(3)], {**given, **rounds}
    )
    assert {s.submodel for s in done.result.scores} == set(names)
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    assert any(home.startswith("server/") for home in done.result.state.tensors) == (
        server == "adamw"
    )


def test_it_learns_digits(tmp_path):
    fleet, pins = (
        [Member(f"a{i}", digits(i, 3, "iid")) for i in range(2)],
        {"a0": "w1-d1.1.1", "a1": "w1-d2.2.2"},
    )
    rounds = {
        "rounds": 2,
        "train.epochs": 2,
        "evaluate.every": 2,
        "evaluate.devices": False,
        "assign.submodels": pins,
    }
    done = federate(
        tmp_path, fleet, {"method.name": "inclusivefl", "model.name": "resnet-small", **rounds}
    )
    central = {s.submodel: s.accuracy for s in done.result.scores}
    assert len(central) == 2
    assert min(central.values()) > 0.5  # chance is a tenth
