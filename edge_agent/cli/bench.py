"""The flags of `edge-agent bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from federated.errors import UsageError
from federated.runtime.console import FORMAT, speaker, speaking_plainly

__all__ = ["bench"]

PATH = click.Path(path_type=Path, dir_okay=False)


def several(
    of: Callable[[str], Any], what: str
) -> Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...] | None]:
    """Values between commas."""

    def parse(
        ctx: click.Context, param: click.Parameter, text: str | None
    ) -> tuple[Any, ...] | None:
        try:
            return (
                None
                if text is None
                else tuple(of(part.strip()) for part in text.split(",") if part.strip())
            )
        except ValueError:
            raise click.BadParameter(
                f"expected {what} between commas, found '{text}'", ctx, param
            ) from None

    return parse


NUMBERS, SHARES, WORDS = (
    several(int, "whole numbers"),
    several(float, "numbers"),
    several(str, "words"),
)


@click.command()
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "--model",
    metavar="NAME",
    help="a network, such as preresnet-18 or mobilenet  [default: preresnet]",
)
@click.option(
    "--inputs", callback=NUMBERS, metavar="C,H,W", help="shape of one example  [default: 3,32,32]"
)
@click.option(
    "--classes",
    type=int,
    metavar="N",
    help="classes that it tells apart (of a text: the vocabulary)  [default: 10]",
)
@click.option(
    "--widths",
    callback=SHARES,
    metavar="X,..",
    help="kept shares of its channels  [default: 0.25,0.5,1]",
)
@click.option(
    "--depths", callback=NUMBERS, metavar="N,..", help="blocks kept per section  [default: all]"
)
@click.option(
    "--submodels",
    callback=WORDS,
    metavar="PATTERN,..",
    help="only those of these names, such as 'w0.25-*,w1-*'",
)
@click.option(
    "--runtime",
    callback=WORDS,
    metavar="NAME,..",
    help="torch, onnx, onnx-int8[-u8s8|-s8s8|-dynamic]  [default: torch,onnx,onnx-int8]",
)
@click.option(
    "--threads",
    callback=NUMBERS,
    default="1",
    show_default=True,
    metavar="N,..",
    help="threads that compute; each is a row",
)
@click.option(
    "--provider",
    default="cpu",
    show_default=True,
    metavar="NAME",
    help="what computes, by ONNX Runtime's name: cpu, cuda, xnnpack, ...",
)
@click.option(
    "--batch",
    type=int,
    default=32,
    show_default=True,
    metavar="N",
    help="examples of a training step (torch); 0: no training",
)
@click.option(
    "--sustained",
    is_flag=True,
    help="a minute of inference per row instead of 3 s: does heat slow it down?",
)
@click.option(
    "--predict/--no-predict",
    default=True,
    help="time small probes first, and predict each row from them  [default: predict]",
)
@click.option(
    "--limit-cpus",
    type=float,
    metavar="X",
    help="processors that each row may use, fractions allowed",
)
@click.option("--limit-memory", metavar="SIZE", help="memory that each row may use, such as 512MB")
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="write all columns as .json (with what the machine is) or .csv",
)
@click.option(
    "--compare", type=PATH, metavar="OLD.json", help="new over old of each row that both measured"
)
@click.option(
    "--fail-above",
    type=float,
    metavar="X",
    help="exit with 1 if a row takes more than X times as long as in --compare",
)
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="draw latency over multiply-adds, as .png, .svg or .pdf",
)
@FORMAT
def bench(form: str, **given: Any) -> None:
    """Measure how fast this device runs and trains each submodel of a network, or runs any ONNX
    FILES.

    Each row is a fresh process: latency of one example at a time, a training step, memory, beside
    what was predicted from small probes. Exit code 1: a row failed (the others are there); 130:
    ctrl-C, after which the rows that are done are printed and written.
    """
    with speaking_plainly("edge-agent bench", "bench", "interrupted"):
        from edge_agent.bench.measure import Request
        from edge_agent.bench.measure import bench as measure
        from edge_agent.device.limits import Limits, parse_size

        files, memory, cpus = given.pop("files"), given.pop("limit_memory"), given.pop("limit_cpus")
        own = ("model", "inputs", "classes", "widths", "depths", "submodels")
        if files and (odd := [f"--{name}" for name in own if given[name] is not None]):
            raise UsageError(
                f"name either ONNX files or a network: {', '.join(odd)} is of a "
                f"network, found {', '.join(map(str, files))}"
            )
        given["patterns"], given["runtimes"] = given.pop("submodels"), given.pop("runtime")
        limits = Limits(cpus, parse_size(memory) if memory else None)
        request = Request(
            files=files,
            limits=limits,
            **{name: value for name, value in given.items() if value is not None},
        )
        sys.exit(measure(request, form, speaker(form)))
