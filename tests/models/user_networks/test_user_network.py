"""A user's own network: accepted functions, errors, and a whole run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.onnx_export import export, predict
from export.onnx_session import load
from models.cost import cost
from models.layers.basic import Scaler
from models.menu import menu
from models.named_network import network
from models.step_workload import work
from models.submodel import Submodel, scale_count
from models.submodel_building import address, build, find_labelled, full, list_normalising, shapes
from tests.support.memory_federation import Member, digits, federate
from tests.support.user_networks import Named, Recurrent, at, cnn, run_passes, sizes


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Tied(nn.Module):
    """The head is the embedding of words, which cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.words(x.flatten(1).long()).mean(1)))  # type: ignore[no-any-return]


class Stubborn(nn.Module):
    """Adds a tensor of literal size."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x.flatten(1))
        return self.head(x + x.new_ones(x.shape[0], 8))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Recurrent, "obstacle is LSTM 'memory'"),
        (Tied, "obstacle is Embedding 'words'"),
        (Stubborn, "obstacle is the operation 'add'"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "no hidden channels"),
    ],
)
def test_unnarrowable_network_gives_a_reason_and_runs_whole(
    named: Named, function: Callable[..., object], why: str
) -> None:
    made = named(function)
    assert run_passes(full(made)).shape == (3, 10)
    with pytest.raises(
        ValueError,
        match=f"{why}.*; train it at full width .*widths=\\(1.0,\\).* submodel.width",
    ):
        menu(made, (0.5, 1.0), (1,))


class Reading(nn.Module):
    """Chooses between two layers by the values of its input, as PyTorch's meta device cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.dark, self.bright = nn.Linear(64, 8), nn.Linear(64, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(self.bright(x) if x.mean() > 0.5 else self.dark(x))  # type: ignore[no-any-return]


def test_network_that_branches_on_values_is_counted_and_runs_whole(named: Named) -> None:
    """Zeros take the dark layer: 64 x 8 + 8 x 10 multiply-adds per example."""
    made = named(Reading)
    net = build(full(made))
    assert net(torch.ones(3, 1, 8, 8)).shape == (3, 10)
    assert cost(full(made)).macs == 592
    assert work(full(made), 4).calls > 2
    with pytest.raises(ValueError, match=r"branches on values .* test_user_network.py, line"):
        menu(made, (0.5, 1.0), (1,))


class TwoOutputs(Reading):
    """Returns more than its predictions."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


def test_network_that_returns_a_tuple_is_rejected(named: Named) -> None:
    with pytest.raises(
        ValueError, match=r"returned an output of type tuple; expected a tensor of .*10"
    ):
        named(TwoOutputs)


def test_function_that_raises_is_named_without_blaming_the_data(named: Named) -> None:
    def broken() -> nn.Module:
        raise RuntimeError("boom")

    with pytest.raises(ValueError, match=r"^model .* failed at .*RuntimeError: boom"):
        named(broken)


class Counting(nn.Module):
    """Runs only at its full width."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden.out_features != 8:
            raise ValueError("expected 8 channels")
        return self.head(self.hidden(x.flatten(1)))  # type: ignore[no-any-return]


def test_failure_at_half_width_is_reported_early(named: Named) -> None:
    with pytest.raises(
        ValueError, match=r"cut to half its width, it fails \(.*\); .*submodel.width"
    ):
        menu(named(Counting), (0.5,), (1,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda inputs, outputs: nn.Flatten(),
            "requires the arguments inputs, outputs",
        ),
        (lambda submodel: 3, "returned .* int; expected an nn.Module"),
    ],
)
def test_invalid_functions_are_refused(
    named: Named, function: Callable[..., object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        named(function)


@pytest.mark.parametrize("eight", [lambda: torch.full((1,), 8), lambda: torch.empty(1).fill_(8)])
def test_sizes_may_be_computed_with_tensors(named: Named, eight: Callable[[], Tensor]) -> None:
    """The meta device has no values, and torchvision's RegNet reads them."""
    made = named(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, int(eight().sum().item())), nn.Linear(8, 10)
        )
    )
    assert sizes(made) == {"1.weight": (4, 64), "2.weight": (10, 4)}
    assert run_passes(at(made, 0.5)).shape == (3, 10)


def test_self_scaling_function_is_not_cut(named: Named) -> None:
    """It keeps one channel more than the project would."""
    made = named(
        lambda submodel: nn.Sequential(
            nn.Linear(4, scale_count(submodel.width, 8) + 1),
            nn.Linear(scale_count(submodel.width, 8) + 1, 3),
        ),
        (4,),
        3,
    )
    assert list(sizes(made).values()) == [(5, 4), (3, 5)]


def test_a_function_with_depths_follows_the_mask_itself(named: Named) -> None:
    def deep(submodel: Submodel) -> nn.Module:
        blocks = nn.Sequential(
            OrderedDict(
                {str(i): nn.Linear(4, 4) for i, keep in enumerate(submodel.mask[0]) if keep}
            )
        )
        return nn.Sequential(OrderedDict(sections=nn.Sequential(blocks), head=nn.Linear(4, 3)))

    deep.depths = (3,)  # type: ignore[attr-defined]
    made = named(deep, (4,), 3)
    assert full(made).mask == ((1, 1, 1),)
    assert len(shapes(at(made, 1.0, 2))) == len(shapes(full(made))) - 2
    assert address(made, "net.sections.0.2.weight") == (0, 2, "weight")


def test_a_regression_has_no_classes(named: Named) -> None:
    made = named(
        lambda submodel: nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, submodel.network.outputs)
        ),
        (4,),
        2,
        "value",
    )
    assert made.objective == "value"
    assert find_labelled(at(made, 0.5)) == frozenset()
    assert list(sizes(made).values()) == [(4, 4), (2, 4)]


def test_a_narrow_layer_is_scaled_in_training_where_a_method_asks(named: Named) -> None:
    """HeteroFL divides by the rate: before batch norm, visible in the statistics, or else after
    the layers that were cut.
    """
    plain = named(
        lambda: nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3, bias=False)), (4,), 3
    )
    normed = named(
        lambda: nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8, momentum=1.0), nn.Linear(8, 3)
        ),
        (4,),
        3,
    )
    x = torch.rand((5, 4), generator=torch.Generator().manual_seed(1))
    net = build(Submodel(plain, 0.5, (), ("scaler",)))
    torch.testing.assert_close(net.train()(x), 2 * net.eval()(x))
    net = build(Submodel(normed, 0.5, (), ("scaler",)))
    seen = net.train()(x)
    # what it meets in evaluation
    torch.testing.assert_close(net.net[1].running_mean, net.net[0](x).mean(0))
    net.net[1].scaler = Scaler(1.0)
    net.net[0].weight.data *= 2
    torch.testing.assert_close(net(x), seen)  # it trained as on inputs divided by a half
    assert shapes(Submodel(normed, 0.5, (), ("scaler",))) == shapes(Submodel(normed, 0.5, ()))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedfa"])
def test_every_method_trains_it_in_every_size(tmp_path: Path, method: str) -> None:
    settings = {
        "model.name": "tests.support.user_models:residual",
        "method.name": method,
        "method.widths": [0.5, 1.0],
        "rounds": 2,
    }
    settings |= {"evaluate.every": 2} | ({} if method == "heterofl" else {"method.depths": [1, 2]})
    done = federate(
        tmp_path, [Member("a0", digits(0, 2), 0.01), Member("a1", digits(1, 2), 0.5)], settings
    )
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    sizes = (
        {"w0.5-d2-scaler", "w1-d2-scaler"}
        if method == "heterofl"
        else {"w0.5-d1", "w0.5-d2", "w1-d1", "w1-d2"}
    )
    assert central.keys() == sizes
    assert len({s.name for s in done.result.history.assigned.values()}) == 2
    assert max(central.values()) > 0.3


@pytest.mark.slow
def test_half_width_exports_with_equal_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    submodel = at(network("tests.support.user_models:residual", (1, 8, 8), 10), 0.5)
    net = build(submodel).eval()
    x = np.random.default_rng(0).random((7, 1, 8, 8), dtype=np.float32)
    path = export(
        net,
        submodel.network,
        x[:2],
        tmp_path / "net.onnx",
        {"run": "r", "round": 1, "submodel": submodel.name},
    )
    for n in (1, 7):
        np.testing.assert_allclose(
            load(path).predict(x[:n]), predict(net, submodel.network, x[:n]), atol=1e-5
        )


def test_every_kind_of_norm_is_known_as_one(named: Named) -> None:
    """A method that keeps norms separate (NeFL) finds all kinds."""
    made = named(
        lambda: nn.Sequential(
            nn.Linear(4, 8),
            nn.RMSNorm(8),
            nn.Unflatten(1, (2, 4)),
            nn.InstanceNorm1d(2, affine=True),
            Mean(),
        ),
        (4,),
        4,
    )
    assert list_normalising(full(made)) == {"net.1.weight", "net.3.weight", "net.3.bias"}


def test_an_instance_norm_that_tracks_statistics_is_refused(named: Named) -> None:
    """Calibration measures only batch norms."""
    with pytest.raises(
        ValueError, match=r"instance norm '1' tracks statistics.*set track_running_stats=False"
    ):
        named(
            lambda: nn.Sequential(
                nn.Unflatten(1, (2, 2)),
                nn.InstanceNorm1d(2, track_running_stats=True),
                nn.Flatten(),
                nn.Linear(4, 3),
            ),
            (4,),
            3,
        )


def test_initial_values_are_corners_too(named: Named) -> None:
    made = named(lambda: cnn())
    torch.manual_seed(5)
    whole = build(full(made)).state_dict()
    torch.manual_seed(5)
    half = build(at(made, 0.5)).state_dict()
    assert all(
        torch.equal(value, whole[name][tuple(map(slice, value.shape))])
        for name, value in half.items()
    )


def test_unnarrowable_network_is_timed_and_trained_whole(tmp_path: Path) -> None:
    settings = {
        "model.name": "tests.support.user_networks:Recurrent",
        "method.name": "fedavg",
        "rounds": 1,
    }
    done = federate(tmp_path, [Member("a0", digits(0, 2))], settings)
    assert [s.name for s in done.fleet.run.calibration] == ["w1"]
    assert done.result.rounds == 1
