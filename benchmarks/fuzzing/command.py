"""`python -m benchmarks fuzz`: test every decoder of foreign data with a coverage-guided fuzzer,
each with its share of the inputs.

Each decoder runs in a process of its own with a hard limit of memory, so that one that exceeds it
crashes.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.output_path_checks import make_folder
from federated.errors import FleetError, MissingExtra, Unknown
from federated.runtime.console import FORMAT, print_result, report_errors, speaker

if TYPE_CHECKING:
    from benchmarks.fuzzing.decoders import Decoder

__all__ = ["command", "divide_inputs", "fuzz"]

LIMIT = 3600.0  # seconds per decoder


@dataclass(frozen=True)
class FuzzResult:
    """Result of one decoder.

    inputs: number of inputs
    crashes: exceptions other than the declared ones
    edges: edges reached in the decoder's code
    corpus: inputs in the corpus
    peak: bytes of memory of the worst input in the corpus
    limit: bytes that an input may take
    longest: milliseconds of the slowest input
    seconds: of the whole run
    found: one input (hexadecimal) by kind of crash
    """

    decoder: str
    inputs: int
    crashes: int
    edges: int
    corpus: int
    peak: int
    limit: int
    longest: float
    seconds: float
    found: dict[str, str] = field(default_factory=dict)


def divide_inputs(inputs: int, known: dict[str, Decoder]) -> dict[str, int]:
    """Return the number of inputs of each decoder, by its share; at least `inputs` in total."""
    whole = sum(decoder.share for decoder in known.values())
    return {name: math.ceil(inputs * decoder.share / whole) for name, decoder in known.items()}


def fuzz(name: str, decoder: Decoder, inputs: int, seed: int, folder: Path) -> FuzzResult:
    """Fuzz one decoder. FleetError: the fuzzer itself failed, with the end of its output."""
    corpus, out = folder / name, folder / f"{name}.json"
    corpus.mkdir(parents=True)
    start = time.monotonic()
    output = run([name, str(out), str(corpus), str(inputs), str(seed)])
    if not out.exists():
        raise FleetError(
            f"the fuzzer of {name} ended early; the end of its output:\n{output[-1500:]}"
        )
    result = json.loads(out.read_text())
    edges = [int(number) for number in re.findall(r"cov: (\d+)", output)]
    return FuzzResult(
        name,
        result["inputs"],
        result["crashes"],
        max(edges, default=0),
        len(list(corpus.iterdir())),
        result["peak"],
        decoder.memory,
        round(result["longest"] * 1000, 1),
        round(time.monotonic() - start, 1),
        result["found"],
    )


def run(arguments: list[str]) -> str:
    """Return the output of a worker."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.fuzzing.worker", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT, env=environment, check=False)  # noqa: S603
    return done.stderr.decode(errors="replace")


def format_table(rows: list[FuzzResult]) -> list[str]:
    """Return the table for the terminal."""
    head = (
        f"{'decoder':14}{'inputs':>10}{'crashes':>9}{'edges':>7}"
        f"{'peak':>10}{'limit':>10}{'slowest':>10}{'seconds':>9}"
    )
    body = [
        f"{r.decoder:14}{r.inputs:10,}{r.crashes:9}{r.edges:7}{r.peak / 2**20:7.1f} "
        f"MB{r.limit / 2**20:7.0f} MB{r.longest:7.0f} ms{r.seconds:9.0f}"
        for r in rows
    ]
    faults = [
        f"{r.decoder}: {kind}\n    input {shown[:200]}"
        for r in rows
        for kind, shown in r.found.items()
    ]
    return [
        head,
        *body,
        f"{sum(r.inputs for r in rows):,} inputs, {sum(r.crashes for r in rows)} crashes",
        *faults,
    ]


@click.command("fuzz")
@click.option(
    "--inputs",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="number of inputs, over all decoders",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="seed of the fuzzer"
)
@click.option(
    "--decoder",
    "names",
    multiple=True,
    metavar="NAME",
    help="test only this decoder; may be repeated",
)
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="keep the corpora in this folder"
)
@FORMAT
def command(inputs: int, seed: int, names: tuple[str, ...], keep: Path | None, form: str) -> None:
    """Test every decoder with a coverage-guided fuzzer.

    The fuzzer mutates real inputs. A decoder fails if it crashes, or uses more memory than its
    declared limit.
    """
    with (
        report_errors("python -m benchmarks fuzz", "fuzz"),
        tempfile.TemporaryDirectory(prefix="espalier-fuzz-") as folder,
    ):
        if util.find_spec("atheris") is None:
            raise MissingExtra("python -m benchmarks fuzz", "fuzz", "atheris")
        # needs the extras of all decoders
        from benchmarks.fuzzing.decoders import make_decoders

        known = make_decoders()
        if unknown := [name for name in names if name not in known]:
            raise Unknown("decoder", unknown[0], known)
        say = speaker(form)
        kept = make_folder(keep) if keep else Path(folder)
        known = {name: known[name] for name in names or known}
        given = divide_inputs(inputs, known)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            rows = list(
                pool.map(
                    lambda name: fuzz(name, known[name], given[name], seed, kept / "corpus"),
                    known,
                )
            )
        say("\n".join(format_table(rows)))
        found = {
            "seed": seed,
            "inputs": sum(r.inputs for r in rows),
            "decoders": [asdict(row) for row in rows],
        }
        print_result(found, form)
        if any(row.crashes or row.peak > row.limit for row in rows):
            sys.exit(1)
