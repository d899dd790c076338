"""`python -m benchmarks codec`: time the encoding and decoding of the weights of a ResNet-18 (45
MB), plain and as updates with each codec, compared with one copy into a reused buffer, and count
the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.interleaved_timing import Row, compare, print_rows, time_interleaved
from federated.runtime.console import FORMAT
from federated.task import Update
from federated.wire import tensors
from federated.wire.codecs.catalogue import codec_names, find_codec
from federated.wire.codecs.codec import decode_update, encode_update
from models import pretrained
from models.named_network import network
from models.submodel_building import full, initial

__all__ = ["command"]

COPIES = {"encode": 2.2, "decode": 0.7}  # goal: at most the time of this many copies
SHARE = 0.23  # goal: of the bytes of float32, for int8-zstd and trained weights

NETWORK = network("preresnet-18", (3, 32, 32), 10)


def measure(weights: Mapping[str, NDArray[np.float32]], *, trained: bool) -> list[Row]:
    """Return the rows. trained: whether the goal for the bytes of trained weights applies."""
    whole = full(NETWORK)
    buffer = bytearray()
    blob = bytes(tensors.encode({"submodel": whole.name}, weights, buffer))
    source, target = np.frombuffer(blob, np.uint8), np.empty(len(blob), np.uint8)
    update = Update("run", 1, 1, "agent", "train", whole, "r0", 1, 1, weights)
    codecs = {name: find_codec(name) for name in codec_names() if name != "raw"}
    sent = {name: encode_update(update, codec) for name, codec in codecs.items()}
    tasks: dict[str, Callable[[], object]] = {
        "encode": lambda: tensors.encode({"submodel": "w1"}, weights, buffer),
        "decode": lambda: tensors.decode(blob),
        "copy": lambda: np.copyto(target, source),
    }
    for name, codec in codecs.items():
        tasks[f"encode {name}"] = partial(encode_update, update, codec)
        tasks[f"decode {name}"] = partial(decode_update, sent[name], codec, len(blob))
    times = time_interleaved(tasks)
    copy = times.pop("copy")
    timed = [
        compare(
            f"{name} {len(blob) / 1e6:.0f} MB" if name in COPIES else name,
            found,
            "copy",
            copy,
            1 / COPIES[name] if name in COPIES else None,
        )
        for name, found in times.items()
    ]
    goals = {"int8-zstd": 1 / SHARE} if trained else {}
    sizes = [
        compare(f"bytes {name}", len(one) / 1e6, "raw", len(blob) / 1e6, goals.get(name), "MB")
        for name, one in sent.items()
    ]
    return timed + sizes


@click.command("codec")
@click.option(
    "--weights",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="checkpoint of a run, RUN/round-NNNNNN.safetensors, whose bytes to count; without it, the "
    "weights of an untrained ResNet-18, which compress less than trained ones",
)
@FORMAT
def command(weights: Path | None, form: str) -> None:
    """Time each encoding of weights, and count its bytes.

    The time of one copy in memory is measured for comparison.
    """
    if weights is None:
        found = {name: value.numpy() for name, value in initial(NETWORK, 0).items()}
    else:
        loaded = {name: value.numpy() for name, value in pretrained.read(weights).items()}
        found = {name: value for name, value in loaded.items() if value.dtype == np.float32}
    print_rows(measure(found, trained=weights is not None), form, {})
