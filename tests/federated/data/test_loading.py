"""Named sets, files and functions give checked data; no device gets the coordinator's validation
examples.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from federated.data.dataset import Dataset
from federated.data.loading import (
    data_root,
    load,
    load_central,
    load_device,
    take_classes,
    take_part,
)
from federated.data.partitions import Shard
from federated.errors import ConfigError, DataError, Unknown


def rows(*parts: np.ndarray) -> set[bytes]:
    return {row.tobytes() for part in parts for row in part}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return ten images of 2x2 whose first pixel is their number, of two classes."""
    x = np.zeros((10, 2, 2), np.uint8)
    x[:, 0, 0] = np.arange(10)
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=np.arange(10) % 2)
    return path


def test_digits_are_all_of_the_published_test_part() -> None:
    digits = load("digits")
    assert (digits.x.shape, digits.x.dtype, int(digits.x.max())) == ((1797, 1, 8, 8), np.uint8, 16)
    assert np.bincount(digits.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.x[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert digits.y[:10].tolist() == list(range(10))


def test_digits_equal_the_copy_they_were_made_from() -> None:
    source = pytest.importorskip("sklearn.datasets").load_digits()
    digits = load("digits")
    assert np.array_equal(digits.x[:, 0], source.images)
    assert np.array_equal(digits.y, source.target)


def test_no_device_has_the_coordinators_validation_examples() -> None:
    whole = load_central("digits")
    assert (len(whole.x), len(whole.x_held)) == (1438, 359)
    test = rows(whole.x_held) - rows(whole.x)  # an image may be there twice
    assert len(test) > 350
    for agent in (
        load_device("digits", name="pi"),
        load_device("digits", name="pi", shard=Shard(2, 5, "iid", 0)),
    ):
        assert rows(agent.x, agent.x_held) <= rows(whole.x)
        assert not rows(agent.x, agent.x_held) & test


def test_the_central_split_is_stratified_and_fixed() -> None:
    one, two = load_central("digits"), load_central("digits")
    assert np.abs(np.bincount(one.y_held) - 0.2 * np.bincount(load("digits").y)).max() <= 1
    assert np.array_equal(one.x_held, two.x_held)


def test_a_named_agent_draws_the_same_shard_of_digits_each_time() -> None:
    one, two, other = (load_device("digits", name=name) for name in ("pi", "pi", "jetson"))
    # a quarter of 1438 is 360, a fifth of it held out
    assert (len(one.x), len(one.x_held)) == (288, 72)
    assert np.array_equal(one.x, two.x)
    assert np.array_equal(one.y_held, two.y_held)
    assert not np.array_equal(one.y, other.y)


def test_a_device_can_have_the_global_test_examples_of_its_classes() -> None:
    """All of its own examples stay training examples."""
    whole = load_central("digits")
    chosen = np.flatnonzero(np.isin(whole.y, [3, 7]))[:20]
    device = take_classes(whole, chosen)
    assert rows(device.x) == rows(whole.x[chosen])
    assert device.labels == (3, 7)
    assert rows(device.x_held) == rows(whole.x_held[np.isin(whole.y_held, [3, 7])])
    assert set(device.y_held) == {3, 7}
    value = whole.y.astype(np.float32)[:, None], whole.y_held.astype(np.float32)[:, None]
    values = replace(whole, y=value[0], y_held=value[1], outputs=1, target="value")
    with pytest.raises(DataError, match=r"values, .*local_test = 'own'"):
        take_classes(values, chosen)


def test_shards_share_out_all_of_the_training_part() -> None:
    agents = [
        load_device("digits", name=f"agent-{i}", shard=Shard(i, 3, "dirichlet:1.0", 5))
        for i in range(3)
    ]
    assert sum(len(agent.x) + len(agent.x_held) for agent in agents) == 1438
    assert all(
        len(agent.x_held) == round(0.2 * (len(agent.x) + len(agent.x_held))) for agent in agents
    )
    assert {agent.outputs for agent in agents} == {10}


def test_a_shard_is_spelled_as_commands_spell_it() -> None:
    one = load_device("digits", name="pi", shard="1/4", partition="classes:3", seed=9)
    two = load_device("digits", name="pi", shard=Shard(1, 4, "classes:3", 9))
    assert np.array_equal(one.x, two.x)
    assert len(one.labels) == 3


def test_a_device_keeps_all_of_its_own_file(own: Path) -> None:
    mine = load_device(str(own), name="pi")
    assert mine.x.shape[1:] == (1, 2, 2)
    assert (len(mine.x), len(mine.x_held), mine.name) == (8, 2, "own.npz")
    assert sorted([*mine.x[:, 0, 0, 0], *mine.x_held[:, 0, 0, 0]]) == list(range(10))
    assert sorted(mine.y_held.tolist()) == [0, 1]


def test_an_agent_of_one_class_is_no_error(own: Path) -> None:
    assert load_device(str(own), name="pi", shard=Shard(0, 2, "classes:1", 0)).outputs == 2


def test_a_test_part_of_a_file_is_the_held_out_part(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    x = np.arange(6.0).reshape(3, 2)
    np.savez(path, x=x, y=[0, 1, 0], x_test=x + 9, y_test=[1, 0, 1], outputs=4)
    for mine in (load_device(str(path), name="pi"), load_central(str(path))):
        assert mine.x.tolist() == x.tolist()
        assert mine.x_held.tolist() == (x + 9).tolist()
        assert (mine.x.dtype, mine.y.dtype, mine.outputs) == (np.float32, np.int64, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3))}, "expected arrays x and y, found x"),
        ({"x": np.zeros((2, 3)), "y": [1, 1]}, "at least 2 classes in y, found only class 1"),
        (
            {"x": np.zeros((2, 3)), "y": [0, 1], "x_test": np.zeros((2, 3))},
            "expected x_test and y_test together",
        ),
        ({"x": np.zeros((2, 3)), "y": ["a", "b"]}, "whole numbers in y, found <U1"),
        ({"x": np.array(["a", "b"]), "y": [0, 1]}, "expected numbers in x"),
        ({"x": np.array([[1.0], [np.inf]]), "y": [0, 1]}, "NaN or infinity in example 1"),
        (
            {"x": np.zeros((2, 3)), "y": [0, 1], "outputs": 1.5},
            "expected outputs as one whole number",
        ),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, np.int64)}, "at least 1 training example"),
        ({"x": np.array([{}, {}], object), "y": [0, 1]}, "plain arrays"),
        (
            {"x": np.full((2, 3), 1e300), "y": [0, 1]},
            "finite numbers in x, found NaN or infinity in example 0",
        ),
        (
            {"x": np.zeros((2, 3)), "y": np.float32(1)},
            "as many labels in y as examples in x, found 1 and 2",
        ),
        ({"x": np.float32(1), "y": [0, 1]}, r"expected x of shape \[n, features\]"),
        (
            {"x": np.zeros((2, 8, 8, 3), np.uint8), "y": [0, 1]},
            r"channels last; store x.transpose\(0, 3, 1, 2\)",
        ),
        (
            {"x": np.zeros((2, 32, 48, 3), np.uint8), "y": [0, 1]},
            r"channels last; store x.transpose\(0, 3, 1, 2\).* if there are 32 channels",
        ),
        (
            {"x": np.zeros((2, 48, 32, 1), np.float32), "y": [0, 1]},
            r"channels last; store x.transpose\(0, 3, 1, 2\)",
        ),
    ],
)
def test_the_error_of_an_unusable_file_gives_the_reason(
    tmp_path: Path, arrays: dict[str, object], message: str
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        load(str(path))


def test_many_channels_of_narrow_images_are_stored_with_the_narrow_axis_first(
    tmp_path: Path,
) -> None:
    """The remedy of the message about channels last, for data that have 32 channels."""
    path = tmp_path / "own.npz"
    x = np.zeros((2, 32, 48, 3), np.uint8)
    np.savez(path, x=x.transpose(0, 1, 3, 2), y=[0, 1])
    assert load(str(path)).card().inputs == (32, 3, 48)


def test_a_missing_a_damaged_and_another_file_are_refused(tmp_path: Path, own: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(str(tmp_path / "none.npz"))
    own.write_bytes(own.read_bytes()[:100])
    with pytest.raises(DataError, match=r"expected an \.npz file"):
        load(str(own))
    np.savez_compressed(own, x=np.arange(3000.0).reshape(-1, 3), y=np.arange(1000) % 2)
    damaged = bytearray(own.read_bytes())
    damaged[300:320] = b"\xff" * 20  # within the compressed numbers
    own.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"expected an \.npz file"):
        load(str(own))
    own.write_bytes(b"")
    with pytest.raises(DataError, match=r"expected an \.npz file"):
        load(str(own))
    with pytest.raises(DataError, match=r"expected an existing \.npz or \.csv file"):
        load(str(tmp_path / "own.txt"))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(Unknown, match="unknown data set 'digit'; did you mean digits"):
        load("digit")


def test_a_function_beside_the_caller_gives_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sensors_of_mine.py").write_text(
        "import numpy as np\n"
        "def two(): return np.eye(4, dtype=np.float32), np.arange(4) % 2\n"
        "def four(): return (*two(), np.ones((1, 4)), [1])\n"
        "def broken(): raise KeyError('sensor')\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("sensors_of_mine:two").x.tolist() == np.eye(4).tolist()
    assert load("sensors_of_mine:four").y_held.tolist() == [1]
    with pytest.raises(DataError, match=r"sensors_of_mine.py, line 4: KeyError: 'sensor'"):
        load("sensors_of_mine:broken")
    with pytest.raises(DataError, match="found 3"):
        load("sensors_of_mine:wrong")
    with pytest.raises(DataError, match="has no attribute 'none'"):
        load("sensors_of_mine:none")
    with pytest.raises(DataError, match="ModuleNotFoundError"):
        load("no_such_module_of_mine:two")


def test_fractions_in_y_are_values(tmp_path: Path) -> None:
    path = tmp_path / "rain.npz"
    np.savez(path, x=np.zeros((10, 3)), y=np.arange(10) / 4, x_test=np.zeros((1, 3)), y_test=[0.5])
    data = load(str(path))
    assert (data.target, data.outputs, data.y.shape, data.y_held.tolist()) == (
        "value",
        1,
        (10, 1),
        [[0.5]],
    )
    np.savez(path, x=np.zeros((10, 3)), y=np.arange(20).reshape(10, 2), target="value")
    data = load(str(path))
    assert (data.target, data.outputs, data.y.dtype) == ("value", 2, np.float32)


def test_a_file_may_hold_tokens_and_people(tmp_path: Path) -> None:
    path = tmp_path / "notes.npz"
    words = np.arange(40).reshape(10, 4).astype(np.uint16)
    np.savez(path, x=words, y=words + 1, target="token", users=np.repeat(np.arange(5), 2))
    data = load_central(str(path))
    assert (data.target, data.outputs, data.x.dtype) == ("token", 41, np.int64)
    assert (len(data.x_held), len(np.unique(data.users))) == (2, 4)  # a fifth of the people
    assert len(load_device(str(path), name="pi", shard=Shard(0, 4, "users", 0)).x) == 1
    np.savez(path, x=words, y=words + 1, target="tokens")
    with pytest.raises(
        DataError, match="expected a target among class, value, token, found 'tokens'"
    ):
        load(str(path))


def test_a_function_may_return_its_own_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "makers_of_mine.py").write_text(
        "import numpy as np\n"
        "from federated.data.dataset import Dataset\n"
        "def made(): x = np.zeros((4, 6, 100), np.float32); y = np.arange(4) % 2; "
        "return Dataset('mine', x, y, x[:0], y[:0], 2)\n"
        "def fractions(): return np.eye(4), np.arange(4) / 2\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("makers_of_mine:made").x.shape == (4, 6, 100)
    assert load("makers_of_mine:fractions").target == "value"


def test_the_data_root_is_set_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("ESPALIER_DATA")
    assert data_root() == Path.home() / ".cache" / "espalier"


def test_data_errors_are_configuration_errors() -> None:
    assert issubclass(DataError, ConfigError)
    assert DataError.exit_code == 3


def test_digits_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from federated.data.loading import load_device; "
        "assert len(load_device('digits', name='pi').x) == 288"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_device_of_one_example_is_refused() -> None:
    one = np.zeros((1, 3), np.float32)
    whole = Dataset(
        "toy", np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]), one, np.array([1]), 2
    )
    with pytest.raises(DataError, match="shard of 'pi': expected at least 2 examples, found 1"):
        take_part(whole, np.array([2]), name="pi")
