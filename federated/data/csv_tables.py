"""Read a table from a `.csv` file as a data set: a header, one example per line, and one target
column.

`FILE.csv` has the target in its last column, `FILE.csv:NAME` in the column of that name. Whole
numbers in it are class numbers. Texts are classes in the file's alphabetical order, so devices with
files of their own should write numbers. Fractions are values.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from federated.data.dataset import Dataset, Labels, Values
from federated.errors import DataError
from models.submodel import Target

__all__ = ["is_table", "read_table"]

MOST = 10_000  # classes; larger whole numbers are probably amounts
LARGEST = float(np.finfo(np.float32).max)


def is_table(spec: str) -> bool:
    """Return True if `spec` names a table, with or without its target column."""
    return spec.endswith(".csv") or ".csv:" in spec


def read_table(spec: str) -> Dataset:
    """Return the table of a file, float32 [n, columns]; nothing is held out. DataError: it is
    unusable; for a cell, it names column and line.
    """
    stem, _, column = spec.partition(".csv:")
    path = Path(f"{stem}.csv" if column else spec)
    header, rows, lines = _read_cells(path)
    name = path.name
    if column and header.count(column) != 1:
        raise DataError(f"data '{name}': expected one column '{column}', found {', '.join(header)}")
    at = header.index(column) if column else len(header) - 1
    y, outputs, target, classes = _read_target(name, header[at], [row[at] for row in rows], lines)
    others = [i for i in range(len(header)) if i != at]
    x = np.empty((len(rows), len(others)), np.float32)
    for place, i in enumerate(others):
        x[:, place] = _read_numbers(name, header[i], [row[i] for row in rows], lines)
    return Dataset(name, x, y, x[:0], y[:0], outputs, target, classes=classes)


def _read_cells(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return header, cells, and the line of each row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            found = [(row, reader.line_num) for row in reader if row]
    except FileNotFoundError:
        raise DataError(f"data '{path}': no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"data '{path}': expected a table in UTF-8: {error}") from error
    if len(header) < 2 or not found:
        raise DataError(
            f"data '{path}': expected a header of at least 2 comma-separated names, and lines "
            f"below it, found {header or 'no header'} and {len(found)} lines"
        )
    if not all(header) or all(_is_number(cell, float) for cell in header):
        why = "each column needs a name, also a column of row numbers"
        raise DataError(
            f"data '{path}', line 1: expected the names of the columns, found "
            f"{', '.join(map(repr, header))}: {why}"
        )
    for row, line in found:
        if len(row) != len(header):
            raise DataError(
                f"data '{path}', line {line}: expected {len(header)} cells, found {len(row)}"
            )
    return header, [row for row, _ in found], [line for _, line in found]


def _read_target(
    name: str, column: str, cells: Sequence[str], lines: Sequence[int]
) -> tuple[Labels | Values, int, Target, tuple[str, ...]]:
    """Return the target column, the number of outputs, their kind, and the names of classes."""
    if all(_is_number(cell, int) for cell in cells):
        for cell, line in zip(cells, lines, strict=True):
            if not 0 <= int(cell) < MOST:
                raise DataError(
                    f"data '{name}', line {line}, column {column}: expected a class "
                    f"from 0 to {MOST - 1}, found {cell}; "
                    f"write amounts with a decimal point ({cell}.0)"
                )
        y = np.array([int(cell) for cell in cells], np.int64)
        return y, max(2, int(y.max()) + 1), "class", ()
    if any(_is_number(cell, float) for cell in cells):
        return _read_numbers(name, column, cells, lines)[:, None], 1, "value", ()
    texts, labels = np.unique([cell.strip() for cell in cells], return_inverse=True)
    if not texts[0]:
        raise DataError(
            f"data '{name}', line {lines[int(labels.argmin())]}, column {column}: "
            "expected a class, found an empty cell"
        )
    names = tuple(map(str, texts)) if len(texts) > 1 else ()
    return labels.astype(np.int64), max(2, len(texts)), "class", names


def _read_numbers(name: str, column: str, cells: Sequence[str], lines: Sequence[int]) -> Values:
    for cell, line in zip(cells, lines, strict=True):
        if not _is_number(cell, float) or not abs(float(cell)) <= LARGEST:
            raise DataError(
                f"data '{name}', line {line}, column {column}: expected a finite "
                f"number, found '{cell}'"
            )
    return np.array([float(cell) for cell in cells], np.float32)


def _is_number(cell: str, kind: type[int] | type[float]) -> bool:
    """Return True if a cell is a number of this kind."""
    try:
        kind(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python allows it between digits
