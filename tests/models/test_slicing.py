"""Extract, embed and graft with one plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.menu import menu
from models.named_network import network
from models.slicing import Plan, Row, corner, corners, extract, graft
from models.submodel import Moments, Network
from models.submodel_building import build, full, initial, shapes
from tests.support.slice_insertion import embed

NET = network("preresnet", (1, 8, 8), 10, Moments((4.9,), (6.0,)))
MENU = menu(NET, (0.03, 0.1, 0.5, 0.75, 1), (1, 2, 3, 4))
WHOLE = shapes(full(NET))
SUB = full(Network("preresnet", "small", (1, 8, 8), 10))


def weights(seed=0):
    return {name: value for name, value in initial(NET, seed).items() if name in WHOLE}


@pytest.mark.parametrize("submodel", MENU, ids=lambda s: s.name)
def test_an_extracted_submodel_runs(submodel):
    """The extracted tensors have the shapes of the submodel built directly, load completely, and
    run.
    """
    local = extract(weights(), corners(WHOLE, submodel))
    assert {name: tuple(value.shape) for name, value in local.items()} == shapes(submodel)
    net = build(submodel)
    problems = net.load_state_dict(local, strict=False)
    assert not problems.unexpected_keys
    assert all(
        name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        for name in problems.missing_keys
    )
    x = torch.randint(
        0, 17, (3, 1, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    assert bool(net(x).isfinite().all())


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(MENU), st.integers(0, 99))
def test_embed_is_the_inverse_of_extract(submodel, seed):
    """Embedding extracted tensors changes nothing; embedding others changes only the corner."""
    before, plan = weights(seed), corners(WHOLE, submodel)
    local = extract(before, plan)
    same = embed(before, plan, local)
    assert all(torch.equal(same[name], before[name]) for name in before)
    other = embed(before, plan, {name: value + 1 for name, value in local.items()})
    assert all(torch.equal(value, local[name] + 1) for name, value in extract(other, plan).items())
    for name, value in before.items():
        changed = other[name] != value
        inside = torch.zeros_like(changed)
        if name in local:
            inside[tuple(slice(n) for n in local[name].shape)] = True
        assert not bool((changed & ~inside).any())


def test_the_leading_corner_of_a_matrix():
    plan = Plan(SUB, (Row("w", corner((2, 1)), "w", corner((2, 1)), (3, 2)),))
    assert extract({"w": torch.tensor([[1, 2], [3, 4], [5, 6]])}, plan)["w"].tolist() == [[1], [3]]


def test_a_window_of_two_rectangles():
    """A rolled window: the last entry, then the first two; embedding restores it."""
    rows = (Row("w", ((0, 1),), "w", ((4, 5),), (5,)), Row("w", ((1, 3),), "w", ((0, 2),), (5,)))
    tensors, plan = {"w": torch.arange(5)}, Plan(SUB, rows)
    assert extract(tensors, plan)["w"].tolist() == [4, 0, 1]
    assert embed(tensors, plan, {"w": torch.tensor([7, 8, 9])})["w"].tolist() == [8, 9, 2, 3, 7]
    assert tensors["w"].tolist() == [0, 1, 2, 3, 4], "what was given stays as it was"


def test_unwritten_group_home_reads_its_base():
    tensors, plan = (
        {"bn": torch.tensor([1, 2, 3])},
        Plan(SUB, (Row("bn", corner((2,)), "bn@small", corner((2,)), (2,)),)),
    )
    assert extract(tensors, plan)["bn"].tolist() == [1, 2]
    written = embed(tensors, plan, {"bn": torch.tensor([8, 9])})
    assert written["bn@small"].tolist() == [8, 9]
    assert extract(written, plan)["bn"].tolist() == [8, 9]
    assert written["bn"].tolist() == [1, 2, 3]


def test_extracted_tensors_are_contiguous():
    local = extract(weights(), corners(WHOLE, MENU[0]))
    assert all(value.is_contiguous() for value in local.values())


@pytest.mark.parametrize("whole", [{}, {"stem.weight": (8, 1, 3, 3)}, {"stem.weight": (16, 1, 3)}])
def test_tensor_that_does_not_fit_is_refused(whole):
    with pytest.raises(ValueError, match=r"stem.weight of shape \(16, 1, 3, 3\) does not fit"):
        corners(whole, full(NET))


def test_grafts_of_a_two_block_section():
    """Block 1 stands in for blocks 2 and 3 of its section, with all its tensors, and for nothing
    else.
    """
    (submodel,) = menu(NET, (0.5,), (2,))
    plan = corners(WHOLE, submodel)
    added = graft(plan, WHOLE).rows[len(plan.rows) :]
    tensors = (
        "norm1.weight",
        "norm1.bias",
        "conv1.weight",
        "norm2.weight",
        "norm2.bias",
        "conv2.weight",
    )
    expected = {
        (f"sections.{s}.1.{t}", f"sections.{s}.{b}.{t}")
        for s in range(3)
        for b in (2, 3)
        for t in tensors
    }
    assert {(r.local, r.home) for r in added} == expected
    assert all(
        r.there == corner(shapes(submodel)[r.local]) and r.shape == WHOLE[r.home] for r in added
    )


def test_grafts_of_a_first_block_contribute_fitting_tensors():
    """With one block per section: section 0 contributes all, the others the tensors of the same
    shape; never a projection.
    """
    (submodel,) = menu(NET, (1,), (1,))
    plan = corners(WHOLE, submodel)
    homes = {r.home for r in graft(plan, WHOLE).rows[len(plan.rows) :]}
    assert "sections.0.1.conv1.weight" in homes
    assert "sections.1.1.conv2.weight" in homes
    assert "sections.1.1.norm2.weight" in homes
    assert "sections.1.1.conv1.weight" not in homes, "its input has 16 channels, not 32"
    assert "sections.1.1.norm1.weight" not in homes
    assert not any("shortcut" in home for home in homes)


def test_the_deepest_submodel_grafts_nothing():
    plan = corners(WHOLE, full(NET))
    assert graft(plan, WHOLE) == plan


def test_grafts_append_after_a_skipped_block():
    """Blocks 0 and 2 of 4: block 3 is grafted from 2; the gap stays a gap."""
    submodel = replace(full(NET), mask=((1, 0, 1, 0), (1,) * 4, (1,) * 4))
    plan = corners(WHOLE, submodel)
    assert {r.home.rsplit(".", 2)[0] for r in graft(plan, WHOLE).rows[len(plan.rows) :]} == {
        "sections.0.3"
    }
