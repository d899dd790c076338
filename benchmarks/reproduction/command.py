"""`python -m benchmarks reproduce NAME`: run the experiment of a paper's table, and print the
results beside the paper's numbers.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.output_path_checks import check_log, make_folder
from benchmarks.reproduction.cells import Finished, Place, read_log, run_cells
from benchmarks.reproduction.experiment import (
    CENTRAL,
    FOLDER,
    Cell,
    Experiment,
    Row,
    Scale,
    find_experiment,
    list_experiments,
)
from benchmarks.reproduction.flower import BY_FLOWER, find_obstacle
from benchmarks.reproduction.result_table import (
    Entry,
    collect_entries,
    format_csv,
    format_latex,
    format_text,
)
from benchmarks.reproduction.run_costs import COSTS
from coordinator.settings.config import flatten, load, parse_setting
from federated.errors import EspalierError, UsageError
from federated.install_command import pip_command
from federated.runtime.console import FORMAT, Say, print_result, report_errors, speaker
from federated.safe_terminal_table import make_table, render_table

__all__ = ["command"]

RESULTS = FOLDER.parent / "results"
# settings that do not change the result, and are not logged
OF_MACHINE = ("data.root", "simulate.device", "simulate.workers")


def describe_experiments() -> list[dict[str, Any]]:
    """Return one record for each scale of each experiment: its paper and table, the minutes that
    the committed result took, and the file of that result; None without one.
    """
    found = list[dict[str, Any]]()
    for name in list_experiments():
        experiment = find_experiment(name)
        for scale in experiment.scales:
            log = RESULTS / f"{name}-{scale}.jsonl"
            seconds = [one.seconds for one in read_log(log)]
            found.append(
                {
                    "name": name,
                    "paper": experiment.paper,
                    "table": experiment.table,
                    "scale": scale,
                    "minutes": round(sum(seconds) / 60, 1) if seconds else None,
                    "result": str(log.relative_to(FOLDER.parents[1])) if seconds else None,
                }
            )
    return found


def format_experiments(found: list[dict[str, Any]]) -> str:
    table = make_table("name", "scale", "minutes", "table")
    for one in found:
        minutes = "-" if one["minutes"] is None else f"{one['minutes']:g}"
        title = ", ".join(filter(None, (one["paper"], one["table"])))
        table.add_row(one["name"], one["scale"], minutes, title)
    return render_table(table)


def list_flower_rows(experiment: Experiment, scale: Scale) -> tuple[Row, ...]:
    """Return the rows of a scale that Flower can run, as rows of Flower. Raises UsageError if there
    are none.
    """
    able = {
        cell.row.name: cell.row
        for cell in experiment.list_cells(scale)
        if cell.row is not CENTRAL and not find_obstacle(load(None, {}, [*cell.settings.items()]))
    }
    if not able:
        raise UsageError(f"--beside flower: {experiment.name} has no row that Flower can run")
    return tuple(
        msgspec.structs.replace(row, name=f"{name}{BY_FLOWER}", paper=(), flower=True)
        for name, row in able.items()
    )


def describe_scale(name: str, scale: Scale) -> str:
    """Return the settings in which a scale differs from the table's, as text."""
    changes = ", ".join(f"{key} = {value}" for key, value in flatten(scale.settings))
    return "\n".join(filter(None, (f"scale {name}: {changes}" if changes else "", scale.note)))


def write_files(
    experiment: Experiment, entries: list[Entry], data: str, log: Path, say: Say
) -> None:
    """Write the table as text, CSV, LaTeX and a picture beside the log. data: what was learned."""
    log.with_suffix(".txt").write_text(format_text(experiment, entries) + "\n")
    log.with_suffix(".csv").write_text(format_csv(entries))
    log.with_suffix(".tex").write_text(format_latex(experiment, entries))
    try:
        from benchmarks.reproduction.result_picture import draw_entries
    except ModuleNotFoundError as error:
        say(f"skipped the picture: {error.name} is not installed; {pip_command('simulate')}")
        return
    draw_entries(log.with_suffix(".png"), entries, f"{experiment.name}: {experiment.table}", data)


def reproduce(experiment: Experiment, cells: list[Cell], place: Place, say: Say) -> dict[str, Any]:
    """Run the cells that are not finished yet, and write the table; return it as plain values.
    Raises EspalierError if a cell failed.
    """
    make_folder(place.log.parent, "--log")
    check_log(place.log)
    found = list[Finished](run_cells(cells, place, say))
    if found:
        entries = collect_entries(experiment, found)
        data = sorted({str(cell.settings["data.name"]) for cell in cells})
        write_files(experiment, entries, ", ".join(data), place.log, say)
        say(format_text(experiment, entries))
        say(f"wrote {place.log}, and the table beside it")
    if failed := len(cells) - len(found):
        raise EspalierError(
            f"{failed} of {len(cells)} simulations failed (see above); run the command again to "
            "repeat only these"
        )
    return {
        "experiment": experiment.name,
        "entries": [asdict(entry) | {"mean": entry.mean} for entry in entries],
        "seconds": round(sum(one.seconds for one in found), 1),
        "log": str(place.log),
    }


def parse_seeds(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(","))) if text else ()
    except ValueError:
        raise click.BadParameter(f"expected whole numbers such as 0,1,2, found '{text}'") from None


def parse_data(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    pairs = dict[str, str]()
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=FILE, found '{text}'")
        pairs[name] = path
    return pairs


@click.command("reproduce")
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="list all experiments")
@click.option(
    "--scale",
    default="small",
    show_default=True,
    metavar="check|small|full",
    help="check: one tiny round. small: minutes on two processor cores. full: the paper's setting",
)
@click.option("--seeds", callback=parse_seeds, metavar="0,1,2", help="seeds of each simulation")
@click.option("--only", multiple=True, metavar="ROW", help="run only this row; may be repeated")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="file of finished simulations, which are not repeated  [default: "
    "results/NAME-SCALE.jsonl]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="another setting, such as rounds=20 or simulate.device=cuda; may be repeated",
)
@click.option(
    "--data",
    multiple=True,
    callback=parse_data,
    metavar="NAME=FILE",
    help="read this file or folder instead of a data set, such as cifar10=cifar10.zip",
)
@click.option(
    "--beside",
    type=click.Choice(["flower"]),
    help="also run FedAvg and FedProx with Flower, on the same partition",
)
@click.option(
    "--costs",
    is_flag=True,
    help="also show multiply-adds, bytes and seconds, in all and until simulate.target was reached",
)
@FORMAT
def command(
    name: str | None,
    listed: bool,
    scale: str,
    seeds: tuple[int, ...],
    only: tuple[str, ...],
    log: Path | None,
    settings: tuple[str, ...],
    data: dict[str, str],
    beside: str | None,
    costs: bool,
    form: str,
) -> None:
    """Run the experiment of a paper's table.

    Print the results beside the paper's numbers, and write them as text, CSV, LaTeX and a picture
    beside the log. Repeat an interrupted command to continue it.
    """
    with report_errors("python -m benchmarks reproduce", "simulate"):
        if listed:
            found = describe_experiments()
            print_result({"experiments": found}, form, lambda _: format_experiments(found))
            return
        if name is None:
            raise UsageError("expected the NAME of an experiment, or --list")
        if log and not log.suffix:  # the folder of the runs has the name without it
            raise UsageError(f"--log {log}: expected a file name with an ending, such as .jsonl")
        experiment, given = find_experiment(name), [*map(parse_setting, settings)]
        chosen = experiment.find_scale(scale, [one for one in given if one[0] not in OF_MACHINE])
        flower = list_flower_rows(experiment, chosen) if beside else ()
        if chosen.rows:
            named = (*chosen.rows, *(row.name for row in flower))
            chosen = msgspec.structs.replace(chosen, rows=named)
        experiment = msgspec.structs.replace(
            experiment,
            note="\n".join(filter(None, (experiment.note, describe_scale(scale, chosen)))),
            scores=experiment.scores | (COSTS if costs else {}),
            rows=(*experiment.rows, *flower),
        )
        cells = [
            cell
            for cell in experiment.list_cells(chosen, seeds)
            if not only or cell.row.name in only
        ]
        if not cells:
            raise UsageError(f"--only: {name} has no such row: {', '.join(only)}")
        # reports invalid settings once, not for each cell
        load(None, os.environ, [*cells[0].settings.items(), *given])
        machine = [one for one in given if one[0] in OF_MACHINE]
        place = Place(log or Path("results") / f"{name}-{scale}.jsonl", machine, data)
        print_result(reproduce(experiment, cells, place, speaker(form)), form)
