"""Define the command `edge-agent bench` and its options; `edge_agent.bench` does the work."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import CPUS
from edge_agent.cli.option_values import split_words
from federated.defaults import MODEL
from federated.errors import UsageError
from federated.runtime.console import FORMAT, FiniteRange, report_errors, speaker

__all__ = ["bench"]

PATH = click.Path(path_type=Path, dir_okay=False)


def parse_number(word: str) -> float:
    """Return a finite number. Raises ValueError."""
    if not math.isfinite(number := float(word)):
        raise ValueError(word)
    return number


def parse_list(
    kind: Callable[[str], Any], description: str
) -> Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...] | None]:
    """Return a callback that parses values separated by commas."""

    def parse(
        ctx: click.Context, param: click.Parameter, text: str | None
    ) -> tuple[Any, ...] | None:
        if text is None:
            return None
        try:
            return tuple(kind(word) for word in split_words(text))
        except ValueError:
            raise click.BadParameter(
                f"expected {description} separated by commas, found '{text}'", ctx, param
            ) from None

    return parse


INTEGERS = parse_list(int, "whole numbers")
NUMBERS = parse_list(parse_number, "finite numbers")
WORDS = parse_list(str, "words")


@click.command()
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "--model",
    metavar="NAME",
    help=f"network to measure, such as preresnet-18 or mobilenet  [default: {MODEL}]",
)
@click.option(
    "--inputs", callback=INTEGERS, metavar="C,H,W", help="shape of an example  [default: 3,32,32]"
)
@click.option(
    "--classes",
    type=int,
    metavar="N",
    help="number of classes; for texts, size of the vocabulary  [default: 10]",
)
@click.option(
    "--widths",
    callback=NUMBERS,
    metavar="X,..",
    help="widths of the submodels: kept fractions of the channels  [default: 0.25,0.5,1]",
)
@click.option(
    "--depths",
    callback=INTEGERS,
    metavar="N,..",
    help="depths of the submodels: kept blocks per section  [default: all]",
)
@click.option(
    "--submodels",
    callback=WORDS,
    metavar="PATTERN,..",
    help="measure only submodels whose name matches, such as 'w0.25-*,w1-*'",
)
@click.option(
    "--runtime",
    callback=WORDS,
    metavar="NAME,..",
    help="runtimes: torch, onnx, onnx-int8[-u8s8|-s8s8|-dynamic]  [default: torch,onnx,onnx-int8]",
)
@click.option(
    "--threads",
    callback=INTEGERS,
    default="1",
    show_default=True,
    metavar="N,..",
    help="numbers of threads",
)
@click.option(
    "--provider",
    default="cpu",
    show_default=True,
    metavar="NAME",
    help="execution provider of ONNX Runtime: cpu, cuda, xnnpack, ...",
)
@click.option(
    "--batch",
    type=int,
    default=32,
    show_default=True,
    metavar="N",
    help="examples per training step with torch; 0: do not train",
)
@click.option(
    "--sustained",
    is_flag=True,
    help="run inference for a minute per row instead of 3 s, to detect throttling",
)
@click.option(
    "--predict/--no-predict",
    default=True,
    help="time small submodels first and predict each row from them  [default: predict]",
)
@click.option(
    "--limit-cpus",
    type=CPUS,
    metavar="X",
    help="number of processors that each row may use, such as 1.5",
)
@click.option("--limit-memory", metavar="SIZE", help="memory that each row may use, such as 512MB")
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="write all columns to a .json or .csv file; .json also describes the machine",
)
@click.option(
    "--compare",
    type=PATH,
    metavar="OLD.json",
    help="show the ratio to an earlier measurement, written with --out",
)
@click.option(
    "--fail-above",
    type=FiniteRange(min=0, min_open=True),
    metavar="X",
    help="exit with 1 if a row takes more than X times as long as in --compare",
)
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="plot latency against multiply-adds, as .png, .svg or .pdf",
)
@FORMAT
def bench(form: str, **options: Any) -> None:
    """Measure the speed and memory of submodels or ONNX FILES.

    Each row of the table is one combination of submodel or file, runtime and number of threads. A
    new process measures it: latency of one example, time of a training step, and peak memory.
    Predictions from small submodels are shown for comparison. Exit code 1: a row failed; the others
    are reported. Exit code 130: interrupted; completed rows are printed and written.
    """
    with report_errors("edge-agent bench", "bench"):
        from edge_agent.bench.bench_command import Request
        from edge_agent.bench.bench_command import bench as measure
        from edge_agent.device.process_limits import Limits, parse_size

        memory, cpus = options.pop("limit_memory"), options.pop("limit_cpus")
        network_flags = ("model", "inputs", "classes", "widths", "depths", "submodels")
        odd = [f"--{name}" for name in network_flags if options[name] is not None]
        if options["files"] and odd:
            raise UsageError(
                f"{', '.join(odd)} cannot be combined with ONNX files: remove the files or the "
                "flags of the network"
            )
        options["patterns"], options["runtimes"] = options.pop("submodels"), options.pop("runtime")
        request = Request(
            limits=Limits(cpus, parse_size(memory) if memory else None),
            **{name: value for name, value in options.items() if value is not None},
        )
        sys.exit(measure(request, form, speaker(form)))
