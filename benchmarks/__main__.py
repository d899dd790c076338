"""`python -m benchmarks NAME [--format json]`: the benchmarks by name."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from benchmarks import aggregation, codec
from benchmarks.table import Row, lines

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {"aggregation": aggregation.measure, "codec": codec.measure}


@click.command()
@click.argument("name", type=click.Choice(sorted(BENCHMARKS)))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def main(name: str, form: str) -> None:
    """Measure NAME on this machine, each figure beside the limit that was measured in the same run."""
    rows = BENCHMARKS[name]()
    click.echo(json.dumps([row.__dict__ for row in rows]) if form == "json" else "\n".join(lines(rows)))


if __name__ == "__main__":
    main()
