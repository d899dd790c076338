"""`python -m benchmarks codec`: time the encoding and decoding of the weights of a ResNet-18 (45
MB), plain, with the sums that protect them, and as updates with each codec, compared with
safetensors, FedML and one copy into a reused buffer, and count the bytes, also of an update from
two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import load, save

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Row, compare, compare_all
from benchmarks.interleaved_timing import time_interleaved
from benchmarks.peers.interleaved_processes import hold
from benchmarks.weight_encoding.ours import initial_weights, make_update
from federated.runtime.console import Say
from federated.wire import tensors
from federated.wire.chunks import slices, split
from federated.wire.codecs.catalogue import codec_names, find_codec
from federated.wire.codecs.codec import Tensors, decode_update, encode_update
from models import pretrained

__all__ = [
    "CHECKPOINTS",
    "command",
    "make_rows",
    "make_size_rows",
    "measure_sizes",
    "read_checkpoints",
]

COPIES = {"encode": 2.2, "decode": 0.7}  # goal: at most the time of this many copies
SUMS = ("crc32", "sha256")
PACKAGE, PEER = "safetensors", "fedml"
FEDML = {"int8": "int8", "top10-zstd": "top_tenth"}  # functions of `ours` and `fedml`, by codec
CHUNK = 1 << 18  # bytes of a chunk, which has a crc32; the whole blob has a sha256
SHARE = 0.23  # goal: of the bytes of float32, for int8-zstd and an update of a run


def measure(weights: Tensors, received: Tensors) -> list[Row]:
    """Return the rows of an update.

    weights: the trained weights.
    received: the weights that the device received; empty: the goal for the bytes does not apply.
    """
    buffer = bytearray()
    update = make_update(weights)
    blob = bytes(tensors.encode({"submodel": update.submodel.name}, weights, buffer))
    source, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)
    manifest = split(blob, CHUNK, "t")
    codecs = {name: find_codec(name) for name in codec_names() if name != "raw"}
    sent = {
        name: b"".join(encode_update(update, codec, received)) for name, codec in codecs.items()
    }
    plain = dict(weights)
    stored = save(plain)
    tasks: dict[str, Callable[[], object]] = {
        "encode": lambda: tensors.encode({"submodel": "w1"}, weights, buffer),
        "decode": lambda: tensors.decode(blob),
        "copy": lambda: np.copyto(target, source),
        "crc32": lambda: list(slices(manifest, blob)),
        "sha256": lambda: split(blob, CHUNK, "t"),
        f"encode {PACKAGE}": lambda: save(plain),
        f"decode {PACKAGE}": lambda: load(stored),
    }
    for name, codec in codecs.items():
        tasks[f"encode {name}"] = partial(encode_update, update, codec, received)
        tasks[f"decode {name}"] = partial(decode_update, sent[name], codec, len(blob), received)
    sizes = {name: len(one) / 1e6 for name, one in {"raw": blob, **sent}.items()}
    return make_rows(time_interleaved(tasks), sizes, trained=bool(received))


def make_rows(
    times: Mapping[str, float], sizes: Mapping[str, float], *, trained: bool
) -> list[Row]:
    """Return the comparisons of what was measured.

    times: milliseconds of each task.
    sizes: MB of each codec.
    trained: whether the update is one of a run.
    """
    copy, raw = Baseline("copy", times["copy"]), Baseline("raw", sizes["raw"])
    rows = list[Row]()
    for name, took in times.items():
        if name in ("copy", *SUMS) or name.endswith(PACKAGE):
            continue
        peer = f"{name} {PACKAGE}"
        peers = {PACKAGE: times[peer]} if peer in times else {}
        goals = {"copy": 1 / COPIES[name]} if name in COPIES else {}
        rows += compare_all(f"{name}, {raw.value:.0f} MB (ms)", took, peers, copy, goals)
    return [*rows, *make_sum_rows(times, raw.value), *make_size_rows(sizes, trained=trained)]


def make_size_rows(sizes: Mapping[str, float], *, trained: bool) -> list[Row]:
    """Return the rows of the sizes of an update. Arguments: those of `make_rows`."""
    least = {"int8-zstd": 1 / SHARE} if trained else {}
    raw = Baseline("raw", sizes["raw"])
    return [
        compare(f"size, {name} (MB)", size, least.get(name), limit=raw)
        for name, size in sizes.items()
        if name != "raw"
    ]


def make_sum_rows(times: Mapping[str, float], size: float) -> list[Row]:
    """Return the rows of the sums of the plain weights, and of the total with them, which both ends
    compute. size: MB.
    """
    copy, both = Baseline("copy", times["copy"]), sum(times[name] for name in SUMS)
    rows = [compare(f"{name}, {size:.0f} MB (ms)", times[name], limit=copy) for name in SUMS]
    rows += [compare(f"{name}, rate (GB/s)", size / times[name]) for name in SUMS]
    for way in COPIES:
        total = times[way] + both
        rows.append(compare(f"{way} with both sums, {size:.0f} MB (ms)", total, limit=copy))
        rows += [
            compare(f"share of {name} in {way} with both sums (%)", 100 * times[name] / total)
            for name in SUMS
        ]
    return rows


def compare_with_fedml() -> list[Row]:
    """Compare lossy codecs with FedML's functions, each in a process of its own."""
    ours, theirs = "benchmarks.weight_encoding.ours", f"benchmarks.weight_encoding.{PEER}"
    entries = [f"{module}:{name}" for name in FEDML.values() for module in (ours, theirs)]
    times = hold({entry: (entry, {}) for entry in entries})
    return [
        compare(
            f"encode {codec}, in a process of its own (ms)",
            times[f"{ours}:{name}"],
            peer=Baseline(PEER, times[f"{theirs}:{name}"]),
        )
        for codec, name in FEDML.items()
    ]


def read_checkpoints(before: Path, after: Path) -> tuple[Tensors, Tensors]:
    """Return the float32 tensors of both. Raises UsageError if they are of different runs."""
    first, second = map(read_weights, (before, after))
    if [(name, one.shape) for name, one in first.items()] != [
        (name, one.shape) for name, one in second.items()
    ]:
        raise click.UsageError(
            "--checkpoints: expected two checkpoints of one run, with equal tensors"
        )
    return first, second


def measure_sizes(weights: Tensors, received: Tensors) -> dict[str, float]:
    """Return the MB of an update with each codec."""
    update = make_update(weights)
    return {
        name: sum(map(len, map(bytes, encode_update(update, find_codec(name), received)))) / 1e6
        for name in codec_names()
    }


CHECKPOINTS = click.option(
    "--checkpoints",
    nargs=2,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="checkpoints of two rounds, RUN/round-NNNNNN.safetensors: what a device received, and "
    "what it trained if the run has one device; without them, no trained update is measured",
)


@benchmark("codec", "coordinator", peers=(PEER,), packages=(PACKAGE,))
@CHECKPOINTS
def command(checkpoints: tuple[Path, Path] | None, peers: Sequence[str], say: Say) -> list[Row]:
    """Time each encoding of weights, and count its bytes.

    The time of one copy in memory is measured for comparison. The weights are those of an untrained
    ResNet-18 without --checkpoints, and always for FedML.
    """
    theirs = compare_with_fedml() if PEER in peers else []
    if checkpoints is None:
        return [*measure(initial_weights(), {}), *theirs]
    before, after = read_checkpoints(*checkpoints)
    return [*measure(after, before), *theirs]


def read_weights(checkpoint: Path) -> Tensors:
    """Return the float32 tensors of a checkpoint."""
    loaded = {name: value.numpy() for name, value in pretrained.read(checkpoint).items()}
    return {name: value for name, value in loaded.items() if value.dtype == np.float32}
