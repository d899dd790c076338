"""Properties of every family: corners, names, gradients, and the declared features."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.families.catalogue import FAMILIES
from models.menu import menu
from models.named_network import network
from models.slicing import corners, extract
from models.submodel import Network
from models.submodel_building import (
    address,
    build,
    example,
    find_labelled,
    full,
    initial,
    list_normalising,
    shapes,
    statistics,
)
from tests.support.smallest_networks import SMALL, WIDTHS, small

PRESETS = [(name, preset) for name, known in FAMILIES.items() for preset in known.presets]


def batch(made: Network, n: int) -> torch.Tensor:
    """Return random raw examples."""
    generator = torch.Generator().manual_seed(0)
    if example(made, 1).dtype == torch.int64:
        return torch.randint(0, made.outputs, (n, *made.inputs), generator=generator)
    return torch.rand((n, *made.inputs), generator=generator) * 3


def test_every_family_has_a_small_example():
    assert SMALL.keys() == FAMILIES.keys()


@pytest.mark.parametrize(("family", "preset"), PRESETS, ids=lambda v: v)
def test_every_submodel_is_a_corner_of_every_preset(family, preset):
    """A submodel's tensor names exist in the whole network and are the same at every width; no
    axis is longer, and half the width has fewer numbers. Every width is tried with few blocks, and
    one that divides no number of channels with all.
    """
    made = small(family, preset)
    whole = shapes(full(made)) | statistics(full(made))
    deepest = max(map(len, full(made).mask))
    for submodel in {*menu(made, WIDTHS, {1, 2}), *menu(made, (0.33,), {deepest})}:
        local = shapes(submodel) | statistics(submodel)
        corners(whole, submodel, local)  # raises where a tensor is no corner
        wide = replace(submodel, width=1.0)
        assert local.keys() == shapes(wide).keys() | statistics(wide).keys()
        if submodel.width < 1:
            assert sum(torch.Size(s).numel() for s in local.values()) < sum(
                torch.Size(whole[name]).numel() for name in local
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_submodel_built_directly_equals_the_extracted_one(family):
    """It loads exactly the extracted tensors, and outputs finite numbers of the right shape."""
    made = small(family)
    tensors = initial(made, 0)
    for submodel in menu(made, (0.5, 1.0), (1, 2)):
        local = shapes(submodel) | statistics(submodel)
        plan = corners(
            {home: tuple(value.shape) for home, value in tensors.items()}, submodel, local
        )
        net = build(submodel).eval()
        missing, unexpected = net.load_state_dict(extract(tensors, plan), strict=False)
        assert not unexpected
        assert all(name.endswith("num_batches_tracked") for name in missing)
        with torch.no_grad():
            out = net(batch(made, 3))
        assert tuple(out.shape[:2]) == (3, made.outputs)
        assert out.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_learns(family):
    """Each gets a gradient in training, in the whole and in half of it."""
    for submodel in {full(small(family)), menu(small(family), (0.5,), (1,))[0]}:
        net = build(submodel).train()
        net(batch(submodel.network, 4)).square().mean().backward()
        assert [name for name, p in net.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_labelled_tensors_have_the_classes_first(family):
    submodel = menu(small(family), (0.5,), (1,))[0]
    assert find_labelled(submodel)
    for name in find_labelled(submodel):
        # a text has a token for what is hidden
        assert shapes(submodel)[name][0] in {submodel.network.outputs, submodel.network.outputs + 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_named_by_section_and_index(family):
    """The tensors inside sections are those of the mask's blocks, and dropping a last block
    drops only its tensors.
    """
    made = small(family)
    whole = full(made)
    found = {place[:2] for name in shapes(whole) if (place := address(made, name))}
    assert found == {(s, b) for s, section in enumerate(whole.mask) for b in range(len(section))}


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_parameters_or_statistics(family):
    submodel = full(small(family))
    assert list_normalising(submodel) <= shapes(submodel).keys() | statistics(submodel).keys()
    assert statistics(submodel).keys() <= list_normalising(submodel)


@pytest.mark.parametrize(
    ("family", "feature"),
    [(name, f) for name, known in FAMILIES.items() for f in sorted(known.features)],
    ids=str,
)
def test_every_declared_feature_builds_and_keeps_the_plain_names(family, feature):
    """A feature adds tensors, removes none, and the network still maps examples to outputs."""
    made = small(family)
    plain, asked = full(made), full(made, (feature,))
    # it reads what the projection head puts out
    changed = {"linear.weight"} if feature == "projection" else set()
    assert {
        name: shape for name, shape in shapes(plain).items() if name not in changed
    }.items() <= shapes(asked).items()
    half = menu(made, (0.5,), (2,), (feature,))[0]
    corners(shapes(asked), half)
    assert tuple(build(half).eval()(batch(made, 2)).shape[:2]) == (2, made.outputs)


def test_features_that_a_family_lacks_are_named_with_families_that_have_them():
    with pytest.raises(ValueError, match="has no flying; models that have: none"):
        build(full(small("preresnet"), ("flying",)))


def test_unsupported_shape_is_reported():
    with pytest.raises(ValueError, match="3 axes"):
        network("preresnet", (3, 32), 10)
