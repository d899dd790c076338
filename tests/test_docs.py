"""The pages that people read hold what the code does: names, settings, defaults."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from federated.engine.robust.catalogue import RULES
from federated.method import configure
from federated.methods.catalogue import METHODS, method
from federated.wire.codecs.catalogue import CODECS

ROOT = Path(__file__).parent.parent
SETTING = re.compile(r"`(\w+ = [^`]+)`")


def rows() -> list[list[str]]:
    """The cells of docs/methods.md: methods, what the paper says, what the code does, the default,
    the alternatives.
    """
    lines = [
        line
        for line in (ROOT / "docs" / "methods.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} {row[2]}"[:60])
def test_every_disagreement_names_the_default_and_the_settings_that_switch_it(
    row: list[str],
) -> None:
    names, *_, here, instead = row
    for name in re.findall(r"`([\w-]+)`", names):
        chosen = method(name)
        for text in SETTING.findall(here):
            ((key, value),) = tomllib.loads(text).items()
            default = chosen.settings[key].default
            assert (list(default) if isinstance(default, tuple) else default) == value, (
                f"{name}: {text}"
            )
        for text in SETTING.findall(instead):
            assert configure(chosen, tomllib.loads(text)), f"{name}: {text}"


def test_the_page_of_disagreements_has_them_all() -> None:
    assert len(rows()) > 40
    assert all(len(row) == 5 for row in rows())


def test_the_readme_tells_of_every_method_and_of_no_other() -> None:
    section = (ROOT / "README.md").read_text().split("\n## Methods\n")[1].split("\n## ")[0]
    told = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1])
    }
    assert told - {"--method"} == set(METHODS)


def rule_rows() -> list[str]:
    """The rows of the table of robust rules in SECURITY.md, as the catalogue has them."""
    return [
        f"| `{name}` | {one.help} | {one.compares} | "
        f"{', '.join(str(one.needed(f)) for f in (1, 2, 3))} | "
        f"{'the first round' if one.clips else 'every round'} |"
        for name, one in sorted(RULES.items())
    ]


def test_the_table_of_robust_rules_is_the_catalogue() -> None:
    table = (ROOT / "SECURITY.md").read_text().split("\n| `robust.rule` |")[1].split("\n\n")[0]
    assert table.splitlines()[2:] == rule_rows()


def codec_rows() -> list[str]:
    """The rows of the table of codecs in docs/operations.md, as the catalogue has them."""
    return [
        f"| `{name}` | {one.help} | {one.size(10**6):,} |" for name, one in sorted(CODECS.items())
    ]


def test_the_table_of_codecs_is_the_catalogue() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.split("\n| `wire.codec` |")[1].split("\n\n")[0]
    assert table.splitlines()[2:] == codec_rows()
