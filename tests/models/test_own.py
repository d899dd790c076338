"""A network of the user's own: what of it scales, what stays whole, and what is said where nothing does."""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from export.graph import export, predict
from export.verify import load
from models.families import address, build, full, initial, labelled, menu, network, shapes, statistics
from models.slicing import corners, embed, extract, graft
from models.submodel import Network, Submodel, kept
from tests.support.federation import Member, digits, federate

Named = Callable[..., Network]
numbers = itertools.count()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Named:
    """Makes the network of a function, under a name that no other test has: families remember names."""
    module = ModuleType(f"own_{next(numbers)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(function: Callable[..., object], inputs: tuple[int, ...] = (1, 8, 8), outputs: int = 10, target: str = "class") -> Network:
        name = f"f{next(numbers)}"
        setattr(module, name, function)
        return network(f"{module.__name__}:{name}", inputs, outputs, target=target)

    return make


def at(made: Network, width: float, depth: int = 1) -> Submodel:
    return menu(made, (width,), (depth,))[0]


def sizes(made: Network, width: float = 0.5) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a narrow network, biases left out."""
    return {name.removeprefix("net."): shape for name, shape in shapes(at(made, width)).items() if not name.endswith("bias")}


def passes(submodel: Submodel) -> Tensor:
    """What the network of a submodel gives with the extracted corner of the whole; it also trains."""
    local = shapes(submodel) | statistics(submodel)
    tensors = initial(submodel.network, 0)
    net = build(submodel)
    missing, unexpected = net.load_state_dict(
        extract(tensors, corners({k: tuple(v.shape) for k, v in tensors.items()}, submodel, local)), strict=False
    )
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    x = torch.rand((3, *submodel.network.inputs), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = net.eval()(x)
    net.train()(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    return out  # type: ignore[no-any-return]


def cnn(width: int = 8) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(body, nn.Conv2d(width, 2 * width, 3), nn.GELU(), nn.Flatten(), nn.Linear(2 * width * 4, 10))


def test_a_plain_cnn_keeps_its_leading_channels_and_their_positions(named: Named) -> None:
    """8 and 16 channels; the linear reads 16 channels of 2x2 positions. 0.3 keeps 3 and 5 of them."""
    made = named(lambda: cnn())
    assert sizes(made) == {"0.0.weight": (4, 1, 3, 3), "0.1.weight": (4,), "1.weight": (8, 4, 3, 3), "4.weight": (10, 32)}
    assert sizes(made, 0.3) == {"0.0.weight": (3, 1, 3, 3), "0.1.weight": (3,), "1.weight": (5, 3, 3, 3), "4.weight": (10, 20)}
    assert statistics(at(made, 0.5)) == {"net.0.1.running_mean": (4,), "net.0.1.running_var": (4,)}
    assert labelled(at(made, 0.5)) == {"net.4.weight", "net.4.bias"}


def test_a_narrow_network_is_the_one_that_a_hand_would_build(named: Named) -> None:
    """The corner of the whole in a network written for half the channels says the same."""
    submodel = at(named(lambda: cnn()), 0.5)
    tensors = initial(submodel.network, 0)
    by_hand = cnn(4).eval()
    for name, value in by_hand.state_dict().items():
        if value.ndim:
            value.copy_(tensors[f"net.{name}"][tuple(map(slice, value.shape))])
    x = torch.rand((3, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(passes(submodel), by_hand(x), rtol=0, atol=0)


def test_initial_values_are_corners_too(named: Named) -> None:
    made = named(lambda: cnn())
    torch.manual_seed(5)
    whole = build(full(made)).state_dict()
    torch.manual_seed(5)
    half = build(at(made, 0.5)).state_dict()
    assert all(torch.equal(value, whole[name][tuple(map(slice, value.shape))]) for name, value in half.items())


class Basic(nn.Module):
    """As torchvision writes its residual blocks."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.layer1 = nn.Sequential(*(Basic(6, 6) for _ in range(3)))
        self.layer2 = nn.ModuleList([Basic(6, 8, 2), Basic(8, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.stem(x))
        for block in self.layer2:
            x = block(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


def test_blocks_that_keep_the_shape_can_be_left_out(named: Named) -> None:
    """Three in an nn.Sequential, one behind the block that changes the shape in an nn.ModuleList."""
    made = named(Residual)
    assert full(made).mask == ((1, 1, 1), (1, 1))
    least = shapes(at(made, 0.5))
    assert {name.split(".")[2] for name in least if name.startswith("net.layer")} == {"0"}
    assert least["net.layer2.0.conv1.weight"] == (4, 3, 3, 3)
    assert address(made, "net.layer2.1.norm1.running_mean") == (1, 1, "norm1.running_mean")
    assert address(made, "net.head.weight") is None
    for width, depth in ((0.5, 1), (0.5, 2), (1.0, 1), (0.3, 3)):
        assert passes(at(made, width, depth)).shape == (3, 10)


def test_blocks_left_out_are_grafted(named: Named) -> None:
    """At depth 2 the second block of layer1 stands in for the third; nothing is missing in layer2."""
    made = named(Residual)
    whole = shapes(full(made))
    plan = corners(whole, at(made, 0.5, 2))
    added = {row.home: row.local for row in graft(plan, whole).rows[len(plan.rows) :]}
    assert added == {name: name.replace("layer1.2", "layer1.1") for name in whole if "layer1.2" in name}


def test_the_first_block_of_a_section_stays(named: Named) -> None:
    with pytest.raises(ValueError, match="the first one changes the channels"):
        build(Submodel(named(Residual), 1.0, ((0, 1, 1), (1, 1))))


def test_a_block_that_changes_the_shape_begins_a_section(named: Named) -> None:
    """Two of 6 channels, two of 8, in one nn.Sequential after a first layer."""
    blocks = ((6, 6), (6, 6), (6, 8, 2), (8, 8))
    made = named(lambda: nn.Sequential(nn.Conv2d(1, 6, 1), *(Basic(*block) for block in blocks), nn.Flatten(), nn.Linear(8 * 16, 10)))
    assert full(made).mask == ((1, 1), (1, 1))
    assert address(made, "net.3.conv1.weight") == (1, 0, "conv1.weight")


def test_chains_of_layers_are_no_blocks(named: Named) -> None:
    """Two alike nn.Sequential in a row have no shortcut to leave them out by."""
    made = named(lambda: nn.Sequential(nn.Flatten(), *(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2)), nn.Linear(64, 10)))
    assert full(made).mask == ()


def test_a_perceptron_with_norms_of_every_kind(named: Named) -> None:
    made = named(
        lambda: nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.PReLU(12), nn.Linear(12, 8), nn.LayerNorm(8, elementwise_affine=False)),
            *(nn.Linear(8, 6), nn.RMSNorm(6), nn.Dropout(), nn.Linear(6, 10)),
        )
    )
    assert [sizes(made)[name] for name in ("1.weight", "3.weight", "4.weight", "6.weight", "7.weight", "9.weight")] == [
        *((6, 64), (6,), (4, 6), (3, 4), (3,), (10, 3)),
    ]
    assert passes(at(made, 0.5)).shape == (3, 10)


def test_a_group_norm_keeps_its_channels_where_its_groups_do_not_divide(named: Named) -> None:
    """4 groups of 8 channels divide 4, not 3."""
    made = named(lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8 * 36, 10)))
    assert sizes(made, 0.5)["0.weight"][0] == 4
    assert sizes(made, 0.3)["0.weight"][0] == 8
    assert passes(at(made, 0.3)).shape == (3, 10)


def test_depthwise_convolutions_follow_their_channels(named: Named) -> None:
    """The second has two filters a channel: half of 6 channels are 3, with 6 of its 12 filters. The transposed one narrows 12 to 4."""
    made = named(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 12, 3, groups=6), nn.BatchNorm2d(12)),
            *(nn.ConvTranspose2d(12, 4, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)),
        )
    )
    assert list(sizes(made).values()) == [(3, 1, 1, 1), (3, 1, 3, 3), (6, 1, 3, 3), (6,), (6, 2, 2, 2), (10, 2)]
    assert passes(at(made, 0.5)).shape == (3, 10)


class Squeezed(nn.Module):
    """Sizes read from shapes, a gain outside of layers, channels last: as networks are really written."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.LayerNorm(8)
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)
        self.gain = nn.Parameter(torch.ones(8, 1, 1))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * self.gain  # [N, 8, 6, 6]
        n, channels, _, _ = x.shape
        gate = self.up(F.relu(self.down(x.mean((2, 3))))).sigmoid().view(n, channels, 1, 1)
        x = (x * (1 - gate))[:, :, ::2, ::2]
        return self.head(x.flatten(2).transpose(1, 2).amax(dim=1))  # type: ignore[no-any-return]


def test_gates_gains_and_permutations_are_followed(named: Named) -> None:
    made = named(Squeezed)
    assert sizes(made) == {
        "gain": (4, 1, 1),
        "conv.weight": (4, 1, 3, 3),
        "norm.weight": (4,),
        "down.weight": (2, 4),
        "up.weight": (4, 2),
        "head.weight": (10, 4),
    }
    assert passes(at(made, 0.5)).shape == (3, 10)


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 6, 1)
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cat([x, self.second(x)], 1)
        return self.head(self.third(x).mean((2, 3)))  # type: ignore[no-any-return]


def test_concatenated_channels_stay_whole_and_others_scale(named: Named) -> None:
    made = named(Concatenated)
    assert list(sizes(made).values()) == [(8, 1, 3, 3), (8, 8, 3, 3), (3, 16, 1, 1), (10, 3)]
    assert passes(at(made, 0.5)).shape == (3, 10)


class Written(nn.Module):
    """A size written down as a number does not follow the width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8 * 36, 6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.conv(x).view(-1, 8 * 36)))  # type: ignore[no-any-return]


def test_channels_of_a_written_size_stay_whole(named: Named) -> None:
    assert list(sizes(named(Written)).values()) == [(8, 1, 3, 3), (3, 288), (10, 3)]


class Split(nn.Module):
    """Splits channels in pairs: half of the channels would be half of the pairs, but that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.paired, self.hidden, self.head = nn.Linear(4, 8), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.paired(x).view(x.shape[0], -1, 2).sum(2)))  # type: ignore[no-any-return]


def test_split_channels_stay_whole(named: Named) -> None:
    assert list(sizes(named(Split, (4,), 3)).values()) == [(8, 4), (3, 4), (3, 3)]


class Training(nn.Module):
    """In training, a second way joins channels that evaluation keeps apart, and chunks those of a third layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.third = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.third(self.one(x) + self.other(x))
        if self.training:
            left, right = self.third(self.one(x)).chunk(2, 1)
            out = out + torch.cat([right, left], 1)
        return self.head(out)  # type: ignore[no-any-return]


def test_what_happens_in_training_counts_too(named: Named) -> None:
    made = named(Training, (4,), 3)
    assert list(sizes(made).values()) == [(4, 4), (4, 4), (8, 4), (3, 8)]
    assert passes(at(made, 0.5)).shape == (3, 3)


def test_a_weight_used_twice_is_cut_once(named: Named) -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
        net[2].weight = net[1].weight
        return net

    made = named(tied, (4,), 3)
    assert list(sizes(made).values()) == [(3, 4), (3, 3), (3, 3)]
    net = build(at(made, 0.5)).net
    assert net[2].weight is net[1].weight


def depthwise() -> nn.Module:
    filters = nn.Sequential(nn.Conv2d(1, 6, 1), nn.Conv2d(6, 12, 3, groups=6), nn.PReLU(12), nn.ConvTranspose2d(12, 4, 2, 2))
    return nn.Sequential(filters, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 36, 10))


@pytest.mark.parametrize("function", [lambda: cnn(), depthwise, Residual, Concatenated, Written], ids=["cnn", "depthwise", "residual", "cat", "view"])
def test_channels_meet_the_same_weights_in_the_whole_network(named: Named, function: Callable[..., object]) -> None:
    """The narrow network, put into a whole one of zeros, still says the same: no channel lies where another belongs."""
    submodel = at(named(function), 0.5, 9)
    tensors = initial(submodel.network, 0)
    plan = corners({k: tuple(v.shape) for k, v in tensors.items()}, submodel, shapes(submodel) | statistics(submodel))
    local = extract(tensors, plan)
    nets = build(submodel).eval(), build(full(submodel.network)).eval()
    nets[0].load_state_dict(local, strict=False)
    nets[1].load_state_dict(embed({}, plan, local), strict=False)
    x = torch.rand((3, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(nets[0](x), nets[1](x), rtol=1e-4, atol=1e-5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x[:, 0])[0][:, -1])  # type: ignore[no-any-return]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 1:
            raise ValueError
        return self.head(self.hidden(x.flatten(1)))  # type: ignore[no-any-return]


class Stubborn(nn.Module):
    """Adds what has a written size."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x.flatten(1))
        return self.head(x + x.new_ones(x.shape[0], 8))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Recurrent, "first of all because of LSTM 'memory'"),
        (Branching, "torch.fx cannot follow its forward pass"),
        (Stubborn, "first of all because of the operation 'new_ones'"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "it has no hidden channels"),
    ],
)
def test_what_cannot_be_narrowed_says_why_and_runs_whole(named: Named, function: Callable[..., object], why: str) -> None:
    made = named(function)
    assert passes(full(made)).shape == (3, 10)
    with pytest.raises(ValueError, match=f"{why}.*; let its function obey submodel.width, or set method.widths = \\[1.0\\]"):
        menu(made, (0.5, 1.0), (1,))


class Counting(nn.Module):
    """Hides a written size behind a computed one."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x.flatten(1)).view(x.shape[0], 8 * x.shape[1]))  # type: ignore[no-any-return]


def test_what_fails_at_half_its_width_is_said_before_a_run(named: Named) -> None:
    with pytest.raises(ValueError, match=r"cut to half its width, it fails \(.*\); let its function"):
        menu(named(Counting), (0.5,), (1,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs, outputs: nn.Flatten(), "needs inputs, outputs; expected a function of a submodel, or of nothing"),
        (lambda submodel: 3, "returned a int; expected an nn.Module"),
        (lambda: nn.Linear(int(torch.ones(1).sum().item()), 10), "computes its sizes with tensors; expected plain numbers"),
    ],
)
def test_functions_that_are_no_networks(named: Named, function: Callable[..., object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named(function)


def test_a_function_that_shrinks_is_left_alone(named: Named) -> None:
    """It keeps one channel more than the project would, and that stands."""
    made = named(lambda submodel: nn.Sequential(nn.Linear(4, kept(submodel.width, 8) + 1), nn.Linear(kept(submodel.width, 8) + 1, 3)), (4,), 3)
    assert list(sizes(made).values()) == [(5, 4), (3, 5)]


def test_a_function_with_depths_follows_the_mask_itself(named: Named) -> None:
    def deep(submodel: Submodel) -> nn.Module:
        blocks = nn.Sequential(OrderedDict({str(i): nn.Linear(4, 4) for i, keep in enumerate(submodel.mask[0]) if keep}))
        return nn.Sequential(OrderedDict(sections=nn.Sequential(blocks), head=nn.Linear(4, 3)))

    deep.depths = (3,)  # type: ignore[attr-defined]
    made = named(deep, (4,), 3)
    assert full(made).mask == ((1, 1, 1),)
    assert len(shapes(at(made, 1.0, 2))) == len(shapes(full(made))) - 2
    assert address(made, "net.sections.0.2.weight") == (0, 2, "weight")


def test_a_regression_has_no_classes(named: Named) -> None:
    made = named(lambda submodel: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, submodel.network.outputs)), (4,), 2, "value")
    assert made.objective == "value"
    assert labelled(at(made, 0.5)) == frozenset()
    assert list(sizes(made).values()) == [(4, 4), (2, 4)]


def test_a_narrow_layer_is_scaled_in_training_where_a_method_asks(named: Named) -> None:
    """HeteroFL divides by the rate: before batch norm, where it shows in the statistics, else behind the layers that were cut."""
    plain = named(lambda: nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3, bias=False)), (4,), 3)
    normed = named(lambda: nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8, momentum=1.0), nn.Linear(8, 3)), (4,), 3)
    x = torch.rand((5, 4), generator=torch.Generator().manual_seed(1))
    net = build(Submodel(plain, 0.5, (), ("scaler",)))
    torch.testing.assert_close(net.train()(x), 2 * net.eval()(x))
    net = build(Submodel(normed, 0.5, (), ("scaler",)))
    net.train()(x)
    torch.testing.assert_close(net.net[1].running_mean, 2 * net.net[0](x).mean(0))
    assert shapes(Submodel(normed, 0.5, (), ("scaler",))) == shapes(Submodel(normed, 0.5, ()))


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedfa"])
def test_every_method_trains_it_in_every_size(tmp_path: Path, method: str) -> None:
    settings = {"model.name": "tests.support.model:residual", "method.name": method, "method.widths": [0.5, 1.0], "rounds": 2}
    settings |= {"evaluate.every": 2} | ({} if method == "heterofl" else {"method.depths": [1, 2]})
    done = federate(tmp_path, [Member("a0", digits(0, 2), 0.01), Member("a1", digits(1, 2), 0.5)], settings)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    sizes = {"w0.5-d2-scaler", "w1-d2-scaler"} if method == "heterofl" else {"w0.5-d1", "w0.5-d2", "w1-d1", "w1-d2"}
    assert central.keys() == sizes
    assert len({s.name for s in done.result.assigned.values()}) == 2
    assert max(central.values()) > 0.3


def test_half_of_it_exports_and_the_graph_says_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    submodel = at(network("tests.support.model:residual", (1, 8, 8), 10), 0.5)
    net = build(submodel).eval()
    x = np.random.default_rng(0).random((7, 1, 8, 8), dtype=np.float32)
    path = export(net, submodel.network, x[:2], tmp_path / "net.onnx", {"run": "r", "round": 1, "submodel": submodel.name})
    for n in (1, 7):
        np.testing.assert_allclose(load(path).predict(x[:n]), predict(net, submodel.network, x[:n]), atol=1e-5)
