"""`coordinator demo`: train on four unequal simulated devices on this machine, and infer on a fifth
device without PyTorch.
"""

from __future__ import annotations

from pathlib import Path

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
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="broker to start; auto: mosquitto if it is installed, else the embedded broker",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run, the exported networks and the logs in this folder",
)
@FORMAT
def demo(
    seed: int, rounds: int, no_limits: bool, broker_kind: str, keep: Path | None, form: str
) -> None:
    """Train on four simulated devices, and infer on a fifth.

    Each device is a process on this machine with limited processors and memory. The four unequal
    devices learn together to classify handwritten digits. The fifth has no PyTorch.
    """
    with print_errors("demo"):
        from coordinator.simulate.demo_fleet import run_demo

        result = run_demo(
            seed=seed,
            rounds=rounds,
            limited=not no_limits,
            kind=broker_kind,
            keep=keep,
            say=speaker(form),
        )
        print_result(result, form)
