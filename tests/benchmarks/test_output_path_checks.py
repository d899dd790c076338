"""Benchmarks check where they write before they run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.output_path_checks import check_log, make_folder
from federated.errors import ConfigError


@pytest.mark.parametrize("name", ["attacks", "schedules"])
def test_a_log_in_a_missing_folder_is_refused(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [name, "--log", str(tmp_path / "none" / "log")])
    assert (done.exit_code, "--log" in done.stderr) == (3, True)


def test_a_check_of_a_log_leaves_no_file(tmp_path: Path) -> None:
    check_log(tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_file_is_no_folder_to_keep(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--keep .*a file is in place"):
        make_folder(tmp_path / "file")


def test_an_unknown_model_is_refused_before_anything_is_timed() -> None:
    done = CliRunner().invoke(main, ["inference", "--model", "resnett-small"])
    assert (done.exit_code, "did you mean resnet-small" in done.stderr) == (2, True)
