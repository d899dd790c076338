"""FedFA: norms, scales and grafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.common.trimmed_norm import central_norm
from federated.methods.fedfa import is_scaled, propose_depths
from models.named_network import network
from models.submodel_building import full, initial, list_normalising, shapes
from tests.support.handmade_rounds import NET, play_round, start


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.integers(-6, 6).map(float) | st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60
    )
)
def test_the_norm_agrees_with_numpys_percentile(values):
    """Entries up to np.percentile(|w|, 95), linear and inclusive, ties and all."""
    sizes = np.abs(np.array(values, dtype=np.float64))
    kept = sizes[sizes <= np.percentile(sizes, 95) * (1 + 1e-12)]
    tensor = torch.tensor(values, dtype=torch.float32)
    assert central_norm(tensor, "l2") == pytest.approx(np.linalg.norm(kept), rel=1e-6, abs=1e-12)
    assert central_norm(tensor, "rms") == pytest.approx(
        np.sqrt(np.mean(kept**2)), rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize(
    "kind", ["normal", "sorted", "ties", "mostly zero", "outliers", "constant", "periodic"]
)
def test_the_norm_of_a_large_layer_is_exact(kind):
    """The sample may estimate well, badly, or consist of ties."""
    values = np.random.default_rng(0).standard_normal(1_200_000, np.float32)
    match kind:
        case "sorted":
            values.sort()
        case "ties":
            values = np.round(values)
        case "mostly zero":
            values[: values.size * 97 // 100] = 0
        case "outliers":
            values[::50] = 1e25
        case "constant":
            values[:] = 3
        case "periodic":
            values[:: values.size // 4096] = 1e9  # all that the sample sees
    sizes = np.abs(values).astype(np.float64)
    kept = sizes[sizes <= np.percentile(sizes, 95)]
    before = values.copy()
    assert central_norm(torch.from_numpy(values), "l2") == pytest.approx(
        np.linalg.norm(kept), rel=1e-6
    )
    assert central_norm(torch.from_numpy(values), "rms") == pytest.approx(
        np.sqrt(np.mean(kept**2)), rel=1e-6
    )
    assert np.array_equal(values, before), "the layer itself stays"


def test_a_norm_of_large_values_does_not_overflow():
    assert central_norm(torch.full((4,), 1e30), "l2") == pytest.approx(2e30)


def test_missing_blocks_are_grafted():
    """A two-block device moves blocks 2 and 3 to its block 1, in weights and norms."""
    chosen, state = start("fedfa", scaling="none")
    small = chosen.menu(NET, state.settings)[0]
    sent = {
        name: torch.full(
            shape, float(name.split(".")[2]) + 1 if name.startswith("sections") else 0.0
        )
        for name, shape in shapes(small).items()
    }
    after = play_round(chosen, state, (small, sent, 1, {}))
    for block, expected in ((0, 1.0), (1, 2.0), (2, 2.0), (3, 2.0)):
        assert bool((after[f"sections.1.{block}.conv2.weight"][:16, :16] == expected).all())
        assert bool((after[f"sections.1.{block}.norm2.bias"][:16] == expected).all())
    assert torch.equal(
        after["sections.1.3.conv2.weight"][16:], state.tensors["sections.1.3.conv2.weight"][16:]
    )


def test_grafting_counts_in_the_mean():
    """Block 3 of a four-block device (6) and the graft of a two-block device (2) meet half way."""
    chosen, state = start("fedfa-d", scaling="none")
    shallow, _, deep = chosen.menu(NET, state.settings)
    updates = [
        (s, {n: torch.full(shape, v) for n, shape in shapes(s).items()}, 1, {})
        for s, v in ((shallow, 2.0), (deep, 6.0))
    ]
    assert bool((play_round(chosen, state, *updates)["sections.2.3.conv1.weight"] == 4).all())


def test_layers_are_brought_to_one_scale_and_vectors_are_not():
    """Constant layers 1 and 3 at equal weight: scaled, both are 2; their mean norm is that of 2.
    Vectors average plainly.
    """
    chosen, state = start("fedfa", scaling="rms")
    updates = [
        (full(NET), {n: torch.full(s, v) for n, s in shapes(full(NET)).items()}, n, {})
        for v, n in ((1.0, 1), (3.0, 3))
    ]
    after = play_round(chosen, state, *updates)
    assert after["stem.weight"].flatten().tolist() == pytest.approx([2.0] * 144)
    assert after["linear.bias"].tolist() == pytest.approx([2.5] * 10)


def test_a_layer_of_zeros_is_not_scaled():
    """Norms 0 and 1, rms: the mean is 0.5; (0 + 0.5) / 2."""
    chosen, state = start("fedfa", scaling="rms")
    updates = [
        (full(NET), {n: torch.full(s, v) for n, s in shapes(full(NET)).items()}, 1, {})
        for v in (0.0, 1.0)
    ]
    after = play_round(chosen, state, *updates)
    assert after["stem.weight"].flatten().tolist() == pytest.approx([0.25] * 144)
    assert not any("#" in home for home in after)


def test_a_layer_of_almost_only_zeros_keeps_the_rest():
    """One entry of 144: the percentile is 0, so is the norm, and the entry is averaged as it is."""
    chosen, state = start("fedfa", scaling="l2")
    sparse, dense = (
        {n: torch.full(s, v) for n, s in shapes(full(NET)).items()} for v in (0.0, 2.0)
    )
    sparse["stem.weight"][3, 0, 1, 1] = 8.0
    one = play_round(chosen, state, (full(NET), sparse, 1, {}))["stem.weight"]
    assert (one[3, 0, 1, 1].item(), one.sum().item()) == (8.0, 8.0)
    both = play_round(chosen, state, (full(NET), sparse, 1, {}), (full(NET), dense, 1, {}))[
        "stem.weight"
    ]
    assert both[3, 0, 1, 1].item() == pytest.approx((8 + 2 * 0.5) / 2)


def test_biases_and_norms_of_several_axes_are_no_layers_to_scale():
    """Attention's biases are [3, heads, head_dim] and start at zero; a norm of DenseNet's is
    [layers, growth].
    """
    for model in ("vit-micro", "densenet-small"):
        made = network(model, (3, 32, 32), 3)
        chosen = find_method("fedfa")
        menu = chosen.menu(made, configure(chosen, {"depths": [1], "widths": [1.0]}))
        state = chosen.start(initial(made, 0), menu, configure(chosen, {}))
        tensors = {
            name: value
            for name, value in initial(made, 0).items()
            if is_scaled(state, full(made), name, value)
        }
        odd = [
            name
            for name in tensors
            if name.endswith("bias") or name in list_normalising(full(made))
        ]
        assert odd == []
        assert any(value.ndim > 2 for value in tensors.values())


def test_the_head_can_be_split_by_labels():
    for split, kept_old in ((True, True), (False, False)):
        chosen, state = start("fedfa", label_split_head=split)
        sent = {n: torch.full(s, 5.0) for n, s in shapes(full(NET)).items()}
        after = play_round(chosen, state, (full(NET), sent, 1, {"labels": [0]}))
        assert (
            torch.equal(after["linear.weight"][1:], state.tensors["linear.weight"][1:]) is kept_old
        )
        assert after["linear.weight"][0].tolist() == pytest.approx([5.0] * 64)


def test_tracked_statistics_are_grafted_and_never_scaled():
    chosen, state = start("fedfa", norm="tracked", scaling="l2", scale_1d=True)
    small = chosen.menu(NET, state.settings)[0]
    local = chosen.dispatch(state, chosen.place(state, small))
    deep = chosen.dispatch(state, chosen.place(state, full(NET)))
    first = {n: torch.full(tuple(v.shape), 1.0) for n, v in local.items()}
    second = {n: torch.full(tuple(v.shape), 3.0) for n, v in deep.items()}
    after = play_round(chosen, state, (small, first, 1, {}), (full(NET), second, 1, {}))
    assert after["sections.0.3.norm1.running_var"].tolist() == [2.0] * 8 + [3.0] * 8


def test_fedfa_proposes_two_blocks_all_and_halfway_whatever_the_network():
    deep = network("resnet-34", (3, 32, 32), 10)
    assert [propose_depths(NET), propose_depths(deep)] == [
        ((2, 2, 2), (3, 3, 3), (4, 4, 4)),
        ((2, 2, 2, 2), (3, 3, 4, 3), (3, 4, 6, 3)),
    ]
    for name in ("fedfa", "fedfa-d", "fedfa-w"):
        assert find_method(name).menu(deep, configure(find_method(name), {}))[-1] == full(deep)
    given = find_method("fedfa-d").menu(deep, configure(find_method("fedfa-d"), {"depths": [1]}))
    assert [s.mask for s in given] == [((1, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0, 0, 0), (1, 0, 0))]
