"""Tables give examples of classes or values, and an error names the column and line of a cell that
is not a number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from federated.data.loading import load, load_central, load_device
from federated.data.partitions import Shard
from federated.errors import DataError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "plants.csv"
    path.write_text(
        'height,leaves,"kind, if known",weight\n1.5,3,rose,0.5\n2,4,"elm, '
        'old",0.25\n\n-1e1,0,rose,8\n'
    )
    return path


def test_a_text_column_is_a_class_by_its_place_among_the_sorted_texts(table: Path) -> None:
    table.write_text("a,b\n1.5,rose\n2,elm\n3,oak\n4,rose\n")
    data = load(str(table))
    assert (data.name, data.target, data.outputs) == ("plants.csv", "class", 3)
    assert (data.x.tolist(), data.y.tolist()) == ([[1.5], [2.0], [3.0], [4.0]], [2, 0, 1, 2])
    assert data.classes == ("elm", "oak", "rose")


def test_the_last_column_teaches_values_where_it_holds_fractions(table: Path) -> None:
    table.write_text("height,leaves,weight\n1.5,3,0.5\n2,4,0.25\n-1e1,0,8\n")
    data = load(str(table))
    assert (data.target, data.outputs, data.y.dtype, data.y.tolist()) == (
        "value",
        1,
        np.float32,
        [[0.5], [0.25], [8.0]],
    )
    assert (data.x.dtype, data.x.tolist()) == (np.float32, [[1.5, 3.0], [2.0, 4.0], [-10.0, 0.0]])


def test_whole_numbers_are_classes_as_they_are_and_any_column_can_be_named(table: Path) -> None:
    table.write_text("height,leaves,weight\n1.5,3,0.5\n2,4,0.25\n-1e1,0,8\n")
    data = load(f"{table}:leaves")
    assert (data.target, data.outputs, data.y.tolist(), data.x.tolist()) == (
        "class",
        5,
        [3, 4, 0],
        [[1.5, 0.5], [2.0, 0.25], [-10.0, 8.0]],
    )
    with pytest.raises(
        DataError,
        match=r"data 'plants\.csv': expected one column 'leafs', found height, leaves, weight",
    ):
        load(f"{table}:leafs")
    table.write_text("a,a,y\n1,0,0\n2,1,1\n")
    with pytest.raises(DataError, match="expected one column 'a', found a, a, y"):
        load(f"{table}:a")


def test_a_cell_that_is_no_number_is_named_by_column_and_line(table: Path) -> None:
    with pytest.raises(
        DataError, match=r"line 2, column kind, if known: expected a finite number, found 'rose'"
    ):
        load(str(table))
    table.write_text("a,b,y\n1,2,0\n1,,1\n")
    with pytest.raises(DataError, match="line 3, column b: expected a finite number, found ''"):
        load(str(table))
    table.write_text("a,y\n1,0.5\n1,nan\n")
    with pytest.raises(DataError, match="line 3, column y: expected a finite number, found 'nan'"):
        load(str(table))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"at least 2 comma-separated names.*found no header and 0"),
        ("a,b\n", r"found \['a', 'b'\] and 0"),
        ("a;b\n1;2\n", r"found \['a;b'\] and 1"),
        ("a,b\n1,2,3\n", "line 2: expected 2 cells, found 3"),
        (
            "a,price\n1,250000\n2,100000\n",
            r"line 2, column price: expected a class from 0 to 9999, found 250000; "
            r"write amounts with a decimal point \(250000\.0\)",
        ),
        ("a,y\n1,-1\n2,1\n", "line 2, column y: expected a class from 0 to 9999, found -1"),
        (
            "a,y\n1,99999999999999999999\n2,1\n",
            "line 2, column y: expected a class from 0 to 9999, found 9",
        ),
        ("a,y\n1e39,0\n2,1\n", "line 2, column a: expected a finite number, found '1e39'"),
        ("a,y\n1_0,0\n2,1\n", "line 2, column a: expected a finite number, found '1_0'"),
        ("a,y\n1,yes\n2,\n3,no\n", "line 3, column y: expected a class, found an empty cell"),
        ("1,2,0\n3,4,1\n5,6,0\n", "line 1: expected the names of the columns, found '1', '2', '0'"),
        (",a,y\n0,3,0\n1,4,1\n", "line 1: expected the names of the columns, found '', 'a', 'y'"),
        ("a,y\n1,5\n2,5\n", "at least 2 classes in y, found only class 5"),
    ],
)
def test_the_error_of_an_unusable_table_gives_the_reason(
    table: Path, text: str, message: str
) -> None:
    table.write_text(text)
    with pytest.raises(DataError, match=message):
        load(str(table))


def test_a_missing_and_a_binary_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(str(tmp_path / "none.csv"))
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(DataError, match="expected a table in UTF-8"):
        load(str(tmp_path / "image.csv"))


def test_values_are_held_out_and_shared_out_alike(tmp_path: Path) -> None:
    path = tmp_path / "rain.csv"
    path.write_text(
        "\ufeffhour,rain\n" + "".join(f"{i},{i / 2:.1f}\n" for i in range(100)), encoding="utf-8"
    )
    whole = load_central(str(path))
    assert (len(whole.x), len(whole.x_held)) == (80, 20)
    assert np.bincount((whole.y_held[:, 0] // 5).astype(int)).tolist() == [2] * 10
    agents = [load_device(str(path), name=f"a{i}", shard=Shard(i, 4, "iid", 0)) for i in range(4)]
    assert sum(len(agent.x) + len(agent.x_held) for agent in agents) == 80
    card = agents[0].card()
    assert (card.target, card.outputs, card.inputs) == ("value", 1, (1,))
    assert card.shift == pytest.approx((float(agents[0].y.mean()),))
    assert card.scale == pytest.approx((float(agents[0].y.std()),))


def test_the_target_named_or_not_the_same_lines_are_held_out(tmp_path: Path) -> None:
    """A coordinator and its agents may spell one file in two ways."""
    path = tmp_path / "rain.csv"
    path.write_text("day,rain\n" + "".join(f"{i},{i}.5\n" for i in range(40)))
    assert load_central(f"{path}:rain").x_held.tolist() == load_central(str(path)).x_held.tolist()
