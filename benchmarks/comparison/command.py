"""Make the command of a benchmark out of a function that measures rows: choose the peers, print the
result with the machine and the versions, and save it.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from benchmarks.comparison.result import BenchmarkResult, format_result, write_result
from benchmarks.comparison.rows import Failure, Row
from benchmarks.peers.environments import choose_peers, find_installed, list_versions
from edge_agent.bench.report import take_fingerprint
from edge_agent.device.process_limits import Limits
from federated.errors import ConfigError, EspalierError
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.runtime.provenance import versions
from federated.system.processors import list_processors

__all__ = ["benchmark"]

SHARED = ("form", "save", "any_load")  # options of every benchmark
SAVE = click.option(
    "--save",
    is_flag=True,
    help="write benchmarks/results/NAME.json, which python -m benchmarks docs shows; refused if "
    "other programs keep the processors busy",
)
ANY_LOAD = click.option(
    "--any-load", is_flag=True, help="save even if other programs keep the processors busy"
)

Measure = Callable[..., Iterable[Row | Failure]]
"""A function that gets `say`, the options of its benchmark and, if it compares with other projects,
`peers`: those that are installed. After a failure the command ends with exit code 1, but shows all
rows.
"""


def benchmark(
    name: str, extra: str, peers: Sequence[str] = (), packages: Sequence[str] = ()
) -> Callable[[Measure], click.Command]:
    """Return a decorator that makes a command of a function that measures rows.

    extra: the extra to install if a package is missing.
    peers: other projects to compare with, in environments of their own.
    packages: others, in this environment.
    """

    def decorate(measure: Measure) -> click.Command:
        @functools.wraps(measure)
        def run(form: str, save: bool, any_load: bool, **options: Any) -> None:
            with report_errors(f"python -m benchmarks {name}", extra):
                load = os.getloadavg()[0]
                if save and not any_load:
                    check_load(load, len(list_processors()))
                say, absent = speaker(form), dict[str, str]()
                if peers:
                    options["peers"], absent = find_installed(options["peers"], say)
                taken, start = datetime.now(UTC), time.monotonic()
                found = tuple(measure(say=say, **options))
                result = BenchmarkResult(
                    name,
                    list_given(),
                    tuple(one for one in found if isinstance(one, Row)),
                    list_versions(options.get("peers", ())) | versions(packages),
                    take_fingerprint(Limits()),
                    round(load, 2),
                    taken.isoformat(timespec="seconds"),
                    round(time.monotonic() - start, 1),
                    tuple(one for one in found if isinstance(one, Failure)),
                    absent,
                )
                print_result(result, form, format_result)
                if save:
                    say(f"wrote {write_result(result)}")
                if result.failures:
                    sys.exit(EspalierError.exit_code)

        with_options = FORMAT(SAVE(ANY_LOAD(run)))
        made = click.command(name)(choose_peers(peers)(with_options) if peers else with_options)
        made.params.sort(key=lambda option: option.name in SHARED)  # these last
        return made

    return decorate


def check_load(load: float, processors: int) -> None:
    """Raise ConfigError if other programs would disturb a measurement.

    load: load average of the last minute.
    """
    if load > processors:
        raise ConfigError(
            f"--save: the load average is {load:.1f} on {processors} processors, so other programs "
            "would slow the benchmark down: wait until they have ended, or add --any-load"
        )


def list_given() -> dict[str, str]:
    """Return the options of the current command that the user gave, without those of every
    benchmark. Paths are shortened to names.
    """
    context = click.get_current_context()
    return {
        name: describe(value)
        for name, value in context.params.items()
        if name not in SHARED and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }


def describe(value: object) -> str:
    """Return the value of an option in words."""
    if isinstance(value, tuple | list):
        return " ".join(map(describe, value)) or "none"
    return value.name if isinstance(value, Path) else str(value)
