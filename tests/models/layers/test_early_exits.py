"""Early exits: counts of DepthFL, ScaleFL and RecipFL, positions, ownership and outputs."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.layers.early_exits import Attentive, Exits, exit_places, levels, run_exits
from models.named_network import network
from models.slicing import corners
from models.submodel import Submodel
from models.submodel_building import build, find_labelled, full, list_normalising, shapes
from tests.support.published_network_sizes import count_network, read_published_counts

IMAGES, DIGITS = (3, 32, 32), (1, 8, 8)
KINDS = ("exits", "exits-adapter", "exits-conv")


def small(kind: str, *mask: tuple[int, ...], width: float = 1.0) -> Submodel:
    """Return ResNet "small", with three sections of two blocks, and exits."""
    made = full(network("resnet-small", DIGITS, 10), (kind,))
    return replace(made, width=width, mask=mask or made.mask)


def heads(submodel: Submodel) -> set[str]:
    """Return modules that make logits."""
    return {
        name.removesuffix(".linear.weight").removesuffix(".weight")
        for name in find_labelled(submodel)
        if name.endswith("weight")
    }


@pytest.mark.parametrize(
    ("sections", "parameters", "macs"),
    [
        (1, 479_652, 165_160_960),
        (2, 1_347_336, 308_187_136),
        (3, 3_838_316, 447_846_400),
        (4, 12_283_344, 582_115_328),
    ],
)
def test_counts_of_depthfl(sections, parameters, macs):
    """A device of depth n has sections 1 to n and exits 1 to n, every one but the network's own
    head with attention.
    """
    made = full(network("resnet-18-cifar", IMAGES, 100), ("exits",))
    found = count_network(replace(made, mask=tuple((int(s < sections),) * 2 for s in range(4))))
    assert found == (parameters, macs)
    assert found == read_published_counts(f"DepthFL/ResNet18_n{sections}_100cls")


@pytest.mark.parametrize(
    ("key", "width", "blocks", "parameters", "macs"),
    [
        # the authors' code rounds 0.7 of 16, 32, 64 down to 11, 22, 44
        ("level1(w0.7,exit1)", 11 / 16, 30, 155_407, 70_062_300),
        ("level2(w0.7,exit2)", 11 / 16, 38, 322_353, 90_754_708),
        ("level3(w0.75,exit3)", 0.75, 46, 778_002, 133_190_832),
        ("level4(w1,exit4)", 1, 54, 1_972_888, 274_385_088),
    ],
)
def test_counts_of_scalefl(key, width, blocks, parameters, macs):
    """Exits after 30, 38 and 46 of ResNet110's 54 blocks; the authors' count leaves norms out."""
    made = full(network("resnet-110", IMAGES, 10), ("exits-conv",))
    submodel = replace(
        made,
        width=width,
        mask=tuple(tuple(int(18 * s + b < blocks) for b in range(18)) for s in range(3)),
    )
    weights = sum(
        torch.Size(shape).numel()
        for name, shape in shapes(submodel).items()
        if name not in list_normalising(submodel)
    )
    assert (weights, count_network(submodel)[1]) == (parameters, macs)
    assert (parameters, macs) == read_published_counts(f"ScaleFL/ResNet110_{key}")


def test_counts_of_recipfls_network_of_one_section():
    made = full(network("resnet-18-cifar", IMAGES, 10), ("exits-adapter",))
    found = count_network(replace(made, mask=((1, 1), (0, 0), (0, 0), (0, 0))))
    assert found == (450_890, 157_488_128)
    assert found == read_published_counts("RecipFL/ResNet_1block")


@pytest.mark.parametrize(
    ("model", "kind", "places"),
    [
        ("resnet-18", "exits", (2, 4, 6, 8)),
        ("resnet-34", "exits-adapter", (3, 7, 13, 16)),
        ("resnet-110", "exits-conv", (30, 38, 46, 54)),
        ("resnet-34", "exits-conv", (9, 11, 14, 16)),  # of 16 blocks: 8.9, 11.3, 13.6
        ("resnet-10", "exits-conv", (2, 3, 4)),  # of 4: 2.2, 2.8, 3.4; no two after the same block
    ],
)
def test_places(model, kind, places):
    assert exit_places(full(network(model, IMAGES, 10), (kind,))) == places


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_owns_every_exit_and_its_own_head(kind):
    assert heads(small(kind)) == {"exits.0", "exits.1", "linear"} | (
        {"exits.2"} if kind == "exits-conv" else set()
    )


@pytest.mark.parametrize(
    ("kind", "mask", "owned", "last"),
    [
        ("exits", ((1, 1), (0, 0), (0, 0)), {"exits.0"}, "0.1"),
        ("exits", ((1, 0), (0, 1), (0, 0)), {"exits.0", "exits.1"}, "1.1"),
        ("exits", ((1, 1), (0, 0), (1, 0)), {"exits.0", "exits.1", "linear"}, "2.0"),
        # its first exit sits after block 3, behind a projection
        ("exits-conv", ((1, 1), (0, 0), (0, 0)), {"exits.0"}, "1.0"),
        ("exits-conv", ((1, 1), (1, 1), (1, 0)), {"exits.0", "exits.1", "exits.2"}, "2.0"),
    ],
)
def test_a_submodel_ends_at_its_last_exit(kind, mask, owned, last):
    """A submodel has no exit, block or projection beyond the exit after its deepest block, and is a
    corner of the whole network.
    """
    submodel = small(kind, *mask, width=0.3)
    found = shapes(submodel)
    assert heads(submodel) == owned
    assert {
        name.rpartition(".linear")[0] or "linear" for name in found if "linear" in name
    } == owned
    assert max(name.split(".", 1)[1][:3] for name in found if name.startswith("sections")) == last
    corners(shapes(small(kind)), submodel)
    assert len(build(submodel).eval().exits(torch.rand(2, *DIGITS))) == len(owned)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_deepest_exit(kind):
    for mask in ((), ((1, 1), (1, 1), (0, 0))):
        torch.manual_seed(0)
        net, x = build(small(kind, *mask)).eval(), torch.rand(2, *DIGITS)
        said = net.exits(x)
        assert all(logits.shape == (2, 10) for logits in said)
        assert torch.equal(net(x), said[-1])
        assert not torch.equal(said[0], said[-1])


def test_shallow_submodel_equals_exits_of_the_whole():
    torch.manual_seed(0)
    whole = build(small("exits")).eval()
    part, x = build(small("exits", (1, 1), (1, 1), (0, 0))).eval(), torch.rand(2, *DIGITS)
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    assert not missing
    assert all(torch.equal(a, b) for a, b in zip(part.exits(x), whole.exits(x)[:2], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_all_exits_together_train_every_parameter(kind):
    net = build(small(kind, width=0.5)).train()
    sum(logits.square().mean() for logits in net.exits(torch.rand(4, *DIGITS))).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []


def test_attention_weighs_the_feature():
    """A map of 0 everywhere is a weight of one half after the sigmoid; a large one leaves the
    feature as it is.
    """
    torch.manual_seed(0)
    head, x = Attentive([4, 6, 8], 3).eval(), torch.rand(2, 4, 5, 5)
    for value, weight in ((0.0, 0.5), (40.0, 1.0)):
        torch.nn.init.zeros_(head.attention[1].weight)
        torch.nn.init.constant_(head.attention[1].bias, value)
        torch.testing.assert_close(head(x), head.linear(head.bottleneck(x * weight).mean((2, 3))))
    assert head.bottleneck(x).shape == (2, 8, 2, 2)


@pytest.mark.parametrize(("section", "side"), [(0, 1), (1, 1)])
def test_an_adapter_ends_at_the_last_sections_resolution(section, side):
    """8x8 and 4x4 features become 2x2, by strides of 4 and 2."""
    net = build(small("exits-adapter")).eval()
    exit_ = net.exits[str(section)]
    assert exit_.conv(torch.rand(2, 16 << section, 8 >> section, 8 >> section)).shape == (
        2,
        64,
        2 * side,
        2 * side,
    )
    assert torch.equal(
        exit_(x := torch.rand(1, 16 << section, 8, 8)),
        exit_.linear(F.relu(exit_.norm(exit_.conv(x))).mean((2, 3))),
    )


def test_copy_uses_its_own_weights():
    net, x = build(small("exits")).eval(), torch.rand(2, *DIGITS)
    twin = copy.deepcopy(net)
    assert isinstance(twin.exits, Exits)
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    assert not any(logits.any() for logits in net.exits(x))
    assert all(logits.any() for logits in twin.exits(x))


def test_one_kind_of_exits_at_a_time():
    with pytest.raises(ValueError, match=r"exits and exits-conv.*one kind"):
        build(replace(small("exits"), features=("exits", "exits-conv")))


def test_exits_need_a_block():
    with pytest.raises(ValueError, match="keeps no block"):
        build(small("exits", (0, 0), (0, 0), (0, 0)))


# ---- both families -------------------------------------------------------------------------------

MODELS = ("preresnet", "resnet-small")


def leveled(model: str, kind: str, width: float = 1.0) -> tuple[Submodel, ...]:
    return levels(replace(full(network(model, DIGITS, 10), (kind,)), width=width))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_one_level_for_each_exit(model, kind):
    """Level n ends at exit n and has n exits; the last is the whole."""
    whole = full(network(model, DIGITS, 10), (kind,))
    found = leveled(model, kind)
    assert [exit_places(level) for level in found] == [
        exit_places(whole)[: n + 1] for n in range(len(exit_places(whole)))
    ]
    assert [sum(map(sum, level.mask)) for level in found] == list(exit_places(whole))
    assert found[-1] == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_each_level_equals_exits_of_the_whole(model, kind):
    torch.manual_seed(0)
    *shallow, top = leveled(model, kind)
    whole, x = build(top).eval(), torch.rand(2, *DIGITS)
    said = whole.exits(x)
    for number, level in enumerate(shallow, 1):
        part = build(level).eval()
        missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
        assert not missing
        assert len(found := part.exits(x)) == number
        assert all(torch.equal(a, b) for a, b in zip(found, said, strict=False))
        assert torch.equal(part(x), said[number - 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_of_a_level_has_a_gradient(model, kind):
    """So no level sends a tensor that it did not train (ScaleFL's levels carry deeper exits, and
    leave these out of the mean).
    """
    for level in leveled(model, kind, 0.5):
        net = build(level).train()
        sum(out.square().mean() for out in net.exits(torch.rand(4, *DIGITS))).backward()
        assert [
            name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()
        ] == []


@pytest.mark.parametrize("model", MODELS)
def test_labelled_tensors_of_exits_have_the_classes_first(model):
    for level in leveled(model, "exits", 0.5):
        assert {shapes(level)[name][0] for name in find_labelled(level)} == {10}
        assert len(find_labelled(level)) == 2 * len(exit_places(level))


def test_exits_answer_in_their_order():
    class Two(nn.Module):
        def forward(self, x):
            return x + 2

        def exits(self, x):
            return [x + 1, x + 2]

    plain = network("resnet-small", DIGITS, 10)
    submodel = Submodel(plain, 1.0, (), ("exits",))
    assert [float(out) for out in run_exits(Two(), submodel, torch.zeros(1))] == [1, 2]
    assert [float(out) for out in run_exits(Two(), Submodel(plain, 1.0, ()), torch.zeros(1))] == [2]
