"""The local loop: steps by hand, determinism, masks, batches, and a whole task."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from federated.errors import DataError, Refused
from federated.local import calibrate, evaluate, perform
from federated.objective import masked
from federated.task import Recipe, Task
from federated.training import Diverged, Stopped, train
from models.families import build, full, menu, network, shapes, statistics
from models.norms import load_stats
from models.submodel import Network, Submodel

NET = network("preresnet", (1, 4, 4), 3, (8.0,), (5.0,))
(SMALL,) = menu(NET, (0.5,), (1,))
BARE = Submodel(Network("none", "", (1,), 2), 1.0, ())  # of networks made here by hand: classes to learn, and no exits
PLAIN = Recipe(epochs=1, batch=4, lr=0.1, momentum=0.0)


def examples(n=24, seed=0, classes=3):
    """Images whose brightness is their class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % classes
    x = (rng.integers(0, 4, (n, 1, 4, 4)) + 6 * y[:, None, None, None]).astype(np.uint8)
    held = slice(0, n, 4)
    return SimpleNamespace(x=x, y=y, x_held=x[held], y_held=y[held], labels=tuple(range(classes)))


def weights(submodel, seed=0):
    torch.manual_seed(seed)
    state = build(submodel).state_dict()
    return {name: state[name].numpy() for name in shapes(submodel) | statistics(submodel)}


def parameters(submodel, seed=0):
    return {name: value for name, value in weights(submodel, seed).items() if name in shapes(submodel)}


def task(work="train", submodel=SMALL, **recipe):
    given = {"epochs": 2, "batch": 8, "lr": 0.1, **recipe}
    return Task("run", 3, 7, "agent", work, submodel, "v", "", 0, Recipe(**given), 60.0)


def done(*given, **named):
    """The update of a task; what the device is to keep is another test's."""
    return perform(*given, **named)[0]


def linear(value=0.0):
    net = nn.Linear(1, 2, bias=False)
    nn.init.constant_(net.weight, value)
    return net


ONE = (np.array([[2.0]], dtype=np.float32), np.array([0]))


def test_one_step_by_hand():
    """Equal logits: the gradient of weight 0 is (1/2 - 1) x 2 = -1, so it moves to 0.1."""
    net = linear()
    done = train(net, BARE, PLAIN, *ONE, labels=(0, 1), seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.1, -0.1])
    assert done.steps == 1
    assert done.loss == pytest.approx(np.log(2))


def test_momentum_and_decay_by_hand():
    """Two steps from weights 1: the gradient is (-1, 1) + decay x w, momentum adds half of the first to the second."""
    net = linear(1.0)
    train(net, BARE, replace(PLAIN, epochs=2, momentum=0.5, decay=0.01), *ONE, labels=(0, 1), seed=0)
    first = np.array([-1 + 0.01, 1 + 0.01])
    w = 1 - 0.1 * first
    p = np.exp(2 * w) / np.exp(2 * w).sum()
    second = (p - [1, 0]) * 2 + 0.01 * w + 0.5 * first
    assert net.weight.flatten().tolist() == pytest.approx((w - 0.1 * second).tolist(), rel=1e-5)


def test_the_gradient_is_clipped_as_a_whole():
    """(-1, 1) has norm sqrt 2; clipped to 0.5 each entry is 0.5 / sqrt 2."""
    net = linear()
    train(net, BARE, replace(PLAIN, clip=0.5), *ONE, labels=(0, 1), seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.05 / 2**0.5, -0.05 / 2**0.5], rel=1e-4)


def test_the_masked_loss_has_no_gradient_for_absent_classes():
    net = linear(1.0)
    train(net, BARE, replace(PLAIN, masked=True), *ONE, labels=(0,), seed=0)
    assert net.weight[1].item() == 1.0
    assert net.weight[0].item() > 1.0


def test_absent_logits_are_zero_and_not_minus_infinity():
    logits = torch.tensor([[2.0, 1.0, -1.0]])
    assert masked(logits, [1, 2]).tolist() == [[0.0, 1.0, -1.0]]
    assert cross_entropy(masked(logits, [1, 2]), torch.tensor([1])).item() == pytest.approx(0.40760594606)


@pytest.mark.parametrize(
    ("n", "batch", "expected"), [(9, 4, [4, 5]), (8, 4, [4, 4]), (10, 4, [4, 4, 2]), (1, 4, [1]), (3, 2, [3]), (3, 1, [1, 2]), (5, 9, [5])]
)
def test_a_last_batch_of_one_joins_the_one_before(n, batch, expected):
    seen = []
    net = nn.Linear(1, 2)
    net.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    x = np.zeros((n, 1), dtype=np.float32)
    assert train(net, BARE, replace(PLAIN, batch=batch), x, np.zeros(n, dtype=np.int64), labels=(0,), seed=0).steps == len(expected)
    assert seen == expected


def test_every_epoch_sees_every_example_once_in_another_order():
    seen = []
    net = nn.Linear(1, 2)
    net.register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten().tolist()))
    x = np.arange(8, dtype=np.float32)[:, None]
    train(net, BARE, replace(PLAIN, epochs=2, lr=0.0), x, np.zeros(8, dtype=np.int64), labels=(0,), seed=1)
    first, second = seen[0] + seen[1], seen[2] + seen[3]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert first != list(range(8))


def test_the_loss_is_that_of_the_last_epoch_by_examples():
    """Rate 0 keeps every loss at log 2 for equal logits, batches of 4 and 2 alike."""
    x = np.zeros((6, 1), dtype=np.float32)
    assert train(linear(), BARE, replace(PLAIN, lr=0.0), x, np.zeros(6, dtype=np.int64), labels=(0,), seed=0).loss == pytest.approx(np.log(2))


def test_training_sets_the_mode_and_static_norms_leave_their_statistics():
    """A network left in evaluation trains like one that was not; running statistics stay under static norm and move under tracked."""
    data, ends = examples(), []
    for norm, evaluating in (("static", False), ("static", True), ("tracked", False)):
        torch.manual_seed(0)
        net = build(SMALL)
        net.train(not evaluating)
        train(net, SMALL, replace(PLAIN, norm=norm), data.x, data.y, labels=data.labels, seed=0)
        ends.append(net)
    first, second, third = ends
    assert torch.equal(first.linear.weight, second.linear.weight)
    assert first.training
    assert not first.norm.running_mean.any()
    assert bool(third.norm.running_mean.any())


def test_steps_are_told_and_can_be_stopped():
    told = []
    data = examples()
    with pytest.raises(Stopped):
        perform(task(), parameters(SMALL), data, on_step=lambda *step: told.append(step), stop=lambda: len(told) == 3)
    assert [step[:2] for step in told] == [(1, 6), (2, 6), (3, 6)]


def test_a_diverging_loss_is_an_error():
    with pytest.raises(Diverged, match="smaller learning rate than 1e"):
        perform(task(lr=1e20, epochs=5), parameters(SMALL), examples())


@pytest.mark.parametrize(("steps", "taken", "passes"), [(0, 6, 2), (2, 2, 1), (4, 4, 2), (9, 6, 2)])
def test_steps_may_be_fewer_than_the_passes_have(steps, taken, passes):
    """24 examples in batches of 8, twice: 6 steps at most; the loss is that of the last pass, a part of one included."""
    seen = []
    net = nn.Linear(1, 2)
    net.register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten().tolist()))
    x = np.arange(24, dtype=np.float32)[:, None] / 24
    done = train(net, BARE, replace(PLAIN, epochs=2, batch=8, steps=steps), x, np.zeros(24, dtype=np.int64), labels=(0, 1), seed=0)
    assert done.steps == len(seen) == taken
    assert len({value for batch in seen[:3] for value in batch}) == 8 * min(taken, 3)
    assert 0 < done.loss < 1


def test_no_example_is_an_error():
    with pytest.raises(DataError, match="at least 1 example"):
        train(linear(), BARE, PLAIN, np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64), labels=(), seed=0)


# ---- whole tasks ---------------------------------------------------------------------------------------------------


def test_a_task_is_the_same_bits_again():
    """For the same seed, round and agent; another agent goes another way. The global random state plays no part and stays."""
    received = parameters(SMALL)
    torch.manual_seed(1)
    first = done(task(), received, examples())
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again = done(task(), received, examples())
    assert torch.equal(before, torch.random.get_rng_state())
    other = done(replace(task(), agent="other"), received, examples())
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert not all(np.array_equal(first.tensors[name], other.tensors[name]) for name in first.tensors)


def test_a_training_update():
    data = examples()
    update = done(task(), parameters(SMALL), data)
    assert {name: value.shape for name, value in update.tensors.items()} == shapes(SMALL)
    assert all(value.flags.c_contiguous and value.dtype == np.float32 for value in update.tensors.values())
    assert (update.run, update.round, update.attempt, update.agent, update.work) == ("run", 3, 7, "agent", "train")
    assert (update.samples, update.steps) == (24, 6)
    assert "labels" not in update.notes
    assert done(task(labels=True), parameters(SMALL), data).notes["labels"] == [0, 1, 2]
    assert 0 < update.notes["loss"] < 2


def test_received_arrays_may_be_read_only_and_are_left_alone():
    received = parameters(SMALL)
    before = {name: value.copy() for name, value in received.items()}
    for value in received.values():
        value.flags.writeable = False
    perform(task(), received, examples())
    assert all(np.array_equal(received[name], before[name]) for name in received)


def test_training_lowers_the_loss_and_learns_the_classes():
    data = examples(60)
    trained = done(task(epochs=15, batch=15, lr=0.02), parameters(SMALL), data)
    assert trained.notes["loss"] < 0.2
    stats = done(task("calibrate"), trained.tensors, data)
    scores = done(task("evaluate"), {**trained.tensors, **stats.tensors}, data)
    assert scores.notes["tallies"]["all"]["right"][0] >= 0.9 * scores.samples


def test_tracked_statistics_travel_both_ways():
    received = weights(SMALL)
    update = done(task(norm="tracked"), received, examples())
    assert update.tensors.keys() == (shapes(SMALL) | statistics(SMALL)).keys()
    assert not np.array_equal(update.tensors["norm.running_mean"], received["norm.running_mean"])


def test_a_calibration_measures_the_received_weights():
    """24 examples in batches of 8: three batches, the statistics that one process would find, and no weight in the update."""
    data, received = examples(), parameters(SMALL)
    update = done(task("calibrate"), received, data)
    assert {name: value.shape for name, value in update.tensors.items()} == statistics(SMALL)
    assert (update.samples, update.steps, update.notes["batches"]) == (24, 0, 3)
    net = build(SMALL)
    net.load_state_dict({name: torch.from_numpy(value) for name, value in received.items()}, strict=False)
    means = net.standardise(torch.from_numpy(data.x))
    first = net.stem(means).mean((0, 2, 3)).detach()
    torch.testing.assert_close(torch.from_numpy(update.tensors["sections.0.0.norm1.running_mean"]), first, rtol=1e-5, atol=1e-6)


def test_an_evaluation_counts_the_held_out():
    """The same loss and answers as the network by hand, whatever the batch."""
    data, received = examples(), weights(SMALL)
    net = build(SMALL).eval()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in received.items()}, strict=False)
    logits = net(torch.from_numpy(data.x_held)).detach()
    truth = torch.from_numpy(data.y_held)
    for batch in (2, 4, 100):
        update = done(task("evaluate", batch=batch), received, data)
        assert not update.tensors
        assert (update.samples, update.steps) == (6, 0)
        found = update.notes["tallies"]["all"]
        assert found["count"] == [6]
        assert found["right"] == [int((logits.argmax(1) == truth).sum())]
        assert found["loss"][0] / 6 == pytest.approx(cross_entropy(logits, truth).item(), rel=1e-5)


def test_an_evaluation_without_held_out_examples_is_empty():
    data = examples()
    data.x_held, data.y_held = data.x[:0], data.y[:0]
    update = done(task("evaluate"), weights(SMALL), data)
    assert (update.samples, update.notes) == (0, {"tallies": {}})


@pytest.mark.parametrize("work", ["calibrate", "evaluate"])
def test_work_without_steps_can_be_stopped(work):
    with pytest.raises(Stopped):
        perform(task(work), weights(SMALL), examples(), stop=lambda: True)


@pytest.mark.parametrize("work", ["train", "calibrate", "evaluate"])
def test_tensors_of_another_submodel_are_refused(work):
    with pytest.raises(Refused, match=r"missing or too many|expected shape"):
        perform(task(work), weights(full(NET)), examples())
    with pytest.raises(Refused, match="expected shape"):
        perform(task(work), {**weights(SMALL), "stem.weight": np.zeros((3, 1, 3, 3), dtype=np.float32)}, examples())


def test_evaluation_refuses_weights_without_statistics():
    with pytest.raises(Refused, match=r"missing or too many: .*running_"):
        perform(task("evaluate"), parameters(SMALL), examples())


def test_calibration_and_evaluation_of_a_network_in_hand():
    data = examples(30)
    torch.manual_seed(0)
    net = build(SMALL)
    stats, batches = calibrate(net, data.x, 8, 0)
    other = build(SMALL)
    other.load_state_dict(net.state_dict())
    load_stats(other, stats)
    assert batches == 4
    recipe = replace(PLAIN, batch=7)
    assert evaluate(net, SMALL, recipe, data.x, data.y) == evaluate(other, SMALL, recipe, data.x, data.y)


def test_scores_before_and_after_training_are_sent_only_when_asked_for():
    """Of the held-out examples, with norms measured on the device's own data; training is the same with and without them."""
    data, received = examples(60), parameters(SMALL)
    plain = done(task(epochs=15, batch=15, lr=0.02), received, data)
    scored = done(task(epochs=15, batch=15, lr=0.02, scores=True), received, data)
    assert "tallies" not in plain.notes
    before, after = (scored.notes["tallies"][when] for when in ("before", "after"))
    assert before["count"] == after["count"] == [15]
    assert after["right"][0] > before["right"][0]
    assert after["loss"][0] < before["loss"][0]
    assert all(np.array_equal(plain.tensors[name], scored.tensors[name]) for name in plain.tensors)


def test_a_device_is_also_scored_on_its_own_classes_alone():
    """With the logits of absent classes at 0, a device that holds class 0 alone may only be wrong where its own logit is negative."""
    data = examples()
    data.y, data.labels = np.zeros_like(data.y), (0,)
    data.y_held = np.zeros_like(data.y_held)
    tallies = done(task("evaluate"), weights(SMALL), data).notes["tallies"]
    assert tallies.keys() == {"all", "labels"}
    net = build(SMALL).eval()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in weights(SMALL).items()}, strict=False)
    own = net(torch.from_numpy(data.x_held))[:, 0]
    assert tallies["labels"]["right"] == [int((own >= 0).sum())]


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_the_first_step_of_adam_is_the_rate_in_each_direction(optimiser):
    """Bias-corrected moments of one gradient g give g / |g|."""
    net = linear()
    train(net, BARE, replace(PLAIN, optimiser=optimiser, lr=0.01), *ONE, labels=(0, 1), seed=0)
    assert net.weight.flatten().tolist() == pytest.approx([0.01, -0.01], rel=1e-4)


def test_dropout_repeats_with_the_task_and_leaves_the_global_randomness_alone():
    transformer = full(network("transformer-small", (6,), 9, target="token"))
    data = SimpleNamespace(x=np.arange(48).reshape(8, 6) % 9, y=np.arange(1, 49).reshape(8, 6) % 9, labels=tuple(range(9)))
    data.x_held, data.y_held = data.x[:2], data.y[:2]
    torch.manual_seed(4)
    start = torch.random.get_rng_state()
    first, again = (done(task(submodel=transformer, scores=True), parameters(transformer), data) for _ in range(2))
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    torch.manual_seed(4)
    assert torch.equal(start, torch.random.get_rng_state())
    assert "labels" not in first.notes
    assert first.notes["tallies"]["after"]["count"] == [12]
