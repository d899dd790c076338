"""What a device keeps between rounds: taken up where the coordinator took the update, found again by a round that is done again, never sent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from federated import memory
from federated.errors import Refused
from federated.local import errand, perform
from federated.task import Recipe, Task
from federated.wire import tensors
from models.families import initial, menu, network, shapes, statistics
from models.slicing import corners, extract

NET = network("preresnet", (1, 4, 4), 3)
SMALL, LARGE = menu(NET, (0.2, 0.5), (1,))
HEAD = ("linear.weight", "linear.bias")


def values(number):
    return {"w": np.full(2, number, dtype=np.float32)}


def test_a_round_goes_on_from_the_one_that_was_taken(tmp_path):
    assert memory.read(tmp_path, 0) == {}
    memory.write(tmp_path, 1, values(1), since=0)
    assert memory.read(tmp_path, 0) == {}, "nobody has taken round 1"
    assert memory.read(tmp_path, 1)["w"].tolist() == [1, 1]
    memory.write(tmp_path, 2, values(2), since=1)
    assert memory.read(tmp_path, 1)["w"].tolist() == [1, 1], "round 2 was lost, or is done again"


def test_what_nobody_will_ask_for_again_takes_no_room(tmp_path):
    """Rounds whose updates nobody took, of this run or of an older one of its name, are gone with the next that is trained."""
    memory.write(tmp_path, 40, values(40), since=0)
    memory.write(tmp_path, 1, values(1), since=0)
    for number in (2, 3, 11):
        memory.write(tmp_path, number, values(number), since=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.kept", "11.kept"]
    assert memory.read(tmp_path, 40) == {}


def test_a_device_without_its_disk_starts_anew(tmp_path):
    assert memory.read(tmp_path / "none", 7) == {}


# ---- layers that stay on a device ------------------------------------------------------------------------------------


def data(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(12, dtype=np.int64) % 3
    x = rng.integers(0, 255, (12, 1, 4, 4)).astype(np.uint8)
    return SimpleNamespace(x=x, y=y, x_held=x[:4], y_held=y[:4], labels=(0, 1, 2))


def task(submodel=SMALL, work="train", number=1, **recipe):
    made = Recipe(**{"batch": 6, "lr": 0.1, "keep": HEAD, **recipe})
    return Task("run", number, 0, "a", work, submodel, "v", "", 0, made, 60.0)


def sent(submodel, leave_out=HEAD):
    whole = initial(NET, 0)
    plan = corners({name: tuple(v.shape) for name, v in whole.items()}, submodel, shapes(submodel))
    return {name: value.numpy() for name, value in extract(whole, plan).items() if name not in leave_out}


def test_kept_layers_are_not_sent_and_go_on_from_where_they_were():
    first, kept = perform(task(), sent(SMALL), data())
    assert not set(HEAD) & first.tensors.keys()
    second, later = perform(task(number=2), sent(SMALL), data(), kept=kept)
    anew, _ = perform(task(number=2), sent(SMALL), data())
    assert any(not np.array_equal(second.tensors[name], anew.tensors[name]) for name in second.tensors)
    assert all(not np.array_equal(later[name], kept[name]) for name in kept)
    again, _ = perform(task(number=2), sent(SMALL), data(), kept=kept)
    assert all(np.array_equal(second.tensors[name], again.tensors[name]) for name in second.tensors)


def test_kept_layers_of_another_submodel_are_not_used():
    _, kept = perform(task(LARGE), sent(LARGE), data())
    with_old, _ = perform(task(number=2), sent(SMALL), data(), kept=kept)
    without, _ = perform(task(number=2), sent(SMALL), data())
    assert all(np.array_equal(with_old.tensors[name], without.tensors[name]) for name in without.tensors)


def test_a_layer_that_is_to_be_kept_may_come_and_then_counts():
    """A method may send a device what it is to begin with."""
    whole, _ = perform(task(keep=()), sent(SMALL, ()), data())
    given, kept = perform(task(), sent(SMALL, ()), data())
    assert all(np.array_equal(whole.tensors[name], given.tensors[name]) for name in given.tensors)
    assert np.array_equal(kept[f"own/{SMALL.name}/linear.bias"], whole.tensors["linear.bias"])


def test_a_missing_layer_that_is_not_kept_is_refused():
    with pytest.raises(Refused, match=r"missing or too many: linear.bias, linear.weight \(2 in all\)"):
        perform(task(keep=()), sent(SMALL), data())
    with pytest.raises(Refused, match="small/x"):
        perform(task(), {**sent(SMALL), "small/x": np.zeros(1, np.float32)}, data())


def test_scores_after_a_round_are_of_the_layers_that_it_left(tmp_path):
    """From file to file: the memory lies beside the update, and an evaluation of round 1 sees what round 1 left."""
    weights, result = tmp_path / "weights", tmp_path / "update"
    weights.write_bytes(tensors.encode({}, sent(SMALL)))
    evaluation = task(work="evaluate")
    bare = replace(evaluation, recipe=replace(evaluation.recipe, norm="tracked"))
    loss = errand(task(norm="static"), weights, result, data())
    assert 0 < loss < 5
    folder = tmp_path / memory.FOLDER
    assert memory.read(folder, 1).keys() == {f"own/{SMALL.name}/{name}" for name in HEAD}
    measured = {name: np.ones(shape, np.float32) for name, shape in statistics(SMALL).items()}
    weights.write_bytes(tensors.encode({}, {**sent(SMALL), **measured}))
    bare = replace(bare, since=1)
    assert np.isnan(errand(bare, weights, result, data()))
    here, _ = tensors.decode(result.read_bytes())
    expected, _ = perform(bare, {**sent(SMALL), **measured}, data(), kept=memory.read(folder, 1))
    assert here["notes"]["tallies"] == expected.notes["tallies"]
