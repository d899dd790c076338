"""`python -m benchmarks methods`: compare the accuracy and time of all methods in one small
experiment with one seed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from coordinator.assign.majority_network import build_network
from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import load, parse_setting
from coordinator.simulate.simulation import simulate
from federated.data import loading
from federated.errors import EspalierError
from federated.methods.catalogue import METHODS, find_method
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from models.submodel import Submodel

__all__ = ["Result", "command", "compare"]

EXPERIMENT = Path(__file__).parent / "experiments" / "methods.toml"
SIZES = 5
WIDTHS = [0.2, 0.4, 0.6, 0.8, 1.0]  # for methods with one size by default
SHOWN = ("global", "worst", "mean", "before", "after")


@dataclass(frozen=True)
class Result:
    """Result of one method.

    submodels: number of different submodels in use
    scores: accuracies as summarised by `coordinator simulate` (see the README)
    seconds: duration of the run
    error: reason of a failure; empty if there was none
    """

    method: str
    submodels: int
    scores: dict[str, float]
    seconds: float
    error: str = ""


def pin_devices(menu: Sequence[Submodel], devices: int) -> dict[str, str]:
    """Return the submodel of each device: five submodels from the smallest of a menu to its
    largest, each for the same number of devices.
    """
    places = [round(i * (len(menu) - 1) / (SIZES - 1)) for i in range(SIZES)]
    return {f"d{index}": menu[places[index * SIZES // devices]].name for index in range(devices)}


def compare(
    names: Sequence[str], settings: Sequence[tuple[str, Any]], folder: Path
) -> Iterator[Result]:
    """Yield the result of each method; an error is a result too."""
    for name in names:
        start = time.perf_counter()
        try:
            used, scores = run(name, settings, folder / name)
            yield Result(name, used, scores, round(time.perf_counter() - start, 1))
        except EspalierError as error:
            yield Result(name, 0, {}, round(time.perf_counter() - start, 1), str(error))


def run(
    name: str, settings: Sequence[tuple[str, Any]], folder: Path
) -> tuple[int, dict[str, float]]:
    """Run the experiment with one method. Return the number of submodels in use, and the scores."""
    extra = [*settings, ("method.name", name)]
    if len(menu := propose_menu(name, extra)) == 1:
        menu = propose_menu(name, extra := [*extra, ("method.widths", WIDTHS)])
    pins = pin_devices(menu, load(EXPERIMENT, os.environ, extra).simulate.agents)
    given = [*extra, ("assign.submodels", pins)]
    made = simulate(
        ConfigSources(EXPERIMENT, os.environ, flags=given),
        folder / "runs",
        folder / "results",
        say=lambda text: None,
    )
    return len(set(pins.values())), {
        key: made["summary"][key]["mean"] for key in SHOWN if key in made["summary"]
    }


def propose_menu(name: str, settings: Sequence[tuple[str, Any]]) -> tuple[Submodel, ...]:
    """Return a method's menu in this experiment."""
    config, chosen = load(EXPERIMENT, os.environ, settings), find_method(name)
    network = build_network(
        config, [loading.load_central(config.data.name, config.data.root).card()]
    )
    return chosen.menu(network, config.settings)


def format_table(results: Sequence[Result]) -> list[str]:
    return [
        f"{'method':14}{'sizes':>6}" + "".join(f"{name:>8}" for name in SHOWN) + f"{'seconds':>9}",
        *map(format_result, results),
    ]


def format_result(one: Result) -> str:
    scores = "".join(
        f"{one.scores[name]:8.3f}" if name in one.scores else f"{'-':>8}" for name in SHOWN
    )
    return f"{one.method:14}{one.submodels:6}{scores}{one.seconds:9.1f}" + (
        f"  {one.error}" if one.error else ""
    )


@click.command("methods")
@click.option("--only", metavar="NAME,...", help="compare only these methods  [default: all]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="setting of the experiment, such as rounds=20 or data.root=DIR; may be repeated",
)
@FORMAT
def command(only: str | None, settings: tuple[str, ...], form: str) -> None:
    """Compare all methods in one experiment.

    Run benchmarks/experiments/methods.toml with every method. Print the accuracy of the largest
    submodel, of the worst submodel, and the mean over submodels, before and after local training.
    """
    with (
        report_errors("python -m benchmarks methods", "simulate", "interrupted"),
        tempfile.TemporaryDirectory() as folder,
    ):
        names = sorted(METHODS) if only is None else only.split(",")
        for name in names:
            find_method(name)
        given = [*map(parse_setting, settings)]
        load(EXPERIMENT, os.environ, given)  # reports invalid settings once, not for each method
        say, found = speaker(form), list[Result]()
        say(format_table([])[0])
        for one in compare(names, given, Path(folder)):
            found.append(one)
            say(format_result(one))
        print_result([asdict(one) for one in found], form)
