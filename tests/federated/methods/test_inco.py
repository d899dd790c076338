"""InCo: the reference layer of each layer, the variants per kernel and per layer, and the wrapper
around each base method.
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
from federated.methods.inco import cross_step, find_references
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial
from tests.support.memory_federation import Member, digits, federate

NET = network("resnet-small", (1, 8, 8), 3)
NAMES = ("inco-avg", "inco-moon", "inco-nova", "inco-prox", "inco-scaffold")


def play_round(name, moves, *, width=(1.0,), **given):
    """Return the states before and after a round in which the device of each size i adds moves[i]
    to all that it received.
    """
    chosen = find_method(name)
    settings = configure(chosen, {"widths": width, "depths": (1, 2), "momentum": 0.0, **given})
    submodels = chosen.menu(NET, settings)
    state = chosen.start(initial(NET, 0, chosen.features), submodels, settings)
    state, total = replace(state, fleet=dict.fromkeys(submodels, 1)), Total()
    for index, move in moves.items():
        plan = chosen.place(state, submodels[index])
        sent = {
            k: v + (0.0 if k.startswith("c/") else move(k, v))
            for k, v in chosen.dispatch(state, plan).items()
        }
        fold(
            total,
            chosen.parts(
                state,
                plan,
                Update("r", 0, 0, str(index), "train", submodels[index], "0", 4, 2, sent, {}),
            ),
            (index,),
        )
    return state.tensors, chosen.finish(state, total, np.random.default_rng(0)).tensors


# ---- which layers --------------------------------------------------------------------------------


def test_in_a_resnet_both_convolutions_of_later_blocks_take_up_the_first_blocks_second():
    assert find_references(network("resnet-18-cifar", (3, 8, 8), 10)) == {
        f"sections.{s}.1.conv{c}.weight": f"sections.{s}.0.conv2.weight"
        for s in range(4)
        for c in (1, 2)
    }


def test_a_bottleneck_refers_to_a_convolution_of_the_same_kind():
    found = find_references(network("resnet-101", (3, 32, 32), 10))
    assert found["sections.0.2.conv1.weight"] == "sections.0.1.conv1.weight"
    assert found["sections.0.2.conv2.weight"] == "sections.0.0.conv2.weight"
    assert found["sections.0.1.conv3.weight"] == "sections.0.0.conv3.weight"
    assert "sections.0.1.conv1.weight" not in found


def test_in_a_transformer_the_second_norm_refers_to_the_first():
    found = find_references(network("vit-micro", (1, 8, 8), 10))
    assert found == {
        f"sections.0.{b}.norm2.weight": f"sections.0.{b}.norm1.weight" for b in range(3)
    }


def test_a_weight_refers_to_the_same_name_and_shape_in_the_shallowest_block():
    assert find_references(network("mlp", (6,), 3)) == {
        "sections.0.1.linear.weight": "sections.0.0.linear.weight"
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_such_layers_is_refused(name):
    chosen = find_method(name)
    with pytest.raises(
        ConfigError,
        match=r"'lenet' has no two layers of equal shape .* preresnet, resnet or vit",
    ):
        chosen.menu(network("lenet", (1, 16, 16), 10), configure(chosen, {}))


# ---- variants ------------------------------------------------------------------------------------


def pair():
    """Return steps of two layers of [1, 2, 1, 2]: of the first kernel g_0 = (.03, .04), g_k =
    (-.06, .08); of the second g_k = 0.
    """
    return torch.tensor([[[[-0.06, 0.08]], [[0.0, 0.0]]]]), torch.tensor(
        [[[[0.03, 0.04]], [[0.5, 0.5]]]]
    )


def test_the_codes_variant_looks_at_each_kernel_and_leaves_a_zero_one():
    """||g_k|| = .1, ||g_0|| = .05, t = .0014 / .0025: ((-.6, .8) + .56 (.6, .8)) x .075; the golden
    file says so too.
    """
    found = cross_step(*pair(), "code")
    torch.testing.assert_close(
        found[0, 0, 0], torch.tensor([-0.0198, 0.0936]), rtol=1e-5, atol=2e-6
    )
    assert found[0, 1].tolist() == [[0.0, 0.0]]


def test_no_opt_is_the_plain_sum_of_the_directions():
    """((-.6, .8) + (.6, .8)) x .075 = (0, .12), clipped to .1."""
    torch.testing.assert_close(
        cross_step(*pair(), "no_opt")[0, 0, 0], torch.tensor([0.0, 0.1]), rtol=1e-5, atol=1e-6
    )


def test_no_norm_adds_the_shallow_step_as_it_is():
    """(-.06, .08) + .56 (.03, .04) = (-.0432, .1024), clipped."""
    torch.testing.assert_close(
        cross_step(*pair(), "no_norm")[0, 0, 0], torch.tensor([-0.0432, 0.1]), rtol=1e-4, atol=1e-6
    )


def test_neither_adds_the_whole_shallow_step():
    """(-.06, .08) + (.03, .04) = (-.03, .12), clipped."""
    torch.testing.assert_close(
        cross_step(*pair(), "neither")[0, 0, 0], torch.tensor([-0.03, 0.1]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("variant", ["paper", "paper_cond"])
def test_the_papers_variant_leaves_a_step_that_is_orthogonal_to_the_shallow_one(variant):
    """Over the whole layer, where the two point apart; conditionally, where they agree the
    directions stay.
    """
    generator = torch.Generator().manual_seed(0)
    other = torch.randn(3, 2, 3, 3, generator=generator)
    step = torch.randn(3, 2, 3, 3, generator=generator) - 0.5 * other
    assert float((step * other).sum()) < 0
    assert float((cross_step(step, other, variant) * other).sum()) == pytest.approx(0.0, abs=1e-4)
    agreeing = cross_step(-step, other, "paper_cond")
    torch.testing.assert_close(
        agreeing,
        -step * float((step.norm() + other.norm()) / 2 / step.norm()),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "variant", ["code", "no_norm", "no_opt", "neither", "paper", "paper_cond", "unnormalised"]
)
def test_where_either_step_is_zero_the_own_one_stays(variant):
    step = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cross_step(step, torch.zeros_like(step), variant), step)
    assert not cross_step(torch.zeros_like(step), step, variant).any()
    assert cross_step(1e-20 * step, step, variant).isfinite().all()


# ---- the wrapper ---------------------------------------------------------------------------------


def move(name, value):
    """Move all weights by a hundredth, blocks after the first of a section in another direction."""
    return 0.01 * torch.sign(
        torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    ) + (0.02 if ".1.conv" in name else 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_wrapper_changes_the_layers_that_it_should_and_no_other(name):
    """Against its base: with the same sizes, the rest of the network is the base's bit for bit."""
    bases = {
        "inco-avg": "fedavg",
        "inco-moon": "moon",
        "inco-nova": "fednova",
        "inco-prox": "fedprox",
        "inco-scaffold": "scaffold",
    }
    before, after = play_round(name, {0: move, 1: move})
    _, plain = play_round(bases[name], {0: move, 1: move}, weighting="uniform")
    known = find_references(NET)
    assert after.keys() == plain.keys()
    assert {home for home in after if not torch.equal(after[home], plain[home])} == known.keys()
    for home, other in known.items():
        expected = cross_step(plain[home] - before[home], plain[other] - before[other], "code")
        torch.testing.assert_close(after[home] - before[home], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant", ["code", "paper"])
def test_channels_that_no_device_of_the_round_has_stay(variant):
    """A narrow deep device and a wide shallow one, whose first block moves everywhere: the deep
    layer moves in the corner alone.
    """
    before, after = play_round(
        "inco-avg", {1: move, 2: move}, width=(0.5, 1.0), depths=(1, 2), variant=variant
    )
    deep = "sections.0.1.conv1.weight"
    assert not torch.equal(
        after["sections.0.0.conv2.weight"][8:], before["sections.0.0.conv2.weight"][8:]
    )
    assert torch.equal(after[deep][8:], before[deep][8:])
    assert torch.equal(after[deep][:, 8:], before[deep][:, 8:])
    assert not torch.equal(after[deep][:8, :8], before[deep][:8, :8])


def test_untrained_deep_layers_do_not_change():
    before, after = play_round("inco-avg", {0: move})
    assert all(torch.equal(after[home], before[home]) for home in find_references(NET))
    assert not torch.equal(after["sections.0.0.conv2.weight"], before["sections.0.0.conv2.weight"])


def test_the_numbers_of_an_analysis_are_recorded_if_asked():
    """The deep layer moves twice as far as the shallow one, and in a quarter of the kernels against
    it: beta is 2 (3/4 - 1/4) = 1 times the square of the shallow step, and t = 2 in all kernels.
    """

    def along(name, value):
        moved = torch.full_like(value, 0.01)
        if ".1.conv" in name:
            moved *= 2
            moved[::4] *= -1
        return moved

    _, after = play_round("inco-avg", {1: along}, record=True)
    _, without = play_round("inco-avg", {1: along})
    for home in find_references(NET):
        square = 0.01**2 * after[home].numel()
        assert float(after[f"beta/{home}"]) == pytest.approx(square, rel=1e-3)
        assert float(after[f"theta/{home}"]) == pytest.approx(2.0, rel=1e-3)
        assert torch.equal(after[home], without[home])
    assert not any("/" in home for home in without)


def test_the_defaults_are_the_authors():
    settings = {name: configure(find_method(name), {}) for name in NAMES}
    for found in settings.values():
        wanted = {
            "optimiser": "adam",
            "lr": 0.001,
            "batch": 64,
            "epochs": 5,
            "weighting": "uniform",
            "variant": "code",
        }
        assert {key: found[key] for key in wanted} == wanted
    assert settings["inco-prox"]["mu"] == 0.1


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("resnet-26", ["d1.1.1.1", "d1.1.2.2", "d2.2.2.2", "d2.2.3.3", "d3.3.3.3"]),
        ("resnet-34", ["d1.1.1.1", "d1.1.3.2", "d2.2.4.2", "d2.3.5.3", "d3.4.6.3"]),
        ("resnet-small", ["d1.1.1", "d1.1.2", "d2.2.2"]),
        ("vit-tiny-32", ["d1", "d3", "d6", "d9", "d12"]),
    ],
)
def test_the_sizes_go_from_one_block_per_section_to_the_whole_network(model, sizes):
    """For ResNet26 they are the paper's: ResNet10, 14, 18, 22 and 26."""
    chosen = find_method("inco-avg")
    assert [
        s.name for s in chosen.menu(network(model, (3, 32, 32), 10), configure(chosen, {}))
    ] == [f"w1-{size}" for size in sizes]


def train_fleet(tmp_path, name, model, **given):
    """Return the best accuracy of a fleet of three speeds after two rounds, under the authors'
    optimiser.
    """
    fleet = [Member(f"a{i}", digits(i, 3), speed) for i, speed in enumerate((0.01, 0.015, 0.5))]
    quick = {
        "rounds": 2,
        "train.epochs": 3,
        "train.lr": 0.003,
        "evaluate.every": 2,
        "evaluate.between": False,
    }
    done = federate(tmp_path, fleet, {"method.name": name, "model.name": model, **quick, **given})
    assert len({s.name for s in done.result.history.assigned.values()}) > 1
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    return max(s.accuracy for s in done.result.scores if s.view == "central")


@pytest.mark.parametrize("name", NAMES)
def test_unequal_devices_learn_digits(tmp_path, name):
    assert train_fleet(tmp_path, name, "mlp", **{"train.epochs": 6}) > 0.5


@pytest.mark.slow
def test_unequal_residual_networks_learn_digits(tmp_path):
    assert train_fleet(tmp_path, "inco-avg", "resnet-small") > 0.4
