"""`python -m benchmarks docs`: write the tables of the documentation that list catalogues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from coordinator.observe.readers.catalogue import ALWAYS, READERS
from federated.data.catalogue import DATASETS
from federated.engine.robust.catalogue import RULES
from federated.errors import ConfigError
from federated.methods.catalogue import METHODS, method
from federated.runtime.console import report_errors
from federated.wire.codecs.catalogue import CODECS
from models.families.catalogue import FAMILIES
from models.family import Family

__all__ = ["TABLES", "command", "find_outdated", "replace_table"]

ROOT = Path(__file__).parents[1]


def render_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def list_methods() -> Iterator[str]:
    made = [method(name) for name in METHODS]
    rows = ((f"`{one.name}`", one.summary, one.paper) for one in made)
    return render_table(("`--method`", "summary", "paper"), rows)


def list_data() -> Iterator[str]:
    rows = ((f"`{name}`", one.about, one.held) for name, one in DATASETS.items())
    return render_table(("`--data`", "contents", "held out"), rows)


def list_rules() -> Iterator[str]:
    heads = (
        "`robust.rule`",
        "result",
        "compares updates per",
        "updates required for f = 1, 2, 3",
        "updates kept on disk until the round ends",
    )
    rows = (
        (
            f"`{name}`",
            rule.help,
            rule.compares,
            ", ".join(str(rule.needed(f)) for f in (1, 2, 3)),
            "those of the first round" if rule.clips else "all",
        )
        for name, rule in RULES.items()
    )
    return render_table(heads, rows)


def list_codecs() -> Iterator[str]:
    rows = ((f"`{name}`", one.help, f"{one.size(10**6):,}") for name, one in CODECS.items())
    return render_table(("`wire.codec`", "encoding", "bytes per million weights"), rows)


def list_families() -> Iterator[str]:
    heads = ("family", "presets (the first is the default)", "torchvision's weights", "use")
    rows = (
        (
            f"`{name}`",
            quote(list_presets(known)),
            quote(known.torchvision.names if known.torchvision else ()),
            known.help,
        )
        for name, known in FAMILIES.items()
    )
    return render_table(heads, rows)


def list_presets(known: Family) -> list[str]:
    """Return the names of a family's presets, its default first."""
    return sorted(known.presets, key=lambda name: name != known.default)


def quote(names: Iterable[str]) -> str:
    """Return names as code, in one cell."""
    return " ".join(f"`{name}`" for name in names)


def list_readers() -> Iterator[str]:
    """Yield the table of the readers that `observe.readers` adds, with the first lines of their
    files.
    """
    added = READERS.keys() - {*ALWAYS, "metrics"}  # `[metrics] listen` adds this one
    rows = ((f"`{name}`", describe_file(READERS[name])) for name in sorted(added))
    return render_table(("`observe.readers`", "output"), rows)


def describe_file(member: Callable[..., object]) -> str:
    """Return the first sentence of the file that defines a function."""
    text = sys.modules[member.__module__].__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix(".")


# name in the page's markers -> page, function that renders the table
TABLES: Mapping[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "codecs": ("docs/operations.md", list_codecs),
    "data sets": ("README.md", list_data),
    "event readers": ("docs/operations.md", list_readers),
    "methods": ("README.md", list_methods),
    "model families": ("README.md", list_families),
    "robust rules": ("SECURITY.md", list_rules),
}


def replace_table(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with these lines between the markers of a table. Raises ConfigError without
    the markers.
    """
    start, end = f"<!-- table of {name}: python -m benchmarks docs -->\n", "<!-- end -->\n"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ConfigError(f"expected the lines '{start.strip()}' and, below it, '{end.strip()}'")
    return "".join((before, start, *(f"{line}\n" for line in lines), end, after))


def find_outdated() -> dict[Path, str]:
    """Return the pages whose tables differ from the catalogues, each with its new text. Raises
    ConfigError.
    """
    pages: dict[Path, str] = {}
    for name, (place, render) in TABLES.items():
        path = ROOT / place
        try:
            pages[path] = replace_table(pages.get(path) or path.read_text(), name, render())
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return {path: text for path, text in pages.items() if text != path.read_text()}


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; fail if a page is out of date")
def command(check: bool) -> None:
    """Update the generated tables of the documentation, one per catalogue."""
    with report_errors("python -m benchmarks docs", "train", "interrupted"):
        outdated = find_outdated()
        if check and outdated:
            names = ", ".join(str(path.relative_to(ROOT)) for path in outdated)
            raise ConfigError(f"out of date: {names}: run python -m benchmarks docs")
        for path, text in outdated.items():
            path.write_text(text)
            click.echo(f"wrote {path.relative_to(ROOT)}")
