"""Inputs, losses and tallies of each objective: classes, values, next and hidden tokens."""

from __future__ import annotations

import math

import pytest
import torch

from federated.training.objective import (
    augment,
    loss,
    mark_labels,
    mask_logits,
    prepare_batch,
    tally,
)
from models.submodel import Network

CLASSES = Network("n", "", (1,), 3)
VALUES = Network("n", "", (1,), 2, objective="value", shift=(10.0, 0.0), scale=(2.0, 1.0))
HIDDEN = Network("n", "", (4,), 5, objective="masked")
NEXT = Network("n", "", (4,), 5, objective="next")


def seeded():
    return torch.Generator().manual_seed(0)


def test_classes_and_next_tokens_are_shown_as_they_are():
    x, y = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 3, 4, 0]])
    for network in (CLASSES, NEXT):
        shown, truth = prepare_batch(network, 0.5, x, y, seeded())
        assert shown is x
        assert truth is y


def test_hidden_tokens_get_the_id_after_the_vocabulary_and_all_tokens_are_targets():
    x = torch.zeros((200, 4), dtype=torch.int64)
    shown, truth = prepare_batch(HIDDEN, 0.15, x, x + 1, seeded())
    assert set(shown.unique().tolist()) == {0, 5}
    assert 0.1 < (shown == 5).float().mean() < 0.2
    assert torch.equal(truth, x)
    assert torch.equal(prepare_batch(HIDDEN, 0.0, x, x, seeded())[0], x)


def pictures(dtype=torch.uint8):
    """200 equal images of 16 x 8, in two channels of distinct values from 1."""
    return torch.arange(1, 257).reshape(1, 2, 16, 8).expand(200, -1, -1, -1).to(dtype)


def test_without_augmentation_images_and_the_generator_stay_as_they_are():
    x, generator = pictures(), seeded()
    assert augment(x, (), (0.0,), generator) is x
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_a_crop_shifts_each_image_by_up_to_an_eighth():
    """2 rows and 1 column at most, so 5 x 3 different images."""
    x = pictures(torch.int64)
    found = augment(x, ("crop",), (0.0,), seeded())
    padded = torch.zeros(2, 20, 10, dtype=torch.int64)
    padded[:, 2:18, 1:9] = x[0]
    wanted = {
        tuple(padded[:, down : down + 16, across : across + 8].flatten().tolist())
        for down in range(5)
        for across in range(3)
    }
    assert {tuple(image.flatten().tolist()) for image in found} == wanted
    assert augment(pictures(), ("crop",), (0.0,), seeded()).dtype == torch.uint8


def test_a_flip_mirrors_about_half_of_the_images():
    x = pictures(torch.float32)
    found = augment(x, ("flip",), (0.0,), seeded())
    mirrored = [torch.equal(image, x[0].flip(-1)) for image in found]
    same = [torch.equal(image, x[0]) for image in found]
    assert [a != b for a, b in zip(mirrored, same, strict=True)] == [True] * 200
    assert 70 < sum(mirrored) < 130


def test_cutout_hides_a_square_of_half_the_size_by_the_mean_colour():
    """8 x 4 places, or fewer at a border. Bytes are rounded."""
    x = torch.full((200, 2, 16, 8), 7, dtype=torch.uint8)
    found = augment(x, ("cutout",), (100.4, 50.0), seeded())
    hidden = found[:, 0] != 7
    assert set(found[:, 0].unique().tolist()) == {7, 100}
    assert torch.equal(found[:, 1] == 50, hidden)
    assert hidden.flatten(1).sum(1).max() == 32
    assert all(0 < count <= 32 for count in hidden.flatten(1).sum(1).tolist())
    assert hidden.any(0).all()  # every place at times
    floats = augment(x.float(), ("cutout",), (0.5,), seeded())
    assert set(floats.unique().tolist()) == {0.5, 7.0}


def test_augmentation_draws_from_the_generator_alone():
    x, kinds = pictures(), ("crop", "flip", "cutout")
    first, again = (augment(x, kinds, (0.0,), seeded()) for _ in range(2))
    assert torch.equal(first, again)
    other = torch.Generator().manual_seed(1)
    assert not torch.equal(first, augment(x, kinds, (0.0,), other))
    assert len({tuple(image.flatten().tolist()) for image in first}) > 150


def test_values_are_learned_in_standard_deviations():
    """(14 - 10) / 2 = 2 and (3 - 0) / 1 = 3; the mean of the squared errors of (1, 3) is ((2 - 1)^2
    + 0) / 2.
    """
    _, truth = prepare_batch(VALUES, 0.0, torch.zeros(1, 1), torch.tensor([[14.0, 3.0]]), seeded())
    assert truth.tolist() == [[2.0, 3.0]]
    assert loss(VALUES, torch.tensor([[1.0, 3.0]]), truth).item() == 0.5


def test_the_loss_of_tokens_is_a_mean_over_tokens():
    """Equal logits over 5 tokens: log 5 at each place."""
    assert loss(
        NEXT, torch.zeros(2, 5, 4), torch.zeros((2, 4), dtype=torch.int64)
    ).item() == pytest.approx(math.log(5))


def test_logits_of_absent_tokens_are_zero_at_every_place():
    assert mask_logits(torch.full((1, 3, 2), 7.0), mark_labels([1], 3, "cpu")).tolist() == [
        [[0, 0], [7, 7], [0, 0]]
    ]


def test_a_tally_of_classes():
    """Guesses 0, 2, 2 for truths 0, 1, 2."""
    out = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 0, 1]])
    found = tally(CLASSES, out, torch.tensor([0, 1, 2]), per_class=True)
    assert (found["count"], found["right"]) == ([3], [2])
    assert (found["hits"], found["guessed"], found["true"]) == ([1, 0, 1], [1, 0, 2], [1, 1, 1])
    assert "hits" not in tally(CLASSES, out, torch.tensor([0, 1, 2]), per_class=False)


def test_a_tally_of_values_sums_per_value():
    """Errors 1 and 4 in the first value, 0 in the second; the truth is 1, 3 and 0, 0."""
    found = tally(
        VALUES,
        torch.tensor([[2.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[1.0, 0.0], [3.0, 0.0]]),
        per_class=True,
    )
    assert found == {
        "count": [2],
        "loss": [2.5],
        "errors": [5, 0],
        "sum": [4, 0],
        "squares": [10, 0],
    }


def test_a_tally_of_tokens_counts_places():
    found = tally(
        NEXT, torch.zeros(2, 5, 4), torch.zeros((2, 4), dtype=torch.int64), per_class=True
    )
    assert (found["count"], found["right"]) == ([8], [8])  # of equal logits the first is taken
    assert "hits" not in found
