"""`coordinator demo`: train on four unequal simulated devices on this machine, and infer on a fifth
device without PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import print_errors
from federated.runtime.console import FORMAT, print_result, speaker

__all__ = ["demo"]


@click.command()
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="seed of data, networks and training",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=9,
    show_default=True,
    metavar="N",
    help="number of rounds",
)
@click.option(
    "--no-limits",
    is_flag=True,
    help="do not limit the processors and the memory of the four devices",
)
@click.option(
    "--broker-kind",
    "kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="broker to start; auto: mosquitto if it is installed, else the embedded broker",
)
@click.option(
    "--agent-python",
    "python",
    metavar="PROGRAM",
    default="",
    help="Python of the four devices, such as that of an environment without PyTorch, in which "
    "Espalier is installed without extras  [default: this one]",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run, the exported networks and the logs in this folder",
)
@FORMAT
def demo(form: str, **options: Any) -> None:
    """Train on four simulated devices, and infer on a fifth.

    Each device is a process on this machine with limited processors and memory. The four unequal
    devices learn together to classify handwritten digits. The fifth has no PyTorch.
    """
    with print_errors("demo"):
        from coordinator.simulate.demo_fleet import DemoOptions, run_demo

        limited = not options.pop("no_limits")
        print_result(run_demo(DemoOptions(limited=limited, **options), speaker(form)), form)
