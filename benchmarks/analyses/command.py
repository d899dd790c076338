"""`python -m benchmarks analyse NAME RUN`: analyse a run, and draw the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.analyses.named_analyses import ANALYSES, find_analysis
from benchmarks.analyses.panels import draw_panels, write_panels
from benchmarks.output_path_checks import make_folder
from coordinator.cli.options import RUNS
from coordinator.store.run_folders import DATABASE, make_missing_error
from federated.errors import require_extra
from federated.runtime.console import FORMAT, print_result, report_errors
from federated.safe_terminal_table import make_table, render_table

__all__ = ["command"]


def format_means(found: dict[str, Any]) -> str:
    table = make_table("panel", "row", "mean")
    for panel in found["panels"]:
        for row, mean in panel["means"].items():
            table.add_row(panel["title"], row, f"{mean:.3g}")
    return "\n".join([render_table(table), *(f"wrote {file}" for file in found["files"])])


@click.command("analyse")
@click.argument("name", metavar="|".join(ANALYSES))
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of the CSV file and the picture  [default: results/RUN]",
)
@RUNS
@FORMAT
def command(name: str, run: str, out: Path | None, runs: Path, form: str) -> None:
    """Analyse the networks of a run as a paper does.

    Write the numbers and a picture.

    \b
    blocks       similarity of blocks of two submodels (FedFA, Tables 7 to 9)
    branches     branches of each layer over rounds (DynamicFL)
    clients      similarity of the devices' features, by section (InCo, Figure 10)
    cross-layer  beta and theta of each layer over rounds (InCo, Table 3)
    features     the devices' features in two dimensions, by t-SNE (InCo, Figure 9)
    fine-tuning  accuracy of each device after another epoch of its own (RecipFL)
    gradients    distribution of the changes of each layer (InCo, Figures 2 and 3)
    scales       scale of the weights of submodels (FedFA, Table 10)
    steps        step sizes over rounds (NeFL)

    `branches`, `cross-layer` and `steps` need a run with the setting
    observe.readers = ["benchmarks.analyses.round_history:record"].
    """
    with (
        report_errors("python -m benchmarks analyse", "simulate"),
        require_extra("python -m benchmarks analyse", "simulate"),
    ):
        analyse, place = find_analysis(name), runs / run
        if not (place / DATABASE).exists():
            raise make_missing_error(place)
        panels, folder = analyse(place), out or Path("results") / run
        make_folder(folder, "--out")
        files = [folder / f"{name}.csv", folder / f"{name}.png"]
        write_panels(files[0], panels)
        draw_panels(files[1], panels, f"{name}: {run}")
        made = {
            "analysis": name,
            "run": run,
            "panels": [{"title": panel.title, "means": panel.means} for panel in panels],
            "files": list(map(str, files)),
        }
        print_result(made, form, format_means)
