"""`python -m benchmarks page`: measure the web page beside a thousand agents, or take pictures of
it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.output_path_checks import make_folder
from benchmarks.web_page.large_fleet_measurement import PageLoad, compare_quarters, measure
from benchmarks.web_page.pictures import README, list_views, take_pictures
from federated.runtime.console import FORMAT, print_result, report_errors, speaker

__all__ = ["command"]

DOCS = Path(__file__).parents[2] / "docs"
LONGEST = 200.0  # milliseconds: goal for the 99th percentile of long tasks
SLOWEST = 1.05  # goal for the seconds of a round, with over without the page


def format_conclusion(made: PageLoad) -> list[str]:
    """Return the conclusion for the terminal."""
    spans = (f"{a / 1e6:.2f} to {b / 1e6:.2f} MB" for a, b in map(compare_quarters, made.heaps))
    return [
        f"{made.agents} agents, {made.events:.0f} events/s, page open for {made.watched:.0f} s",
        f"long tasks: {made.long_tasks}, 99th percentile {made.p99:.0f} ms (goal {LONGEST:.0f})",
        f"memory of the page, from the first quarter of the time to the last: {', '.join(spans)}: "
        f"{'flat' if made.flat else 'NOT flat'}",
        f"a round took {made.with_page:.2f} s with the page, {made.without_page:.2f} s without: "
        f"{made.ratio:.3f} times (goal {SLOWEST}); processor time {made.processor:.3f} times",
    ]


@click.command("page")
@click.option(
    "--agents",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    metavar="N",
    help="number of agents",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=4),
    default=4,
    show_default=True,
    metavar="N",
    help="number of consecutive rounds with an open page, and as many without: at least 4, to see "
    "whether memory grows",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="number of times that the page is opened",
)
@click.option("--pictures", is_flag=True, help="only take the README's pictures, docs/page_*.png")
@click.option(
    "--views",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="only take pictures of every view, on a desk and on a phone, into this folder",
)
@FORMAT
def command(
    agents: int, rounds: int, times: int, pictures: bool, views: Path | None, form: str
) -> None:
    """Measure the web page of a large fleet, or take pictures.

    It needs Chromium, and the built page (`make web`). The exit code is 1 if a
    measurement exceeds its limit.
    """
    with (
        report_errors("python -m benchmarks page", "coordinator,web"),
        ExitStack() as stack,
    ):
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-page-"))
        if pictures or views is not None:
            folder = DOCS if views is None else make_folder(views, "--views")
            take_pictures(folder, Path(temporary), README if views is None else list_views())
            return
        say = speaker(form)
        made = measure(Path(temporary), agents, rounds, times, say)
        say("\n".join(format_conclusion(made)))
        print_result({**asdict(made), "processors": len(os.sched_getaffinity(0))}, form)
        if made.p99 > LONGEST or not made.flat or made.ratio > SLOWEST:
            sys.exit(1)
