"""Submodels of a network from Python: slice, count, merge, and errors for bad input."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import espalier
from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError, DataError, Unknown, UsageError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.optional_torchvision import import_torchvision
from models.submodel_building import initial
from tests.support.user_networks import Recurrent


def test_a_slice_of_a_module_has_the_leading_part_of_its_weights(tiny: nn.Module) -> None:
    net = espalier.network(tiny, inputs=(4,))
    assert (net.inputs, net.outputs) == ((4,), 3)
    half, whole = espalier.menu(net, widths=(0.5, 1.0))
    small = espalier.slice(net, half)
    expected = tiny(torch.ones(2, 4)), tiny.first.weight[:4]
    assert torch.equal(small.net.first.weight, expected[1])
    assert torch.equal(small.net.second.weight, tiny.second.weight[:, :4])
    assert torch.equal(espalier.slice(net, whole)(torch.ones(2, 4)), expected[0])
    assert repr(half) == "<Submodel w0.5 of Tiny>"
    assert espalier.cost(half).parameters == 4 * 4 + 4 + 4 * 3 + 3


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("vgg16", "unknown model 'vgg16'; did you mean vgg-16"),
        ("./absent.py:net", "the file absent.py does not exist"),
    ],
)
def test_a_name_without_a_network_is_reported_before_a_missing_shape(name: str, match: str) -> None:
    with pytest.raises((ConfigError, Unknown), match=match):
        espalier.network(name)


def test_a_slice_is_what_a_device_would_receive() -> None:
    net = espalier.network("preresnet", (1, 8, 8), 10)
    chosen = find_method("fedavg")
    settings = configure(chosen, {"widths": (0.5, 1.0)})
    state = chosen.start(initial(net, 0), chosen.menu(net, settings), settings)
    submodel = state.menu[0]
    sent = chosen.dispatch(state, chosen.place(state, submodel))
    made = espalier.slice(net, submodel).state_dict()
    assert sent
    assert all(torch.equal(made[name], value) for name, value in sent.items())


def test_a_network_of_torchvision_is_sliced_in_width_and_depth() -> None:
    models = import_torchvision("models")
    net = espalier.network(models.resnet18(num_classes=5), inputs=(3, 32, 32))
    small, *_, large = espalier.menu(net, widths=(0.25, 1.0), depths=(1, 2))
    assert (small.name, large.name) == ("w0.25-d1.1.1.1", "w1-d2.2.2.2")
    assert espalier.slice(net, small)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    assert espalier.cost(small).macs < espalier.cost(large).macs / 10
    deeper = espalier.menu(net, widths=(1.0,), depths=(1, 3))
    assert [one.name for one in deeper] == ["w1-d1.1.1.1", "w1-d2.2.2.2"]


def test_two_modules_of_one_class_keep_their_own_weights(tiny: nn.Module) -> None:
    first = espalier.network(tiny, inputs=(4,))
    with torch.no_grad():
        tiny.second.bias += 1
    second = espalier.network(tiny, inputs=(4,))
    biases = [
        espalier.slice(net, espalier.menu(net, (1.0,))[0]).net.second.bias
        for net in (first, second)
    ]
    assert torch.allclose(biases[1] - biases[0], torch.ones(3))


def test_merge_averages_each_weight_over_the_updates_that_hold_it(tiny: nn.Module) -> None:
    """The half-width update has 10 examples and holds 1, the whole one 30 and 5: the mean is 4
    where both overlap.
    """
    net = espalier.network(tiny, inputs=(4,))
    half, whole = (espalier.slice(net, one) for one in espalier.menu(net, (0.5, 1.0)))
    for module, value in ((half, 1.0), (whole, 5.0)):
        for parameter in module.parameters():
            nn.init.constant_(parameter, value)
    merged = espalier.merge(net, [(half, 10), (whole.state_dict(), 30)])
    assert merged["net.first.weight"][:4].eq(4).all()
    assert merged["net.first.weight"][4:].eq(5).all()
    alone = espalier.merge(net, [(half, 10)], weights=tiny)
    assert alone["net.first.weight"][:4].eq(1).all()
    assert torch.equal(alone["net.first.weight"][4:], tiny.first.weight[4:])
    again = espalier.slice(net, espalier.menu(net, (0.5,))[0], weights=merged)
    assert again.net.first.weight.eq(4).all()


def test_a_slice_of_merged_weights_says_that_it_has_no_statistics_of_batch_norm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    net = espalier.network(module, inputs=(3,))
    half, whole = espalier.menu(net, (0.5, 1.0))
    updates = [(espalier.slice(net, whole), 5)]
    espalier.slice(net, half, espalier.merge(net, updates))
    assert not caplog.messages
    espalier.slice(net, half, espalier.merge(net, updates, norm="static"))
    assert ["no batch norm statistics" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    "name", ["fedfa", "heterofl", "fedrolex", "fedavgm", "fednova", "scaffold"]
)
def test_merge_is_the_fold_of_the_method(name: str) -> None:
    net, chosen = espalier.network("preresnet", (1, 8, 8), 10), find_method(name)
    settings = configure(chosen, {})
    state = chosen.start(initial(net, 0, chosen.features), chosen.menu(net, settings), settings)
    total, updates = Total(), []
    for index, submodel in enumerate((state.menu[0], state.menu[-1])):
        plan = chosen.place(state, submodel)
        sent = {key: value + index for key, value in chosen.dispatch(state, plan).items()}
        updates.append((sent, 10 * (index + 1)))
        steps = settings["epochs"] * -(-10 * (index + 1) // settings["batch"])
        facts = ("r", 1, 0, str(index), "train", submodel, "r0", 10 * (index + 1), steps, sent)
        fold(total, chosen.parts(state, plan, Update(*facts)), (index,))
    expected = chosen.finish(state, total, np.random.default_rng(0)).tensors
    merged = espalier.merge(net, updates, method=name)
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[home], value) for home, value in expected.items())
    assert any(not torch.equal(merged[home], state.tensors[home]) for home in merged)


def test_a_network_that_cannot_be_narrowed_names_the_layer() -> None:
    net = espalier.network(Recurrent(), inputs=(1, 8, 8))
    with pytest.raises(ConfigError, match=r"cannot be narrowed.*LSTM 'memory'"):
        espalier.menu(net, widths=(0.5,))
    assert [one.name for one in espalier.menu(net, widths=(1.0,))] == ["w1"]


class TwoOutputs(Recurrent):
    """Returns more than its predictions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x), x  # type: ignore[return-value]


class Reshaped(nn.Module):
    """Writes the channels of its largest layer as a number, or of all hidden layers."""

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__()
        self.first, self.wide = nn.Linear(4, 64), nn.Linear(64, 64)
        self.last, self.everywhere = nn.Linear(64, 3), everywhere
        self.after = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wide(self.first(x).view(-1, 64)).view(-1, 64)
        x = self.last(x)
        return x if self.everywhere else self.after(x)  # type: ignore[no-any-return]


def test_an_operation_that_prevents_narrowing_is_named_with_its_line_and_a_remedy() -> None:
    net = espalier.network(Reshaped(everywhere=True), inputs=(4,))
    line = Reshaped.forward.__code__.co_firstlineno + 1
    match = rf"'view' at test_networks\.py, line {line} \(.*flatten\(1\)\).*widths=\(1\.0,\)"
    with pytest.raises(ConfigError, match=match):
        espalier.menu(net, widths=(0.5,))


def test_a_network_that_hardly_narrows_is_reported_once_with_its_layers(
    tiny: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    espalier.menu(espalier.network(tiny, inputs=(4,)))
    assert not caplog.messages
    net = espalier.network(Reshaped(), inputs=(4,))
    for _ in range(2):
        espalier.menu(net, widths=(0.25, 1.0))
    (message,) = caplog.messages
    assert re.match(r"Reshaped: width 0\.25 keeps 9\d% of the parameters.*stay whole", message)
    assert "are wide, first;" in message
    assert "'view' at test_networks.py" in message


def test_bad_input_names_the_problem(tiny: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"inputs="):
        espalier.network(tiny)
    with pytest.raises(UsageError, match=r"outputs="):
        espalier.network("preresnet", inputs=(1, 8, 8))
    with pytest.raises(ConfigError, match=r"^Tiny: .*cannot take examples"):
        espalier.network(tiny, inputs=(5,))
    with pytest.raises(ConfigError, match=r"^TwoOutputs: .* type tuple; expected one tensor"):
        espalier.network(TwoOutputs(), inputs=(1, 8, 8))
    with pytest.raises(ConfigError, match=r"expected a name.*found 3"):
        espalier.network(3, inputs=(4,))  # type: ignore[arg-type]
    with pytest.raises(Unknown, match=r"preresnet"):
        espalier.network("prersnet", (1, 8, 8), 10)
    net = espalier.network(tiny, inputs=(4,))
    (whole,) = espalier.menu(net, (1.0,))
    with pytest.raises(UsageError, match=r"menu"):
        espalier.slice(net, "w0.5")
    with pytest.raises(DataError, match=r"weights: expected tensor net.first.weight .* none"):
        espalier.slice(net, whole, weights={"net.first.bias": torch.zeros(8)})
    with pytest.raises(DataError, match=r"update 0: expected tensors of .*Tiny"):
        espalier.merge(net, [({"other": torch.zeros(3)}, 5)])
    with pytest.raises(ConfigError, match=r"updates\[0\]\[1\]: expected a whole number.*found 0"):
        espalier.merge(net, [(tiny, 0)])
    broken = {**tiny.state_dict(), "second.bias": torch.zeros(2)}
    with pytest.raises(DataError, match=r"update 0: expected tensor net\.first\.weight of shape"):
        espalier.merge(net, [(broken, 5)])
    with pytest.raises(Unknown, match=r"did you mean fedavg"):
        espalier.merge(net, [(tiny, 5)], method="fedav")
    with pytest.raises(ConfigError, match=r"method scaffold also send c/"):
        espalier.merge(net, [(tiny, 5)], method="scaffold")


def test_a_size_is_found_by_its_shapes(tiny: nn.Module) -> None:
    """A width of 0.3 keeps 3 of 8 channels, as 0.375 does."""
    net = espalier.network(tiny, inputs=(4,))
    (odd,) = espalier.menu(net, (0.3,))
    same = replace(odd, width=0.375)
    merged = [espalier.merge(net, [(espalier.slice(net, one), 5)], tiny) for one in (odd, same)]
    assert all(torch.equal(merged[0][name], merged[1][name]) for name in merged[0])
