"""`python -m benchmarks methods`: a table of every method on one small experiment, one seed: does
each learn, and what does a round cost.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from coordinator.assign.data_cards import network_for
from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import load, parse_setting
from coordinator.simulate.simulation import simulate
from federated.data import catalogue
from federated.errors import EspalierError
from federated.methods.catalogue import METHODS, method
from federated.runtime.console import FORMAT, speaker, speaking_plainly
from models.submodel import Submodel

__all__ = ["Result", "command", "compare", "lines", "pairs"]

EXPERIMENT = Path(__file__).parent / "experiments" / "methods.toml"
SIZES = 5
WIDTHS = [0.2, 0.4, 0.6, 0.8, 1.0]  # for methods that have one size unless more are set
TOLD = ("global", "worst", "mean", "before", "after")


@dataclass(frozen=True)
class Result:
    """submodels: how many sizes were in use. scores: accuracies as `coordinator simulate` sums them
    up (see the README). seconds: in all.

    error: why there is nothing else.
    """

    method: str
    submodels: int
    scores: dict[str, float]
    seconds: float
    error: str = ""


def pairs(menu: Sequence[Submodel], devices: int) -> dict[str, str]:
    """As many devices for each of five submodels, from the smallest of a menu to its largest,
    evenly; as patterns of device names.
    """
    places = [round(i * (len(menu) - 1) / (SIZES - 1)) for i in range(SIZES)]
    return {f"d{index}": menu[places[index * SIZES // devices]].name for index in range(devices)}


def compare(
    names: Sequence[str], settings: Sequence[tuple[str, Any]], folder: Path
) -> Iterator[Result]:
    """One result per method as it comes; what a method can't do is a result too."""
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
    """The experiment by one method: how many submodels were in use, and the scores."""
    extra = [*settings, ("method.name", name)]
    if len(menu := proposed(name, extra)) == 1:
        menu = proposed(name, extra := [*extra, ("method.widths", WIDTHS)])
    pins = pairs(menu, load(EXPERIMENT, os.environ, extra).simulate.agents)
    given = [*extra, ("assign.submodels", pins)]
    made = simulate(
        ConfigSources(EXPERIMENT, os.environ, flags=given),
        folder / "runs",
        folder / "results",
        say=lambda text: None,
    )
    return len(set(pins.values())), {
        key: made["summary"][key]["mean"] for key in TOLD if key in made["summary"]
    }


def proposed(name: str, settings: Sequence[tuple[str, Any]]) -> tuple[Submodel, ...]:
    """A method's menu in this experiment."""
    config, chosen = load(EXPERIMENT, os.environ, settings), method(name)
    network = network_for(config, [catalogue.central(config.data.name, config.data.root).card()])
    return chosen.menu(network, config.settings)


def lines(results: Sequence[Result]) -> list[str]:
    return [
        f"{'method':14}{'sizes':>6}" + "".join(f"{name:>8}" for name in TOLD) + f"{'seconds':>9}",
        *map(line, results),
    ]


def line(one: Result) -> str:
    scores = "".join(
        f"{one.scores[name]:8.3f}" if name in one.scores else f"{'-':>8}" for name in TOLD
    )
    return f"{one.method:14}{one.submodels:6}{scores}{one.seconds:9.1f}" + (
        f"  {one.error}" if one.error else ""
    )


@click.command("methods")
@click.option("--only", metavar="NAME,...", help="these methods  [default: all]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any key of the experiment, such as rounds=20 or data.root=DIR",
)
@FORMAT
def command(only: str | None, settings: tuple[str, ...], form: str) -> None:
    """Run benchmarks/experiments/methods.toml by every method: accuracy of the largest, worst and
    mean submodel, before and after local training.
    """
    with (
        speaking_plainly("python -m benchmarks methods", "simulate", "interrupted"),
        tempfile.TemporaryDirectory() as folder,
    ):
        names = sorted(METHODS) if only is None else only.split(",")
        for name in names:
            method(name)
        say, found = speaker(form), list[Result]()
        say(lines([])[0])
        for one in compare(names, [*map(parse_setting, settings)], Path(folder)):
            found.append(one)
            say(line(one))
        if form == "json":
            click.echo(json.dumps([asdict(one) for one in found]))
