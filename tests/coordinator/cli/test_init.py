"""`coordinator init` and `coordinator schema` as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.settings.config import load
from coordinator.views.config_schema import build_schema, render_template


def test_init_writes_to_standard_output_or_to_a_new_file(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["init"]).output == render_template("fedfa")
    file = tmp_path / "run.toml"
    words = ["init", "--method", "fedprox", "--out", str(file)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert load(file, {}, []).method_name == "fedprox"
    file.write_text("rounds = 3\n")
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 3
    assert "run.toml: the file exists" in again.output
    assert file.read_text() == "rounds = 3\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--method", "fedav"], 2, "unknown method 'fedav'; did you mean fedavg"),
        (["--out", "no/folder/run.toml"], 3, "no/folder is not a folder"),
        (["--out", "."], 3, "--out .: this is a folder"),
    ],
)
def test_errors_of_init(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(main, ["init", *words])
    assert done.exit_code == code
    assert said in done.output


def test_check_jsonschema_accepts_the_printed_schema(tmp_path: Path) -> None:
    printed, good, bad = (tmp_path / name for name in ("schema.json", "good.toml", "bad.toml"))
    printed.write_text(CliRunner().invoke(main, ["schema"]).output)
    assert json.loads(printed.read_text()) == json.loads(json.dumps(build_schema()))
    good.write_text(render_template("nefl-w"))
    bad.write_text("[train]\nlr = 0\n")
    check = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(printed)]
    subprocess.run([*check, str(good)], check=True, capture_output=True)
    done = subprocess.run([*check, str(bad)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "train.lr" in done.stdout
