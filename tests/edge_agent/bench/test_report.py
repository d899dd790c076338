"""Reports as files, and comparisons of two."""

from __future__ import annotations

import csv
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from edge_agent.bench.report import (
    Report,
    Row,
    check_writable,
    compare,
    list_differences,
    read,
    take_fingerprint,
    write,
)
from edge_agent.device.process_limits import Limits
from federated.errors import ConfigError, UsageError


def report(*rows: Row, limits: Limits | None = None) -> Report:
    return Report(take_fingerprint(limits or Limits()), rows, "2025-01-01T00:00:00+00:00")


def row(submodel: str = "w1", **values: Any) -> Row:
    return Row("net", submodel, "torch", "cpu", 1, **values)


def test_json_report_round_trips(tmp_path: Path) -> None:
    made = report(
        row(p90_ms=1.5, throttled=False),
        row("w2", error="it died"),
        limits=Limits(cpus=0.5, memory=100_000_000),
    )
    write(made, tmp_path / "a.json")
    assert read(tmp_path / "a.json") == made
    assert json.loads((tmp_path / "a.json").read_text())["format"] == 1
    assert made.fingerprint.limits == "0.5 cpus, 100 MB"
    assert made.fingerprint.cpus == 0.5


def test_csv_has_every_column_and_empty_unknowns(
    tmp_path: Path,
) -> None:
    write(report(row(p90_ms=1.5)), tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert list(found) == [field.name for field in fields(Row)]
    assert (found["submodel"], found["p90_ms"], found["joules"]) == ("w1", "1.5", "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("hello", "not the JSON of edge-agent bench --out: found no valid JSON"),
        ("[]", "not the JSON of edge-agent bench --out: expected a table, found a list"),
        ('{"format": 2}', "expected format 1, found 2"),
        ('{"format": 1, "rows": []}', "expected a field 'fingerprint', found none"),
    ],
)
def test_invalid_report_is_named(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"old\.json: .*{told}"):
        read(path)


def test_only_shared_rows_are_compared() -> None:
    old = report(
        row(p90_ms=2.0, batch=32, step_median_ms=10.0),
        row("w2", p90_ms=1.0, batch=16, step_median_ms=5.0),
        row("w3", p90_ms=1.0),
    )
    new = report(
        row(p90_ms=3.0, batch=32, step_median_ms=5.0),
        row("w2", p90_ms=1.0, batch=32, step_median_ms=9.0),
        row("w4", p90_ms=1.0),
    )
    first, second = compare(new, old)
    assert (first.p90, first.step, first.worst) == (1.5, 0.5, 1.5)
    assert (second.p90, second.step) == (1.0, None)  # steps of other batches


def test_submodel_for_other_inputs_is_not_compared() -> None:
    old, new = report(row(p90_ms=2.0, macs=100)), report(row(p90_ms=8.0, macs=400))
    assert not compare(new, old)
    assert list_differences(new, old) == ("w1 torch has other inputs or classes: not compared",)
    file = replace(row(p90_ms=2.0, macs=100), network="")
    (found,) = compare(report(replace(file, p90_ms=1.0, macs=50)), report(file))
    assert found.p90 == 0.5, "a file that became smaller is what its owner compares"


def test_different_durations_are_reported() -> None:
    old, new = report(row(p90_ms=2.0, seconds=3.0)), report(row(p90_ms=2.0, seconds=60.0))
    assert list_differences(new, old) == ("inference was measured for 3 s, now for 60 s",)


def test_a_row_that_failed_has_no_ratio() -> None:
    (found,) = compare(report(row(error="it died")), report(row(p90_ms=2.0)))
    assert (found.p90, found.step, found.worst) == (None, None, 0.0)


def test_machine_differences_are_reported() -> None:
    old = report()
    about = replace(
        old.fingerprint,
        memory=old.fingerprint.memory + 1,
        versions={**old.fingerprint.versions, "torch": "1.0"},
    )
    new = replace(old, fingerprint=about)
    assert not list_differences(old, old)
    assert [text.split()[0] for text in list_differences(new, old)] == ["memory", "versions.torch"]
    assert "is 1.0" in list_differences(new, old)[1]
    fewer = replace(
        old, fingerprint=replace(about, memory=old.fingerprint.memory, versions={"jax": "0.5"})
    )
    assert "versions.jax was 0.5, is none" in list_differences(old, fewer)


def test_unwritable_file_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ConfigError, match=r"a\.json: cannot be written: Is a directory"):
        write(report(row()), tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_unwritable_path_is_refused_early(tmp_path: Path) -> None:
    check_writable("--out", tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"^--out .*a\.txt: expected .*\.csv, \.json"):
        check_writable("--out", tmp_path / "a.txt")
    with pytest.raises(ConfigError, match=r"cannot be written: the folder .*no does not exist"):
        check_writable("--out", tmp_path / "no" / "a.csv")
