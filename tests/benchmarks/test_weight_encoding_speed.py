"""The benchmark of the codecs: how it compares what it measured."""

from __future__ import annotations

from benchmarks.comparison.rows import Row
from benchmarks.weight_encoding_speed import make_rows

TIMES = {
    "encode": 4.0,
    "decode": 1.5,
    "copy": 2.0,
    "encode safetensors": 20.0,
    "decode safetensors": 3.0,
    "encode int8-zstd": 30.0,
    "decode int8-zstd": 20.0,
}
SIZES = {"raw": 44.7, "int8-zstd": 10.0}


def compare(*, trained: bool) -> dict[tuple[str, str], Row]:
    """Return the rows, by what is measured and what it is compared with."""
    rows = make_rows(TIMES, SIZES, trained=trained)
    return {(row.name, row.baseline.name): row for row in rows if row.baseline}


def test_plain_weights_are_compared_with_a_copy_and_with_safetensors() -> None:
    rows = compare(trained=False)
    assert len(rows) == 7
    assert rows["encode, 45 MB (ms)", "copy"].met  # 2 copies
    assert rows["decode, 45 MB (ms)", "copy"].met is False  # 0.75 copies
    assert rows["encode, 45 MB (ms)", "safetensors"].ratio == 5
    assert rows["encode int8-zstd, 45 MB (ms)", "copy"].met is None


def test_the_goal_of_the_size_holds_for_an_update_of_a_run() -> None:
    size = "size, int8-zstd (MB)", "raw"
    assert compare(trained=True)[size].met  # 22 %
    assert compare(trained=False)[size].goal is None
