"""The training loop: steps by hand, masks, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from federated.errors import DataError
from federated.training.objective import mark_labels, mask_logits
from federated.training.training_inputs import Diverged, Execution, Stopped, TrainingSet
from federated.training.training_loop import train
from models.submodel_building import build
from tests.support.small_tasks import (
    BARE,
    ONE,
    PLAIN,
    SMALL,
    examples,
    linear,
    parameters,
    perform,
    task,
    weights,
)


def test_one_step_by_hand():
    """Equal logits: the gradient of weight 0 is (1/2 - 1) x 2 = -1, so it moves to 0.1."""
    net = linear()
    loss = train(net, BARE, PLAIN, ONE, seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.1, -0.1])
    assert loss == pytest.approx(np.log(2))


def test_momentum_and_decay_by_hand():
    """Two steps from weights 1: the gradient is (-1, 1) + decay x w, momentum adds half of the
    first to the second.
    """
    net = linear(1.0)
    train(
        net,
        BARE,
        replace(PLAIN, epochs=2, momentum=0.5, decay=0.01),
        ONE,
        seed=0,
    )
    first = np.array([-1 + 0.01, 1 + 0.01])
    w = 1 - 0.1 * first
    p = np.exp(2 * w) / np.exp(2 * w).sum()
    second = (p - [1, 0]) * 2 + 0.01 * w + 0.5 * first
    assert net.weight.flatten().tolist() == pytest.approx((w - 0.1 * second).tolist(), rel=1e-5)


def test_the_gradient_is_clipped_as_a_whole():
    """(-1, 1) has norm sqrt 2; clipped to 0.5 each entry is 0.5 / sqrt 2."""
    net = linear()
    train(net, BARE, replace(PLAIN, clip=0.5), ONE, seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.05 / 2**0.5, -0.05 / 2**0.5], rel=1e-4)


def test_the_masked_loss_has_no_gradient_for_absent_classes():
    net = linear(1.0)
    train(net, BARE, replace(PLAIN, masked=True), replace(ONE, labels=(0,)), seed=0)
    assert net.weight[1].item() == 1.0
    assert net.weight[0].item() > 1.0


def test_absent_logits_are_zero_and_not_minus_infinity():
    masked = mask_logits(torch.tensor([[2.0, 1.0, -1.0]]), mark_labels([1, 2], 3, "cpu"))
    assert masked.tolist() == [[0.0, 1.0, -1.0]]
    assert cross_entropy(masked, torch.tensor([1])).item() == pytest.approx(0.40760594606)


@pytest.mark.parametrize(
    ("n", "batch", "expected"),
    [
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (1, 4, [1]),
        (3, 2, [3]),
        (3, 1, [1, 2]),
        (5, 9, [5]),
    ],
)
def test_a_last_batch_of_one_joins_the_one_before(n, batch, expected):
    seen = []
    net = nn.Linear(1, 2)
    net.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    x = np.zeros((n, 1), dtype=np.float32)
    data = TrainingSet(x, np.zeros(n, dtype=np.int64), (0,))
    train(net, BARE, replace(PLAIN, batch=batch), data, seed=0)
    assert seen == expected


def test_every_epoch_sees_every_example_once_in_another_order():
    seen = []
    net = nn.Linear(1, 2)
    net.register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten().tolist()))
    x = np.arange(8, dtype=np.float32)[:, None]
    train(
        net,
        BARE,
        replace(PLAIN, epochs=2, lr=0.0),
        TrainingSet(x, np.zeros(8, dtype=np.int64), (0,)),
        seed=1,
    )
    first, second = seen[0] + seen[1], seen[2] + seen[3]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert first != list(range(8))


def test_the_loss_is_that_of_the_last_epoch_by_examples():
    """Rate 0 keeps every loss at log 2 for equal logits, batches of 4 and 2 alike."""
    x = np.zeros((6, 1), dtype=np.float32)
    assert train(
        linear(),
        BARE,
        replace(PLAIN, lr=0.0),
        TrainingSet(x, np.zeros(6, dtype=np.int64), (0,)),
        seed=0,
    ) == pytest.approx(np.log(2))


def test_training_sets_the_mode_and_static_norms_leave_their_statistics():
    """A network left in evaluation trains like one that was not; running statistics stay under
    static norm and move under tracked.
    """
    data, ends = examples(), []
    for norm, evaluating in (("static", False), ("static", True), ("tracked", False)):
        torch.manual_seed(0)
        net = build(SMALL)
        net.train(not evaluating)
        train(net, SMALL, replace(PLAIN, norm=norm), data, seed=0)
        ends.append(net)
    first, second, third = ends
    assert torch.equal(first.linear.weight, second.linear.weight)
    assert first.training
    assert not first.norm.running_mean.any()
    assert bool(third.norm.running_mean.any())


def test_steps_are_reported_and_training_can_be_stopped():
    told = []
    data = examples()
    with pytest.raises(Stopped):
        perform(
            task(),
            parameters(SMALL),
            data,
            execution=Execution(
                on_step=lambda *step: told.append(step), stop=lambda: len(told) == 3
            ),
        )
    assert [step[:2] for step in told] == [(1, 6), (2, 6), (3, 6)]


def test_a_diverging_loss_is_an_error():
    with pytest.raises(Diverged, match="learning rate below 1e"):
        perform(task(lr=1e20, epochs=5), parameters(SMALL), examples())


@pytest.mark.parametrize(("steps", "taken", "passes"), [(0, 6, 2), (2, 2, 1), (4, 4, 2), (9, 6, 2)])
def test_steps_may_be_fewer_than_the_passes_have(steps, taken, passes):
    """24 examples in batches of 8, twice: 6 steps at most; the loss is that of the last pass, a
    part of one included.
    """
    seen = []
    net = nn.Linear(1, 2)
    nn.init.zeros_(net.weight)  # so that the loss begins at log 2
    nn.init.zeros_(net.bias)
    net.register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten().tolist()))
    x = np.arange(24, dtype=np.float32)[:, None] / 24
    loss = train(
        net,
        BARE,
        replace(PLAIN, epochs=2, batch=8, steps=steps),
        TrainingSet(x, np.zeros(24, dtype=np.int64), (0, 1)),
        seed=0,
    )
    assert len(seen) == taken
    assert len({value for batch in seen[:3] for value in batch}) == 8 * min(taken, 3)
    assert 0 < loss < 1


def test_no_example_is_an_error():
    with pytest.raises(DataError, match="at least 1 example"):
        train(
            linear(),
            BARE,
            PLAIN,
            TrainingSet(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)),
            seed=0,
        )


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_the_first_step_of_adam_is_the_rate_in_each_direction(optimiser):
    """Bias-corrected moments of one gradient g give g / |g|."""
    net = linear()
    train(net, BARE, replace(PLAIN, optimiser=optimiser, lr=0.01), ONE, seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.01, -0.01], rel=1e-4)


def test_augmented_images_are_drawn_from_the_seed_of_the_task():
    start = weights(SMALL)

    def train_flipped(number, **recipe):
        given = replace(task(**recipe), round=number)
        tensors = perform(given, start, examples())[0].tensors
        return {name: value.tobytes() for name, value in tensors.items()}

    flipped = train_flipped(3, augment=("flip",))
    assert flipped == train_flipped(3, augment=("flip",))
    assert flipped != train_flipped(3)
    assert flipped != train_flipped(4, augment=("flip",))
