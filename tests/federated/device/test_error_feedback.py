"""Error feedback: what a codec left out of an update is part of the device's next one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from federated.device.error_feedback import MOST, encode_trained, shorten
from federated.device.task_execution import carry_out
from federated.errors import Refused
from federated.task import Task, Update
from federated.training import state_between_rounds
from federated.wire import tensors
from federated.wire.codecs.catalogue import CODECS, codec_names, find_codec
from federated.wire.codecs.codec import decode_update, encode_update, join_encoded
from models.submodel_building import full
from tests.support.small_tasks import NET, PYTORCH, SMALL, examples, parameters
from tests.support.small_tasks import task as make_task

Arrays = Mapping[str, np.ndarray]
LIMIT = 1 << 20
FED = [name for name in codec_names() if CODECS[name].feedback]
SEVERAL = {"w": (40, 60), "b": (40,), "v": (30, 3, 3), "s": ()}
ENTRIES = 2000  # of a tensor; `top10` sends a tenth of them


def make(number: int, since: int, codec: str = "top10-zstd", **changes: object) -> Task:
    return replace(make_task(), round=number, since=since, codec=codec, **changes)  # type: ignore[arg-type]


def send(task: Task, change: np.ndarray, folder: Path, **more: np.ndarray) -> np.ndarray:
    """Return the change of `w` that the coordinator decodes, and keep the residual in a folder."""
    received = {"w": np.ones_like(change)}
    trained = {"w": received["w"] + change, **more}
    update = Update("run", task.round, 7, "agent", "train", task.submodel, "v", 1, 1, trained)
    encoded, residual = encode_trained(task, update, received, folder, {"bn.running_mean"})
    if residual:
        state_between_rounds.write(folder, task.round, residual, since=task.since)
    codec = find_codec(task.codec)
    found = decode_update(b"".join(encoded), codec, LIMIT, received).tensors["w"]
    return found - received["w"]


def read(folder: Path, number: int, submodel: str = SMALL.name) -> np.ndarray:
    name = f"residual/{submodel}/w"
    stored = state_between_rounds.locate_residual(folder, number, {name: (ENTRIES,)})[name]
    return state_between_rounds.read_tensor(stored, (ENTRIES,))


def test_a_small_change_is_sent_once_enough_rounds_have_added_up(tmp_path: Path) -> None:
    """A tenth of the entries moves by 1, the others by 0.3: in the fourth round 1.2 of one of the
    others are waiting, which is more than 1.
    """
    change = np.full(ENTRIES, 0.3, np.float32)
    change[:200] = 1.0
    sent = [send(make(number, number - 1), change, tmp_path) for number in range(1, 5)]
    for one in sent[:3]:
        np.testing.assert_allclose(one[:200], 1.0, atol=1e-3)
        assert not one[200:].any()
    assert np.count_nonzero(sent[3][200:]) == 200
    assert sent[3].max() == pytest.approx(1.2, abs=1e-3)


@pytest.mark.parametrize("name", FED)
def test_everything_is_sent_or_still_waiting(name: str, tmp_path: Path) -> None:
    """The sum of what was sent and of the last residual is that of the changes."""
    rng = np.random.default_rng(0)
    changes = rng.normal(0, 0.01, (6, ENTRIES)).astype(np.float32)
    sent = [
        send(make(number, number - 1, name), change, tmp_path)
        for number, change in enumerate(changes, 1)
    ]
    left = read(tmp_path, 6)
    assert np.linalg.norm(left) > 0
    np.testing.assert_allclose(sum(sent) + left, changes.sum(axis=0), atol=2e-6)


@pytest.mark.parametrize("name", FED)
def test_an_update_of_several_tensors_is_encoded_as_one(name: str, tmp_path: Path) -> None:
    """Byte for byte, and its residuals are what that leaves out."""
    rng = np.random.default_rng(0)
    trained = {n: np.asarray(rng.normal(0, 1, s), np.float32) for n, s in SEVERAL.items()}
    received = {n: np.ones(shape, np.float32) for n, shape in SEVERAL.items()}
    task = make(1, 0, name)
    update = Update("run", 1, 7, "agent", "train", task.submodel, "v", 1, 1, trained)
    encoded, residuals = encode_trained(task, update, received, tmp_path)
    together = b"".join(encode_update(update, find_codec(name), received))
    assert b"".join(encoded) == together
    sent = decode_update(together, find_codec(name), LIMIT, received).tensors
    state_between_rounds.write(tmp_path, 1, residuals, since=0)
    for n, stored in state_between_rounds.locate_tensors(tmp_path, 1).items():
        left = state_between_rounds.read_tensor(stored, stored.shape)
        assert np.array_equal(left, trained[n.rpartition("/")[2]] - sent[n.rpartition("/")[2]])


def test_a_codec_with_a_shared_array_that_its_name_does_not_mark_is_refused() -> None:
    """Its update would have the array of the first tensor only."""
    one = np.ones(2, np.float32)
    encoded = [{"/all": one, "w": one, "scales": one}, {"/all": one, "b": one, "scales": one}]
    with pytest.raises(Refused, match="the array scales for more than one tensor: start its name"):
        join_encoded(encoded)
    del encoded[1]["scales"]
    assert {n: len(value) for n, value in join_encoded(encoded).items()} == {
        "/all": 4,
        "w": 2,
        "scales": 2,
        "b": 2,
    }


def test_few_tensors_are_in_memory_beside_the_update(tmp_path: Path) -> None:
    """Beside an update of 8 MiB, what is encoded takes 2 MiB, and all else less than 3 MiB."""
    trained = {f"{n}": np.full(1 << 16, 0.1 * n, np.float32) for n in range(32)}
    received = {name: np.ones(1 << 16, np.float32) for name in trained}
    for number in (1, 2):
        task = make(number, number - 1, "int8")
        update = Update("run", number, 7, "agent", "train", task.submodel, "v", 1, 1, trained)
        tracemalloc.start()
        encoded, residuals = encode_trained(task, update, received, tmp_path)
        state_between_rounds.write(tmp_path, number, residuals, since=number - 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 2 << 20 < sum(map(len, encoded)) < peak < 5 << 20


def test_error_feedback_reduces_the_error_of_a_sum_of_updates(tmp_path: Path) -> None:
    """Without it, the random errors of int8 add up over rounds; with it, one remains."""
    change = np.random.default_rng(0).normal(0, 0.01, ENTRIES).astype(np.float32)
    errors = []
    for fed in (True, False):
        recipe = replace(make_task().recipe, feedback=fed)
        total = sum(
            send(make(n, n - 1, "int8", recipe=recipe), change * n / 10, tmp_path / str(fed))
            for n in range(1, 21)
        )
        errors.append(float(np.linalg.norm(total - change * 21)))
    assert errors[0] < 0.4 * errors[1]


def test_a_lost_update_changes_nothing(tmp_path: Path) -> None:
    """Round 3 starts from round 1 again if the update of round 2 was not accepted, and the
    residual of round 1 is still there.
    """
    change = np.linspace(0, 1, ENTRIES, dtype=np.float32)
    send(make(1, 0), change, tmp_path)
    second = send(make(2, 1), change, tmp_path)
    third = send(make(3, 1), change, tmp_path)
    assert np.array_equal(second, third)
    assert not np.array_equal(second, send(make(4, 3), change, tmp_path))


def test_a_device_that_lost_its_memory_starts_from_zero(tmp_path: Path) -> None:
    change = np.linspace(0, 1, ENTRIES, dtype=np.float32)
    first = send(make(1, 0), change, tmp_path)
    path = state_between_rounds.find_file(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert np.array_equal(send(make(2, 1), change, tmp_path), first)


def test_the_residual_of_another_submodel_is_not_used_and_is_forgotten(tmp_path: Path) -> None:
    change = np.linspace(0, 1, ENTRIES, dtype=np.float32)
    first = send(make(1, 0), change, tmp_path)
    assert np.array_equal(send(make(2, 1, submodel=full(NET)), change, tmp_path), first)
    assert np.array_equal(send(make(3, 2), change, tmp_path), first)


def test_a_tensor_of_another_shape_starts_from_zero(tmp_path: Path) -> None:
    """The network of a run may be another one under the same name."""
    send(make(1, 0), np.linspace(0, 1, ENTRIES, dtype=np.float32), tmp_path / "a")
    change = np.linspace(0, 1, ENTRIES + 1, dtype=np.float32)
    fresh = send(make(1, 0), change, tmp_path / "b")
    assert np.array_equal(send(make(2, 1), change, tmp_path / "a"), fresh)


def test_weights_that_are_others_in_each_round_get_none(tmp_path: Path) -> None:
    recipe = replace(make_task().recipe, feedback=False)
    change = np.linspace(0, 1, ENTRIES, dtype=np.float32)
    send(make(1, 0), change, tmp_path / "a")
    fresh = send(make(1, 0, recipe=recipe), change, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert np.array_equal(send(make(2, 1, recipe=recipe), change, tmp_path / "a"), fresh)


def test_statistics_and_tensors_that_were_not_received_get_none(tmp_path: Path) -> None:
    change = np.linspace(0, 1, ENTRIES, dtype=np.float32)
    more = {"bn.running_mean": change, "new": change}
    send(make(1, 0), change, tmp_path, **more)
    assert list(state_between_rounds.locate_tensors(tmp_path, 1)) == [f"residual/{SMALL.name}/w"]


def test_an_old_residual_is_shortened_to_a_multiple_of_the_change() -> None:
    """Lengths 5 and 10, for a change of length 1."""
    long, short = np.float32([3.0, 4.0]), np.float32([0.6, 0.8])
    shorten(long, np.float32([0.0, 1.0]))
    shorten(short, np.float32([0.0, 1.0]))
    np.testing.assert_allclose(long, [MOST * 0.6, MOST * 0.8], rtol=1e-6)
    np.testing.assert_allclose(short, [0.6, 0.8])
    shorten(long, np.zeros(2, np.float32))
    assert long.tolist() == [0.0, 0.0]


def test_a_training_leaves_a_residual_beside_its_update_but_does_not_read_it(
    tmp_path: Path,
) -> None:
    """From file to file; with the codec raw, a device that keeps nothing else writes no memory."""
    weights, result = tmp_path / "weights", tmp_path / "update"
    weights.write_bytes(tensors.encode({}, parameters(SMALL)))
    kept = tmp_path / state_between_rounds.FOLDER
    for codec in ("raw", "int8"):
        carry_out(PYTORCH, make(1, 0, codec), weights, result, examples())
        assert kept.exists() == (codec == "int8")
    known = state_between_rounds.locate_tensors(kept, 1)
    assert known.keys() == {f"residual/{SMALL.name}/{name}" for name in parameters(SMALL)}
    assert state_between_rounds.read(kept, 1) == {}
    updates = []
    for since in (1, 0):
        carry_out(PYTORCH, make(2, since, "int8"), weights, result, examples())
        updates.append(result.read_bytes())
    assert updates[0] != updates[1]
