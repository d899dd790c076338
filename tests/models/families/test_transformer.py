"""The language model: HeteroFL's counts, attention, scalers, objectives."""

from __future__ import annotations

import pytest
import torch

from models.cost import cost
from models.layers.basic import Scaler
from models.menu import menu
from models.named_network import network
from models.submodel_building import build, find_labelled, full, initial, shapes
from tests.support.published_network_sizes import read_published_counts

VOCABULARY, LENGTH = 33_278, 64


@pytest.mark.parametrize(("dim", "layers"), [(256, 4), (128, 4), (64, 4), (256, 2), (192, 3)])
def test_counts_of_heterofl(dim, layers):
    (submodel,) = menu(
        network("transformer", (LENGTH,), VOCABULARY, target="token"), (dim / 256,), (layers,)
    )
    assert (cost(submodel).parameters, cost(submodel).macs) == read_published_counts(
        f"HeteroFL/Transformer d={dim} L={layers} ff={2 * dim}"
    )


def test_counts_by_hand():
    """Embedding of words, hidden word and positions; 4 layers; decoder. Each of 64 positions
    attends to 64.
    """
    made = cost(full(network("transformer", (LENGTH,), VOCABULARY, target="token")))
    layer = 4 * (256 * 256 + 256) + 2 * 512 + (256 * 512 + 512) + (512 * 256 + 256)
    assert (
        made.parameters
        == 33_279 * 256
        + 64 * 256
        + 512
        + 4 * layer
        + (256 * 256 + 256)
        + 512
        + 256 * 33_278
        + 33_278
        == 19_263_486
    )
    assert (
        made.macs
        == 64 * (4 * (4 * 256 * 256 + 2 * 256 * 512 + 2 * 64 * 256) + 256 * 256 + 256 * 33_278)
        == 692_027_392
    )


def test_a_quarter_of_the_width_keeps_every_head_and_every_word():
    (quarter,) = menu(network("transformer", (LENGTH,), VOCABULARY, target="token"), (0.25,), (2,))
    found = shapes(quarter)
    assert found["embedding.tokens"] == (33_279, 64)
    assert found["sections.0.1.attention.project.weight"] == (3, 8, 8, 64)
    assert found["sections.0.1.feed.linear1.weight"] == (128, 64)
    assert find_labelled(quarter) == {
        "embedding.tokens",
        "decoder.linear2.weight",
        "decoder.linear2.bias",
    }
    assert found["decoder.linear2.weight"] == (33_278, 64)


@pytest.mark.parametrize(
    ("model", "objective"), [("transformer-small", "masked"), ("transformer-small-causal", "next")]
)
def test_causal_position_attends_to_itself_and_earlier_ones(model, objective):
    made = network(model, (6,), 9, target="token")
    assert made.objective == objective
    torch.manual_seed(0)
    net = build(full(made)).eval()
    x = torch.tensor([[1, 2, 3, 4, 5, 9]])  # 9 hides a token
    other = torch.tensor([[1, 2, 3, 8, 8, 8]])
    with torch.no_grad():
        same = torch.equal(net(x)[..., :3], net(other)[..., :3])
    assert same == (objective == "next")


@pytest.mark.parametrize("target", ["class", "value"])
def test_it_learns_from_tokens_without_labels(target):
    with pytest.raises(ValueError, match=f"learns from tokens.*give a {target}"):
        network("transformer", (6,), 9, target=target)


def test_networks_for_images_refuse_tokens():
    with pytest.raises(ValueError, match=r"data are tokens.*'transformer'"):
        network("vit", (1, 8, 8), 9, target="token")


def test_scalers_follow_the_embedding_and_every_linear_but_the_last():
    """HeteroFL: the embedding's sum, 2 linears of attention and 2 of the feed-forward in each of 2
    layers, the decoder's first.
    """
    (half,) = menu(network("transformer-small", (6,), 9, target="token"), (0.5,), (2,), ("scaler",))
    found = {
        name.removesuffix(".scaler")
        for name, module in build(half).named_modules()
        if isinstance(module, Scaler)
    }
    layers = ("attention.project", "attention.out", "feed.linear1", "feed.linear2")
    assert found == {
        "embedding",
        "decoder.linear1",
        *(f"sections.0.{layer}.{part}" for layer in (0, 1) for part in layers),
    }


def test_it_learns_a_text_that_repeats_itself():
    """A causal network of 2 layers learns to count to 5 and start again."""
    made = network("transformer-small-causal", (8,), 5, target="token")
    torch.manual_seed(0)
    net = build(full(made))
    net.load_state_dict(initial(made, 0))
    start = torch.arange(5)[:, None]
    x, y = (start + torch.arange(8)) % 5, (start + 1 + torch.arange(8)) % 5
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert (net.eval()(x).argmax(1) == y).all()
