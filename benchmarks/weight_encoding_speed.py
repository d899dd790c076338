"""`python -m benchmarks codec`: time the encoding and decoding of the weights of a ResNet-18 (45
MB), plain and as updates with each codec, compared with safetensors and with one copy into a reused
buffer, and count the bytes, also of an update from two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Row, compare, compare_all
from benchmarks.interleaved_timing import time_interleaved
from federated.runtime.console import Say
from federated.task import Update
from federated.wire import tensors
from federated.wire.codecs.catalogue import codec_names, find_codec
from federated.wire.codecs.codec import decode_update, encode_update
from models import pretrained
from models.named_network import network
from models.submodel_building import full, initial

__all__ = ["command", "make_rows"]

COPIES = {"encode": 2.2, "decode": 0.7}  # goal: at most the time of this many copies
PEER = "safetensors"
SHARE = 0.23  # goal: of the bytes of float32, for int8-zstd and an update of a run

Weights = Mapping[str, NDArray[np.float32]]
NETWORK = network("preresnet-18", (3, 32, 32), 10)


def measure(weights: Weights, received: Weights) -> list[Row]:
    """Return the rows of an update.

    weights: the trained weights.
    received: the weights that the device received; empty: the goal for the bytes does not apply.
    """
    whole = full(NETWORK)
    buffer = bytearray()
    blob = bytes(tensors.encode({"submodel": whole.name}, weights, buffer))
    source, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)
    update = Update("run", 1, 1, "agent", "train", whole, "r0", 1, 1, weights)
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
        f"encode {PEER}": lambda: save(plain),
        f"decode {PEER}": lambda: load(stored),
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
        if name == "copy" or name.endswith(PEER):
            continue
        peer = f"{name} {PEER}"
        peers = {PEER: times[peer]} if peer in times else {}
        goals = {"copy": 1 / COPIES[name]} if name in COPIES else {}
        rows += compare_all(f"{name}, {raw.value:.0f} MB (ms)", took, peers, copy, goals)
    least = {"int8-zstd": 1 / SHARE} if trained else {}
    return rows + [
        compare(f"size, {name} (MB)", size, least.get(name), limit=raw)
        for name, size in sizes.items()
        if name != "raw"
    ]


@benchmark("codec", "coordinator", packages=(PEER,))
@click.option(
    "--checkpoints",
    nargs=2,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="checkpoints of two rounds, RUN/round-NNNNNN.safetensors: what a device received, and "
    "what it trained if the run has one device; without them, an untrained ResNet-18",
)
def command(checkpoints: tuple[Path, Path] | None, say: Say) -> list[Row]:
    """Time each encoding of weights, and count its bytes.

    The time of one copy in memory is measured for comparison.
    """
    if checkpoints is None:
        initial_weights = {name: value.numpy() for name, value in initial(NETWORK, 0).items()}
        return measure(initial_weights, {})
    before, after = map(read_weights, checkpoints)
    if [(name, one.shape) for name, one in before.items()] != [
        (name, one.shape) for name, one in after.items()
    ]:
        raise click.UsageError(
            "--checkpoints: expected two checkpoints of one run, with equal tensors"
        )
    return measure(after, before)


def read_weights(checkpoint: Path) -> Weights:
    """Return the float32 tensors of a checkpoint."""
    loaded = {name: value.numpy() for name, value in pretrained.read(checkpoint).items()}
    return {name: value for name, value in loaded.items() if value.dtype == np.float32}
