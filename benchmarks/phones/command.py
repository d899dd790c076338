"""`python -m benchmarks web`: train with two browsers and two PyTorch agents."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.phones.mixed_fleet import MixedTraining, measure
from federated.runtime.console import FORMAT, print_result, report_errors, speaker

__all__ = ["command"]

ACCURACY = 0.93  # goal on held-out digits
DIFFERENCE = 1e-4  # most of a step's loss


def format_conclusion(made: MixedTraining) -> str:
    """Return the conclusion for the terminal."""
    return "\n".join(
        [
            f"accuracy on held-out digits after {made.rounds} rounds: {made.accuracy:.3f} "
            f"(goal {ACCURACY})",
            f"largest difference of a step's loss from Python's: {made.loss_max_abs_diff:.1e} "
            f"(at most {DIFFERENCE:.0e})",
            f"a step took {made.step_ms_browser:.2f} ms in a browser, {made.step_ms_native:.2f} ms "
            f"with PyTorch; the first step came after {made.first_step_s:.1f} s",
            f"a browser downloaded {made.payload_bytes / 1e6:.1f} MB, and used "
            f"{made.memory_mb:.0f} MB",
        ]
    )


@click.command("web")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    metavar="N",
    help="number of rounds in which all agents train",
)
@click.option(
    "--broker-kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="broker between the agents; auto: mosquitto if it is installed",
)
@FORMAT
def command(rounds: int, broker_kind: str, form: str) -> None:
    """Train digits in two browsers and with two PyTorch agents.

    It needs Chromium, and the built page (`make web`). The exit code is 1 if the
    accuracy is too low, or the losses differ from those in Python.
    """
    with (
        report_errors("python -m benchmarks web", "coordinator,export,web"),
        tempfile.TemporaryDirectory(prefix="espalier-web-") as temporary,
    ):
        made = measure(Path(temporary), rounds, broker_kind, speaker(form))
        print_result(asdict(made), form)
        if form != "json":
            click.echo(format_conclusion(made))
        if made.accuracy < ACCURACY or made.loss_max_abs_diff > DIFFERENCE:
            sys.exit(1)
