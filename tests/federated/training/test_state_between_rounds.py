"""Memory of a device between rounds: it follows accepted updates, survives a repeated round, and is
never sent.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.faults.parts.fork_server import ServedProcess
from federated.device.task_execution import carry_out
from federated.errors import Refused
from federated.task import Recipe, Task
from federated.training import state_between_rounds
from federated.wire import tensors
from models.menu import menu
from models.named_network import network
from models.slicing import corners, extract
from models.submodel_building import initial, shapes, statistics
from tests.support.small_tasks import PYTORCH, perform

ROOT = Path(__file__).parents[3]
NET = network("preresnet", (1, 4, 4), 3)
SMALL, LARGE = menu(NET, (0.2, 0.5), (1,))
HEAD = ("linear.weight", "linear.bias")


def values(number):
    return {"w": np.full(2, number, dtype=np.float32)}


def test_a_round_continues_from_the_last_accepted_round(tmp_path):
    assert state_between_rounds.read(tmp_path, 0) == {}
    state_between_rounds.write(tmp_path, 1, values(1), since=0)
    assert state_between_rounds.read(tmp_path, 0) == {}, "round 1 is not accepted yet"
    assert state_between_rounds.read(tmp_path, 1)["w"].tolist() == [1, 1]
    state_between_rounds.write(tmp_path, 2, values(2), since=1)
    assert state_between_rounds.read(tmp_path, 1)["w"].tolist() == [1, 1], (
        "round 2 was lost, or is done again"
    )


@pytest.mark.parametrize("first", [0, 5])
def test_an_accepted_update_that_is_requested_again_starts_from_the_same_memory(tmp_path, first):
    """The agent got its next task while the update waited to be folded. Its file was then lost, or
    its round was given up.
    """
    second, third = first + 1, first + 2
    if first:
        state_between_rounds.write(tmp_path, first, values(first), since=first - 1)
    state_between_rounds.write(tmp_path, second, values(second), since=first)
    state_between_rounds.write(tmp_path, third, values(third), since=second)
    kept = state_between_rounds.read(tmp_path, first)
    assert [value.tolist() for value in kept.values()] == ([[first] * 2] if first else [])
    state_between_rounds.write(tmp_path, second, values(9), since=first)
    assert state_between_rounds.read(tmp_path, second)["w"].tolist() == [9, 9]
    assert state_between_rounds.read(tmp_path, third)["w"].tolist() == [third, third], (
        "the later update may be accepted, and the next task then names it"
    )


def test_a_device_keeps_few_rounds(tmp_path):
    def count():
        return len(list(tmp_path.iterdir()))

    for number in range(1, 9):
        state_between_rounds.write(tmp_path, number, values(number), since=number - 1)
        assert count() <= 3
    for number in (7, 6, 5, 8, 4, 3):  # a coordinator may ask for any round again
        state_between_rounds.write(tmp_path, number, values(number), since=number - 1)
        assert count() <= 4
    state_between_rounds.write(tmp_path, 9, values(9), since=8)
    assert count() <= 3


def test_rounds_that_are_no_longer_needed_are_removed(tmp_path):
    """A new round removes the memory of rounds without an accepted update, of this run and of an
    older run with its name.
    """
    state_between_rounds.write(tmp_path, 40, values(40), since=0)
    state_between_rounds.write(tmp_path, 1, values(1), since=0)
    for number in (2, 3, 11):
        state_between_rounds.write(tmp_path, number, values(number), since=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.kept", "11.kept"]
    assert state_between_rounds.read(tmp_path, 40) == {}


def test_a_device_without_its_disk_starts_from_zero(tmp_path):
    assert state_between_rounds.read(tmp_path / "none", 7) == {}


# ---- tensors that are kept as unions of corners --------------------------------------------------


def full(shape, number):
    return np.full(shape, number, dtype=np.float32)


def test_a_smaller_corner_replaces_its_own_entries_and_no_others(tmp_path):
    state_between_rounds.write(tmp_path, 1, {"c/w": full((3, 4), 1), "c/deep": full(2, 1)}, since=0)
    state_between_rounds.write(tmp_path, 2, {"c/w": full((2, 2), 2)}, since=1)
    assert state_between_rounds.read(tmp_path, 2, {"c/w": (2, 3)})["c/w"].tolist() == [
        [2, 2, 1],
        [2, 2, 1],
    ]
    state_between_rounds.write(tmp_path, 3, {"c/w": full((1, 1), 3)}, since=2)
    found = state_between_rounds.read(tmp_path, 3, {"c/w": (3, 4), "c/deep": (2,)})
    assert found["c/w"].tolist() == [[3, 2, 1, 1], [2, 2, 1, 1], [1, 1, 1, 1]]
    assert found["c/deep"].tolist() == [1, 1], "a layer that the submodel lacks stays as it was"


def test_a_union_grows_with_zeros(tmp_path):
    """Both axes at once, or one each: the corners that were never trained are 0."""
    state_between_rounds.write(tmp_path, 1, {"c/w": full((1, 2), 1)}, since=0)
    assert state_between_rounds.read(tmp_path, 1, {"c/w": (2, 3)})["c/w"].tolist() == [
        [1, 1, 0],
        [0, 0, 0],
    ]
    state_between_rounds.write(
        tmp_path, 2, {"c/w": full((2, 1), 2), "c/one": np.full((), 5, np.float32)}, since=1
    )
    found = state_between_rounds.read(tmp_path, 2, {"c/w": (2, 3), "c/one": ()})
    assert found["c/w"].tolist() == [[2, 1, 0], [2, 0, 0]]
    assert found["c/one"].tolist() == 5


def test_a_repeated_round_finds_the_union_of_before(tmp_path):
    state_between_rounds.write(tmp_path, 1, {"c/w": full(3, 1)}, since=0)
    state_between_rounds.write(tmp_path, 2, {"c/w": full(2, 2)}, since=1)
    assert state_between_rounds.read(tmp_path, 1, {"c/w": (3,)})["c/w"].tolist() == [1, 1, 1]
    state_between_rounds.write(tmp_path, 3, {"c/w": full(1, 3)}, since=1)
    assert state_between_rounds.read(tmp_path, 3, {"c/w": (3,)})["c/w"].tolist() == [3, 1, 1], (
        "round 2 was not accepted"
    )


def test_only_unions_outlive_a_round_that_does_not_mention_them(tmp_path):
    state_between_rounds.write(tmp_path, 1, {"c/w": full(2, 1), "own/s/w": full(2, 1)}, since=0)
    state_between_rounds.write(tmp_path, 2, {"c/v": full(2, 1)}, since=1)
    assert state_between_rounds.read(tmp_path, 2, {"c/w": (2,), "c/v": (2,)}).keys() == {
        "c/w",
        "c/v",
    }
    assert state_between_rounds.read(tmp_path, 2) == {}, "and no union is read unasked"


def test_a_tensor_of_another_rank_starts_from_zero(tmp_path):
    """The network of a run may be another one under the same name."""
    state_between_rounds.write(tmp_path, 1, {"c/w": full((2, 2), 1)}, since=0)
    assert state_between_rounds.read(tmp_path, 1, {"c/w": (4,)}) == {}
    state_between_rounds.write(tmp_path, 2, {"c/w": full(3, 2)}, since=1)
    assert state_between_rounds.read(tmp_path, 2, {"c/w": (4,)})["c/w"].tolist() == [2, 2, 2, 0]


LEAN = """
import sys
from pathlib import Path
import numpy as np
from federated.training import state_between_rounds as memory

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

folder = Path(sys.argv[1])
before = peak()
corner = memory.read(folder, 1, {"c/w": (256, 256)})["c/w"]
memory.write(folder, 2, {"c/w": -corner}, since=1)
print(peak() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of a process is read from Linux"
)
def test_a_round_takes_memory_for_its_corner_and_not_for_the_union(tmp_path):
    """With a union of 64 MB and a corner of 256 KB, the process, mapped pages included, grows by
    less than a fourth of the union.
    """
    rows = np.arange(4096, dtype=np.float32)
    state_between_rounds.write(
        tmp_path, 1, {"c/w": np.broadcast_to(rows[:, None], (4096, 4096))}, since=0
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", LEAN, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) < 16e6
    assert (tmp_path / "2.kept").stat().st_size > 64e6
    found = state_between_rounds.read(tmp_path, 2, {"c/w": (4096, 4096)})["c/w"]
    assert np.array_equal(found[:256, :256], -np.broadcast_to(rows[:256, None], (256, 256)))
    assert np.array_equal(found[256:, 0], rows[256:])
    assert np.array_equal(found[:, 4095], rows)


def test_a_corner_is_read_without_the_rows_below_it(tmp_path, monkeypatch):
    """64 of 4096 rows, and a few blocks of them at a time."""
    state_between_rounds.write(tmp_path, 1, {"c/w": full((4096, 1024), 1)}, since=0)
    read, inner = list[int](), np.fromfile
    monkeypatch.setattr(
        np,
        "fromfile",
        lambda *given, **named: (found := inner(*given, **named), read.append(found.nbytes))[0],
    )
    monkeypatch.setattr(state_between_rounds, "BLOCK", 65_536)
    assert (
        state_between_rounds.read(tmp_path, 1, {"c/w": (64, 8)})["c/w"].tolist() == [[1] * 8] * 64
    )
    assert sum(read) == 64 * 1024 * 4
    assert max(read) == 65_536


KILLED = """
import os, signal, sys
import numpy as np
from federated.training import state_between_rounds as memory

inner = memory.read_blocks

def step():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def blocks(shape, layers):
    for piece in inner(shape, layers):
        step()
        yield piece

def heard(event, args):
    if event in ("open", "os.rename", "os.remove") and str(folder) in str(args[0]):
        step()

memory.read_blocks, memory.BLOCK = blocks, 64
sys.addaudithook(heard)
memory.write(folder, 2, {"c/w": np.full((8, 4), 2, np.float32)}, since=1)
"""


@pytest.mark.slow
def test_kill_minus_9_at_any_step_leaves_the_old_memory_and_none_or_all_of_the_new(tmp_path):
    """Before each file that is opened, moved or removed, and before each block that is written."""
    shape = {"c/w": (16, 8)}
    before = full((16, 8), 1)
    after = before.copy()
    after[:8, :4] = 2
    seen, ended = set(), False
    for number in range(40):
        folder = tmp_path / str(number)
        state_between_rounds.write(folder, 1, {"c/w": before}, since=0)
        (folder / "9.kept").write_bytes(b"of an attempt that nobody took, which the round removes")
        code = ServedProcess(exec, KILLED, {"folder": folder, "left": number}).wait(60)
        assert code in {0, -signal.SIGKILL}
        assert np.array_equal(state_between_rounds.read(folder, 1, shape)["c/w"], before)
        found = state_between_rounds.read(folder, 2, shape)
        assert not found or np.array_equal(found["c/w"], after)
        seen.add(bool(found))
        state_between_rounds.write(folder, 2, {"c/w": full((8, 4), 2)}, since=1)
        assert np.array_equal(state_between_rounds.read(folder, 2, shape)["c/w"], after), (
            "the repeated attempt starts from the old memory"
        )
        assert sorted(path.name for path in folder.iterdir()) == ["1.kept", "2.kept"]
        if ended := code == 0:
            break
    assert ended
    assert number > 8
    assert seen == {False, True}


# ---- layers that stay on a device ----------------------------------------------------------------


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
    return {
        name: value.numpy() for name, value in extract(whole, plan).items() if name not in leave_out
    }


def test_local_layers_are_not_sent_and_continue_training():
    first, kept = perform(task(), sent(SMALL), data())
    assert not set(HEAD) & first.tensors.keys()
    second, later = perform(task(number=2), sent(SMALL), data(), kept=kept)
    anew, _ = perform(task(number=2), sent(SMALL), data())
    assert any(
        not np.array_equal(second.tensors[name], anew.tensors[name]) for name in second.tensors
    )
    assert all(not np.array_equal(later[name], kept[name]) for name in kept)
    again, _ = perform(task(number=2), sent(SMALL), data(), kept=kept)
    assert all(np.array_equal(second.tensors[name], again.tensors[name]) for name in second.tensors)


def test_local_layers_of_another_submodel_are_not_used():
    _, kept = perform(task(LARGE), sent(LARGE), data())
    with_old, _ = perform(task(number=2), sent(SMALL), data(), kept=kept)
    without, _ = perform(task(number=2), sent(SMALL), data())
    assert all(
        np.array_equal(with_old.tensors[name], without.tensors[name]) for name in without.tensors
    )


def test_a_received_local_layer_takes_precedence():
    """A method may send a device initial weights for a local layer."""
    whole, _ = perform(task(keep=()), sent(SMALL, ()), data())
    given, kept = perform(task(), sent(SMALL, ()), data())
    assert all(np.array_equal(whole.tensors[name], given.tensors[name]) for name in given.tensors)
    assert np.array_equal(kept[f"own/{SMALL.name}/linear.bias"], whole.tensors["linear.bias"])


def test_a_missing_shared_layer_is_refused():
    with pytest.raises(
        Refused, match=r"missing or unexpected tensors: linear.bias, linear.weight \(2 in all\)"
    ):
        perform(task(keep=()), sent(SMALL), data())
    with pytest.raises(Refused, match="small/x"):
        perform(task(), {**sent(SMALL), "small/x": np.zeros(1, np.float32)}, data())


def test_scores_after_a_round_are_of_the_layers_that_it_left(tmp_path):
    """From file to file: the memory lies beside the update, and an evaluation of round 1 sees what
    round 1 left.
    """
    weights, result = tmp_path / "weights", tmp_path / "update"
    weights.write_bytes(tensors.encode({}, sent(SMALL)))
    evaluation = task(work="evaluate")
    bare = replace(evaluation, recipe=replace(evaluation.recipe, norm="tracked"))
    loss = carry_out(PYTORCH, task(norm="static"), weights, result, data())
    assert 0 < loss < 5
    folder = tmp_path / state_between_rounds.FOLDER
    assert state_between_rounds.read(folder, 1).keys() == {
        f"own/{SMALL.name}/{name}" for name in HEAD
    }
    measured = {name: np.ones(shape, np.float32) for name, shape in statistics(SMALL).items()}
    weights.write_bytes(tensors.encode({}, {**sent(SMALL), **measured}))
    bare = replace(bare, since=1)
    assert np.isnan(carry_out(PYTORCH, bare, weights, result, data()))
    here, _ = tensors.decode(result.read_bytes())
    expected, _ = perform(
        bare, {**sent(SMALL), **measured}, data(), kept=state_between_rounds.read(folder, 1)
    )
    assert here["notes"]["tallies"] == expected.notes["tallies"]


@pytest.mark.parametrize(
    "damage",
    [lambda blob: b"", lambda blob: blob[: len(blob) // 2], lambda blob: b"\xff" * len(blob)],
)
def test_a_damaged_file_is_as_if_there_were_none(tmp_path, caplog, damage):
    """Every later task of the device would fail by it."""
    state_between_rounds.write(tmp_path, 1, {"c/w": np.ones((4, 4), np.float32)}, since=0)
    path = tmp_path / "1.kept"
    path.write_bytes(damage(path.read_bytes()))
    assert state_between_rounds.read(tmp_path, 1, {"c/w": (2, 2)}) == {}
    assert "is damaged" in caplog.text
    state_between_rounds.write(tmp_path, 2, {"c/w": np.full((2, 2), 3, np.float32)}, since=1)
    assert state_between_rounds.read(tmp_path, 2, {"c/w": (4, 4)})["c/w"].sum() == 12


@pytest.mark.parametrize("wrong", [np.ones((2, 2), np.int8), np.ones((0, 1 << 20), np.float32)])
def test_tensors_that_do_not_fit_the_network_count_as_damage(tmp_path, wrong):
    (tmp_path / "1.kept").write_bytes(tensors.encode({}, {"c/w": wrong}))
    assert state_between_rounds.read(tmp_path, 1, {"c/w": (2, 2)}) == {}


# ---- damage --------------------------------------------------------------------------------------


def test_memory_with_any_flipped_bit_is_not_used(tmp_path, caplog):
    state_between_rounds.write(tmp_path, 1, {"c/w": full((2, 2), 1), "own": full(2, 1)}, since=0)
    path = tmp_path / "1.kept"
    written = path.read_bytes()
    for place in range(len(written)):
        damaged = bytearray(written)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        assert state_between_rounds.read(tmp_path, 1, {"c/w": (2, 2)}) == {}, place
    assert "is damaged; continuing without its memory" in caplog.text


def test_memory_of_a_version_without_digests_is_read(tmp_path):
    state_between_rounds.write(tmp_path, 1, values(1), since=0)
    path = tmp_path / "1.kept"
    path.write_bytes(path.read_bytes()[: -len(state_between_rounds.MARK) - 32])
    assert state_between_rounds.read(tmp_path, 1)["w"].tolist() == [1, 1]
