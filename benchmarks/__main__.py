"""`python -m benchmarks NAME [--format json]`: all benchmarks by name."""

from __future__ import annotations

import click

from benchmarks import (
    aggregation,
    asynchrony,
    broker,
    core,
    encoding,
    fuzz,
    inference,
    methods,
    pacing,
    predict,
    scale,
)
from benchmarks.attacks import command as attacks
from benchmarks.bitflips import command as bitflips
from benchmarks.docs import command as docs
from benchmarks.faults import command as faults
from benchmarks.floods import command as floods
from benchmarks.schedules import command as schedules


@click.group()
def main() -> None:
    """Run a benchmark on this machine."""


main.add_command(aggregation.command)
main.add_command(asynchrony.command)
main.add_command(attacks.command)
main.add_command(bitflips.command)
main.add_command(broker.command)
main.add_command(core.command)
main.add_command(docs.command)
main.add_command(encoding.command)
main.add_command(faults.command)
main.add_command(floods.command)
main.add_command(fuzz.command)
main.add_command(inference.command)
main.add_command(methods.command)
main.add_command(pacing.command)
main.add_command(predict.command)
main.add_command(scale.command)
main.add_command(schedules.command)

if __name__ == "__main__":
    main()
