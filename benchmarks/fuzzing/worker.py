"""`python -m benchmarks.fuzzing.worker NAME OUT CORPUS INPUTS SEED`: fuzzes one decoder with
libFuzzer, which ends the process when it is done.

Crashes are counted instead of ending the process, with one input per kind. The kernel refuses
memory beyond the declared limit.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import sys
import time
import traceback
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from benchmarks.fuzzing.decoders import Decoder

__all__ = ["Worker", "main"]

ROOM = 96 << 20  # bytes for the fuzzer itself: its corpus and coverage
KEPT = 20  # largest number of kinds of crashes of which an input is stored
INSTRUMENTED = (
    "coordinator",
    "edge_agent",
    "export.release_reader",
    "federated.device",
    "federated.training.state_between_rounds",
    "federated.device.profile_file",
    "federated.wire",
)


class Worker:
    """Decodes inputs with one decoder, and counts those that crash it.

    done: decoded inputs
    crashes: inputs with an error that the decoder may not raise
    found: kind of crash -> its first input, hexadecimal
    longest: seconds of the slowest input
    """

    def __init__(self, decoder: Decoder, inputs: int, out: Path, corpus: Path) -> None:
        self.decoder, self.inputs, self.out, self.corpus = decoder, inputs, out, corpus
        self.done = self.crashes = 0
        self.found: dict[str, str] = {}
        self.longest = 0.0

    def feed(self, data: bytes) -> None:
        """Decode one input. Write the results after the last."""
        if self.done >= self.inputs:
            return
        self.done += 1
        start = time.perf_counter()
        try:
            self.decoder.feed(data)
        except self.decoder.errors:
            pass
        except Exception as error:
            self.crashes += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = (
                f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: "
                f"{str(error)[:120]}"
            )
            if len(self.found) < KEPT and not any(
                known.split(":")[:2] == kind.split(":")[:2] for known in self.found
            ):
                self.found[kind] = data.hex()
        self.longest = max(self.longest, time.perf_counter() - start)
        if self.done == self.inputs:
            result = {
                "inputs": self.done,
                "crashes": self.crashes,
                "found": self.found,
                "longest": self.longest,
            }
            self.out.write_text(
                json.dumps({**result, "peak": measure_peak(self.decoder, self.corpus)})
            )


def limit_memory(room: int) -> None:
    """Limit this process to `room` more bytes of memory; beyond them, MemoryError is raised."""
    most = psutil.Process().memory_info().vms + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def measure_peak(decoder: Decoder, corpus: Path) -> int:
    """Return the highest peak of memory over the inputs of a corpus, in bytes."""
    worst = 0
    for path in sorted(corpus.iterdir()):
        data = path.read_bytes()
        tracemalloc.start()
        with contextlib.suppress(Exception):
            decoder.feed(data)
        worst = max(worst, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return worst


def main(arguments: list[str]) -> None:
    """Fuzz one decoder, and write the results to OUT."""
    name, out, corpus, inputs, seed = arguments
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from benchmarks.fuzzing.decoders import make_decoders
        from benchmarks.fuzzing.mutation import mutate
    decoder = make_decoders()[name]
    worker = Worker(decoder, int(inputs), Path(out), Path(corpus))
    for number, data in enumerate(decoder.seeds):
        (Path(corpus) / f"seed-{number}").write_bytes(data)
    options: dict[str, Any] = {}
    if decoder.shape != "text":

        def custom_mutate(data: bytes, most: int, number: int) -> bytes:
            rng = random.Random(number)  # noqa: S311  # repeatable, not secret
            made = mutate(data, decoder.shape, rng) if rng.random() < 0.6 else None
            return (
                made
                if made is not None and len(made) <= most
                else bytes(atheris.Mutate(data, most))
            )

        options["custom_mutator"] = custom_mutate
    given = [
        f"-runs={inputs}",
        f"-seed={int(seed) + 1}",
        f"-max_len={decoder.largest}",
        "-len_control=0",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        corpus,
    ]
    atheris.Setup([sys.argv[0], *given], worker.feed, **options)
    limit_memory(decoder.memory + ROOM)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
