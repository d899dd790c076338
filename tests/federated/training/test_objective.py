"""Inputs, losses and tallies of each objective: classes, values, next and hidden tokens."""

from __future__ import annotations

import math

import pytest
import torch

from federated.training.objective import loss, mark_labels, mask_logits, prepare_batch, tally
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
