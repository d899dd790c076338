"""`python -m benchmarks NAME [--format json]`: all benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable

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
from benchmarks.timings import Row, lines
from federated.runtime.console import FORMAT, print_result


@click.group()
def main() -> None:
    """Run a benchmark on this machine."""


def add_timed(name: str, what: str, measure: Callable[[], list[Row]]) -> None:
    """Add a benchmark of times, each beside a limit measured in the same run."""

    @main.command(name, help=what)
    @FORMAT
    def command(form: str) -> None:
        rows = measure()
        print_result([row.__dict__ for row in rows], form, lambda _: "\n".join(lines(rows)))


add_timed(
    "aggregation",
    "Time the aggregation of ten ResNet-18 updates against one read of their bytes.",
    aggregation.measure,
)
add_timed("codec", "Time the encoding and decoding of 45 MB of weights.", encoding.measure)
main.add_command(asynchrony.command)
main.add_command(attacks.command)
main.add_command(bitflips.command)
main.add_command(broker.command)
main.add_command(core.command)
main.add_command(docs.command)
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
