"""Write examples of messages for the documentation of the protocol, with their bytes, against which
the author of a client can check its own encoding and decoding.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import msgspec
import numpy as np

from federated.task import Card, Profile, Recipe, Task, Timing, Update
from federated.wire import envelope, tensors, topics
from federated.wire.chunks import slices, split
from federated.wire.codecs.codec import encode_update
from federated.wire.codecs.raw import RAW
from federated.wire.link import CHUNK, OVERHEAD
from models.submodel import Network, Submodel

__all__ = ["list_examples"]

RUN, AGENT, VERSION = "kitchen", "pi-kitchen", "0"
EPOCH = 1_764_000_000_000  # milliseconds since 1970
BATCH, EXAMPLES = 16, 100
MEAN, STD = (0.0, 0.5), (1.0, 2.0)
SUBMODEL = Submodel(Network("linear:linear", "", (2,), 2, MEAN, STD), 1.0, ())
RECEIVED = {"weight": np.array([[0.5, -1.0], [0.0, 2.0]], "f4"), "bias": np.array([0.0, 1.0], "f4")}
TRAINED = {
    "weight": np.array([[0.25, -1.0], [0.5, 2.0]], "f4"),
    "bias": np.array([0.0, 0.75], "f4"),
}
COLUMNS = 96
NOT_RUN = "<!-- not run: output -->"


def list_examples() -> Iterator[str]:
    """Yield a profile, a task, and the chunk of the update that answers it."""
    profile, task = make_profile(), make_task()
    yield f"A profile, published at `{topics.profile(RUN, AGENT)}`, with this body as JSON:"
    yield from render_json(msgspec.to_builtins(profile))
    yield f"A task, published at `{topics.command(RUN, AGENT)}` in epoch {EPOCH}:"
    yield from render_json(msgspec.to_builtins(task))
    payload = envelope.encode(task, EPOCH)
    yield f"The bytes of this task, {len(payload)} with the envelope, in hexadecimal:"
    yield from render_bytes(payload)
    yield from list_update(task)


def make_profile() -> Profile:
    """Return a profile of a device that times the only submodel of a run."""
    data = Card("plants", (2,), "float32", 2, EXAMPLES, 25, MEAN, STD)
    return Profile(
        *(AGENT, "raspberrypi", "Linux 6.12", 4.0, 1_000_000_000, 5e6, CHUNK + OVERHEAD),
        runtime="my client 1.0",
        data=data,
        timings=(Timing(SUBMODEL, BATCH, 0.002),),
        protocol=envelope.PROTOCOL,
    )


def make_task() -> Task:
    """Return a training of one epoch on the submodel, as FedAvg asks for it."""
    blob = tensors.encode({"version": VERSION, "submodel": SUBMODEL.name}, RECEIVED)
    digest, recipe = sha256(blob).hexdigest(), Recipe(batch=BATCH)
    return Task(*(RUN, 1, 1, AGENT, "train", SUBMODEL, VERSION, digest, len(blob), recipe, 60.0))


def list_update(task: Task) -> Iterator[str]:
    """Yield the update that answers a task, and its only chunk."""
    update = Update(
        *(task.run, task.round, task.attempt, task.agent, task.work, task.submodel, task.version),
        samples=EXAMPLES,
        steps=-(-EXAMPLES // BATCH),
        tensors=TRAINED,
        notes={"loss": 0.5},
    )
    blob = b"".join(encode_update(update, RAW, RECEIVED))
    manifest = split(blob, CHUNK, task.transfer)
    (chunk,) = slices(manifest, blob)
    values = {name: value.tolist() for name, value in TRAINED.items()}
    yield (
        f"The update that answers this task, with the tensors `{json.dumps(values)}`, is a blob of "
        f"{len(blob)} bytes with the sha256 `{manifest.sha256}` and this `meta`:"
    )
    yield from render_json(msgspec.to_builtins(replace(update, tensors={})))
    place = topics.chunk(topics.upload(RUN, AGENT, task.transfer), chunk.index)
    payload = envelope.encode(chunk)
    size = f"{len(payload)} with the envelope"
    yield f"It fits into one chunk, published at `{place}`. The bytes of this message, {size}:"
    yield from render_bytes(payload)


def render_json(fields: dict[str, object]) -> Iterator[str]:
    """Yield a block of JSON with a field on each line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
    yield from render_block("json", ["{", ",\n".join(lines), "}"])


def render_bytes(payload: bytes) -> Iterator[str]:
    """Yield a block of hexadecimal digits."""
    yield from render_block("text", textwrap.wrap(payload.hex(), COLUMNS))


def render_block(language: str, lines: list[str]) -> Iterator[str]:
    yield from ("", NOT_RUN, f"```{language}", *lines, "```", "")
