"""Partitions by name: they fit the data, are the same on every machine, and can be stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from federated.data.dataset import Dataset, Indices
from federated.data.partitions import (
    Shard,
    count_kinds,
    draw_shard,
    parse,
    read,
    save,
    seed_generator,
)
from federated.errors import DataError, Unknown, UsageError


def of_classes(y: np.ndarray, users: np.ndarray | None = None) -> Dataset:
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Dataset("toy", x, y, x[:0], y[:0], int(y.max()) + 1, users=users)


TEN = of_classes(np.repeat(np.arange(10), 20))
PEOPLE = of_classes(np.arange(12) % 2, np.repeat([4, 5, 6], 4))
VALUES = Dataset("rain", TEN.x, TEN.x, TEN.x[:0], TEN.x[:0], 1, "value")


def assert_split(parts: list[Indices], examples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(examples))


@pytest.mark.parametrize(
    ("text", "agents", "sizes"),
    [
        ("iid", 3, [67, 67, 66]),
        ("iid:0.5", 4, None),
        ("dirichlet:0.5", 4, None),
        ("dirichlet:0.5:30", 4, None),
        ("dirichlet:0.5:balanced", 4, None),
        ("dirichlet:0.5:30:balanced", 4, None),
        ("classes:2", 5, [40] * 5),
        ("classes:20%", 5, [40] * 5),
        ("skewed:1:0.5", 3, None),
    ],
)
def test_every_form_shares_out_all_examples(
    text: str, agents: int, sizes: list[int] | None
) -> None:
    parts = parse(text)(TEN, agents, np.random.default_rng(1))
    assert_split(parts, 200)
    assert len(parts) == agents
    assert sizes is None or [len(part) for part in parts] == sizes
    assert min(len(part) for part in parts) >= (30 if ":30" in text else 2)


def test_a_share_of_the_classes_is_so_many_of_them() -> None:
    one, two = (
        parse(text)(TEN, 5, np.random.default_rng(1)) for text in ("classes:20%", "classes:2")
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_people_are_devices() -> None:
    assert [part.tolist() for part in parse("users")(PEOPLE, 3, np.random.default_rng(0))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    with pytest.raises(DataError, match="toy does not name the person"):
        parse("users")(TEN, 3, np.random.default_rng(0))


def test_parts_can_be_bounded() -> None:
    """The same parts, of which each agent keeps so many at random, and a smaller one all."""
    whole, few = (
        parse(rule)(TEN, 3, np.random.default_rng(5))
        for rule in ("dirichlet:0.5", "dirichlet:0.5@40")
    )
    assert [len(part) for part in few] == [min(40, len(part)) for part in whole]
    assert all(set(a) <= set(b) for a, b in zip(few, whole, strict=True))
    for wrong in ("iid@", "iid@1", "iid@many"):
        with pytest.raises(UsageError, match="after '@'"):
            parse(wrong)


@pytest.mark.parametrize("text", ["dirichlet:1", "classes:2", "skewed:1:1"])
def test_the_error_for_data_without_classes_lists_the_partitions_that_fit(text: str) -> None:
    tokens = np.zeros((4, 3), np.int64)
    text_data = Dataset(
        "text", tokens, tokens, tokens[:0], tokens[:0], 2, "token", users=np.arange(4)
    )
    with pytest.raises(
        DataError,
        match=r"needs no classes, iid, iid:0\.5, since its targets are values",
    ):
        parse(text)(VALUES, 2, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"iid, iid:0\.5 or users, since its targets are tokens"):
        parse(text)(text_data, 2, np.random.default_rng(0))


@pytest.mark.parametrize("text", ["iid", "iid:0.5"])
def test_values_are_shared_out_alike(text: str) -> None:
    parts = parse(text)(VALUES, 4, np.random.default_rng(0))
    assert_split(parts, 200)
    assert all(70 < VALUES.y[part].mean() < 130 for part in parts)


def test_an_agent_of_one_example_is_named() -> None:
    with pytest.raises(
        DataError,
        match="partition classes:1 of toy over 2 agents: expected at least 2 examples for each, "
        "found 1 for agent 1",
    ):
        parse("classes:1")(of_classes(np.array([0, 0, 0, 1])), 2, np.random.default_rng(1))
    with pytest.raises(DataError, match="found 1 for agent 0"):
        parse("users")(
            of_classes(np.array([0, 1, 1]), np.array([1, 2, 2])), 2, np.random.default_rng(0)
        )


def test_counts_are_of_classes_bins_of_values_or_windows() -> None:
    parts = [np.array([0, 1, 20]), np.array([199])]
    table = count_kinds(TEN, parts)
    assert (table.shape, table.dtype) == ((2, 10), np.int64)
    assert table[0].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert count_kinds(VALUES, parts).tolist() == [
        [2, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
    tokens = np.zeros((4, 3), np.int64)
    assert count_kinds(
        Dataset("text", tokens, tokens, tokens[:0], tokens[:0], 2, "token"),
        [np.arange(3), np.arange(1)],
    ).tolist() == [[3], [1]]


def test_a_kept_partition_is_read_again_for_the_same_data_only(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    parts = parse("dirichlet:1")(TEN, 4, np.random.default_rng(7))
    save(path, TEN, parts, "dirichlet:1", 7)
    assert [part.tolist() for part in read(path, TEN)] == [part.tolist() for part in parts]
    record = json.loads(path.read_text())
    assert (record["data"], record["partition"], record["seed"], record["agents"]) == (
        "toy",
        "dirichlet:1",
        7,
        4,
    )
    with pytest.raises(DataError, match=r"partition of toy .*, found one of toy"):
        read(path, of_classes(np.repeat(np.arange(10), 20)[::-1].copy()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"data": "toy"}', "KeyError: 'digest'"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_damaged_partition_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "partition.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path, TEN)


def test_a_partition_of_examples_that_are_not_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    save(path, TEN, [np.array([0, 200])], "iid", 0)
    with pytest.raises(DataError, match="examples 0 to 199"):
        read(path, TEN)
    save(path, TEN, [np.array([0, 1]), np.array([1, 2])], "iid", 0)
    with pytest.raises(DataError, match="each on at most one agent"):
        read(path, TEN)


@pytest.mark.parametrize(
    ("text", "agents", "message"),
    [
        ("iid", 101, "200 examples over 101 agents"),
        ("dirichlet:1", 101, "2 examples for each, 202 in all"),
        (
            "dirichlet:0.001",
            60,
            "found at most [01], for agent [0-9]+, in 200 draws",
        ),
        ("iid:0.99", 90, "at least 0.99 of the largest"),
        (
            "iid:0.5",
            60,
            "expected every class on every agent, found none of class [0-9] on agent [0-9]+",
        ),
        ("skewed:3:1", 3, "more agents than the 3 strong ones"),
        ("classes:11", 5, "found 11 and 55"),
        ("classes:2", 4, "10 or more in all, found 2 and 8"),
        ("classes:10", 21, "expected at least 21 examples of class 0, found 20"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(text: str, agents: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(text)(TEN, agents, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("classes", ["", "0", "1.5", "0%", "120%", "nan%"]),
        ("dirichlet", ["0", "-1", "nan", "inf", "1:1", "1:2:3", "1:balance", "1:balanced:5"]),
        ("iid", ["2", "0", "1", "nan"]),
        ("skewed", ["", "1", "0:1", "1:0", "1:1:1"]),
        ("users", ["2"]),
    ],
)
def test_the_error_of_a_wrong_argument_has_an_example(name: str, arguments: list[str]) -> None:
    for argument in arguments:
        with pytest.raises(
            UsageError, match=f"partition '{name}:{argument}': expected a form like '{name}"
        ):
            parse(f"{name}:{argument}")


def test_an_unknown_partition_suggests_the_nearest() -> None:
    with pytest.raises(Unknown, match="did you mean dirichlet"):
        parse("dirichlett:1")


def test_shards_of_one_seed_are_the_parts_of_one_partition() -> None:
    assert_split([Shard(i, 4, "dirichlet:1.0", 7).of_dataset(TEN) for i in range(4)], 200)


@pytest.mark.parametrize("text", ["", "3", "1/", "-1/4", "a/b", "1/4/2", "1.0/4"])
def test_the_error_of_a_misspelled_shard_has_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="expected a form like '0/4'"):
        Shard.parse(text, "iid", 0)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_shard_outside_its_partition_is_refused(index: int) -> None:
    with pytest.raises(UsageError, match="expected an index from 0 to 3") as caught:
        Shard(index, 4, "iid", 0)
    assert str(caught.value).startswith(f"shard {index}/4: ")
    assert caught.value.on_command_line.startswith(f"--shard {index}/4: ")


def test_a_shard_drawn_from_a_name_is_a_quarter_and_skewed() -> None:
    mine = draw_shard(TEN, "attic-pi")
    assert len(mine) == 50
    assert len(np.unique(mine)) == 50
    assert np.array_equal(mine, draw_shard(TEN, "attic-pi"))
    assert not np.array_equal(mine, draw_shard(TEN, "cellar-pi"))
    assert np.ptp(np.bincount(TEN.y[mine], minlength=10)) > 5


def test_a_shard_drawn_from_a_name_is_one_person_where_people_are_known() -> None:
    mine = draw_shard(PEOPLE, "attic-pi")
    assert len(mine) == 4
    assert len(np.unique(PEOPLE.users[mine])) == 1


def test_generators_of_words_are_the_same_in_every_process() -> None:
    """A number written down once: Python's own hash() would differ from process to process."""
    assert seed_generator("a", "b").integers(1000) == 632
    assert seed_generator("ab").integers(10**9) != seed_generator("a", "b").integers(10**9)
