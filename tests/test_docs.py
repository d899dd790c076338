"""Tests that the documentation agrees with the code: names, settings, defaults, tables."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.generated_docs import command as docs
from benchmarks.generated_docs.command import find_outdated, replace_table
from coordinator.observe.event_readers.catalogue import ALWAYS
from coordinator.views.config_schema import build_schema
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method

ROOT = Path(__file__).parent.parent
OF_EVERY_RUN = {*ALWAYS, "metrics"}  # event readers that no name adds; [metrics] adds the last
SETTING = re.compile(r"`(\w+ = [^`]+)`")


def read_rows() -> list[list[str]]:
    """Return the cells of the rows of docs/methods.md: methods, paper, authors' code, default,
    alternatives.
    """
    lines = [
        line
        for line in (ROOT / "docs" / "methods.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: f"{row[0]} {row[2]}"[:60])
def test_every_disagreement_states_its_default_and_valid_alternatives(
    row: list[str],
) -> None:
    names, *_, default_cell, alternatives = row
    for name in re.findall(r"`([\w-]+)`", names):
        chosen = find_method(name)
        for text in SETTING.findall(default_cell):
            ((key, value),) = tomllib.loads(text).items()
            default = chosen.settings[key].default
            assert (list(default) if isinstance(default, tuple) else default) == value, (
                f"{name}: {text}"
            )
        for text in SETTING.findall(alternatives):
            assert configure(chosen, tomllib.loads(text)), f"{name}: {text}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_a_notebook_is_stored_with_its_plot_and_without_errors(path: Path) -> None:
    """`make docs` executes the notebooks; this is what a reader sees without that."""
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" for output in outputs)
    assert f"notebooks/{path.stem}\n" in (ROOT / "docs/index.md").read_text()


def test_every_disagreement_has_five_cells() -> None:
    rows = read_rows()
    assert len(rows) > 40
    assert all(len(row) == 5 for row in rows)


def test_the_tables_of_catalogues_are_up_to_date() -> None:
    assert not find_outdated(), "run python -m benchmarks docs"


def test_a_table_is_written_only_between_its_markers() -> None:
    start = "<!-- table of pets: python -m benchmarks docs -->\n"
    page = f"before\n{start}old\n<!-- end -->\nafter\n<!-- end -->\n"
    lines = ["| pet |", "|---|", "| `cat` |"]
    new = replace_table(page, "pets", lines)
    assert new == page.replace("old\n", "| pet |\n|---|\n| `cat` |\n")
    assert replace_table(new, "pets", lines) == new
    with pytest.raises(ConfigError, match="table of birds"):
        replace_table(page, "birds", lines)


def test_check_fails_and_writes_nothing_if_a_page_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in {place for place, _ in docs.TABLES.values()}:
        page = (ROOT / place).read_text().replace("| `raw` |", "| `rare` |")
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(page)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    operations, run = tmp_path / "docs" / "operations.md", CliRunner().invoke
    checked = run(docs.command, ["--check"])
    assert (checked.exit_code, "docs/operations.md" in checked.output) == (3, True)
    assert "data.md" not in checked.output
    assert "| `rare` |" in operations.read_text()
    assert "wrote docs/operations.md" in run(docs.command).output
    assert operations.read_text() == (ROOT / "docs" / "operations.md").read_text()
    assert run(docs.command, ["--check"]).exit_code == 0


def list_extension_points() -> list[tuple[str, str]]:
    """Return the setting and the catalogue of every row of the contributors' table."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(r"^\| [\w ]+ \| `([a-z]+\.\w+)`.*`(\S+)\.py` \|$", page, re.MULTILINE)


@pytest.mark.parametrize(("setting", "catalogue"), list_extension_points())
def test_the_schema_and_a_page_name_every_built_in_member(setting: str, catalogue: str) -> None:
    module = import_module(catalogue.replace("/", "."))
    (members,) = (
        one for key, one in vars(module).items() if isinstance(one, dict) and key.isupper()
    )
    names = members.keys() - OF_EVERY_RUN
    table, _, key = setting.partition(".")
    schema = build_schema()
    part = schema["properties"]["method"] if table == "method" else schema["$defs"][table.title()]
    words = set(re.findall(r"[\w-]+", json.dumps(part["properties"][key])))
    assert names <= words, f"{setting}: its schema lacks {names - words}"
    pages = "".join(path.read_text() for path in (ROOT / "SECURITY.md", *ROOT.glob("docs/*.md")))
    pages = pages.replace((ROOT / "docs/settings.md").read_text(), "")  # it is made of the schema
    missing = {name for name in names if not re.search(rf"\b{name}(`|\"|://)", pages)}
    assert not missing, f"the documentation lacks {missing}"


def test_every_catalogue_has_a_row_in_the_contributors_page() -> None:
    found = {catalogue for _, catalogue in list_extension_points()}
    paths = {path.relative_to(ROOT) for path in ROOT.glob("[!.]*/**/catalogue.py")}
    others = {"build", "tests"}  # `pip install .` copies the packages into build
    assert found == {str(path.with_suffix("")) for path in paths if path.parts[0] not in others}
