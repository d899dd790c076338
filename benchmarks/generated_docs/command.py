"""`python -m benchmarks docs`: write the tables and pictures in the documentation that are made of
the code and of saved results of benchmarks, or with `--check` report which are outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from benchmarks.generated_docs.capacity_tables import list_capacity, list_fleet_sizes
from benchmarks.generated_docs.catalogue_tables import (
    list_codecs,
    list_data,
    list_families,
    list_layouts,
    list_profiles,
    list_readers,
    list_rules,
)
from benchmarks.generated_docs.fault_tables import list_campaigns, list_faults
from benchmarks.generated_docs.live_view import record_live_view
from benchmarks.generated_docs.message_examples import list_examples
from benchmarks.generated_docs.message_tables import list_capabilities, list_messages, list_names
from benchmarks.generated_docs.method_tables import list_laws, list_methods, list_trainers
from benchmarks.generated_docs.ratio_picture import draw_ratios, find_outdated_pictures
from benchmarks.generated_docs.result_tables import drop_measured, list_results, list_summaries
from benchmarks.generated_docs.setting_tables import list_exit_codes, list_settings
from federated.errors import ConfigError
from federated.runtime.console import report_errors

__all__ = ["TABLES", "command", "find_outdated", "replace_table"]

ROOT = Path(__file__).parents[2]

# name in the page's markers -> page, function that renders the table
TABLES: Mapping[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "broker profiles": ("docs/broker.md", list_profiles),
    "capacity": ("docs/benchmarks.md", list_capacity),
    "capabilities": ("docs/protocol.md", list_capabilities),
    "codecs": ("docs/operations.md", list_codecs),
    "data sets": ("docs/data.md", list_data),
    "exit codes": ("docs/cli.md", list_exit_codes),
    "event readers": ("docs/operations.md", list_readers),
    "examples": ("docs/protocol.md", list_examples),
    "fault campaigns": ("docs/broker.md", list_campaigns),
    "fleet sizes": ("docs/benchmarks.md", list_fleet_sizes),
    "faults": ("benchmarks/results/faults.md", list_faults),
    "laws": ("docs/laws.md", list_laws),
    "layouts": ("docs/protocol.md", list_layouts),
    "methods": ("docs/method_list.md", list_methods),
    "methods without PyTorch": ("docs/without_pytorch.md", list_trainers),
    "model families": ("docs/networks.md", list_families),
    "messages": ("docs/protocol.md", list_messages),
    "names": ("docs/protocol.md", list_names),
    "ratios": ("README.md", list_summaries),
    "results": ("docs/benchmarks.md", list_results),
    "robust rules": ("SECURITY.md", list_rules),
    "settings": ("docs/settings.md", list_settings),
}
OF_BENCHMARKS = ("ratios", "results")  # tables that replace rows written by hand


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
            page = pages.get(path) or path.read_text()
            if name in OF_BENCHMARKS:
                page = drop_measured(page)
            pages[path] = replace_table(page, name, render())
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return {path: text for path, text in pages.items() if text != path.read_text()}


@click.command("docs")
@click.option("--check", is_flag=True, help="write nothing; fail if a page is out of date")
@click.option(
    "--picture", is_flag=True, help="also record docs/live_view.svg, which takes about two minutes"
)
def command(check: bool, picture: bool) -> None:
    """Update the generated tables of the documentation."""
    with report_errors("python -m benchmarks docs", "simulate"):
        outdated = find_outdated()
        pictures = find_outdated_pictures()
        if check and (outdated or pictures):
            names = ", ".join(str(path.relative_to(ROOT)) for path in (*outdated, *pictures))
            raise ConfigError(f"out of date: {names}: run python -m benchmarks docs")
        for path, text in outdated.items():
            path.write_text(text)
            click.echo(f"wrote {path.relative_to(ROOT)}")
        for path, result in pictures.items():
            draw_ratios(path, result)
            click.echo(f"wrote {path.relative_to(ROOT)}")
        if picture:
            record_live_view(ROOT / "docs" / "live_view.svg")
