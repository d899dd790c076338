"""Write updates of a ResNet-18 to files in memory, which every compared project maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from federated.method import configure
from federated.methods.catalogue import find_method
from federated.system.file_mapping import map_file
from federated.task import Update
from federated.wire.codecs.codec import decode_update, encode_update
from federated.wire.codecs.raw import RAW
from models.named_network import network
from models.slicing import extract
from models.submodel_building import initial

__all__ = ["NETWORK", "map_updates", "write_updates"]

NETWORK = network("preresnet-18", (3, 32, 32), 10)
MEMORY = Path("/dev/shm")  # noqa: S108


@contextmanager
def write_updates(name: str, count: int) -> Iterator[str]:
    """Write updates to a round of a method, whose submodels take turns. Yield their folder."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        chosen, rng = find_method(name), np.random.default_rng(0)
        settings = configure(chosen, {})
        menu = chosen.menu(NETWORK, settings)
        state = chosen.start(initial(NETWORK, 0), menu, settings)
        for index in range(count):
            submodel = menu[index % len(menu)]
            weights = extract(state.tensors, chosen.place(state, submodel))
            sent = {
                name: (value.numpy() + 0.01 * rng.random(value.shape, np.float32))
                for name, value in weights.items()
            }
            update = Update(
                "bench", 1, 1, f"a{index:03d}", "train", submodel, "r0", 10 + index, 1, sent
            )
            update = replace(update, notes={"labels": list(range(10)), "loss": 1.0})
            (Path(folder) / f"{index:03d}").write_bytes(b"".join(encode_update(update, RAW, {})))
        yield folder


def map_updates(folder: str) -> Sequence[Update]:
    """Return the updates of a folder, with arrays that are views of the files."""
    found = []
    for path in sorted(Path(folder).iterdir()):
        mapped = map_file(path)
        found.append(decode_update(mapped, RAW, len(mapped), {}))
    return found
