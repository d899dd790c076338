"""Complete tasks of a device: training, calibration, evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from coordinator.assign.affordable_submodels import count_steps
from federated.device.task_execution import take_portion
from federated.errors import Refused
from federated.training import state_between_rounds
from federated.training.evaluation_passes import calibrate, evaluate
from federated.training.training_inputs import Execution, Stopped, TrainingSet
from models.named_network import network
from models.submodel_building import build, full, shapes, statistics
from tests.support.small_tasks import (
    NET,
    PLAIN,
    SMALL,
    examples,
    parameters,
    perform,
    perform_task,
    task,
    weights,
)


def test_a_task_is_reproducible_bit_for_bit():
    """For the same seed, round and agent; another agent goes another way. The global random state
    plays no part and stays.
    """
    received = parameters(SMALL)
    torch.manual_seed(1)
    first = perform_task(task(), received, examples())
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again = perform_task(task(), received, examples())
    assert torch.equal(before, torch.random.get_rng_state())
    other = perform_task(replace(task(), agent="other"), received, examples())
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert not all(
        np.array_equal(first.tensors[name], other.tensors[name]) for name in first.tensors
    )


@pytest.mark.parametrize(
    ("count", "portion", "chosen"),
    [
        (10, 0.5, [range(5), range(5, 10), range(5)]),
        (7, 1 / 3, [range(2), range(2, 4), range(4, 7), range(2)]),
        (2, 0.25, [[0], [0], [1], [1], [0]]),
        (4, 1.0, [range(4), range(4)]),
    ],
)
def test_a_round_trains_on_the_next_portion_of_the_data(count, portion, chosen):
    data = TrainingSet(np.arange(count), np.arange(count), (0, 1))
    for number, expected in enumerate(chosen, 1):
        part = take_portion(data, portion, number)
        assert (part.x.tolist(), part.labels) == (list(expected), (0, 1))


@pytest.mark.parametrize("portion", [0.1, 0.3, 1 / 3, 0.5, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 7, 10, 100])
def test_a_coordinator_accepts_the_steps_of_any_portion(count, portion):
    data = examples(count)
    sizes = {len(take_portion(data, portion, number).y) for number in range(1, 12)}
    recipe = task(portion=portion, batch=3).recipe
    assert count_steps(recipe, count) == recipe.epochs * math.ceil(max(sizes) / 3)


def test_an_update_counts_the_examples_of_its_portion():
    """Of 24 examples round 3 takes the first 12 again, in two passes of batches of 8."""
    data, received = examples(), parameters(SMALL)
    first = SimpleNamespace(**{**vars(data), "x": data.x[:12], "y": data.y[:12]})
    half, same = (
        perform_task(task(portion=portion), received, given)
        for portion, given in ((0.5, data), (1.0, first))
    )
    assert (half.samples, half.steps) == (same.samples, same.steps) == (12, 4)
    assert all(np.array_equal(half.tensors[name], same.tensors[name]) for name in same.tensors)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_a_device_that_keeps_its_optimiser_continues_where_it_stopped(optimiser):
    """Two rounds of two whole batches are one of four; without the state they are not."""
    received, data = parameters(SMALL), examples()
    given = {"batch": 24, "optimiser": optimiser, "lr": 0.01, "momentum": 0.9}
    once = perform_task(task(**given, epochs=4), received, data)
    first, kept = perform(task(**given, keep_optimiser=True), received, data)
    second, _ = perform(task(**given, keep_optimiser=True), first.tensors, data, kept)
    reset = perform_task(task(**given), first.tensors, data)
    for name, value in once.tensors.items():
        np.testing.assert_allclose(second.tensors[name], value, rtol=1e-3, atol=1e-5)
    assert any(not np.allclose(reset.tensors[n], v, atol=1e-4) for n, v in once.tensors.items())


def test_a_device_without_momentum_has_no_optimiser_state_to_keep():
    _, kept = perform(task(keep_optimiser=True, momentum=0.0), parameters(SMALL), examples())
    assert not kept


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_a_weight_that_a_larger_submodel_adds_takes_adams_first_step(tmp_path, optimiser):
    """After ten steps of half the network, the first step of each new weight has the length of the
    learning rate; with the tensor's eleven steps it would have half of that.
    """
    whole, data = full(NET), examples()
    given = {"keep_optimiser": True, "optimiser": optimiser, "lr": 1e-3, "batch": 24, "clip": 0.0}
    _, kept = perform(task(**given, steps=10, epochs=10), parameters(SMALL), data)
    state_between_rounds.write(tmp_path, 1, kept, since=0)
    names = {f"c/{kind}/stem.weight" for kind in ("exp_avg", "exp_avg_sq", "step")}
    assert names <= kept.keys()
    corners = {
        f"c/{kind}/{name}": shape
        for kind in ("exp_avg", "exp_avg_sq", "step")
        for name, shape in shapes(whole).items()
    }
    known = state_between_rounds.read(tmp_path, 1, corners)
    received = parameters(whole)
    update, after = perform(task(submodel=whole, **given, steps=1), received, data, known)
    half = shapes(SMALL)["stem.weight"][0]
    moved = np.abs(update.tensors["stem.weight"] - received["stem.weight"])[half:]
    assert moved.max() == pytest.approx(1e-3, rel=1e-2)
    count = after["c/step/stem.weight"]
    assert (count[:half] == 11).all()
    assert (count[half:] == 1).all()


def test_the_optimisers_state_of_other_submodels_stays(tmp_path):
    """The whole network trains first, then half of it: the other half of its momentum stays."""
    whole, data = full(NET), examples()
    given = {"keep_optimiser": True, "momentum": 0.9}
    for number, submodel in enumerate((whole, SMALL), 1):
        shapes_of = {
            name: shape
            for parameter, shape in shapes(submodel).items()
            for name, shape in ((f"c/momentum_buffer/{parameter}", shape),)
        }
        known = state_between_rounds.read(tmp_path, number - 1, shapes_of)
        assert known.keys() == (set(shapes_of) if number > 1 else set())
        one = task(submodel=submodel, **given)
        _, kept = perform(one, parameters(submodel), data, known)
        state_between_rounds.write(tmp_path, number, kept, since=number - 1)
    name = "c/momentum_buffer/stem.weight"
    before, after = (
        state_between_rounds.read(tmp_path, number, {name: shapes(whole)["stem.weight"]})[name]
        for number in (1, 2)
    )
    half = shapes(SMALL)["stem.weight"][0]
    np.testing.assert_array_equal(before[half:], after[half:])
    assert (before[:half] != after[:half]).any()


def test_a_training_update():
    data = examples()
    update = perform_task(task(), parameters(SMALL), data)
    assert {name: value.shape for name, value in update.tensors.items()} == shapes(SMALL)
    assert all(
        value.flags.c_contiguous and value.dtype == np.float32 for value in update.tensors.values()
    )
    assert (update.run, update.round, update.attempt, update.agent, update.work) == (
        "run",
        3,
        7,
        "agent",
        "train",
    )
    assert (update.samples, update.steps) == (24, 6)
    assert "labels" not in update.notes
    assert perform_task(task(labels=True), parameters(SMALL), data).notes["labels"] == [0, 1, 2]
    assert 0 < update.notes["loss"] < 2


def test_received_arrays_may_be_read_only_and_are_not_changed():
    received = parameters(SMALL)
    before = {name: value.copy() for name, value in received.items()}
    for value in received.values():
        value.flags.writeable = False
    perform(task(), received, examples())
    assert all(np.array_equal(received[name], before[name]) for name in received)


def test_training_lowers_the_loss_and_learns_the_classes():
    data = examples(60)
    trained = perform_task(task(epochs=15, batch=15, lr=0.02), parameters(SMALL), data)
    assert trained.notes["loss"] < 0.2
    stats = perform_task(task("calibrate"), trained.tensors, data)
    scores = perform_task(task("evaluate"), {**trained.tensors, **stats.tensors}, data)
    assert scores.notes["tallies"]["all"]["right"][0] >= 0.9 * scores.samples


def test_tracked_statistics_travel_both_ways():
    received = weights(SMALL)
    update = perform_task(task(norm="tracked"), received, examples())
    assert update.tensors.keys() == (shapes(SMALL) | statistics(SMALL)).keys()
    assert not np.array_equal(update.tensors["norm.running_mean"], received["norm.running_mean"])


def test_a_calibration_measures_the_received_weights():
    """24 examples in batches of 8: three batches, the statistics that one process would find, and
    no weight in the update.
    """
    data, received = examples(), parameters(SMALL)
    update = perform_task(task("calibrate"), received, data)
    assert {name: value.shape for name, value in update.tensors.items()} == statistics(SMALL)
    assert (update.samples, update.steps, update.notes["batches"]) == (24, 0, 3)
    net = build(SMALL)
    net.load_state_dict(
        {name: torch.from_numpy(value) for name, value in received.items()}, strict=False
    )
    means = net.standardise(torch.from_numpy(data.x))
    first = net.stem(means).mean((0, 2, 3)).detach()
    torch.testing.assert_close(
        torch.from_numpy(update.tensors["sections.0.0.norm1.running_mean"]),
        first,
        rtol=1e-5,
        atol=1e-6,
    )


def test_an_evaluation_counts_the_held_out():
    """The loss and answers equal those of the network on the held-out examples, for any
    batch size.
    """
    data, received = examples(), weights(SMALL)
    net = build(SMALL).eval()
    net.load_state_dict(
        {name: torch.from_numpy(value) for name, value in received.items()}, strict=False
    )
    logits = net(torch.from_numpy(data.x_held)).detach()
    truth = torch.from_numpy(data.y_held)
    for batch in (2, 4, 100):
        update = perform_task(task("evaluate", batch=batch), received, data)
        assert not update.tensors
        assert (update.samples, update.steps) == (6, 0)
        found = update.notes["tallies"]["all"]
        assert found["count"] == [6]
        assert found["right"] == [int((logits.argmax(1) == truth).sum())]
        assert found["loss"][0] / 6 == pytest.approx(cross_entropy(logits, truth).item(), rel=1e-5)


def test_an_evaluation_without_held_out_examples_is_empty():
    data = examples()
    data.x_held, data.y_held = data.x[:0], data.y[:0]
    update = perform_task(task("evaluate"), weights(SMALL), data)
    assert (update.samples, update.notes) == (0, {"tallies": {}})


@pytest.mark.parametrize("work", ["calibrate", "evaluate"])
def test_work_without_steps_can_be_stopped(work):
    with pytest.raises(Stopped):
        perform(task(work), weights(SMALL), examples(), execution=Execution(stop=lambda: True))


@pytest.mark.parametrize("work", ["train", "calibrate", "evaluate"])
def test_tensors_of_another_submodel_are_refused(work):
    with pytest.raises(Refused, match=r"missing or unexpected|expected shape"):
        perform(task(work), weights(full(NET)), examples())
    with pytest.raises(Refused, match="expected shape"):
        perform(
            task(work),
            {**weights(SMALL), "stem.weight": np.zeros((3, 1, 3, 3), dtype=np.float32)},
            examples(),
        )


def test_evaluation_refuses_weights_without_statistics():
    with pytest.raises(Refused, match=r"missing.*running_"):
        perform(task("evaluate"), parameters(SMALL), examples())


def test_calibration_and_evaluation_of_a_network_in_hand():
    data = examples(30)
    torch.manual_seed(0)
    net = build(SMALL)
    stats, batches = calibrate(net, data.x, 8, 0)
    other = build(SMALL)
    other.load_state_dict(net.state_dict())
    other.load_state_dict(stats, strict=False)
    assert batches == 4
    recipe, whole = replace(PLAIN, batch=7), TrainingSet(data.x, data.y)
    assert evaluate(net, SMALL, recipe, whole) == evaluate(other, SMALL, recipe, whole)


def test_scores_before_and_after_training_are_sent_only_when_asked_for():
    """The scores are of the held-out examples, with norms measured on the device's own data.
    Training is the same with and without them.
    """
    data, received = examples(60), parameters(SMALL)
    plain = perform_task(task(epochs=15, batch=15, lr=0.02), received, data)
    scored = perform_task(task(epochs=15, batch=15, lr=0.02, scores=True), received, data)
    assert "tallies" not in plain.notes
    before, after = (scored.notes["tallies"][when] for when in ("before", "after"))
    assert before["count"] == after["count"] == [15]
    assert after["right"][0] > before["right"][0]
    assert after["loss"][0] < before["loss"][0]
    assert all(np.array_equal(plain.tensors[name], scored.tensors[name]) for name in plain.tensors)


def test_a_device_is_also_scored_on_only_its_own_classes():
    """With the logits of absent classes at 0, a device that holds class 0 alone may only be wrong
    where its own logit is negative.
    """
    data = examples()
    data.y, data.labels = np.zeros_like(data.y), (0,)
    data.y_held = np.zeros_like(data.y_held)
    tallies = perform_task(task("evaluate"), weights(SMALL), data).notes["tallies"]
    assert tallies.keys() == {"all", "labels"}
    net = build(SMALL).eval()
    net.load_state_dict(
        {name: torch.from_numpy(value) for name, value in weights(SMALL).items()}, strict=False
    )
    own = net(torch.from_numpy(data.x_held))[:, 0]
    assert tallies["labels"]["right"] == [int((own >= 0).sum())]


def test_dropout_is_seeded_by_the_task_and_does_not_use_the_global_generator():
    transformer = full(network("transformer-small", (6,), 9, target="token"))
    data = SimpleNamespace(
        x=np.arange(48).reshape(8, 6) % 9,
        y=np.arange(1, 49).reshape(8, 6) % 9,
        labels=tuple(range(9)),
    )
    data.x_held, data.y_held = data.x[:2], data.y[:2]
    torch.manual_seed(4)
    start = torch.random.get_rng_state()
    first, again = (
        perform_task(task(submodel=transformer, scores=True), parameters(transformer), data)
        for _ in range(2)
    )
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    torch.manual_seed(4)
    assert torch.equal(start, torch.random.get_rng_state())
    assert "labels" not in first.notes
    assert first.notes["tallies"]["after"]["count"] == [12]
